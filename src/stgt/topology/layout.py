"""The positions of a topology's nodes and the links of its rounds, for every picture of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.topology.circulant import Average, Rolls
from stgt.topology.sampled import Server

if TYPE_CHECKING:
    from stgt.topology.base import Topology

KAMADA_UP_TO = 120  # nodes; with more, this layout would take seconds


@dataclass(frozen=True, eq=False)
class Layout:
    """A topology with the positions and links to draw.

    Attributes:
        topology: the topology.
        places: (n, 2) in the square from −1 to 1, y upwards; one more row for the server, if there is one.
        by_round: for each drawn round (links, 2): (sender, receiver) as row numbers of `places`.
        all_lines: (lines, 2), the pairs that are linked in any drawn round, each once.
        arrows: draw arrow heads? True if some link goes one way only, and there are few enough links.
    """

    topology: Topology
    places: np.ndarray
    by_round: dict[int, np.ndarray]
    all_lines: np.ndarray
    arrows: bool

    def links(self, r: int) -> np.ndarray:
        """(links, 2): (sender, receiver) in round r, or in the equal round of the period."""
        return self.by_round[r % self.topology.period if self.topology.period else r]

    def lines(self, r: int) -> np.ndarray:
        """(lines, 2): the pairs that are linked in round r, each once."""
        return _pairs(self.links(r))

    def working(self, r: int) -> np.ndarray:
        """Which nodes take part in round r, (n,) booleans."""
        return np.isin(np.arange(self.topology.n), self.links(r)) | self.topology.active(r)


def layout(topology: Topology, rounds: Iterable[int], *, most_nodes: int, most_lines: int, most_heads: int) -> Layout:
    """Positions and links; NotCovered if there are too many nodes or links.

    Args:
        topology: the topology.
        rounds: the rounds to draw.
        most_nodes, most_lines: the largest numbers to draw; a line in several rounds counts once.
        most_heads: arrow heads in a round; if there would be more, lines have no heads.
    """
    if topology.n > most_nodes:
        raise NotCovered(f"{topology.n:,} nodes, and at most {most_nodes:,} are drawn")
    wanted = {r % topology.period if topology.period else r for r in rounds}
    by_round = {r: _links(topology, r) for r in sorted(wanted)}
    lines = _pairs(np.concatenate(list(by_round.values())))
    if len(lines) > most_lines:
        raise NotCovered(f"{len(lines):,} links, and at most {most_lines:,} are drawn")
    mutual = all(
        {tuple(pair) for pair in links.tolist()} == {tuple(pair) for pair in links[:, ::-1].tolist()}
        for links in by_round.values()
    )
    arrows = not mutual and max(map(len, by_round.values())) <= most_heads
    return Layout(topology, _places(topology, lines), by_round, lines, arrows)


def _pairs(links: np.ndarray) -> np.ndarray:
    return np.unique(np.sort(links, axis=1), axis=0)


def _links(topology: Topology, r: int) -> np.ndarray:
    n = topology.n
    if topology.has_server:
        senders = np.flatnonzero(topology.active(r))
        receivers = senders
        if isinstance(topology.structure, Server):
            receivers = np.asarray(topology.structure.receivers(np, topology.seed, r))
        up, down = ([(i, n) for i in senders], [(n, i) for i in receivers])
        return np.array(up + down, dtype=int).reshape(-1, 2)
    received = (topology.matrix(r) != 0) | (topology.matrix(r, pushed=True) != 0)
    np.fill_diagonal(received, False)
    return np.argwhere(received)[:, ::-1]


def _places(topology: Topology, lines: np.ndarray) -> np.ndarray:
    """A circle for vertex-transitive graphs and for schedules, with a server in the middle; else by the links."""
    circle = topology.has_server or topology.period != 1 or isinstance(topology.structure, Average | Rolls)
    if not circle:
        return _by_links(topology.n, lines)
    turns = 2 * np.pi * np.arange(topology.n) / topology.n
    around = np.stack([np.sin(turns), np.cos(turns)], axis=1) * (topology.n > 1)
    return np.concatenate([around, np.zeros((1, 2))]) if topology.has_server else around


def _by_links(n: int, lines: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(lines.tolist())
    if n <= KAMADA_UP_TO and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100)
    places = np.array([found[i] for i in range(n)]).reshape(n, 2)
    longest_across = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)[2]
    places = places @ longest_across.T
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)
