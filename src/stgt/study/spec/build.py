"""Builds the objects that the tables of a spec describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from stgt._internal.checks import InputError, under
from stgt._internal.registry import ALGORITHMS, ORACLES, PROBLEMS, TOPOLOGIES, Registry
from stgt._internal.serialize import from_plain
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.study.spec.load import Named
from stgt.topology import Topology

TAKES_OBJECTS = ("from_loss", "from_networkx", "schedule")  # functions and graphs, which a file cannot hold


def build_algorithm(given: Named) -> Algorithm:
    """The named algorithm. Its arguments may contain a wrapped algorithm and the schedule of a stepsize."""
    with under("algorithm"):
        return from_plain(given.model_dump(), partial(_find, ALGORITHMS))


def build_oracle(given: Named) -> Oracle:
    """The named oracle."""
    with under("oracle"):
        return from_plain(given.model_dump(), partial(_find, ORACLES))


def build_topology(given: Mapping[str, Any], n: int) -> Topology:
    """The named topology of n nodes; its arguments may contain other topologies."""
    with under("topology"):
        return from_plain(given, partial(_find, TOPOLOGIES), n=n)


def find_problem(name: str) -> Callable[..., Any]:
    """The function that makes a problem."""
    return _find(PROBLEMS, name)


def _find(registry: Registry, name: Any) -> Callable[..., Any]:
    if name in TAKES_OBJECTS:
        what = "register your own function that calls it, and import its script."
        raise InputError("name", name, f" takes what a file cannot hold: {what}")
    return registry.find(name, "name")
