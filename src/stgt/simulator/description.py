"""What a run is made of, in words and numbers: for a file, and to see whether a run goes on as it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from stgt._internal.fingerprint import fingerprint
from stgt._internal.hyper import brief
from stgt._internal.registry import ALGORITHMS
from stgt._internal.schedules import KINDS, Schedule, stepsizes
from stgt.algorithms import Algorithm
from stgt.oracles import SAGA, SVRG, Exact, Minibatch, Noisy, Oracle, ProblemNoise
from stgt.problems.base import Problem
from stgt.topology import Topology

KNOWN_ORACLES: dict[str, type[Oracle]] = {
    kind.__name__: kind for kind in (Exact, Noisy, ProblemNoise, Minibatch, SAGA, SVRG)
}
DERIVED = ("rho", "level")  # what a file has beside the descriptions
TRIED = 16  # rounds whose matrices are compared


class Saved:
    """A problem, topology or algorithm that was read from a file: the words and numbers that the file has of it."""

    def __init__(self, kind: str, values: Mapping[str, Any]):
        self._kind, self.description = kind, dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "description":  # as a copy asks before it is filled
            raise AttributeError(name)
        try:
            return self.description[name]
        except KeyError:
            raise AttributeError(
                f"the {self._kind} of a trace that was loaded has {', '.join(self.description)}, and no {name}: make "
                f"the {self._kind} again for that."
            ) from None

    def __repr__(self) -> str:
        return str(self.description.get("label", self.description["name"]))


class SavedAlgorithm(Saved):
    """An algorithm whose class this process does not know; its options are attributes."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name != "description" and name in self.description["options"]:
            return self.description["options"][name]
        return super().__getattr__(name)


def of_algorithm(algorithm: Algorithm, rounds: int) -> dict[str, Any]:
    """Its name and options; a stepsize that is a function of the user's by what it said for the rounds made."""
    kind = type(algorithm)
    options = {field.name: getattr(algorithm, field.name) for field in fields(algorithm) if field.init}
    options["gamma"] = _gamma(algorithm.gamma, rounds)
    known = [name for name, thing in ALGORITHMS.items() if thing is kind]
    # A class of the user's own that is not registered may have a name of the library's.
    named = {"name": known[0] if known else kind.__name__, "registered": bool(known), "label": algorithm.label}
    return {**named, "options": _plain(options)}


def _gamma(gamma: Any, rounds: int) -> Any:
    if isinstance(gamma, Schedule):
        return {"schedule": type(gamma).__name__, **{f.name: getattr(gamma, f.name) for f in fields(gamma)}}
    return {"function": stepsizes(gamma, 0, rounds).tolist()} if callable(gamma) else gamma


def of_problem(problem: Problem) -> dict[str, Any]:
    names = ("name", "n", "p", "L", "mu", "noise", "batch", "fingerprint")
    found = _plain({name: getattr(problem, name) for name in names})
    if problem.noise is None:
        found["sigma2"] = problem.sigma2
    return {**found, "pytree": problem.unravel is not None, "solved": problem.solve is not None}


def of_topology(topology: Topology, rounds: int) -> dict[str, Any]:
    """One that a function computes is known by some of the matrices that it gave for the rounds made."""
    names = ("name", "n", "seed", "degree", "has_server", "participation", "fingerprint")
    found = _plain({name: getattr(topology, name) for name in names})
    if topology.period is None and not topology.random:
        tried = sorted({r * max(0, rounds - 1) // TRIED for r in range(TRIED + 1)}) if rounds else []
        found["matrices"] = fingerprint(*(topology.matrix(r) for r in tried))
    return found


def level(problem: Problem, x: np.ndarray) -> float:
    """f at the mean model of the first run that is finite, by which a loss is known again; NaN if none is."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = x.astype(np.float64).mean(axis=1)
        finite = means[np.isfinite(means).all(axis=1)]
        return problem.value(finite[0]) if len(finite) else np.nan


def known_level(trace: Any) -> float:
    """The same of a trace, as its own problem or its file says it."""
    known = trace.problem.level if isinstance(trace.problem, Saved) else level(trace.problem, trace.x)
    return np.nan if known is None else known


def of_oracle(oracle: Oracle) -> dict[str, Any]:
    options = {field.name: getattr(oracle, field.name) for field in fields(oracle)}
    ours = type(oracle) in KNOWN_ORACLES.values()  # a class of the user's own may have the name of one
    return {"name": type(oracle).__name__, "registered": ours, "options": _plain(options)}


def described(thing: Any, rounds: int = 0) -> dict[str, Any]:
    """Any of the four, from this process or from a file; `rounds` is how many were made."""
    if isinstance(thing, Saved):
        return thing.description
    if isinstance(thing, Algorithm):
        return of_algorithm(thing, rounds)
    if isinstance(thing, Problem):
        return of_problem(thing)
    return of_topology(thing, rounds) if isinstance(thing, Topology) else of_oracle(thing)


def _plain(value: Any) -> Any:
    """As JSON has it; what JSON cannot hold by its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Algorithm):
        return of_algorithm(value, 0)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value) if hasattr(value, "dtype") and value.ndim == 0 else brief(value)


def algorithm_from(described: Mapping[str, Any]) -> Algorithm | Saved:
    """The algorithm that was described, if this process knows its class; else what the file has of it."""
    options = dict(described["options"])
    gamma = options.get("gamma")
    known = dict(ALGORITHMS.items()).get(described["name"]) if described["registered"] else None
    if isinstance(gamma, Mapping) and gamma.get("schedule") in KINDS:
        kind = KINDS[gamma["schedule"]]
        options["gamma"] = kind(**{name: value for name, value in gamma.items() if name != "schedule"})
    elif isinstance(gamma, Mapping):
        known = None
    for name, value in options.items():
        if isinstance(value, Mapping) and "registered" in value:  # a method that it wraps
            options[name] = algorithm_from(value)
    if known is not None:
        try:
            return known(**options)
        except (TypeError, ValueError):  # a class of that name with other options than the one that was run
            pass
    return SavedAlgorithm("algorithm", described)


def oracle_from(described: Mapping[str, Any]) -> Oracle | Saved:
    """The oracle that was described, if it is the library's; else what the file has of it."""
    if described["registered"]:
        return KNOWN_ORACLES[described["name"]](**described["options"])
    return Saved("oracle", described)


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> str | None:
    """Where two descriptions differ first, as "gamma is 0.1, and was 0.2"; None if nowhere."""
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
