"""Kernels of the simulator: W_r times a stack of vectors, by roll, gather or dense product as the structure allows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stgt.topology.structure import (
    Average,
    Dense,
    Gather,
    Matching,
    NeighbourLists,
    Relayed,
    Rolls,
    Sampled,
    Structure,
    Unreliable,
)

Array = Any
UNROLLED = 16  # neighbours; longer lists are looped over, as unrolled they take long to compile

for _kind, _data in (
    (Average, ()),
    (Rolls, ("weights",)),
    (Dense, ("matrices",)),
    (Gather, ("index", "weight", "back_index", "back_weight")),
    (Matching, ()),
    (Unreliable, ("base", "link", "node")),
    (Sampled, ()),
    (Relayed, ()),
):
    _meta = [name for name in _kind.__dataclass_fields__ if name not in _data]
    jax.tree_util.register_dataclass(_kind, data_fields=list(_data), meta_fields=_meta)


def average(v: Array) -> Array:
    """The mean of the rows of v in every row, with the precaution of `mix`."""
    base = v.mean(axis=0)
    return jnp.broadcast_to(base + (v - base).mean(axis=0), v.shape)


def mix(structure: Structure, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
    """W_r v for v (n, p), or W_rᵀ v with `back`; peer-to-peer structures only.

    Only differences from the mean are mixed, as W1 = 1: when the nodes agree the mixture is exact, so that rounding
    does not add up over the rounds (Σ_i c_i in float32).
    """
    base = v.mean(axis=0)
    return base + _product(structure, seed, r, v - base, back)


def _product(structure: Structure, seed: Array, r: Array, v: Array, back: bool) -> Array:
    if isinstance(structure, Average):
        return jnp.broadcast_to(v.mean(axis=0), v.shape)
    if isinstance(structure, Rolls):
        parts = zip(structure.hops, structure.weights, strict=True)
        return sum(weight * jnp.roll(v, hop if back else -hop, axis=0) for hop, weight in parts)
    if isinstance(structure, Dense):
        W = structure.matrices[r % structure.matrices.shape[0]]
        return (W.T if back else W) @ v
    if isinstance(structure, NeighbourLists):
        index, weight = structure.lists(jnp, seed, r, back)
        weight = weight.astype(v.dtype)

        def heard(k: Any, total: Array) -> Array:
            return total + weight[:, k, None] * v[index[:, k]]

        unroll = index.shape[1] if index.shape[1] <= UNROLLED else 1
        return lax.fori_loop(0, index.shape[1], heard, jnp.zeros_like(v), unroll=unroll)
    raise TypeError(f"{type(structure).__name__} has a server: the simulator averages over its sampled rows")


def links(structure: Structure, seed: Array, r: Array) -> Array:
    """How many directed links carry a message in round r; with a server, the ways up and down of its workers."""
    if isinstance(structure, Average):
        return jnp.asarray(float(structure.n * (structure.n - 1)))
    if isinstance(structure, Rolls):
        return jnp.asarray(float(structure.n * sum(hop % structure.n != 0 for hop in structure.hops)))
    if isinstance(structure, Dense):
        W = structure.matrices[r % structure.matrices.shape[0]]
        return jnp.count_nonzero(W * (1 - jnp.eye(W.shape[0], dtype=W.dtype))).astype(np.float32)
    if isinstance(structure, NeighbourLists):
        index, weight = structure.lists(jnp, seed, r)
        return ((weight > 0) & (index != jnp.arange(index.shape[0])[:, None])).sum().astype(np.float32)
    return jnp.asarray(2.0 * structure.size)
