"""Fields of a frozen dataclass: which of them are real numbers, and how they are set. Standard library only."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import Any

_REAL = re.compile(r"\bfloat\b")


@cache
def real_fields(kind: type) -> tuple[str, ...]:
    """The fields that hold real numbers, by their annotation: an engine may trace or batch them."""
    return tuple(field.name for field in fields(kind) if _REAL.search(str(field.type)))


@cache
def other_fields(kind: type) -> tuple[str, ...]:
    """The fields that shape the program: counts, words and flags."""
    return tuple(field.name for field in fields(kind) if field.name not in real_fields(kind))


class Frozen:
    """Lets a frozen dataclass put checked values in the place of those that it was given."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
