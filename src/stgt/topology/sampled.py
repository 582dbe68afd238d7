"""Topologies drawn again each round: matchings, a server that samples workers, links and nodes that fail."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, NotCovered, check_count, check_number, check_seed
from stgt._internal.ops import Array, Ops
from stgt._internal.randomness import (
    STREAM_LINKS,
    STREAM_MATCHING,
    STREAM_NODES,
    STREAM_SAMPLING,
    choose,
    queue,
    unit,
    words,
)
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.moments import CalledMoments, FailingMoments, Moments, PairMoments
from stgt.topology.structure import Gather, NeighbourLists, Pairs, Structure


@dataclass(frozen=True)
class Matching(NeighbourLists):
    """A uniformly random perfect matching per round; each pair averages. With odd n one node has no partner."""

    n: int

    def lists(self, xp: ModuleType, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        ticket, _ = words(xp, seed, r, xp.arange(self.n), 0, STREAM_MATCHING)
        order = xp.argsort(ticket, stable=True)
        rank = xp.argsort(order, stable=True)
        partner = order[xp.minimum(rank ^ 1, self.n - 1)]
        index = xp.stack([xp.arange(self.n), partner], axis=1)
        return index, xp.full((self.n, 2), 0.5)

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        return PairMoments(n) if type(self) is Matching else super().moments(n, phase, seed, draws)


@dataclass(frozen=True, eq=False)
class Unreliable(NeighbourLists):
    """Symmetric lists whose links and nodes fail at random. The weight of a lost link is added to both nodes' own."""

    arrays = ("base", "link", "node")

    base: NeighbourLists
    link: float
    node: float

    def lists(self, xp: ModuleType, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.base.lists(xp, seed, r)
        n = index.shape[0]
        here = xp.arange(n)[:, None]
        # Both nodes of a link compute the same draw, so they agree without communication.
        ticket, _ = words(xp, seed, r, xp.minimum(index, here), xp.maximum(index, here), STREAM_LINKS)
        fate, _ = words(xp, seed, r, xp.arange(n), 0, STREAM_NODES)
        reachable = unit(fate, np.float32) >= self.node
        kept = (unit(ticket, np.float32) >= self.link) & reachable[index] & reachable[:, None]
        kept = kept | (index == here)
        lost = xp.where(kept, 0.0, weight)
        weight = xp.where(kept, weight, 0.0)
        return index, xp.concatenate([weight[:, :1] + lost.sum(axis=1, keepdims=True), weight[:, 1:]], axis=1)

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        if type(self.base) is Matching:
            return PairMoments(n, (1 - self.link) * (1 - self.node) ** 2)
        if isinstance(self.base, Gather):
            return FailingMoments(self.base, phase, self.link, self.node)
        return super().moments(n, phase, seed, draws)

    @property
    def phases(self) -> int:
        return self.base.phases

    def pairs(self) -> Pairs | None:
        return self.base.pairs()

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(f"{name} is unreliable already: give both link and node at once.")


@dataclass(frozen=True)
class Server(Structure):
    """Base of the structures with a server, which samples `size` of n workers per round and sends their mean."""

    n: int
    size: int

    @abstractmethod
    def receivers(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        """The nodes whose model becomes the mean of the workers, as indices; the others keep their model."""

    def queue(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        """All workers in the order in which they would be sampled; the first `size` of them are active."""
        return queue(xp, seed, r, self.n, STREAM_SAMPLING)

    def active(self, xp: ModuleType, seed: Array, r: Array) -> Array:
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

    def _flags(self, xp: ModuleType, seed: Array, r: Array) -> tuple[Array, Array]:
        """(n,) each: 1 for the senders and 0 for the others; the same for the receivers."""
        nodes = xp.arange(self.n)
        senders, receivers = self.active(xp, seed, r), self.receivers(xp, seed, r)
        return xp.isin(nodes, senders).astype(float), xp.isin(nodes, receivers).astype(float)


@dataclass(frozen=True)
class Sampled(Server):
    """A server samples `size` of n workers per round. They average among themselves; the others keep their model.

    The server's own variables (`held`) become the workers' mean, which the sampled workers of a later round receive.
    """

    def receivers(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        return self.active(xp, seed, r)

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        senders, _ = self._flags(np, seed, r)
        return np.outer(np.ones(self.n), senders) / self.size

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        return CalledMoments(n, self.size) if type(self) is Sampled else super().moments(n, phase, seed, draws)

    def pairs(self) -> Pairs | None:
        none = np.zeros(0, dtype=np.int32)
        return (none, none) if self.size == 1 < self.n else None  # a single worker averages with no other

    def norm(self, r: int, seed: int) -> float:
        return float(self.size < self.n)  # W_r and J are projections, and W_r J = J


@dataclass(frozen=True)
class Relayed(Server):
    """Eq_Wr: the workers of this round send their mean to the workers of the next round. Only row-stochastic."""

    def receivers(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        return self.active(xp, seed, r + 1)

    def listening(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        return self.receivers(xp, seed, r)

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        if self.size == n:
            return CalledMoments(n, n)
        raise NotCovered(
            f"relay({n}, {self.size} sampled) has dependent rounds, because the workers of a round are in two of its "
            f"matrices. The moments of one round are not enough: use server({n}, sampled={self.size})."
        )

    def norm(self, r: int, seed: int) -> float:
        """Exact, from four groups of nodes: those that work in this round or not, and in the next round or not.

        W_r − J maps vectors that are constant on groups to such vectors, by a 4 × 4 matrix. On their orthogonal
        complement it is the identity for groups that do not work in the next round, and 0 for the others.
        """
        n, size = self.n, self.size
        both = len(np.intersect1d(self.active(np, seed, r), self.active(np, seed, r + 1)))
        groups = [(1, 1, both), (1, 0, size - both), (0, 1, size - both), (0, 0, n - 2 * size + both)]
        groups = [group for group in groups if group[2]]
        works, receives, count = (np.array(column, dtype=float) for column in zip(*groups, strict=True))
        block = np.outer(receives, works) / size - 1.0 / n
        block = np.sqrt(np.outer(count, count)) * block + np.diag(1.0 - receives)
        idle_pair = any(count > 1 and not receives for _, receives, count in groups)
        return max(float(np.linalg.norm(block, 2)), float(idle_pair))


@register
def random_matching(n: int, seed: int = 0) -> Topology:
    """Random pairs average: every pairing of the nodes is equally likely.

    w_ii = w_ij = 1/2 if i and j are a pair. With odd n one node, a different one each round, has no partner.

    Args:
        n: number of nodes.
        seed: of the draws.

    Returns:
        A random, symmetric topology of degree 1.

    Reference: Boyd et al., "Randomized gossip algorithms", 2006.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    return Topology(f"random_matching({n})", n, Matching(n), period=None, degree=min(n - 1, 1), seed=seed)


@register
def server(n: int, sampled: int | None = None, seed: int = 0) -> Topology:
    """A server samples s of n workers each round, S_r uniformly at random. They average, the others keep their model.

    W_r = (1/s) e_{S_r} e_{S_r}ᵀ + I − diag(e_{S_r}), doubly stochastic; J for s = n.

    Args:
        n: number of workers.
        sampled: s, the number of workers per round; all by default.
        seed: of the draws.

    Returns:
        A symmetric topology: random, or static if all workers are sampled.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    s = n if sampled is None else _check_sampled(n, sampled)
    name = f"server({n})" if s == n else f"server({n}, {s} sampled)"
    return Topology(name, n, Sampled(n, s), period=1 if s == n else None, degree=s - 1, seed=seed)


@register
def relay(n: int, sampled: int, seed: int = 0) -> Topology:
    """The paper's form of the server: the workers of one round send their mean to the workers of the next round.

    W_r = (1/s) e_{S_{r+1}} e_{S_r}ᵀ + I − diag(e_{S_{r+1}}), applied at the end of round r; it is the paper's
    W_{r+1}. The rows sum to one; the columns do only if s = n. E[W_r] = (s/n) J + (1 − s/n) I, whose second eigenvalue
    is 1 − s/n.

    Args:
        n: number of workers.
        sampled: s, how many work in a round.
        seed: of the draws.

    Returns:
        A random, row-stochastic topology; J for s = n.

    Reference: Eq_Wr of the ST-GT paper, 2512.01732.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    s = _check_sampled(n, sampled)
    flags = {"doubly_stochastic": s == n, "symmetric": s == n, "period": 1 if s == n else None}
    return Topology(f"relay({n}, {s} sampled)", n, Relayed(n, s), **flags, degree=min(s, n - 1), seed=seed)


@register
def unreliable(topology: Topology, link: float = 0.0, node: float = 0.0, seed: int = 0) -> Topology:
    """A symmetric topology whose links and nodes fail at random, independently in each round.

    A link works with probability (1 − link)(1 − node)². The weight of a lost link is added to both nodes' own weights,
    so W_r stays symmetric and doubly stochastic. A node that cannot be reached keeps its model.

    Args:
        topology: symmetric, without a server. If it is random itself, `seed` replaces its own.
        link: probability that a link fails, in [0, 1).
        node: probability that a node cannot be reached, in [0, 1).
        seed: of the draws.

    Returns:
        A random, symmetric topology of the same degree.
    """
    check_failure = partial(check_number, least=0.0, below=1.0)
    link, node, seed = check_failure(link, "link"), check_failure(node, "node"), check_seed(seed)
    if not isinstance(topology, Topology):
        raise InputError("topology", hint=f" is a {type(topology).__name__}: give a Topology such as ring(8).")
    base = topology.structure.neighbour_lists(topology.name)
    if not topology.symmetric:
        raise ValueError(
            f"{topology} is directed: a lost one-way link cannot be compensated without changing the column sums; "
            "give a symmetric topology."
        )
    name = f"unreliable({topology}, link={link:g}, node={node:g})"
    return Topology(name, topology.n, Unreliable(base, link, node), period=None, degree=topology.degree, seed=seed)


def _check_sampled(n: int, sampled: Any) -> int:
    s = check_count(sampled, "sampled")
    if s > n:
        raise InputError("sampled", s, f"a round can sample at most all n={n} workers.")
    return s
