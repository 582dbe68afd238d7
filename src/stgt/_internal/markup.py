"""Small pieces of HTML and SVG for notebooks, built as text. Standard library only.

Colours are the page's own (`currentColor`), and nothing has a background, so that light and dark pages are served
alike. What is built is well-formed XML too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

FAINT = 0.65  # opacity of secondary text


def element(name: str, /, *inside: str, **attributes: Any) -> str:
    """<name …>inside</name>: `inside` is markup already, attributes are escaped; stroke_width means stroke-width."""
    given = "".join(f' {key.replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items())
    return f"<{name}{given}>{''.join(inside)}</{name}>" if inside else f"<{name}{given}/>"


def esc(words: Any) -> str:
    """Text as markup, escaped."""
    return escape(str(words))


def line(*parts: str, faint: bool = False) -> str:
    """A line of a page; `parts` are markup, set apart by dots."""
    return element("div", " · ".join(part for part in parts if part), style=f"opacity:{FAINT if faint else 1}")


def svg(width: float, height: float, title: str, *inside: str) -> str:
    """A picture; `title` is what is read out, or shown where the mouse rests."""
    return element(
        "svg",
        element("title", esc(title)),
        *inside,
        width=width,
        height=height,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        style="max-width:100%;overflow:visible;vertical-align:top",
    )


def label(x: float, y: float, words: str, anchor: str = "start", *, faint: bool = False) -> str:
    """Words in a picture, with the middle of their line at y."""
    opacity = FAINT if faint else 1
    look = {"font_size": 11, "fill": "currentColor", "fill_opacity": opacity, "text_anchor": anchor}
    return element("text", esc(words), x=x, y=y + 4, **look)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of words; the first column names the rows."""
    cells = [_row("th", head), *(_row("td", row) for row in rows)]
    return element("table", *cells, style="margin:4px 0;border-collapse:collapse")


def _row(kind: str, words: Sequence[str]) -> str:
    sides = ["left", *["right"] * (len(words) - 1)]
    style = "padding:1px 12px 1px 0;text-align:{};white-space:nowrap"
    return element(
        "tr", *(element(kind, esc(one), style=style.format(side)) for one, side in zip(words, sides, strict=True))
    )


def number(value: float) -> str:
    """To three digits."""
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def interval(value: float, low: float, high: float) -> str:
    """ "0.0132 [0.0119, 0.0158]", to two digits of the nearer end's distance; the number alone if an end is unknown."""
    if not all(map(math.isfinite, (value, low, high))):
        return number(value)
    apart = min(value - low, high - value)
    if apart <= 0:
        return f"{number(value)} [{number(low)}, {number(high)}]"
    place = math.floor(math.log10(apart)) - 1
    return f"{_to_place(value, place)} [{_to_place(low, place)}, {_to_place(high, place)}]"


def _to_place(value: float, place: int) -> str:
    """A number to the place of 10^place, six digits at most; zeros that are known are written."""
    first = math.floor(math.log10(abs(value))) if value else place
    whole = first + 1 if first < 5 else 1  # digits before the point, all of them written
    return f"{value:#.{min(max(first - place + 1, whole, 1), 6)}g}".removesuffix(".")


def count(value: float) -> str:
    """A whole number in full, up to ten millions; three digits of any other."""
    return f"{value:,.0f}" if value == round(value, 0) and abs(value) < 1e7 else number(value)


def many(amount: int, word: str) -> str:
    """ "1 seed", "2 seeds"."""
    return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"


def _attribute(value: Any) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else escape(str(value))
