"""How a topology is laid out, so that every engine can mix with its fastest kernel.

A structure is data: it knows who hears whom at round r of a run, and imports no engine. Its `matrix` is the plain
meaning, its `product` the kernel; they must agree. Random structures look their draws up from (seed, r), on NumPy or
JAX alike.

Convention: row i of W holds the weights node i applies to what it hears, its own included.
"""

from stgt.topology.structure.base import Structure
from stgt.topology.structure.drawn import AnyOf, Matching, Relayed, Sampled, Server, Unreliable
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
from stgt.topology.structure.push_pull import PushPull
from stgt.topology.structure.turns import Computed, Turns

__all__ = [
    "AnyOf",
    "Average",
    "Computed",
    "DENSE_UP_TO",
    "Dense",
    "Gather",
    "Matching",
    "Moments",
    "NeighbourLists",
    "PushPull",
    "Relayed",
    "Rolls",
    "Sampled",
    "Server",
    "Structure",
    "Turns",
    "Unreliable",
    "check_room",
    "gather_from_steps",
    "lists_from_matrices",
    "structure_from_lists",
    "structure_from_matrices",
]
