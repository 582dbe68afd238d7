"""What a user's function computes, as text: a function that would now compute something else has another one.

JAX compiles what a function reads from outside (a constant, an array, another function) into the program. Tracing it
anew shows all of that, wherever it comes from; only what the user has compiled by `jax.jit` stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Traced:
    """A function with what it computes now, for arguments of these shapes. Two are equal if they compute the same."""

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
    """What the function computes, operation by operation, with the values that it reads from outside."""
    from stgt._internal.xla import jax

    # A function of its own each time: JAX remembers what it has traced.
    closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*shapes)
    digest = blake2b(digest_size=16)
    for value in (*closed.consts, *_values(closed.jaxpr)):
        array = np.asarray(value)
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return f"{_ADDRESS.sub('', str(closed.jaxpr))} {digest.hexdigest()}"


def _values(jaxpr: Any) -> Iterator[Any]:
    """The values that stand in it, and in the pieces that it is made of."""
    for equation in jaxpr.eqns:
        yield from (one.val for one in equation.invars if hasattr(one, "val"))
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(part, "jaxpr") and hasattr(part, "consts"):
                    yield from (*part.consts, *_values(part.jaxpr))
                elif hasattr(part, "eqns"):
                    yield from _values(part)
