"""The parts of a run as plain data: for files, and to compare a run with a resumed one.

A problem and a topology have arrays and functions that a file does not store. The data have their name, a few numbers
and a checksum instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.digest import digest
from stgt._internal.registry import Registry
from stgt._internal.serialize import from_plain, registered, to_plain
from stgt.problems.base import Problem
from stgt.topology import Topology

DERIVED = ("rho", "mean_model_loss", "label")  # additional entries of a file
COMPARED_ROUNDS = 16  # the number of rounds whose matrices are compared


class Serialized:
    """A problem, topology, algorithm or oracle that was read from a file; the file's entries are its attributes."""

    def __init__(self, kind: str, plain: Mapping[str, Any]):
        self._kind, self.plain = kind, dict(plain)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":  # copy and pickle ask for these before __init__ has run
            raise AttributeError(name)
        try:
            return self.plain[name]
        except KeyError:
            raise AttributeError(
                f"the {self._kind} of a loaded trace has only {', '.join(self.plain)}, and no {name}: make the "
                f"{self._kind} again for that."
            ) from None

    def __repr__(self) -> str:
        return str(self.plain.get("label", self.plain["name"]))


def serialize(thing: Any, rounds: int = 0) -> dict[str, Any]:
    """An algorithm, problem, topology or oracle as plain data; `rounds` is the number of rounds made with it."""
    if isinstance(thing, Serialized):
        return thing.plain
    if isinstance(thing, Problem):
        return _problem(thing)
    return _topology(thing, rounds) if isinstance(thing, Topology) else to_plain(thing, rounds)


def deserialize(kind: str, registry: Registry, plain: Mapping[str, Any]) -> Any:
    """The object, if its class is registered in this process and takes these options; otherwise its plain data."""
    options = {name: value for name, value in plain.items() if name not in DERIVED}
    try:
        return from_plain({"name": plain["name"], **options}, registered(registry))
    except InputError:
        return Serialized(kind, plain)


def _problem(problem: Problem) -> dict[str, Any]:
    names = ("name", "n", "p", "L", "mu", "noise", "batch", "fingerprint")
    found = to_plain({name: getattr(problem, name) for name in names})
    if problem.noise is None:
        found["sigma2"] = problem.sigma2
    return {**found, "pytree": problem.unravel is not None, "solved": problem.solve is not None}


def _topology(topology: Topology, rounds: int) -> dict[str, Any]:
    """A topology that a function computes is identified by some of its matrices in the completed rounds."""
    names = ("name", "n", "seed", "degree", "has_server", "participation", "fingerprint")
    found = to_plain({name: getattr(topology, name) for name in names})
    if topology.period is None and not topology.random:
        last = max(0, rounds - 1)
        compared = sorted({r * last // COMPARED_ROUNDS for r in range(COMPARED_ROUNDS + 1)}) if rounds else []
        found["matrices"] = digest(*(topology.matrix(r) for r in compared))
    return found


def mean_model_loss(problem: Problem, x: np.ndarray) -> float:
    """f at the mean model of the first finite run, NaN if none is finite. It identifies the loss function."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = x.astype(np.float64).mean(axis=1)
        finite = means[np.isfinite(means).all(axis=1)]
        return problem.value(finite[0]) if len(finite) else np.nan


def stored_mean_model_loss(trace: Any) -> float:
    """The same for a trace: computed, or read from the file of a loaded trace."""
    if not isinstance(trace.problem, Serialized):
        return mean_model_loss(trace.problem, trace.x)
    return np.nan if trace.problem.mean_model_loss is None else trace.problem.mean_model_loss


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> str | None:
    """The first difference between plain data, as "gamma is 0.1, and was 0.2"; None if there is none."""
    for name in dict.fromkeys([*one, *other]):
        now, then, where = one.get(name), other.get(name), f"{path}{name}"
        if isinstance(now, Mapping) and isinstance(then, Mapping):
            found = first_difference(now, then, f"{where}.")
            if found is not None:
                return found
        elif now != then:
            return f"{where} is {_short(now)}, and was {_short(then)}"
    return None


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 160 else f"{words[:157]}…"
