"""What our own methods, graphs and problems are held to, for anyone's: `check_algorithm` and its kin."""

from stgt.testing.algorithm import check_algorithm
from stgt.testing.counting import CountingModel
from stgt.testing.problem import check_problem
from stgt.testing.report import CheckError, Report
from stgt.testing.topology import check_topology

__all__ = ["CheckError", "CountingModel", "Report", "check_algorithm", "check_problem", "check_topology"]
