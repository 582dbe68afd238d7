"""JAX as the whole library imports it, without the messages that XLA prints; and the programs of functions as text.

For some processors XLA compiles a program with preferences, such as prefer-no-gather. When it loads the program from
a cache, it does not find them among the processor's features and prints an error (openxla/xla#44565). An environment
variable, read when JAX is first imported, decides what XLA prints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stgt._internal.digest import digest

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
FATAL, WARNINGS = "3", "1"  # JAX itself sets the second, also for its child processes

_given = os.environ.get(LEVEL, WARNINGS)
_first = "jax" not in sys.modules and _given == WARNINGS
if _first:
    os.environ[LEVEL] = FATAL
try:
    import jax
    import jax.numpy as jnp
    from jax import lax
finally:
    if _first:
        os.environ[LEVEL] = WARNINGS

QUIET = _first or _given >= FATAL

__all__ = ["QUIET", "Traced", "jax", "jnp", "lax", "traced"]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Traced:
    """A function and the text of its program for arguments of these shapes; equal if the programs are equal."""

    def __init__(self, function: Callable[..., Any], *shapes: Any):
        self.function = function
        self.text = traced(function, *shapes)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def traced(function: Callable[..., Any], *shapes: Any) -> str:
    """The program of a function as text, with a digest of the outside values that it reads.

    JAX compiles the outside values of a user's function (a constant, an array, another function) into the program.
    Tracing the function again shows if one of them has changed, unless the user has compiled it by `jax.jit`.
    """
    # A new lambda each time, as JAX caches what it has traced.
    closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*shapes)
    read = digest(*(np.asarray(value) for value in (*closed.consts, *_values(closed.jaxpr))))
    return f"{_ADDRESS.sub('', str(closed.jaxpr))} {read}"


def _values(jaxpr: Any) -> Iterator[Any]:
    """The literal values in a program, and in the programs that it calls."""
    for equation in jaxpr.eqns:
        yield from (one.val for one in equation.invars if hasattr(one, "val"))
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(part, "jaxpr") and hasattr(part, "consts"):
                    yield from (*part.consts, *_values(part.jaxpr))
                elif hasattr(part, "eqns"):
                    yield from _values(part)
