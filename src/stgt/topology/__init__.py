"""Topologies: who hears whom at which round, with which weight."""

from stgt.topology.base import Topology, check_matrix
from stgt.topology.base_graph import base_graph
from stgt.topology.circulant import circulant, complete, exponential, ring
from stgt.topology.graphs import erdos_renyi, from_networkx, grid, random_regular, star, torus
from stgt.topology.sampled import random_matching, relay, server, unreliable
from stgt.topology.schedules import de_bruijn, from_matrix, hypercuboid, one_peer_exponential, sequence
from stgt.topology.spectra import contraction, period_contraction

__all__ = [
    "Topology",
    "base_graph",
    "check_matrix",
    "circulant",
    "complete",
    "contraction",
    "de_bruijn",
    "erdos_renyi",
    "exponential",
    "from_matrix",
    "from_networkx",
    "grid",
    "hypercuboid",
    "list_topologies",
    "one_peer_exponential",
    "period_contraction",
    "random_matching",
    "random_regular",
    "relay",
    "ring",
    "sequence",
    "server",
    "star",
    "torus",
    "unreliable",
]
_TOOLS = ("Topology", "check_matrix", "contraction", "list_topologies", "period_contraction")
CONSTRUCTORS = {name: globals()[name] for name in __all__ if name not in _TOOLS}


def list_topologies() -> list[str]:
    """The names of all constructors, sorted."""
    return sorted(CONSTRUCTORS)
