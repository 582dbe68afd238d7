"""Structures of fixed schedules: the mean of all, circulants, plain matrices, and the choice of the fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stgt._internal.ops import Ops
from stgt.topology.structure.base import Array, Structure
from stgt.topology.structure.lists import Gather, NeighbourLists, check_room, lists_from_matrices
from stgt.topology.structure.norms import circulant_norm

DENSE_UP_TO = 64  # below this many nodes a dense product beats neighbour lists


@dataclass(frozen=True)
class Average(Structure):
    """W = J, the mean over all nodes."""

    random = False

    n: int

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.full((self.n, self.n), 1.0 / self.n)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return ops.xp.broadcast_to(v.mean(axis=0), v.shape)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return ops.xp.asarray(self.n * (self.n - 1), float)

    def norm(self, r: int, seed: int) -> float:
        return 0.0

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return Rolls(self.n, tuple(range(self.n)), (1.0 / self.n,) * self.n).neighbour_lists(name)


@dataclass(frozen=True)
class Rolls(Structure):
    """A static circulant W: node i receives from i + hop (mod n) with the hop's weight; hop 0 is the node itself."""

    arrays = ("weights",)
    random = False

    n: int
    hops: tuple[int, ...]
    weights: tuple[float, ...]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        W = np.zeros((self.n, self.n))
        rows = np.arange(self.n)
        for hop, weight in zip(self.hops, self.weights, strict=True):
            W[rows, (rows + hop) % self.n] += weight
        return W

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        parts = zip(self.hops, self.weights, strict=True)
        return sum(weight * ops.xp.roll(v, hop if back else -hop, axis=0) for hop, weight in parts)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return ops.xp.asarray(self.n * sum(hop % self.n != 0 for hop in self.hops), float)

    def norm(self, r: int, seed: int) -> float:
        return circulant_norm(self.n, np.array(self.hops), np.array(self.weights))

    def neighbour_lists(self, name: str) -> NeighbourLists:
        check_room(name, 1, self.n, len(self.hops))
        index = (np.arange(self.n)[:, None] + np.array(self.hops)) % self.n
        return Gather(index.astype(np.int32)[None], np.broadcast_to(np.array(self.weights), (1, *index.shape)))

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        step, nodes = math.gcd(self.n, *self.hops), np.arange(self.n)
        return None if step == 1 else (nodes, (nodes + step) % self.n)  # all that the hops lead to


@dataclass(frozen=True, eq=False)
class Dense(Structure):
    """Any periodic schedule as matrices (T, n, n)."""

    arrays = ("matrices",)
    random = False

    matrices: Array

    @property
    def phases(self) -> int:
        return self.matrices.shape[0]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.array(self.matrices[r % self.phases], dtype=np.float64)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        W = ops.xp.asarray(self.matrices)[r % self.phases]
        return (W.T if back else W) @ v

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        xp = ops.xp
        W = xp.asarray(self.matrices)[r % self.phases]
        return xp.asarray(xp.count_nonzero(W * (1 - xp.eye(W.shape[0], dtype=W.dtype))), float)

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return lists_from_matrices(self.matrices)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        receivers, senders = np.nonzero((self.matrices != 0).any(axis=0))
        return receivers, senders


def structure_from_lists(lists: Gather) -> Structure:
    """The same schedule, dense for few nodes or full matrices."""
    period, n, width = lists.index.shape
    if n <= DENSE_UP_TO or width > n // 4:
        return Dense(np.stack([lists.matrix(t, 0) for t in range(period)]))
    return lists


def structure_from_matrices(stack: np.ndarray) -> Structure:
    """The layout a kernel is fastest on: dense for few nodes or full matrices, neighbour lists otherwise."""
    n = stack.shape[1]
    filled = int((stack != 0).sum(axis=2).max(initial=0))
    if n <= DENSE_UP_TO or filled > n // 4:
        return Dense(stack)
    return lists_from_matrices(stack)
