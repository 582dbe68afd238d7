"""Where the nodes of a topology are drawn, and which links a round has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.topology import Topology
from stgt.topology.structure import Average, Rolls, Server

MOST_NODES = 300
MOST_LINKS = 4000  # of a picture
MOST_HEADS = 250  # more would hide the nodes
KAMADA_UP_TO = 120  # nodes; beyond, the layout would take seconds


@dataclass(frozen=True, eq=False)
class Sketch:
    """A topology whose links can be drawn; the last place is the server's, if there is one."""

    topology: Topology
    places: np.ndarray  # (n, 2) or (n + 1, 2)
    everything: np.ndarray  # (links, 2) pairs of places that are joined in some round that is drawn

    @cached_property
    def arrows(self) -> bool:
        """Are heads drawn? Where some link goes one way only, and there are few enough."""
        first = self.links(0)
        mutual = {tuple(pair) for pair in first.tolist()} == {tuple(pair[::-1]) for pair in first.tolist()}
        return not mutual and len(first) <= MOST_HEADS

    def links(self, r: int) -> np.ndarray:
        """(links, 2): who is heard, and who hears, in round r."""
        return _links(self.topology, r)

    def working(self, r: int) -> np.ndarray:
        """Which nodes have a part in round r, (n,) booleans."""
        ends = self.links(r)
        return np.isin(np.arange(self.topology.n), ends) | self.topology.active(r)


def sketch(topology: Topology, rounds: int) -> Sketch:
    """Places the nodes; NotCovered says why nothing is drawn."""
    if topology.n > MOST_NODES:
        raise NotCovered(f"{topology.n:,} nodes are more than the {MOST_NODES} whose links can be seen in a picture")
    shown = range(min(rounds, topology.period or rounds))
    pairs = np.unique(np.sort(np.concatenate([_links(topology, r) for r in shown]), axis=1), axis=0)
    if len(pairs) > MOST_LINKS:
        raise NotCovered(f"{len(pairs):,} links are more than the {MOST_LINKS:,} that can be seen in a picture")
    return Sketch(topology, _places(topology, pairs), pairs)


def _links(topology: Topology, r: int) -> np.ndarray:
    n = topology.n
    if topology.has_server:
        speaks = np.flatnonzero(topology.active(r))
        hears = speaks
        if isinstance(topology.structure, Server):
            hears = np.asarray(topology.structure.receivers(np, topology.seed, r))
        up, down = ([(i, n) for i in speaks], [(n, i) for i in hears])
        return np.array(up + down, dtype=int).reshape(-1, 2)
    heard = (topology.matrix(r) != 0) | (topology.matrix(r, pushed=True) != 0)
    np.fill_diagonal(heard, False)
    return np.argwhere(heard)[:, ::-1]


def _places(topology: Topology, pairs: np.ndarray) -> np.ndarray:
    """A circle for graphs that look alike from every node and for schedules, a server in the middle; else a layout."""
    circle = topology.has_server or topology.period != 1 or isinstance(topology.structure, Average | Rolls)
    if not circle:
        return _laid_out(topology.n, pairs)
    turns = 2 * np.pi * np.arange(topology.n) / topology.n
    around = np.stack([np.sin(turns), np.cos(turns)], axis=1) * (topology.n > 1)
    return np.concatenate([around, np.zeros((1, 2))]) if topology.has_server else around


def _laid_out(n: int, pairs: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(pairs.tolist())
    if n <= KAMADA_UP_TO and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100)
    places = np.array([found[i] for i in range(n)]).reshape(n, 2)
    longest_across = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)[2]
    places = places @ longest_across.T
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)
