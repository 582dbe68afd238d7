"""Methods and oracles as JAX sees them: their real-valued hyper-parameters are arrays, the rest is static.

The dataclasses check what they are given, which a tracer would not survive: JAX puts its values in past that check.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from stgt._internal.hyper import other_fields, real_fields
from stgt._internal.xla import jax, jnp

Frozen = TypeVar("Frozen")


def stacked(instances: Sequence[Frozen], dtype: np.dtype) -> Frozen:
    """Instances that differ in real numbers only as one, whose real fields are arrays with a leading axis for them."""
    kind = type(instances[0])
    _register(kind)
    static = tuple(getattr(instances[0], name) for name in other_fields(kind))
    for name, value in zip(other_fields(kind), static, strict=True):
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"{name} of {kind.__name__} is a {type(value).__name__}, which JAX cannot compile for: give a number, "
                "a word, a flag or a tuple, or use engine='numpy'."
            ) from None
    columns = [[getattr(one, name) for one in instances] for name in real_fields(kind)]
    arrays = tuple(None if values[0] is None else jnp.asarray(np.array(values), dtype) for values in columns)
    return _filled(kind, static, arrays)


def single(instance: Frozen, dtype: np.dtype) -> Frozen:
    """One instance whose real fields are arrays."""
    return jax.tree.map(lambda leaf: leaf[0], stacked([instance], dtype))


@cache
def _register(kind: type) -> None:
    real, other = real_fields(kind), other_fields(kind)

    def flatten(one: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(one, name) for name in real), tuple(getattr(one, name) for name in other)

    jax.tree_util.register_pytree_node(kind, flatten, lambda static, values: _filled(kind, static, values))


def _filled(kind: type, static: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    made = object.__new__(kind)
    for name, value in (*zip(other_fields(kind), static, strict=True), *zip(real_fields(kind), values, strict=True)):
        object.__setattr__(made, name, value)
    return made
