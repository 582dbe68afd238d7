"""What JAX asks of a structure: that it is a pytree, and that rounding does not add up when it mixes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from stgt._internal.ops import Ops
from stgt._internal.xla import jax, jnp
from stgt.topology.structure import Structure

Array = Any


def as_pytree(structure: Structure) -> Structure:
    """The structure itself, whose class and those of the structures inside it JAX knows from now on."""
    kind = type(structure)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if not is_dataclass(kind) or not set(kind.arrays) <= set(names):
        raise ValueError(
            f"{kind.__name__} has arrays={kind.arrays} and the fields {names}: make it a frozen dataclass whose arrays "
            "are names of its fields."
        )
    if jax.tree_util.all_leaves([structure]):
        static = [name for name in names if name not in kind.arrays]
        jax.tree_util.register_dataclass(kind, data_fields=list(kind.arrays), meta_fields=static)
    for name in kind.arrays:
        for part in jax.tree.leaves(getattr(structure, name), is_leaf=lambda part: isinstance(part, Structure)):
            if isinstance(part, Structure):
                as_pytree(part)
    return structure


def average(v: Array) -> Array:
    """The mean of the rows of v in every row, with the precaution of `mix`."""
    base = v.mean(axis=0)
    return jnp.broadcast_to(base + (v - base).mean(axis=0), v.shape)


def mix(ops: Ops, structure: Structure, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
    """W_r v for v (n, p), or W_rᵀ v with `back`; peer-to-peer structures only.

    Only differences from the mean are mixed, as W1 = 1: when the nodes agree the mixture is exact, so that rounding
    does not add up over the rounds (Σ_i c_i in float32).
    """
    base = v.mean(axis=0)
    return base + structure.product(ops, seed, r, v - base, back)


def push(ops: Ops, structure: Structure, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
    """C_r v for a column-stochastic C_r, or R_rᵀ v for a row-stochastic R_r with `back`: C1 = 1 need not hold.

    But 1ᵀC = 1ᵀ does: what rounding adds to the sum over the nodes is taken off all of them, and does not add up.
    """
    mixed = structure.product(ops, seed, r, v, back)
    return mixed + (v - mixed).mean(axis=0)
