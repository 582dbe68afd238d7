"""An algorithm on a problem over a topology, with its oracle, and the checks that they fit together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.registry import ORACLES
from stgt.algorithms import Algorithm, RoundSpec
from stgt.algorithms.support import ENGINES, refusal
from stgt.oracles import Oracle, default_oracle
from stgt.problems.base import Problem
from stgt.topology import Topology

EIGENVALUES_UP_TO = 2000  # up to this many nodes, eigenvalues of a fixed W are checked, for methods that need it


@dataclass(frozen=True, eq=False)
class Instance:
    """An algorithm, a problem, a topology and an oracle that fit together: what is simulated or predicted."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    oracle: Oracle

    @cached_property
    def spec(self) -> RoundSpec:
        """The algorithm's declaration."""
        return self.algorithm.spec()

    @property
    def samples(self) -> float:
        """The number of samples of a node, on average; 1 if f_i is not a sum."""
        counts = self.problem.counts
        return 1.0 if counts is None else float(counts.mean())

    @property
    def tosses(self) -> bool:
        """Does a random coin decide whether a round ends with communication?"""
        return (self.spec.communication_probability or 1) < 1


def validate(algorithm: Any, problem: Any, topology: Any, oracle: Any = None) -> Instance:
    """The instance of these parts; a ValueError if they do not fit together."""
    return validate_all([algorithm], problem, topology, oracle)[0]


def validate_all(algorithms: Iterable[Any], problem: Any, topology: Any, oracle: Any = None) -> tuple[Instance, ...]:
    """Instances of several algorithms. Checks of the problem that take time are done once."""
    instances = tuple(_validate(algorithm, problem, topology, oracle) for algorithm in algorithms)
    check_unchanged = getattr(problem.model, "check_unchanged", None)
    if check_unchanged is not None:
        check_unchanged()
    return instances


def _validate(algorithm: Any, problem: Any, topology: Any, oracle: Any) -> Instance:
    check_algorithm_object(algorithm, ENGINES["simulator"].example)
    check_problem_object(problem)
    check_runs(algorithm, check_topology_object(topology), "simulator")
    if isinstance(algorithm.gamma, tuple) and len(algorithm.gamma) != problem.n:
        raise InputError(
            "gamma", hint=f" has {len(algorithm.gamma)} stepsizes: give one, or one for each of the {problem.n} nodes."
        )
    if problem.n != topology.n:
        raise InputError("topology", hint=f" has n={topology.n} nodes, but problem has n={problem.n}: make them equal.")
    chosen = _choose_oracle(algorithm, problem, oracle)
    chosen.check(problem)
    return Instance(algorithm, problem, topology, chosen)


def check_constant_stepsize(algorithm: Algorithm) -> None:
    """A ValueError if the stepsize changes from round to round."""
    if callable(algorithm.gamma):
        raise InputError(
            "gamma",
            algorithm.gamma,
            f" of {algorithm.label} changes from round to round, but this computation needs a constant stepsize: give "
            "a number.",
        )


def check_algorithm_object(algorithm: Any, example: str) -> None:
    """A ValueError if it is not an instance of an algorithm."""
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        raise InputError("algorithm", hint=f" is the class {algorithm.__name__}: give an instance, such as {example}.")
    if not isinstance(algorithm, Algorithm):
        raise InputError("algorithm", algorithm, f"give an instance, such as {example}.")


def check_problem_object(problem: Any) -> None:
    """A ValueError if it is not a problem."""
    if not isinstance(problem, Problem):
        raise InputError("problem", problem, "give a Problem, made by a function of stgt.problems.")


def check_topology_object(topology: Any, wanted: str = "a Topology, made by a function of stgt.topology") -> Topology:
    """The topology; a ValueError if it is not one."""
    if isinstance(topology, Topology):
        return topology
    if isinstance(topology, np.ndarray):
        raise InputError("topology", hint=f" is an array of shape {topology.shape}: give stgt.topology.from_matrix(W).")
    raise InputError("topology", topology, f"give {wanted}.")


def check_runs(algorithm: Any, topology: Topology, engine: str) -> None:
    """A ValueError if the engine, one of `ENGINES`, cannot run the method with its options on this topology."""
    _, example, stepsize, _ = ENGINES[engine]
    check_algorithm_object(algorithm, example)
    if stepsize and algorithm.gamma is not None:
        raise InputError("gamma", algorithm.gamma, f"leave it out of {algorithm.label}; here it is {stepsize}.")
    if not stepsize and algorithm.gamma is None:
        raise InputError("gamma", hint=f" was left out of {algorithm.label}: a simulation needs gamma > 0.")
    check_fit(algorithm, topology, engine)


def check_fit(algorithm: Algorithm, topology: Topology, engine: str = "reference") -> None:
    """The same check, without that of the stepsize."""
    spec = algorithm.spec()
    if words := refusal(algorithm.label, spec, topology, engine):
        raise ValueError(words)
    algorithm.check(topology.participation)
    bound = spec.least_eigenvalue
    if bound is not None and topology.symmetric and topology.period == 1 and topology.n <= EIGENVALUES_UP_TO:
        least = float(np.linalg.eigvalsh(topology.matrix(0))[0])
        if least <= bound + 1e-12:
            raise ValueError(
                f"{algorithm.label} needs the eigenvalues of W above {bound:.3g}, and {topology.name} has {least:.3g}: "
                "give lazier weights, or ExactDiffusion(lazy=True)."
            )


def _choose_oracle(algorithm: Algorithm, problem: Problem, oracle: Any) -> Oracle:
    if isinstance(oracle, str):
        oracle = ORACLES.find(oracle, "oracle")()
    if oracle is not None and not isinstance(oracle, Oracle):
        raise InputError("oracle", oracle, "give an instance, such as stgt.oracles.Minibatch(8), or a name.")
    spec = algorithm.spec()
    if spec.oracle is None:
        return default_oracle(problem) if oracle is None else oracle
    required = ORACLES.find(spec.oracle, "oracle")(**spec.oracle_options)
    if problem.counts is None and not problem.noisy and oracle is None:
        return default_oracle(problem)  # f_i counts as one sample: variance reduction gives the exact gradient
    if oracle is not None and oracle != required:
        raise InputError("oracle", oracle, f"{algorithm.label} needs {required}; leave oracle out.")
    return required
