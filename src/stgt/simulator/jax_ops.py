"""JAX in the simulator: array operations, mixing, and which fields of an object are traced.

The real-valued hyper-parameters of methods and oracles, and the arrays of a topology's structure, are arguments of a
compiled program. All other fields are static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from stgt._internal.hyper import other_fields, real_fields
from stgt._internal.ops import Ops
from stgt._internal.xla import jax, jnp, lax
from stgt.topology.structure import Structure

Array = Any
Tree = Any
Frozen = TypeVar("Frozen")
UNROLLED = 16  # the most iterations of a loop that is unrolled; longer ones would take too long to compile


class JaxOps:
    """The `Ops` of JAX."""

    xp = jnp

    def erfinv(self, x: Array) -> Array:
        return lax.erf_inv(x)

    def cond(self, flag: Array, change: Any, state: Any) -> Any:
        return lax.cond(flag, change, lambda same: same, state)

    def apart(self, make: Any, shape: tuple[int, ...], dtype: Any, step: Array) -> Array:
        # XLA would fuse the generator into the code around it, run it once per use and not vectorise it (4x slower).
        # A loop with one iteration, whose count the compiler cannot predict, prevents that.
        once = jnp.minimum(jnp.ravel(jnp.asarray(step))[0].astype(np.int32), 0) + 1
        return lax.fori_loop(0, once, lambda turn, _: make(turn.astype(np.uint32)), jnp.zeros(shape, dtype))

    def put(self, table: Array, index: Array, value: Array) -> Array:
        return table.at[jnp.arange(table.shape[0]), index].set(value)

    def loop(self, count: int, step: Any, state: Any) -> Any:
        return lax.fori_loop(0, count, step, state, unroll=count if count <= UNROLLED else 1)

    def switch(self, which: Array, branches: Any, *operands: Any) -> Any:
        return lax.switch(which, branches, *operands)


OPS = JaxOps()


def average(v: Array) -> Array:
    """The mean of the rows of v in every row, computed from differences, as in `mix`."""
    base = v.mean(axis=0)
    return jnp.broadcast_to(base + (v - base).mean(axis=0), v.shape)


def mix(ops: Ops, structure: Structure, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
    """W_r v for v (n, p), or W_rᵀ v with `back`; only for structures without a server.

    Only differences from the mean are mixed, which gives the same result because W1 = 1. So the result is exact if all
    nodes agree, and rounding errors do not accumulate over the rounds (Σ_i c_i in float32).
    """
    base = v.mean(axis=0)
    return base + structure.product(ops, seed, r, v - base, back)


def push(ops: Ops, structure: Structure, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
    """C_r v for a column-stochastic C_r, or R_rᵀ v for a row-stochastic R_r with `back`.

    C1 = 1 need not hold, but 1ᵀC = 1ᵀ does. The rounding error of the sum over the nodes is subtracted equally from all
    nodes, so it does not accumulate.
    """
    mixed = structure.product(ops, seed, r, v, back)
    return mixed + (v - mixed).mean(axis=0)


def as_pytree(structure: Structure) -> Structure:
    """Registers the class of a structure, and of the structures inside it, as JAX pytrees; returns the structure."""
    kind = type(structure)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if not is_dataclass(kind) or not set(kind.arrays) <= set(names):
        raise ValueError(
            f"{kind.__name__} has arrays={kind.arrays} and the fields {names}: make it a frozen dataclass, and list "
            "only names of its fields in arrays."
        )
    if jax.tree_util.all_leaves([structure]):
        static = [name for name in names if name not in kind.arrays]
        jax.tree_util.register_dataclass(kind, data_fields=list(kind.arrays), meta_fields=static)
    for name in kind.arrays:
        for part in jax.tree.leaves(getattr(structure, name), is_leaf=lambda part: isinstance(part, Structure)):
            if isinstance(part, Structure):
                as_pytree(part)
    return structure


def as_arrays(structure: Structure, dtype: np.dtype) -> Structure:
    """The structure with its numbers as JAX arrays."""
    return cast(as_pytree(structure), dtype)


def cast(tree: Tree, dtype: np.dtype) -> Tree:
    """A pytree of JAX arrays, the floating-point ones in this precision."""

    def leaf(value: Any) -> Array:
        value = np.asarray(value)
        return jnp.asarray(value, dtype if np.issubdtype(value.dtype, np.floating) else None)

    return jax.tree.map(leaf, tree)


def stacked(instances: Sequence[Frozen], dtype: np.dtype) -> Frozen:
    """Objects of one class that differ in real-valued fields only, as one object whose fields are arrays.

    It does not call `__init__`, because the dataclasses check their fields there, which fails for tracers.
    """
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
    """The object with its real-valued fields as arrays."""
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
