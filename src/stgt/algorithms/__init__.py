"""What a node computes and says. Nothing here imports an array library."""

from stgt.algorithms.base import Algorithm, Cost, Local
from stgt.algorithms.federated import FedAvg, FedProx, Scaffold, ScaffoldPlus
from stgt.algorithms.gossip import DPSGD, ProxSkip
from stgt.algorithms.sequential import LUGT, AugDGM
from stgt.algorithms.tracking import DSGT, GTSAGA, GTSVRG, KGT, NEXT, STGT, DIGing, FlexGT

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.__name__: cls
    for cls in (
        STGT,
        FlexGT,
        KGT,
        DSGT,
        LUGT,
        AugDGM,
        DIGing,
        NEXT,
        DPSGD,
        FedAvg,
        FedProx,
        Scaffold,
        ScaffoldPlus,
        ProxSkip,
        GTSAGA,
        GTSVRG,
    )
}


def list_algorithms() -> list[str]:
    """The names of all algorithms, each a class of that name in `stgt`."""
    return list(ALGORITHMS)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AugDGM",
    "Cost",
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
    "Local",
    "NEXT",
    "ProxSkip",
    "STGT",
    "Scaffold",
    "ScaffoldPlus",
    "list_algorithms",
]
