"""What a round does exactly, on a quadratic: stability, steady state and the expected curve.

For a quadratic problem with additive noise a round is v ← M v + b + B ξ. Its spectral radius decides stability; the
discrete Lyapunov equation P = M P Mᵀ + B Bᵀ gives the covariance in the long run; and a schedule of period T is the
product of its T rounds. Small states have dense maps (`dense`), large ones operators (`large`). Where W_r is drawn anew
each round, or gradients are of minibatches, second moments take the place of states (`mean_square`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from stgt._internal.checks import NotCovered, check_count
from stgt.algorithms import Algorithm
from stgt.algorithms.support import refusal
from stgt.problems.base import Problem
from stgt.simulator.instance import Instance, check_constant_stepsize, validate
from stgt.simulator.job import first_models
from stgt.theory.dense import RoundMap
from stgt.theory.large import ROOM, LargeMap
from stgt.theory.mean_square import MeanSquare
from stgt.theory.network import NetworkRounds
from stgt.topology import Topology
from stgt.topology.base import check_repeats

LARGEST = 2000  # entries of the state whose dense maps are still ordinary
HUGEST = 2_000_000  # entries of the state that is still worked with at all
STABLE_BELOW = 1 - 1e-12  # a spectral radius from here on is 1 to rounding


@dataclass(frozen=True)
class SteadyState:
    """The long run of a stable method.

    Attributes:
        residual: E‖x̄ − x*‖² at the starts of rounds; over a period, their mean.
        consensus: E‖X − 1x̄‖², likewise.
        bias: ‖E x̄ − x*‖², the part of `residual` that is no noise; 0 for methods that are exact.
        consensus_error: the standard error of `consensus`, which is estimated for large states; 0 where it is exact.
        residual_error: the standard error of `residual` where the law of W_r is known from drawn rounds only; else 0.
    """

    residual: float
    consensus: float
    bias: float
    consensus_error: float = 0.0
    residual_error: float = 0.0


def round_map(algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: Any = None) -> RoundMap:
    """The round of an algorithm on a quadratic problem, as affine maps; a map for each round of the schedule's period.

    `x0` is the first model, as in `simulate`; the maps do not depend on it, only the state before round 0 does.

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
            f"the state has {entries} entries: give a problem with n·p small enough for {LARGEST}, or use "
            "spectral_radius, steady_state or expected_curve, which need no dense map."
        )
    return RoundMap(NetworkRounds(instance, start))


@threadpool_limits.wrap(limits=1, user_api="blas")
def spectral_radius(algorithm: Algorithm, problem: Problem, topology: Topology) -> float:
    """The modulus by which the slowest mode of a run shrinks in a round; above 1 it diverges.

    What the method conserves, the mean of c, is left out. For a schedule of period T it is the T-th root of the
    period's. Where rounds are random it is the factor of the root mean square: above 1 E‖x − x*‖² grows without bound.

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
    """E‖x̄ − x*‖² and E‖X − 1x̄‖² in the long run, exactly; a ValueError if the method is unstable there.

    For a state of more than 2,000 entries `residual` is found by projection, to about eight digits, and `consensus` is
    estimated, with its standard error in `consensus_error`.
    """
    return steady_state_of(exact_map(algorithm, problem, topology, x0=getattr(problem, "optimum", None)))


@threadpool_limits.wrap(limits=1, user_api="blas")
def expected_curve(
    algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int, x0: Any = None
) -> np.ndarray:
    """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,), exactly."""
    rounds = check_count(rounds, "rounds", 0)
    return curve_of(exact_map(algorithm, problem, topology, x0=x0), rounds)


def exact_map(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: Any = None
) -> RoundMap | LargeMap | MeanSquare:
    """The maps from which all of the above is computed: dense, as operators, or of second moments."""
    instance, start, entries = accept(algorithm, problem, topology, x0)
    if by_second_moments(instance):
        return MeanSquare(instance, start)
    most = min(HUGEST, ROOM // problem.p)
    if entries > most:
        raise NotCovered(f"the state has {entries} entries: give a problem with n·p small enough for {most}.")
    rounds = NetworkRounds(instance, start)
    return LargeMap(rounds) if entries > LARGEST else RoundMap(rounds)


def by_second_moments(instance: Instance) -> bool:
    """Are rounds random beyond additive noise, so that second moments take the place of states?"""
    return instance.topology.random or instance.tosses or instance.problem.batch is not None


def steady_state_of(found: RoundMap | LargeMap | MeanSquare) -> SteadyState:
    """The long run of a map; a ValueError if it is not stable."""
    stable = found.growth < 1 if isinstance(found, MeanSquare) else found.spectral_radius < STABLE_BELOW
    if not stable:
        instance = found.instance
        raise ValueError(
            f"{instance.algorithm.label} with gamma={instance.algorithm.gamma} on {instance.topology.name} has "
            f"spectral radius {found.spectral_radius:.6f}, so there is no steady state: give a smaller gamma or "
            "another topology."
        )
    return SteadyState(*found.steady_state())


def curve_of(found: RoundMap | LargeMap | MeanSquare, rounds: int) -> np.ndarray:
    """E‖x̄ − x*‖² at the start of each round and after the last."""
    if isinstance(found, MeanSquare):
        return found.curve(rounds)
    curve, v = np.zeros(rounds + 1), found.start
    for r in range(rounds + 1):
        curve[r] = ((found.mean @ v - found.optimum) ** 2).sum()
        v = found.advance(r % found.period, v) if r < rounds else v
    if not found.noisy:
        return curve
    # The noise of round k reaches x̄ at round r as mean · M_{r−1} ⋯ M_{k+1} B_k. Backwards from r, these depend on r
    # only by its place in the period, so one way back serves all r of the same place.
    for place in range(min(found.period, rounds + 1)):
        rows, total = found.mean, 0.0
        for back in range(rounds + 1):
            if back % found.period == place:
                curve[back] += total + np.vdot(rows, found.start_spread(rows))
            if back + found.period > rounds and back % found.period == place:
                break
            earlier, spread = found.pull((place - back - 1) % found.period, rows)
            rows, total = earlier, total + np.vdot(rows, spread)
    return curve


def accept(algorithm: Algorithm, problem: Problem, topology: Topology, x0: Any) -> tuple[Instance, np.ndarray, int]:
    """The instance, if its rounds may be affine maps, its first models, and how many entries its state has."""
    instance = validate(algorithm, problem, topology)
    if words := refusal(algorithm.label, instance.spec, topology, "theory"):
        raise NotCovered(words)
    check_constant_stepsize(algorithm)
    check_repeats(topology)
    if problem.optimum is None:
        raise NotCovered(f"{problem.name} has no known optimum: the exact theory is for quadratics.")
    fields = len(instance.spec.state_fields) + bool(instance.spec.second_messages)
    return instance, first_models(x0, instance), fields * problem.n * problem.p
