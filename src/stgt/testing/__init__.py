"""Checks for your own algorithms, topologies and problems: `check_algorithm` and similar functions."""

from stgt.testing.algorithm import check_algorithm
from stgt.testing.engines import CountingModel
from stgt.testing.problem import check_problem
from stgt.testing.report import CheckError, Report
from stgt.testing.topology import check_topology

__all__ = ["CheckError", "CountingModel", "Report", "check_algorithm", "check_problem", "check_topology"]
