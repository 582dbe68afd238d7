"""Structures by neighbour lists: from which nodes each node receives, and with which weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.ops import Ops
from stgt.topology.structure.base import Array, Structure
from stgt.topology.structure.norms import lists_norm

MOST_ENTRIES = 10**8  # longer neighbour lists would fill an ordinary machine's memory


class NeighbourLists(Structure):
    """Base of the sparse structures; a subclass defines `lists` only."""

    @abstractmethod
    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        """The senders of each node and their weights, (index, weight), each (n, d); of W_rᵀ with `back`.

        Column 0 is the node itself; padding points at the node itself with weight 0.
        """

    def matrix(self, r: int, seed: int) -> np.ndarray:
        index, weight = self.lists(np, seed, r)
        W = np.zeros((len(index), len(index)))
        np.add.at(W, (np.arange(len(index))[:, None], index), weight)
        return W

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        index, weight = self.lists(ops.xp, seed, r, back)
        weight = weight.astype(v.dtype)

        def add(k: Array, total: Array) -> Array:
            return total + weight[:, k, None] * v[index[:, k]]

        return ops.loop(index.shape[1], add, ops.xp.zeros_like(v))

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        xp = ops.xp
        index, weight = self.lists(xp, seed, r)
        return xp.asarray(((weight > 0) & (index != xp.arange(index.shape[0])[:, None])).sum(), float)

    def norm(self, r: int, seed: int) -> float:
        return lists_norm(*self.lists(np, seed, r))

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return self


@dataclass(frozen=True, eq=False)
class Gather(NeighbourLists):
    """A periodic schedule as neighbour lists (T, n, d); `back_*` list the transposes, None where W is symmetric."""

    arrays = ("index", "weight", "back_index", "back_weight")
    random = False

    index: Array
    weight: Array
    back_index: Array | None = None
    back_weight: Array | None = None

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.index, self.weight
        if back and self.back_index is not None:
            index, weight = self.back_index, self.back_weight
        phase = r % self.phases
        return xp.asarray(index)[phase], xp.asarray(weight)[phase]

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        _, n, width = self.index.shape
        slots = np.flatnonzero(self.weight[:, :, 1:])  # the first one is the node itself
        return slots // (width - 1) % n, self.index[:, :, 1:].ravel()[slots]

    @property
    def phases(self) -> int:
        return self.index.shape[0]


def lists_from_matrices(stack: np.ndarray) -> Gather:
    """Neighbour lists, and their transposes where some W_r is not symmetric, of matrices (T, n, n)."""
    index, weight = _pack(stack)
    if np.array_equal(stack, stack.transpose(0, 2, 1)):
        return Gather(index, weight)
    return Gather(index, weight, *_pack(stack.transpose(0, 2, 1)))


def _pack(stack: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    period, n, _ = stack.shape
    off = stack.copy()
    off[:, np.arange(n), np.arange(n)] = 0.0
    width = int((off != 0).sum(axis=2).max(initial=0))
    index = np.tile(np.arange(n, dtype=np.int32)[None, :, None], (period, 1, width + 1))
    weight = np.zeros((period, n, width + 1))
    weight[:, :, 0] = np.diagonal(stack, axis1=1, axis2=2)
    for t in range(period):
        rows, columns = np.nonzero(off[t])
        slot = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1
        index[t, rows, slot] = columns
        weight[t, rows, slot] = off[t, rows, columns]
    return index, weight


def check_room(name: str, period: int, n: int, width: int) -> None:
    """A ValueError if lists (period, n, width) would be too long: one busy node pads the lists of all."""
    if period * n * width > MOST_ENTRIES:
        raise ValueError(
            f"{name}: a node with {width - 1} neighbours makes neighbour lists of {period * n * width:.2g} entries, "
            f"more than {MOST_ENTRIES:.0e}; use fewer nodes, a sparser graph, complete(n) or server(n)."
        )


def gather_from_steps(steps: list[tuple[np.ndarray, np.ndarray]]) -> Gather:
    """A schedule of symmetric W_r from each one's (index, weight), (n, d_r), padded to the widest."""
    n, width = len(steps[0][0]), max(index.shape[1] for index, _ in steps)
    lists = Gather(
        np.tile(np.arange(n, dtype=np.int32)[:, None], (len(steps), 1, width)), np.zeros((len(steps), n, width))
    )
    for t, (index, weight) in enumerate(steps):
        lists.index[t, :, : index.shape[1]] = index
        lists.weight[t, :, : index.shape[1]] = weight
    return lists
