"""stgt: decentralised and federated optimisation with local updates.

One definition of an algorithm, every place it runs.
"""

from stgt import oracles, problems, theory, topology
from stgt.algorithms import (
    DPSGD,
    DSGT,
    GTSAGA,
    GTSVRG,
    KGT,
    LUGT,
    NEXT,
    STGT,
    Algorithm,
    AugDGM,
    DIGing,
    FedAvg,
    FedProx,
    FlexGT,
    ProxSkip,
    Scaffold,
    ScaffoldPlus,
    list_algorithms,
)
from stgt.engines import Trace, simulate, sweep
from stgt.topology import list_topologies

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AugDGM",
    "DIGing",
    "DPSGD",
    "DSGT",
    "FedAvg",
    "FedProx",
    "FlexGT",
    "GTSAGA",
    "GTSVRG",
    "KGT",
    "LUGT",
    "NEXT",
    "ProxSkip",
    "STGT",
    "Scaffold",
    "ScaffoldPlus",
    "Trace",
    "list_algorithms",
    "list_topologies",
    "oracles",
    "problems",
    "simulate",
    "sweep",
    "theory",
    "topology",
]
