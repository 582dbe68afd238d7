"""Exact predictions on a quadratic: stability, steady state and the expected curve.

For a quadratic problem with additive noise a round is v ← M v + b + B ξ. Its spectral radius decides stability. The
discrete Lyapunov equation P = M P Mᵀ + B Bᵀ gives the steady-state covariance. A schedule of period T is the product of
its T rounds. Small states have dense maps, large ones operators (`maps`). If W_r is drawn again each round, or
gradients are those of minibatches, second moments are computed instead of states (`mean_square`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from stgt._internal.checks import NotCovered, check_count
from stgt.algorithms import Algorithm
from stgt.algorithms.support import refusal
from stgt.problems.base import Problem
from stgt.simulator.instance import Instance, check_constant_stepsize, validate
from stgt.simulator.job import first_models
from stgt.theory.maps import LargeMap, RoundMap
from stgt.theory.mean_square import MeanSquare
from stgt.theory.network import ExactMap, NetworkRounds, SteadyState
from stgt.theory.node_round import Curvature
from stgt.theory.solvers import ROOM
from stgt.topology import Topology
from stgt.topology.base import check_repeats

LARGEST = 2000  # the most entries of a state for dense maps
HUGEST = 2_000_000  # the most entries of a state at all


def round_map(algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: ArrayLike | None = None) -> RoundMap:
    """The round of an algorithm on a quadratic problem, as affine maps; a map for each round of the schedule's period.

    `x0` is the initial model, as in `simulate`. Only the state before round 0 depends on it.

    Raises:
        NotCovered: the problem is not quadratic with additive noise, the method's round is not linear, the schedule has
            no period, or the state is large.
    """
    instance, start, entries = accept(algorithm, problem, topology, x0)
    if topology.period is None:
        raise NotCovered(f"{topology.name} is random, so no single map describes a round: use one with a period.")
    if problem.batch is not None:
        raise NotCovered(f"{problem.name} draws minibatches, so no single map describes a round: give batch=None.")
    if instance.tosses:
        raise NotCovered(
            f"{algorithm.label} with p={instance.spec.communication_probability:g} tosses a coin: give p=1 and tau."
        )
    if entries > LARGEST:
        raise NotCovered(
            f"the state has {entries} entries: give a problem with an n·p that needs at most {LARGEST}, or use "
            "spectral_radius, steady_state or expected_curve, which need no dense map."
        )
    return RoundMap(instance, start)


@threadpool_limits.wrap(limits=1, user_api="blas")
def spectral_radius(algorithm: Algorithm, problem: Problem, topology: Topology) -> float:
    """The factor by which the slowest mode of a run shrinks in a round; above 1 the run diverges.

    Conserved parts, such as the mean of c, are left out. For a schedule of period T it is the T-th root of the
    period's radius. For random rounds it is the factor of the root mean square: above 1 E‖x − x*‖² grows without bound.

    Example:
        >>> import stgt
        >>> problem = stgt.problems.ridge(n=16, p=4, mu=0.1)
        >>> ring = stgt.topology.ring(16, directed=True)
        >>> plain = stgt.theory.spectral_radius(stgt.STGT(gamma=0.4, tau=50), problem, ring)
        >>> adjoint = stgt.theory.spectral_radius(stgt.STGT(gamma=0.4, tau=50, adjoint=True), problem, ring)
        >>> adjoint < 1 < plain
        True
    """
    return exact_map(algorithm, problem, topology).spectral_radius


@threadpool_limits.wrap(limits=1, user_api="blas")
def steady_state(algorithm: Algorithm, problem: Problem, topology: Topology) -> SteadyState:
    """E‖x̄ − x*‖² and E‖X − 1x̄‖² at the steady state, exactly; a ValueError if the method is unstable.

    For a state of more than 2,000 entries `residual` is computed by projection, to about eight digits. `consensus` is
    then estimated, with its standard error in `consensus_error`.
    """
    return exact_map(algorithm, problem, topology, x0=getattr(problem, "optimum", None)).steady_state()


@threadpool_limits.wrap(limits=1, user_api="blas")
def expected_curve(
    algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int, x0: ArrayLike | None = None
) -> np.ndarray:
    """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,), exactly."""
    rounds = check_count(rounds, "rounds", 0)
    return exact_map(algorithm, problem, topology, x0=x0).curve(rounds)


def exact_map(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    *,
    x0: ArrayLike | None = None,
    like: ExactMap | None = None,
) -> ExactMap:
    """All predictions above for one instance. Its rounds are computed once.

    Args:
        algorithm, problem, topology: as for `spectral_radius`.
        x0: the initial model, as in `simulate`.
        like: the map of the same method and problem at another stepsize, which makes this one faster to compute.

    Returns:
        An `ExactMap` with `.spectral_radius`, `.steady_state()` and `.curve(rounds)`.
    """
    instance, start, entries = accept(algorithm, problem, topology, x0)
    known = (None, None) if like is None else (like.quadratic, like.conserved)
    return map_of(instance, start, entries, *known)


def map_of(
    instance: Instance, start: np.ndarray, entries: int, quadratic: Curvature | None, conserved: np.ndarray | None
) -> MeanSquare | NetworkRounds:
    """The map of an instance: dense, of operators, or of second moments."""
    most = min(HUGEST, ROOM // instance.problem.p)
    if by_second_moments(instance):
        return MeanSquare(instance, start, quadratic, conserved)
    if entries > most:
        raise NotCovered(f"the state has {entries} entries: give a problem with an n·p that needs at most {most}.")
    return (LargeMap if entries > LARGEST else RoundMap)(instance, start, quadratic, conserved)


def by_second_moments(instance: Instance) -> bool:
    """Are rounds random in more than additive noise, so that second moments must be computed instead of states?"""
    return instance.topology.random or instance.tosses or instance.problem.batch is not None


def accept(
    algorithm: Algorithm, problem: Problem, topology: Topology, x0: ArrayLike | None
) -> tuple[Instance, np.ndarray, int]:
    """The instance, if its rounds may be affine maps; its initial models; and the number of entries of its state."""
    instance = validate(algorithm, problem, topology)
    if words := refusal(algorithm.label, instance.spec, topology, "theory"):
        raise NotCovered(words)
    check_constant_stepsize(algorithm)
    check_repeats(topology)
    if problem.optimum is None:
        raise NotCovered(f"{problem.name} has no known optimum: the exact theory is for quadratics.")
    fields = len(instance.spec.state_fields) + bool(instance.spec.second_messages)
    return instance, first_models(x0, instance), fields * problem.n * problem.p
