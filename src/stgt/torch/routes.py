"""Who says what to whom in a round: one node's view of one mixing matrix."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from stgt.algorithms import Algorithm, Sent
from stgt.topology import Topology


@dataclass(frozen=True)
class Mean:
    """Nodes whose mean several `hearers` want: chunk k goes to member k mod s, who sends the mean back.

    Every node sends about two models however many members there are, where telling every hearer would cost s − 1.
    """

    members: tuple[int, ...]
    hearers: tuple[int, ...]

    def owner(self, chunk: int) -> int:
        return self.members[chunk % len(self.members)]


@dataclass(frozen=True)
class Route:
    """What one node does with one message field: `hear` has (node, weight) pairs, `tell` the nodes to send to.

    `joins` are the means it belongs to, `takes` the one among them whose mean becomes its mixture. Where a field is
    pushed by a column-stochastic matrix, `gives` has the weights by which those it tells take it, and what it keeps is
    what they leave; elsewhere it is None, and a node's own weight what those it hears leave.
    """

    hear: tuple[tuple[int, float], ...] = ()
    tell: tuple[int, ...] = ()
    joins: tuple[Mean, ...] = ()
    takes: Mean | None = None
    gives: tuple[float, ...] | None = None

    @property
    def peers(self) -> set[int]:
        """All nodes that this one talks with."""
        means = {node for mean in self.joins for node in (*mean.members, *mean.hearers)}
        return {node for node, _ in self.hear} | set(self.tell) | means


def route(W: np.ndarray, node: int, hears: np.ndarray | None = None) -> Route:
    """The part of `node` in mixing with W; only the nodes in `hears` want their row, if given."""
    n = len(W)
    wanted = range(n) if hears is None else np.flatnonzero(hears).tolist()
    rows: dict[int, tuple[int, ...]] = {i: tuple(np.flatnonzero(W[i]).tolist()) for i in wanted}
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, members in rows.items():
        if len(members) >= 3 and np.allclose(W[i, list(members)], 1.0 / len(members), rtol=1e-12, atol=0):
            groups.setdefault(members, []).append(i)
    means = [Mean(members, tuple(hearers)) for members, hearers in groups.items() if len(hearers) >= 2]
    through = {i: mean for mean in means for i in mean.hearers}
    hear = () if node in through or node not in rows else tuple((j, float(W[node, j])) for j in rows[node] if j != node)
    tell = tuple(i for i in rows if i not in through and i != node and node in rows[i])
    joins = tuple(mean for mean in means if node in mean.members or node in mean.hearers)
    return Route(hear, tell, joins, through.get(node))


def push_route(C: np.ndarray, node: int) -> Route:
    """The part of `node` in mixing with a column-stochastic matrix."""
    if np.allclose(C.sum(axis=1), 1.0, rtol=0, atol=1e-12):
        return route(C, node)
    heard, told = (tuple(j for j in np.flatnonzero(line).tolist() if j != node) for line in (C[node], C[:, node]))
    return Route(tuple((j, float(C[node, j])) for j in heard), told, gives=tuple(float(C[i, node]) for i in told))


class Schedule:
    """The routes of one node's message fields, round by round."""

    def __init__(self, topology: Topology, algorithm: Algorithm, node: int, seed: int):
        self.topology, self.algorithm, self.node, self.seed = topology, algorithm, node, seed
        self._known: dict[tuple[int, str], Route] = {}

    def digest(self) -> int:
        """A number that differs where the first mixing matrices do; the last digits do not count."""
        rounds = range(min(self.topology.period or 1, 64))
        stack = [self.topology.matrix(r, self.seed) for r in rounds]
        if self.topology.has_push:
            stack += [self.topology.matrix(r, self.seed, pushed=True) for r in rounds]
        return zlib.crc32((np.round(stack, 9) + 0.0).tobytes())

    def active(self, r: int) -> np.ndarray:
        """Which nodes work in round r."""
        return self.topology.active(r, self.seed)

    def listens(self, r: int) -> bool:
        """Does this node take over what the server holds at the end of round r?"""
        return bool(self._wanting(r)[self.node])

    def routes(self, r: int) -> dict[str, Route]:
        """The route of each message field in round r."""
        return {sent.name: self._route(r, self._kind(sent)) for sent in self.algorithm.exchanges}

    def _kind(self, sent: Sent) -> str:
        if sent.name in self.algorithm.held:
            return "held"
        if sent.pushed and self.topology.has_push:
            return "pushed"
        return "against" if sent.transposed else "along"

    def _route(self, r: int, kind: str) -> Route:
        period = self.topology.period
        key = (r % period if period else r, kind)
        if key not in self._known:
            if not period:
                self._known = {old: kept for old, kept in self._known.items() if old[0] == r}
            W = self.topology.matrix(r, self.seed, held=kind == "held", pushed=kind == "pushed")
            hears = self._wanting(r) if kind == "held" else None
            self._known[key] = (
                push_route(W, self.node)
                if kind == "pushed"
                else route(W.T if kind == "against" else W, self.node, hears)
            )
        return self._known[key]

    def _wanting(self, r: int) -> np.ndarray:
        """Who wants what the server holds after round r: those who made it and those who start from it next.

        The other nodes would only throw it away: they are told before the next round in which they work.
        """
        if not self.topology.has_server:
            return np.ones(self.topology.n, dtype=bool)
        return self.active(r) | self.active(r + 1)
