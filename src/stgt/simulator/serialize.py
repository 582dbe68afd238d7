"""Algorithms, problems, topologies and oracles as plain data: for files, and to compare a run with one that is resumed.

A problem and a topology hold arrays and functions that a file does not store. Of those the data have a name, a few
numbers and a checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from stgt._internal.digest import digest
from stgt._internal.hyper import short_repr
from stgt._internal.registry import ALGORITHMS, ORACLES
from stgt._internal.schedules import KINDS, StepsizeSchedule, stepsizes
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.topology import Topology

DERIVED = ("rho", "mean_model_loss")  # what a file has in addition
COMPARED_ROUNDS = 16  # rounds whose matrices are compared


class Serialized:
    """A problem, topology, algorithm or oracle that was read from a file: its entries there are attributes."""

    def __init__(self, kind: str, plain: Mapping[str, Any]):
        self._kind, self.plain = kind, dict(plain)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":  # copy and pickle ask for these before __init__ has run
            raise AttributeError(name)
        try:
            return self.plain[name]
        except KeyError:
            raise AttributeError(
                f"the {self._kind} of a trace that was loaded has {', '.join(self.plain)}, and no {name}: make "
                f"the {self._kind} again for that."
            ) from None

    def __repr__(self) -> str:
        return str(self.plain.get("label", self.plain["name"]))


class SerializedAlgorithm(Serialized):
    """An algorithm whose class is not registered in this process; its options are attributes."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name != "plain" and name in self.plain["options"]:
            return self.plain["options"][name]
        return super().__getattr__(name)


def serialize(thing: Any, rounds: int = 0) -> dict[str, Any]:
    """An algorithm, problem, topology or oracle as plain data; `rounds` is how many rounds were made with it."""
    if isinstance(thing, Serialized):
        return thing.plain
    if isinstance(thing, Algorithm):
        return _algorithm(thing, rounds)
    if isinstance(thing, Problem):
        return _problem(thing)
    return _topology(thing, rounds) if isinstance(thing, Topology) else _oracle(thing)


def _algorithm(algorithm: Algorithm, rounds: int) -> dict[str, Any]:
    """Its name and options. A stepsize that is a user's function is stored as its values in the rounds made."""
    kind = type(algorithm)
    options = {field.name: getattr(algorithm, field.name) for field in fields(algorithm) if field.init}
    options["gamma"] = _gamma(algorithm.gamma, rounds)
    names = [name for name, known in ALGORITHMS.items() if known is kind]
    # A user's class that is not registered may have the name of one that is.
    named = {"name": names[0] if names else kind.__name__, "registered": bool(names), "label": algorithm.label}
    return {**named, "options": _plain(options)}


def _gamma(gamma: Any, rounds: int) -> Any:
    if isinstance(gamma, StepsizeSchedule):
        return {"schedule": type(gamma).__name__, **{f.name: getattr(gamma, f.name) for f in fields(gamma)}}
    return {"function": stepsizes(gamma, 0, rounds).tolist()} if callable(gamma) else gamma


def _problem(problem: Problem) -> dict[str, Any]:
    names = ("name", "n", "p", "L", "mu", "noise", "batch", "fingerprint")
    found = _plain({name: getattr(problem, name) for name in names})
    if problem.noise is None:
        found["sigma2"] = problem.sigma2
    return {**found, "pytree": problem.unravel is not None, "solved": problem.solve is not None}


def _topology(topology: Topology, rounds: int) -> dict[str, Any]:
    """A topology that a function computes is identified by some of its matrices in the rounds made."""
    names = ("name", "n", "seed", "degree", "has_server", "participation", "fingerprint")
    found = _plain({name: getattr(topology, name) for name in names})
    if topology.period is None and not topology.random:
        last = max(0, rounds - 1)
        compared = sorted({r * last // COMPARED_ROUNDS for r in range(COMPARED_ROUNDS + 1)}) if rounds else []
        found["matrices"] = digest(*(topology.matrix(r) for r in compared))
    return found


def _oracle(oracle: Oracle) -> dict[str, Any]:
    options = {field.name: getattr(oracle, field.name) for field in fields(oracle)}
    kind = type(oracle)
    names = [name for name, known in ORACLES.items() if known is kind]  # a class that is not may have the name of one
    return {"name": names[0] if names else kind.__name__, "registered": bool(names), "options": _plain(options)}


def _plain(value: Any) -> Any:
    """A value as JSON holds it; anything else as its short repr."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Algorithm):
        return _algorithm(value, 0)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value) if hasattr(value, "dtype") and value.ndim == 0 else short_repr(value)


def deserialize_algorithm(plain: Mapping[str, Any]) -> Algorithm | Serialized:
    """The algorithm, if its class is registered in this process and takes these options; else its plain data."""
    options = dict(plain["options"])
    gamma = options.get("gamma")
    kind = dict(ALGORITHMS.items()).get(plain["name"]) if plain["registered"] else None
    if isinstance(gamma, Mapping) and gamma.get("schedule") in KINDS:
        schedule = KINDS[gamma["schedule"]]
        options["gamma"] = schedule(**{name: value for name, value in gamma.items() if name != "schedule"})
    elif isinstance(gamma, Mapping):  # a user's function, of which only values are stored
        kind = None
    for name, value in options.items():
        if isinstance(value, Mapping) and "registered" in value:  # a wrapped method
            options[name] = deserialize_algorithm(value)
    if kind is not None:
        try:
            return kind(**options)
        except (TypeError, ValueError):  # the user has registered another class under that name
            pass
    return SerializedAlgorithm("algorithm", plain)


def deserialize_oracle(plain: Mapping[str, Any]) -> Oracle | Serialized:
    """The oracle, if its class is registered in this process and takes these options; else its plain data."""
    kind = ORACLES.get(plain["name"]) if plain["registered"] else None
    if kind is not None:
        try:
            return kind(**plain["options"])
        except (TypeError, ValueError):  # the user has registered another class under that name
            pass
    return Serialized("oracle", plain)


def mean_model_loss(problem: Problem, x: np.ndarray) -> float:
    """f at the mean model of the first run that is finite, NaN if none is: another loss function has another value."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = x.astype(np.float64).mean(axis=1)
        finite = means[np.isfinite(means).all(axis=1)]
        return problem.value(finite[0]) if len(finite) else np.nan


def stored_mean_model_loss(trace: Any) -> float:
    """The same for a trace: computed, or read from its file if the trace was loaded."""
    if not isinstance(trace.problem, Serialized):
        return mean_model_loss(trace.problem, trace.x)
    return np.nan if trace.problem.mean_model_loss is None else trace.problem.mean_model_loss


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> str | None:
    """Where plain data differ first, as "gamma is 0.1, and was 0.2"; None if nowhere."""
    for name in dict.fromkeys([*one, *other]):
        now, then, where = one.get(name), other.get(name), f"{path}{name}"
        if isinstance(now, Mapping) and isinstance(then, Mapping):
            inner = f"{where}." if name != "options" else "" if path == "algorithm." else path
            found = first_difference(now, then, inner)
            if found is not None:
                return found
        elif now != then:
            return f"{where} is {_short(now)}, and was {_short(then)}"
    return None


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 160 else f"{words[:157]}…"
