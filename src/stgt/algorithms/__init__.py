"""Algorithms: what a node computes and sends. Nothing here imports an array library.

The imports below are in the order of `list_algorithms`, which is the order of registration: the trackers come first.
"""

from stgt.algorithms.tracking import DSGT, GTSAGA, GTSVRG, KGT, NEXT, STGT, DIGing, FlexGT, PushPull

# isort: split
from stgt._internal.registry import ALGORITHMS
from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Linear, Local, MessageVar, RoundSpec, StateVar
from stgt.algorithms.diffusion import EXTRA, LED, ExactDiffusion
from stgt.algorithms.federated import FedAvg, FedDyn, FedProx, Scaffold, ScaffoldPlus
from stgt.algorithms.gossip import DPSGD, ProxSkip
from stgt.algorithms.momentum import GTAdam, MomentumTracking
from stgt.algorithms.outer import Adaptive, DiLoCo, FedAdam, FedAvgM, FedYogi, NoLoCo, Outer, OuterStep
from stgt.algorithms.sequential import LUGT, AugDGM
from stgt.algorithms.wrapper import Wrapper


def list_algorithms() -> list[str]:
    """The names of all algorithms: those of stgt, of your script, and of installed packages."""
    return ALGORITHMS.names()


__all__ = [
    "Adaptive",
    "Algorithm",
    "AugDGM",
    "Cost",
    "DIGing",
    "DPSGD",
    "DSGT",
    "DiLoCo",
    "EXTRA",
    "ExactDiffusion",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedProx",
    "FedYogi",
    "FlexGT",
    "GTAdam",
    "GTSAGA",
    "GTSVRG",
    "KGT",
    "StateVar",
    "LED",
    "LUGT",
    "Linear",
    "Local",
    "MomentumTracking",
    "NEXT",
    "NoLoCo",
    "Outer",
    "OuterStep",
    "ProxSkip",
    "PushPull",
    "RoundSpec",
    "STGT",
    "Scaffold",
    "ScaffoldPlus",
    "MessageVar",
    "Wrapper",
    "list_algorithms",
]
