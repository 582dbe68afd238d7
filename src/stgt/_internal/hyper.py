"""Fields of a dataclass: which of them are real numbers, how they are set and printed. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from typing import Any

_REAL = re.compile(r"\bfloat\b")
_ITEMS = 8  # of a tuple or a dict, that are shown
_WORDS = 100  # letters that are shown of a value


@cache
def real_fields(kind: type) -> tuple[str, ...]:
    """The fields that are annotated as float: an engine may trace or batch them."""
    return tuple(field.name for field in fields(kind) if _REAL.search(str(field.type)))


@cache
def other_fields(kind: type) -> tuple[str, ...]:
    """All other fields, such as counts, names and flags: another value needs another compiled program."""
    return tuple(field.name for field in fields(kind) if field.name not in real_fields(kind))


class Frozen:
    """Lets a frozen dataclass replace its arguments by checked values."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class ShortRepr:
    """A dataclass whose repr is a short line: arrays by type and shape, functions by name, the first of many values."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # in the class itself, so that @dataclass does not write another one

    def __repr__(self) -> str:
        return _call(self, short_repr)


def canonical(thing: Any) -> str:
    """The complete repr of a dataclass, equal for equal fields: for comparisons."""
    return _call(thing, repr)


def short_repr(value: Any) -> str:
    """The repr of a value, shortened."""
    if isinstance(value, tuple | list):
        left, right = ("[", "]") if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        return f"{left}{_first([short_repr(one) for one in value[:_ITEMS]], len(value))}{right}"
    if isinstance(value, Mapping):
        return f"{{{_first([f'{key!r}: {short_repr(one)}' for key, one in list(value.items())[:_ITEMS]], len(value))}}}"
    if getattr(value, "shape", None) and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, partial):
        return short_repr(value.func)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    words = " ".join(repr(value).split())
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"


def _first(words: list[str], count: int) -> str:
    return ", ".join([*words, f"… {count} in all"] if count > len(words) else words)


def _call(thing: Any, shown: Callable[[Any], str]) -> str:
    values = [f"{field.name}={shown(getattr(thing, field.name))}" for field in fields(thing) if field.repr]
    return f"{type(thing).__qualname__}({', '.join(values)})"
