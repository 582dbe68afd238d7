"""How a topology is laid out, so that an engine can pick its fastest kernel.

A structure is data: it knows who hears whom at round r of a run, and imports no engine. Its `matrix` is the plain
meaning; a kernel must agree with it. Random structures look their draws up from (seed, r), on NumPy or JAX alike.

Convention: row i of W holds the weights node i applies to what it hears, its own included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt.randomness import STREAM_LINKS, STREAM_MATCHING, STREAM_NODES, STREAM_SAMPLING, choose, unit, words

Array = Any
DENSE_UP_TO = 64  # below this many nodes a dense product beats neighbour lists
MOST_ENTRIES = 10**8  # longer neighbour lists would fill an ordinary machine's memory


@dataclass(frozen=True)
class Average:
    """W = J, the mean over all nodes."""

    n: int

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.full((self.n, self.n), 1.0 / self.n)


@dataclass(frozen=True)
class Rolls:
    """A static circulant W: node i hears i + hop (mod n) with the hop's weight; hop 0 is the node itself."""

    n: int
    hops: tuple[int, ...]
    weights: tuple[float, ...]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        W = np.zeros((self.n, self.n))
        rows = np.arange(self.n)
        for hop, weight in zip(self.hops, self.weights, strict=True):
            W[rows, (rows + hop) % self.n] += weight
        return W


@dataclass(frozen=True, eq=False)
class Dense:
    """Any periodic schedule as matrices (T, n, n)."""

    matrices: Array

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.array(self.matrices[r % len(self.matrices)], dtype=np.float64)


class NeighbourLists:
    """What the sparse structures share: `lists` gives (index, weight), each (n, d).

    Column 0 is the node itself; padding points at the node itself with weight 0.
    """

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        raise NotImplementedError

    def matrix(self, r: int, seed: int) -> np.ndarray:
        index, weight = self.lists(np, seed, r)
        W = np.zeros((len(index), len(index)))
        np.add.at(W, (np.arange(len(index))[:, None], index), weight)
        return W


@dataclass(frozen=True, eq=False)
class Gather(NeighbourLists):
    """A periodic schedule as neighbour lists (T, n, d); `back_*` list the transposes, None where W is symmetric."""

    index: Array
    weight: Array
    back_index: Array | None = None
    back_weight: Array | None = None

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.index, self.weight
        if back and self.back_index is not None:
            index, weight = self.back_index, self.back_weight
        phase = r % index.shape[0]
        return xp.asarray(index)[phase], xp.asarray(weight)[phase]


@dataclass(frozen=True)
class Matching(NeighbourLists):
    """A uniformly random perfect matching a round; the pair averages. With odd n one node stays alone."""

    n: int

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        ticket, _ = words(xp, seed, r, xp.arange(self.n), 0, STREAM_MATCHING)
        order = xp.argsort(ticket, stable=True)
        rank = xp.argsort(order, stable=True)
        partner = order[xp.minimum(rank ^ 1, self.n - 1)]
        index = xp.stack([xp.arange(self.n), partner], axis=1)
        return index, xp.full((self.n, 2), 0.5)


@dataclass(frozen=True, eq=False)
class Unreliable(NeighbourLists):
    """Symmetric lists of which links and nodes fail at random; a lost weight goes back to both ends' own."""

    base: Gather | Matching
    link: float
    node: float

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.base.lists(xp, seed, r)
        n = index.shape[0]
        here = xp.arange(n)[:, None]
        # Both ends look the same draw up, so they agree without a word.
        ticket, _ = words(xp, seed, r, xp.minimum(index, here), xp.maximum(index, here), STREAM_LINKS)
        fate, _ = words(xp, seed, r, xp.arange(n), 0, STREAM_NODES)
        reachable = unit(fate, np.float32) >= self.node
        kept = (unit(ticket, np.float32) >= self.link) & reachable[index] & reachable[:, None]
        kept = kept | (index == here)
        lost = xp.where(kept, 0.0, weight)
        weight = xp.where(kept, weight, 0.0)
        return index, xp.concatenate([weight[:, :1] + lost.sum(axis=1, keepdims=True), weight[:, 1:]], axis=1)


@dataclass(frozen=True)
class Server:
    """What structures with a server share: it calls `size` of n workers a round."""

    n: int
    size: int

    def active(self, xp: Any, seed: Array, r: Array) -> Array:
        return choose(xp, seed, r, self.n, self.size, STREAM_SAMPLING)

    def matrix(self, r: int, seed: int) -> np.ndarray:
        raise NotImplementedError

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        raise NotImplementedError

    def listening(self, r: int, seed: int) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class Sampled(Server):
    """A server that calls `size` of n workers a round: they average among themselves, the others keep what they have.

    What the server itself holds (`held`) becomes the workers' mean, whoever asks for it next.
    """

    def matrix(self, r: int, seed: int) -> np.ndarray:
        called = _indicator(self.n, self.active(np, seed, r))
        return np.outer(called, called) / self.size + np.diag(1.0 - called)

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        return np.outer(np.ones(self.n), _indicator(self.n, self.active(np, seed, r))) / self.size

    def listening(self, r: int, seed: int) -> np.ndarray:
        return np.ones(self.n, dtype=bool)


@dataclass(frozen=True)
class Relayed(Server):
    """Eq_Wr: the workers of this round pass their mean on to the workers of the next. Row-stochastic only."""

    def matrix(self, r: int, seed: int) -> np.ndarray:
        now = _indicator(self.n, self.active(np, seed, r))
        following = _indicator(self.n, self.active(np, seed, r + 1))
        return np.outer(following, now) / self.size + np.diag(1.0 - following)

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        return self.matrix(r, seed)

    def listening(self, r: int, seed: int) -> np.ndarray:
        return (_indicator(self.n, self.active(np, seed, r)) + _indicator(self.n, self.active(np, seed, r + 1))) > 0


Structure = Average | Rolls | Dense | Gather | Matching | Unreliable | Sampled | Relayed


def _indicator(n: int, members: Array) -> np.ndarray:
    flags = np.zeros(n)
    flags[members] = 1.0
    return flags


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
            f"{name}: a node that hears {width - 1} others makes neighbour lists of {period * n * width:.2g} entries, "
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
