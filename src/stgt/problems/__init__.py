"""Problems: losses, data, partitions, known optima."""

from stgt._internal.registry import PROBLEMS
from stgt.problems.base import Problem
from stgt.problems.custom import from_loss
from stgt.problems.datasets import find_libsvm, load_libsvm
from stgt.problems.least_squares import least_squares
from stgt.problems.logistic import logistic
from stgt.problems.partition import by_label, dirichlet, iid, partition
from stgt.problems.quadratic import Quadratic, ridge
from stgt.problems.tables import load_table


def list_problems() -> list[str]:
    """The names of all problems, sorted: those of stgt, of your script, and of installed packages."""
    return sorted(PROBLEMS.names())


__all__ = [
    "Problem",
    "Quadratic",
    "by_label",
    "dirichlet",
    "find_libsvm",
    "from_loss",
    "iid",
    "least_squares",
    "list_problems",
    "load_libsvm",
    "load_table",
    "logistic",
    "partition",
    "ridge",
]
