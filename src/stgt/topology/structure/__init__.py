"""How a topology is laid out, so that every engine can mix with its fastest kernel.

A structure is data: the matrices W_r of all rounds r of a run, independent of any engine. Its `matrix` is the
definition, its `product` the kernel; they must agree. Random structures compute their draws from (seed, r), on NumPy
and JAX alike.

Convention: row i of W holds the weights of what node i receives, and of its own value.
"""

from stgt.topology.structure.base import Structure
from stgt.topology.structure.composed import Computed, Cyclic, TwoMatrices
from stgt.topology.structure.lists import Gather, NeighbourLists, check_room, gather_from_steps, lists_from_matrices
from stgt.topology.structure.moments import Moments
from stgt.topology.structure.periodic import (
    DENSE_UP_TO,
    Average,
    Dense,
    Rolls,
    structure_from_lists,
    structure_from_matrices,
)
from stgt.topology.structure.random import Matching, RandomChoice, Relayed, Sampled, Server, Unreliable

__all__ = [
    "RandomChoice",
    "Average",
    "Computed",
    "DENSE_UP_TO",
    "Dense",
    "Gather",
    "Matching",
    "Moments",
    "NeighbourLists",
    "TwoMatrices",
    "Relayed",
    "Rolls",
    "Sampled",
    "Server",
    "Structure",
    "Cyclic",
    "Unreliable",
    "check_room",
    "gather_from_steps",
    "lists_from_matrices",
    "structure_from_lists",
    "structure_from_matrices",
]
