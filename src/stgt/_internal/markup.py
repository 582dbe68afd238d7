"""Numbers and amounts as text, and HTML from the package's Jinja2 templates.

What a notebook shows takes the colours of the page (`currentColor`), and is well-formed XML too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # imported only when something is shown

    made = Environment(
        loader=PackageLoader("stgt", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = lambda value: f"{round(value, 2):g}"
    return made


def render(template: str, **values: Any) -> str:
    """A template of the package, such as "topology/topology.html.j2", with the values filled in and escaped."""
    return _environment().get_template(template).render(**values)


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def interval(value: float, low: float, high: float) -> str:
    """ "0.0132 [0.0119, 0.0158]": two digits of the distance to the nearer end. The number alone without an end."""
    if not all(map(math.isfinite, (value, low, high))):
        return number(value)
    apart = min(value - low, high - value)
    if apart <= 0:
        return f"{number(value)} [{number(low)}, {number(high)}]"
    place = math.floor(math.log10(apart)) - 1
    return f"{_to_place(value, place)} [{_to_place(low, place)}, {_to_place(high, place)}]"


def _to_place(value: float, place: int) -> str:
    """A number rounded to the place of 10^place, with at most six digits; significant zeros are written."""
    first = math.floor(math.log10(abs(value))) if value else place
    whole = first + 1 if first < 5 else 1  # digits before the decimal point, all of them written
    return f"{value:#.{min(max(first - place + 1, whole, 1), 6)}g}".removesuffix(".")


def count(value: float) -> str:
    """A whole number in full up to ten million; any other number with three digits."""
    return f"{value:,.0f}" if value == round(value, 0) and abs(value) < 1e7 else number(value)


def many(amount: int, word: str) -> str:
    """ "1 seed", "2 seeds"."""
    return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"
