"""Topologies: which nodes exchange messages in which round, with which weight."""

from stgt._internal.registry import TOPOLOGIES
from stgt.topology.base import Topology, check_matrix
from stgt.topology.circulant import circulant, complete, exponential, ring
from stgt.topology.directed import push_pull
from stgt.topology.finite_time import base_graph, de_bruijn, hypercuboid, one_peer_exponential
from stgt.topology.given import any_of, from_matrix, schedule, sequence
from stgt.topology.graphs import erdos_renyi, from_edges, from_networkx, grid, random_regular, star, torus
from stgt.topology.moments import Moments
from stgt.topology.sampled import random_matching, relay, server, unreliable
from stgt.topology.spectra import Rho, contraction, period_contraction
from stgt.topology.structure import Structure

__all__ = [
    "Moments",
    "Rho",
    "Structure",
    "Topology",
    "any_of",
    "base_graph",
    "check_matrix",
    "circulant",
    "complete",
    "contraction",
    "de_bruijn",
    "erdos_renyi",
    "exponential",
    "from_edges",
    "from_matrix",
    "from_networkx",
    "grid",
    "hypercuboid",
    "list_topologies",
    "one_peer_exponential",
    "period_contraction",
    "push_pull",
    "random_matching",
    "random_regular",
    "relay",
    "ring",
    "schedule",
    "sequence",
    "server",
    "star",
    "torus",
    "unreliable",
]


def list_topologies() -> list[str]:
    """The names of all topologies, sorted: those of stgt, of your script, and of installed packages."""
    return sorted(TOPOLOGIES.names())
