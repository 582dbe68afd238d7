"""What is minimised: losses, data, partitions, known optima."""

from stgt.problems.base import Problem
from stgt.problems.custom import from_loss
from stgt.problems.datasets import load_libsvm
from stgt.problems.logistic import logistic
from stgt.problems.partition import by_label, dirichlet, iid, partition
from stgt.problems.quadratic import Quadratic, ridge

__all__ = [
    "Problem",
    "Quadratic",
    "by_label",
    "dirichlet",
    "from_loss",
    "iid",
    "load_libsvm",
    "logistic",
    "partition",
    "ridge",
]
