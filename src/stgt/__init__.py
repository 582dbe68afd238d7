"""stgt: decentralised and federated optimisation with local updates.

You define an algorithm once. The same definition runs in the simulator, in the trainer, in Flower and in the theory.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stgt._internal.checks import InputError, NotCovered
from stgt._internal.registry import register
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
    Linear,
    Local,
    MessageVar,
    MomentumTracking,
    NoLoCo,
    Outer,
    ProxSkip,
    PushPull,
    RoundSpec,
    Scaffold,
    ScaffoldPlus,
    StateVar,
    list_algorithms,
)

if TYPE_CHECKING:
    from stgt import oracles, problems, study, testing, theory, topology
    from stgt._internal import loggers, schedules
    from stgt.oracles import Oracle
    from stgt.problems import Problem, list_problems
    from stgt.simulator import Metric, Trace, best, list_metrics, of_state, simulate, sweep
    from stgt.study import report
    from stgt.study.comparison import Comparison
    from stgt.study.run import compare
    from stgt.topology import Topology, list_topologies

__version__ = "0.1.0"

# Imported when they are first used, which keeps `import stgt` fast.
_MODULES = {
    "loggers": "stgt._internal.loggers",
    "oracles": "stgt.oracles",
    "problems": "stgt.problems",
    "report": "stgt.study.report",
    "schedules": "stgt._internal.schedules",
    "study": "stgt.study",
    "testing": "stgt.testing",
    "theory": "stgt.theory",
    "topology": "stgt.topology",
}
_ELSEWHERE = {
    "Comparison": "stgt.study.comparison",
    "Metric": "stgt.simulator",
    "Oracle": "stgt.oracles",
    "Problem": "stgt.problems",
    "Topology": "stgt.topology",
    "Trace": "stgt.simulator",
    "best": "stgt.simulator",
    "compare": "stgt.study.run",
    "list_metrics": "stgt.simulator",
    "list_problems": "stgt.problems",
    "list_topologies": "stgt.topology",
    "of_state": "stgt.simulator",
    "simulate": "stgt.simulator",
    "sweep": "stgt.simulator",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
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
    "InputError",
    "KGT",
    "RoundSpec",
    "StateVar",
    "LED",
    "LUGT",
    "Linear",
    "Local",
    "MomentumTracking",
    "NEXT",
    "NoLoCo",
    "NotCovered",
    "Oracle",
    "Outer",
    "Problem",
    "ProxSkip",
    "PushPull",
    "STGT",
    "Scaffold",
    "ScaffoldPlus",
    "MessageVar",
    "Metric",
    "Topology",
    "Trace",
    "best",
    "compare",
    "list_algorithms",
    "list_metrics",
    "list_problems",
    "list_topologies",
    "loggers",
    "of_state",
    "oracles",
    "problems",
    "register",
    "report",
    "schedules",
    "simulate",
    "study",
    "sweep",
    "testing",
    "theory",
    "topology",
]
