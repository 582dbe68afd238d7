"""What is minimised: losses, data, partitions, known optima."""

from stgt.problems.base import Problem
from stgt.problems.custom import from_loss
from stgt.problems.datasets import load_libsvm
from stgt.problems.logistic import logistic
from stgt.problems.partition import by_label, dirichlet, iid, partition
from stgt.problems.quadratic import Quadratic, ridge
from stgt.registry import PROBLEMS


def list_problems() -> list[str]:
    """The names of all problems: ours, those that a script has registered, those of installed packages; sorted."""
    return sorted(PROBLEMS.names())


__all__ = [
    "Problem",
    "Quadratic",
    "by_label",
    "dirichlet",
    "from_loss",
    "iid",
    "list_problems",
    "load_libsvm",
    "logistic",
    "partition",
    "ridge",
]
