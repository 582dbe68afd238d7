"""A user's function as a key of compiled programs: one that would now read other values is another key.

JAX compiles what a function reads from outside into the program. The key therefore holds what the function reads, and
what the functions that it calls read, those of installed packages excepted: numbers, words and arrays by their values,
all else by identity.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

DEEPEST = 8  # functions that call functions
_INSTALLED = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class Bound:
    """A function together with what it reads from outside, as it is now. Two are equal if all of that is."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._reads = tuple(_reads(function, DEEPEST, set()))
        self._hash = hash(tuple(key for key, _ in self._reads))

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __eq__(self, other: object) -> bool:
        # The objects themselves are kept, so that an address in a key is not given to another one meanwhile.
        return isinstance(other, Bound) and [key for key, _ in self._reads] == [key for key, _ in other._reads]

    def __hash__(self) -> int:
        return self._hash


def _reads(function: Any, depth: int, seen: set[int]) -> list[tuple[Any, Any]]:
    """(key, object) of the function and of all that it reads from outside."""
    # The same definition run again, as a lambda in a loop is, has the same code.
    found: list[tuple[Any, Any]] = [(getattr(function, "__code__", id(function)), function)]
    if id(function) in seen or depth == 0 or _is_installed(function):
        return found
    seen.add(id(function))
    if isinstance(function, partial):
        outside: list[Any] = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        outside = [function.__func__, function.__self__]
    elif isinstance(function, FunctionType):
        outside = [*_outside(function), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    else:
        wrapped = getattr(function, "__wrapped__", None)
        outside = [] if wrapped is None else [wrapped]
        outside += _attributes(function)
    return found + [key for value in outside for key in _keys(value, depth, seen)]


def _is_installed(function: Any) -> bool:
    """Does it belong to Python or to an installed package, whose insides are nobody's to change?"""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is not None and code.co_filename.startswith(_INSTALLED)


def _outside(function: FunctionType) -> list[Any]:
    found = inspect.getclosurevars(function)
    inner = [constant for constant in function.__code__.co_consts if inspect.iscode(constant)]
    # Functions written inside it read globals of their own.
    names = {name for code in inner for name in code.co_names if name in function.__globals__}
    return [*found.nonlocals.values(), *found.globals.values(), *(function.__globals__[name] for name in sorted(names))]


def _key(leaf: Any, depth: int, seen: set[int]) -> list[tuple[Any, Any]]:
    if isinstance(leaf, ModuleType):
        return []
    if isinstance(leaf, bool | int | float | complex | str | bytes | np.generic):
        return [((type(leaf), repr(leaf)), None)]
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.hasobject:
            return [(id(leaf), leaf)]
        return [((leaf.shape, leaf.dtype.str, blake2b(leaf.tobytes()).digest()), None)]
    if callable(leaf):
        return _reads(leaf, depth - 1, seen)
    found: list[tuple[Any, Any]] = [(id(leaf), leaf)]
    if depth > 0 and id(leaf) not in seen:
        seen.add(id(leaf))
        found += [key for value in _attributes(leaf) for key in _keys(value, depth - 1, seen)]
    return found


def _attributes(thing: Any) -> list[Any]:
    """What an object of a class of the user's holds."""
    module = sys.modules.get(type(thing).__module__)
    if isinstance(thing, type) or (getattr(module, "__file__", None) or _INSTALLED[0]).startswith(_INSTALLED):
        return []
    return [value for _, value in sorted(getattr(thing, "__dict__", {}).items())]


def _keys(value: Any, depth: int, seen: set[int]) -> list[tuple[Any, Any]]:
    from stgt.xla import jax

    return [key for leaf in jax.tree.leaves(value) for key in _key(leaf, depth, seen)]
