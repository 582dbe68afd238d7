"""Options of the experiments."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from stgt import InputError


def check_choice(value: Any, name: str, allowed: Iterable[str]) -> str:
    """Checks that an option is one of a few words; a ValueError lists them if it is not."""
    words = list(allowed)
    if value in words:
        return value
    close = get_close_matches(str(value), words, n=1)
    end = f"; did you mean {close[0]!r}?" if close else "."
    raise InputError(name, value, f"choose from {', '.join(map(repr, words))}{end}")
