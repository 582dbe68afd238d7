"""Which node sends what to which node in a round: one node's view of a mixing matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stgt._internal.digest import digest
from stgt.algorithms import Algorithm, MessageVar
from stgt.topology import Topology


@dataclass(frozen=True)
class Mean:
    """A mean over s members for several receivers. Chunk k is sent to member k mod s, which sends its mean back.

    Every node then sends about two models, whatever the number of members. Sending to each receiver would cost s − 1.
    """

    members: tuple[int, ...]
    receivers: tuple[int, ...]

    def owner(self, chunk: int) -> int:
        return self.members[chunk % len(self.members)]


@dataclass(frozen=True)
class Route:
    """What one node does with one message variable.

    Attributes:
        receive_from: (node, weight) pairs.
        send_to: nodes.
        means: the means that this node takes part in.
        own_mean: the one of them that is this node's mixture, if any.
        send_weights: if a column-stochastic matrix pushes the variable: the weights that the nodes of `send_to` apply
            to it. This node keeps 1 − Σ of them. Else None: this node's own weight is 1 − Σ of its receive weights.
    """

    receive_from: tuple[tuple[int, float], ...] = ()
    send_to: tuple[int, ...] = ()
    means: tuple[Mean, ...] = ()
    own_mean: Mean | None = None
    send_weights: tuple[float, ...] | None = None

    @property
    def peers(self) -> set[int]:
        """All nodes that this one sends to or receives from."""
        others = {node for mean in self.means for node in (*mean.members, *mean.receivers)}
        return {node for node, _ in self.receive_from} | set(self.send_to) | others


def route(W: np.ndarray, node: int, wanted: np.ndarray | None = None) -> Route:
    """The route of `node` in mixing with W. If `wanted` is given, only these nodes need their row of W."""
    rows: dict[int, tuple[int, ...]] = {
        i: tuple(np.flatnonzero(W[i]).tolist())
        for i in (range(len(W)) if wanted is None else np.flatnonzero(wanted).tolist())
    }
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, members in rows.items():
        if len(members) >= 3 and np.allclose(W[i, list(members)], 1.0 / len(members), rtol=1e-12, atol=0):
            groups.setdefault(members, []).append(i)
    means = [Mean(members, tuple(receivers)) for members, receivers in groups.items() if len(receivers) >= 2]
    mean_of = {i: mean for mean in means for i in mean.receivers}
    sources = () if node in mean_of or node not in rows else rows[node]
    return Route(
        receive_from=tuple((j, float(W[node, j])) for j in sources if j != node),
        send_to=tuple(i for i in rows if i not in mean_of and i != node and node in rows[i]),
        means=tuple(mean for mean in means if node in mean.members or node in mean.receivers),
        own_mean=mean_of.get(node),
    )


def push_route(C: np.ndarray, node: int) -> Route:
    """The route of `node` in mixing with a column-stochastic matrix."""
    if np.allclose(C.sum(axis=1), 1.0, rtol=0, atol=1e-12):
        return route(C, node)
    sources, targets = (tuple(j for j in np.flatnonzero(line).tolist() if j != node) for line in (C[node], C[:, node]))
    return Route(
        receive_from=tuple((j, float(C[node, j])) for j in sources),
        send_to=targets,
        send_weights=tuple(float(C[i, node]) for i in targets),
    )


class RouteSchedule:
    """The routes of one node's message variables, round by round."""

    def __init__(self, topology: Topology, algorithm: Algorithm, node: int, seed: int):
        self.topology, self.spec, self.node, self.seed = topology, algorithm.spec(), node, seed
        self._cache: dict[tuple[int, str], Route] = {}

    def digest(self) -> str:
        """A digest of the first mixing matrices, up to rounding."""
        rounds = range(min(self.topology.period or 1, 64))
        stack = [self.topology.matrix(r, self.seed) for r in rounds]
        if self.topology.has_push:
            stack += [self.topology.matrix(r, self.seed, pushed=True) for r in rounds]
        return digest(np.round(stack, 9) + 0.0)

    def active(self, r: int) -> np.ndarray:
        """Which nodes take part in round r."""
        return self.topology.active(r, self.seed)

    def weight(self, r: int) -> float:
        """This node's weight in the averaged model after round r. If a server has it, only its workers count."""
        if not (self.topology.has_server and "x" in self.spec.server_fields):
            return 1.0 / self.topology.n
        return float(self.active(r)[self.node]) / self.topology.sampled

    def receives_server_state(self, r: int) -> bool:
        """Does this node receive the server's variables at the end of round r?"""
        return bool(self._receivers(r)[self.node])

    def routes(self, r: int) -> dict[str, Route]:
        """The route of each message variable in round r."""
        return {sent.name: self._route(r, self._kind(sent)) for sent in self.spec.messages}

    def _kind(self, sent: MessageVar) -> str:
        if sent.name in self.spec.server_fields:
            return "server"
        if sent.pushed and self.topology.has_push:
            return "pushed"
        return "transposed" if sent.transposed else "plain"

    def _route(self, r: int, kind: str) -> Route:
        period = self.topology.period
        key = (r % period if period else r, kind)
        if key not in self._cache:
            if not period:
                self._cache = {old: kept for old, kept in self._cache.items() if old[0] == r}
            W = self.topology.matrix(r, self.seed, held=kind == "server", pushed=kind == "pushed")
            wanted = self._receivers(r) if kind == "server" else None
            self._cache[key] = (
                push_route(W, self.node)
                if kind == "pushed"
                else route(W.T if kind == "transposed" else W, self.node, wanted)
            )
        return self._cache[key]

    def _receivers(self, r: int) -> np.ndarray:
        """The nodes that need the server's variables after round r: those of this round and of the next.

        All others would discard them: they receive them before the next round in which they take part.
        """
        if not self.topology.has_server:
            return np.ones(self.topology.n, dtype=bool)
        return self.active(r) | self.active(r + 1)
