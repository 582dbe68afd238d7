"""Structures that are drawn each round: one of a few, matchings, failing links and nodes, servers that call workers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.checks import NotCovered
from stgt._internal.randomness import (
    STREAM_CHOICE,
    STREAM_LINKS,
    STREAM_MATCHING,
    STREAM_NODES,
    STREAM_SAMPLING,
    Ops,
    choose,
    queue,
    unit,
    words,
)
from stgt.topology.structure.base import Array, Structure
from stgt.topology.structure.lists import Gather, NeighbourLists
from stgt.topology.structure.moments import (
    DRAWS,
    CalledMoments,
    FailingMoments,
    FailingPairMoments,
    MeanOverRounds,
    Moments,
    PairMoments,
)
from stgt.topology.structure.norms import relayed_norm


@dataclass(frozen=True, eq=False)
class RandomChoice(Structure):
    """One of the first `count` rounds of `base`, which has that period, each equally likely."""

    arrays = ("base",)

    base: Structure
    count: int

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.base.matrix(int(self._which(np, seed, r)), seed)

    def norm(self, r: int, seed: int) -> float:
        return self.base.norm(int(self._which(np, seed, r)), seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return self.base.product(ops, seed, self._which(ops.xp, seed, r), v, back)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return self.base.links(ops, seed, self._which(ops.xp, seed, r))

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        return MeanOverRounds(self.base, n, [(k, seed) for k in range(self.count)], exact=True)

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        return self.base.pairs()

    def _which(self, xp: Any, seed: Array, r: Array) -> Array:
        word, _ = words(xp, seed, r, 0, 0, STREAM_CHOICE)
        return (word[0] % np.uint32(self.count)).astype(np.int32)


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

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        return PairMoments(n) if type(self) is Matching else super().moments(n, phase, seed, draws)


@dataclass(frozen=True, eq=False)
class Unreliable(NeighbourLists):
    """Symmetric lists of which links and nodes fail at random; a lost weight goes back to both ends' own."""

    arrays = ("base", "link", "node")

    base: NeighbourLists
    link: float
    node: float

    def lists(self, xp: Any, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.base.lists(xp, seed, r)
        n = index.shape[0]
        here = xp.arange(n)[:, None]
        # Both ends compute the same draw, so that they agree without communication.
        ticket, _ = words(xp, seed, r, xp.minimum(index, here), xp.maximum(index, here), STREAM_LINKS)
        fate, _ = words(xp, seed, r, xp.arange(n), 0, STREAM_NODES)
        reachable = unit(fate, np.float32) >= self.node
        kept = (unit(ticket, np.float32) >= self.link) & reachable[index] & reachable[:, None]
        kept = kept | (index == here)
        lost = xp.where(kept, 0.0, weight)
        weight = xp.where(kept, weight, 0.0)
        return index, xp.concatenate([weight[:, :1] + lost.sum(axis=1, keepdims=True), weight[:, 1:]], axis=1)

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        if type(self.base) is Matching:
            return FailingPairMoments(n, self.link, self.node)
        if isinstance(self.base, Gather):
            return FailingMoments(self.base, phase, self.link, self.node)
        return super().moments(n, phase, seed, draws)

    @property
    def phases(self) -> int:
        return self.base.phases

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        return self.base.pairs()

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(f"{name} is unreliable already: give both link and node at once.")


@dataclass(frozen=True)
class Server(Structure):
    """Base of the structures with a server, which calls `size` of n workers a round and sends their mean."""

    n: int
    size: int

    @abstractmethod
    def receivers(self, xp: Any, seed: Array, r: Array) -> Array:
        """The nodes whose own copy becomes the mean of the workers, as indices; the others keep what they have."""

    def queue(self, xp: Any, seed: Array, r: Array) -> Array:
        """All workers in the order in which they would be called; the first `size` of them are active."""
        return queue(xp, seed, r, self.n, STREAM_SAMPLING)

    def active(self, xp: Any, seed: Array, r: Array) -> Array:
        return choose(xp, seed, r, self.n, self.size, STREAM_SAMPLING)

    @property
    def sampled(self) -> int:
        return self.size

    def matrix(self, r: int, seed: int) -> np.ndarray:
        senders, receivers = self._flags(np, seed, r)
        return np.outer(receivers, senders) / self.size + np.diag(1.0 - receivers)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        senders, receivers = (flags.astype(v.dtype)[:, None] for flags in self._flags(ops.xp, seed, r))
        left, right = (senders, receivers) if back else (receivers, senders)
        return left * ((right * v).sum(axis=0) / self.size) + (1 - receivers) * v

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return ops.xp.asarray(2 * self.size, float)

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(f"{name} has a server: give a topology in which nodes send to each other.")

    def _flags(self, xp: Any, seed: Array, r: Array) -> tuple[Array, Array]:
        """1 for the senders and 0 for the others, and the same for the receivers, (n,) each."""
        nodes = xp.arange(self.n)
        senders, receivers = self.active(xp, seed, r), self.receivers(xp, seed, r)
        return xp.isin(nodes, senders).astype(float), xp.isin(nodes, receivers).astype(float)


@dataclass(frozen=True)
class Sampled(Server):
    """A server that calls `size` of n workers a round: they average among themselves, the others keep what they have.

    What the server itself holds (`held`) becomes the workers' mean, which the workers of any later round receive.
    """

    def receivers(self, xp: Any, seed: Array, r: Array) -> Array:
        return self.active(xp, seed, r)

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        senders, _ = self._flags(np, seed, r)
        return np.outer(np.ones(self.n), senders) / self.size

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        return CalledMoments(n, self.size) if type(self) is Sampled else super().moments(n, phase, seed, draws)

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        none = np.zeros(0, dtype=np.int32)
        return (none, none) if self.size == 1 < self.n else None  # a single worker averages with no other

    def norm(self, r: int, seed: int) -> float:
        return float(self.size < self.n)  # W_r and J are projections, and W_r J = J


@dataclass(frozen=True)
class Relayed(Server):
    """Eq_Wr: the workers of this round pass their mean on to the workers of the next. Row-stochastic only."""

    def receivers(self, xp: Any, seed: Array, r: Array) -> Array:
        return self.active(xp, seed, r + 1)

    def listening(self, xp: Any, seed: Array, r: Array) -> Array:
        return self.receivers(xp, seed, r)

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        if self.size == n:
            return CalledMoments(n, n)
        raise NotCovered(
            f"relay({n}, {self.size} sampled) draws its rounds one from the other, since the workers of a round stand "
            f"in two of its matrices, so that one round's moments say nothing: use server({n}, sampled={self.size})."
        )

    def norm(self, r: int, seed: int) -> float:
        both = np.intersect1d(self.active(np, seed, r), self.active(np, seed, r + 1))
        return relayed_norm(self.n, self.size, len(both))
