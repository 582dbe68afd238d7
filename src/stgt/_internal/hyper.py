"""Fields of a dataclass: which are real numbers, how they are checked and printed. Standard library only."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache, partial
from types import UnionType
from typing import Any, Union, get_args, get_origin

_ITEMS = 8  # items of a tuple or a dict that are shown
_WORDS = 100  # characters of a value that are shown


def hyper(default: Any, check: Callable[..., Any], *arguments: Any, static: bool = False, **limits: Any) -> Any:
    """A field with this default; its value is replaced by `check(value, name, …)`. A subclass may change the default.

    A real number with `static` is a constant of the compiled program, as counts, names and flags always are.
    """

    def checked(value: Any, name: str) -> Any:
        return check(value, name, *arguments, **limits)

    return field(default=default, metadata={"check": checked, "static": static})


@cache
def real_fields(kind: type) -> tuple[str, ...]:
    """The fields that are real numbers and not `static`: an engine may trace or batch them."""
    return tuple(
        one.name for one in fields(kind) if _is_real(_hint(kind, one)) and not one.metadata.get("static", False)
    )


@cache
def other_fields(kind: type) -> tuple[str, ...]:
    """All other fields, such as counts, names and flags: a new value needs a new compiled program."""
    return tuple(one.name for one in fields(kind) if one.name not in real_fields(kind))


def declared(kind: type, name: str) -> list[Field[Any]]:
    """The definitions of a field, from the class itself to its furthest base."""
    tables = (vars(base).get("__dataclass_fields__", {}) for base in kind.__mro__)
    return [table[name] for table in tables if name in table]


def _hint(kind: type, one: Field[Any]) -> Any:
    """The type of a field, evaluated in the module that defines its class; None if that fails."""
    if not isinstance(one.type, str):
        return one.type
    owner = next(base for base in kind.__mro__ if one.name in vars(base).get("__annotations__", {}))
    try:
        return eval(one.type, vars(sys.modules.get(owner.__module__, builtins)))
    except NameError:  # a name that is imported for type checkers only
        return None


def _is_real(hint: Any) -> bool:
    """Is the type float, or a union or tuple that contains float?"""
    inside = get_args(hint) if get_origin(hint) in (Union, UnionType, tuple) else ()
    return hint is float or any(map(_is_real, inside))


class Frozen:
    """Lets a frozen dataclass replace its arguments by checked values."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class ShortRepr:
    """A dataclass with a one-line repr: arrays by type and shape, functions by name, the first items of lists.

    It shows the arguments that differ from their defaults, so it is the call that makes an equal object.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # set in the class itself, so that @dataclass does not generate another one

    def __repr__(self) -> str:
        it: Any = self  # every subclass is a dataclass
        shown = {one.name: (short_repr(getattr(it, one.name)), one) for one in fields(it) if one.repr and one.init}
        values = [f"{name}={value}" for name, (value, one) in shown.items() if value != _default(one)]
        return f"{type(self).__qualname__}({', '.join(values)})"


def _default(one: Field[Any]) -> str | None:
    """The repr of a field's default value; None if the field has none."""
    if one.default_factory is not MISSING:
        return short_repr(one.default_factory())
    return None if one.default is MISSING else short_repr(one.default)


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
