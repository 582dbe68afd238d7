"""stgt: decentralised and federated optimisation with local updates.

One definition of an algorithm, every place it runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stgt.algorithms import (
    DPSGD,
    DSGT,
    EXTRA,
    GTSAGA,
    GTSVRG,
    KGT,
    LED,
    LUGT,
    NEXT,
    STGT,
    Adaptive,
    Algorithm,
    AugDGM,
    DIGing,
    DiLoCo,
    ExactDiffusion,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedProx,
    FedYogi,
    FlexGT,
    GTAdam,
    Kept,
    Linear,
    Local,
    MomentumTracking,
    NoLoCo,
    Outer,
    ProxSkip,
    PushPull,
    Scaffold,
    ScaffoldPlus,
    Sent,
    list_algorithms,
)
from stgt.checks import NotCovered
from stgt.registry import register

if TYPE_CHECKING:
    from stgt import oracles, problems, report, schedules, testing, theory, topology
    from stgt.comparison import Comparison, compare
    from stgt.engines import Trace, best, of_state, simulate, sweep
    from stgt.problems import Problem, list_problems
    from stgt.topology import Topology, list_topologies

__version__ = "0.1.0"

# Loaded when they are first asked for, so that `import stgt` is as quick as its own algorithms.
_ROOMS = ("oracles", "problems", "report", "schedules", "testing", "theory", "topology")
_ELSEWHERE = {
    "Comparison": "stgt.comparison",
    "Problem": "stgt.problems",
    "Topology": "stgt.topology",
    "Trace": "stgt.engines",
    "best": "stgt.engines",
    "compare": "stgt.comparison",
    "list_problems": "stgt.problems",
    "list_topologies": "stgt.topology",
    "of_state": "stgt.engines",
    "simulate": "stgt.engines",
    "sweep": "stgt.engines",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"stgt.{name}")
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'stgt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Adaptive",
    "Algorithm",
    "AugDGM",
    "Comparison",
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
    "Kept",
    "LED",
    "LUGT",
    "Linear",
    "Local",
    "MomentumTracking",
    "NEXT",
    "NoLoCo",
    "NotCovered",
    "Outer",
    "Problem",
    "ProxSkip",
    "PushPull",
    "STGT",
    "Scaffold",
    "ScaffoldPlus",
    "Sent",
    "Topology",
    "Trace",
    "best",
    "compare",
    "list_algorithms",
    "list_problems",
    "list_topologies",
    "of_state",
    "oracles",
    "problems",
    "register",
    "report",
    "schedules",
    "simulate",
    "sweep",
    "testing",
    "theory",
    "topology",
]
