"""Checks of arguments, shared by all parts. Standard library only."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

LONGEST = 100  # letters that are shown of a value, and compared with the words there are


class NotCovered(ValueError):  # noqa: N818
    """The theory does not cover the case; a caller may give an estimate instead, marked as one.

    Only this error may replace an exact answer by an estimate or None: any other error is wrong input or a bug.
    """


def check_count(value: Any, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, as an int."""
    try:
        if _is_flag(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}{_instead(value)} a whole number of at least {least}.") from None
    if number < least:
        raise ValueError(f"{name}={number}: give a whole number of at least {least}.")
    return number


def check_seed(seed: Any) -> int:
    """A seed in [0, 2**32)."""
    number = check_count(seed, "seed", 0)
    if number >= 2**32:
        raise ValueError(f"seed={number}: give a seed below 2**32.")
    return number


def check_number(
    value: Any,
    name: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """A finite number with value > above, value >= least, value <= most and value < below, as a Python float."""
    try:
        if _is_flag(value) or isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r}{_instead(value)} a number{_range(above, least, most, below)}.") from None
    if not (math.isfinite(number) and above < number < below and least <= number <= most):
        raise ValueError(f"{name}={number:g}: give a finite number{_range(above, least, most, below)}.")
    return number


def first_repeated(values: Iterable[Any]) -> Any:
    """The first value that occurs twice; None if there is none."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def check_flag(value: Any, name: str) -> bool:
    """True or False."""
    if not _is_flag(value):
        raise ValueError(f"{name}={value!r}: give True or False.")
    return bool(value)


def check_choice(value: Any, name: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        choices = ", ".join(repr(word) for word in words)
        raise ValueError(f"{name}={shown(value)}: choose from {choices}{did_you_mean(value, words)}")
    return value


def shown(value: Any) -> str:
    """The repr of a value, cut if it is long."""
    words = repr(value)
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def did_you_mean(given: Any, allowed: Iterable[str]) -> str:
    """The end of an error text that lists what is allowed: a suggestion if one of them is similar, or a full stop."""
    from difflib import get_close_matches  # only where something is wrong

    if not isinstance(given, str):
        return "."
    words = {word.lower(): word for word in allowed}
    close = get_close_matches(given.lower()[:LONGEST], words, n=1)
    return f"; did you mean {words[close[0]]!r}?" if close else "."


def spelt(function: Function, called: str = "", also: Iterable[str] = ()) -> Function:
    """The function; where it is called with an unknown keyword argument, the error suggests the nearest name.

    Args:
        function: one whose arguments have names; another is returned as it is.
        called: what it is called, if not by its own name.
        also: names that it takes by its `**options`.
    """
    code = getattr(function, "__code__", None)
    if code is None or (code.co_flags & inspect.CO_VARKEYWORDS and not also):
        return function
    names = list(dict.fromkeys([*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *also]))

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        for name in named:
            if name not in names:
                allowed = [one for one in names if one != "self"]
                raise TypeError(
                    f"{called or function.__name__}() has no option {name!r}: it takes {', '.join(allowed)}"
                    f"{did_you_mean(name, allowed)}"
                )
        return function(*values, **named)

    return checked  # pyright: ignore[reportReturnType]


def _instead(value: Any) -> str:
    """The middle of an error text: what to give; and what is wrong if a number is given as text."""
    try:
        numeral = isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        numeral = False
    return " is text: drop the quotes, and give" if numeral else ": give"


def _is_flag(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # NumPy's as well


def _range(above: float, least: float, most: float, below: float) -> str:
    limits = []
    if above > -math.inf:
        limits.append(f"above {above:g}")
    if least > -math.inf:
        limits.append(f"of at least {least:g}")
    if most < math.inf:
        limits.append(f"up to {most:g}")
    if below < math.inf:
        limits.append(f"below {below:g}")
    return " " + " and ".join(limits) if limits else ""
