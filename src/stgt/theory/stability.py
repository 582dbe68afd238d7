"""What a round does exactly, on a quadratic: stability, steady state and the expected curve.

For a quadratic problem with additive noise of variance σ² a coordinate the round is v ← M v + b + B ξ. Its spectral
radius decides stability; the discrete Lyapunov equation P = M P Mᵀ + σ² B Bᵀ gives the covariance in the long run; and
a schedule of period T is the product of its T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg

from stgt.algorithms import Algorithm
from stgt.checks import check_count, check_number
from stgt.engines.job import prepare
from stgt.problems.base import Problem
from stgt.topology import Topology

if TYPE_CHECKING:
    from stgt.engines.affine import AffineRound, Layout

LARGEST = 2000  # entries of the state whose dense maps are still ordinary


@dataclass(frozen=True, eq=False)
class RoundMap:
    """The affine maps of a period's rounds, in coordinates in which what is conserved stays 0.

    Attributes:
        rounds: M, b, B Bᵀ of each round of the period, v ← M v + b + B ξ with v the state's fields one after the other.
        layout: linear maps out of v, and v before round 0.
        noise: σ², the variance of each entry of ξ.
        optimum: x*.
    """

    rounds: tuple[AffineRound, ...]
    layout: Layout
    noise: float
    optimum: np.ndarray

    @cached_property
    def basis(self) -> np.ndarray:
        """Orthonormal columns (D, d) that span the states with nothing conserved: the mean of c is left out."""
        if len(self.layout.conserved) == 0:
            return np.eye(len(self.layout.start))
        return linalg.null_space(self.layout.conserved)

    @cached_property
    def matrices(self) -> list[np.ndarray]:
        """M of each round, in the coordinates of `basis`."""
        Z = self.basis
        return [Z.T @ step.M @ Z for step in self.rounds]

    @cached_property
    def steps(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(M, b, σ² B Bᵀ) of each round, in the coordinates of `basis`."""
        Z = self.basis
        return [
            (M, Z.T @ step.b, self.noise * Z.T @ step.Q @ Z) for M, step in zip(self.matrices, self.rounds, strict=True)
        ]

    @cached_property
    def period_matrix(self) -> np.ndarray:
        """M of a whole period."""
        product = np.eye(self.basis.shape[1])
        for M in self.matrices:
            product = M @ product
        return product

    @cached_property
    def to_mean(self) -> np.ndarray:
        """From the coordinates of `basis` to x̄, (p, d)."""
        return self.layout.mean @ self.basis

    @cached_property
    def to_disagreement(self) -> np.ndarray:
        """From the coordinates of `basis` to all x_i − x̄, (n p, d)."""
        n = len(self.layout.models) // len(self.layout.mean)
        return (self.layout.models - np.tile(self.layout.mean, (n, 1))) @ self.basis

    @cached_property
    def spectral_radius(self) -> float:
        """The modulus by which the slowest mode shrinks in a round; above 1 the run diverges."""
        return float(np.abs(linalg.eigvals(self.period_matrix)).max() ** (1 / len(self.rounds)))


@dataclass(frozen=True)
class SteadyState:
    """The long run of a stable method.

    Attributes:
        residual: E‖x̄ − x*‖² at the starts of rounds; over a period, their mean.
        consensus: E‖X − 1x̄‖², likewise.
        bias: ‖E x̄ − x*‖², the part of `residual` that is no noise; 0 for methods that are exact.
    """

    residual: float
    consensus: float
    bias: float


def round_map(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: Any = None, with_noise: bool = True
) -> RoundMap:
    """The round of an algorithm on a quadratic problem, as affine maps; a map for each round of the schedule's period.

    `x0` is the first model, as in `simulate`; the maps do not depend on it, only the state before round 0 does.
    `with_noise=False` leaves out how noise enters, which takes longest and is not needed for stability.

    Raises:
        ValueError: the problem is not quadratic with additive noise, the schedule is random, or the state too large.
    """
    from stgt.engines.affine import affine_round, layout

    job = prepare([algorithm], problem, topology, 0, 1, dtype="float64", x0=x0)
    if topology.period is None:
        raise ValueError(f"{topology.name} is random, so no single map describes a round: use one with a period.")
    if "coin" in algorithm.needs and algorithm.talks < 1:
        raise ValueError(f"{algorithm.label} with p={algorithm.talks:g} tosses a coin: give p=1 and tau.")
    if problem.optimum is None:
        raise ValueError(f"{problem.name} has no known optimum: the exact theory is for quadratics.")
    if problem.batch is not None:
        raise ValueError(
            f"{problem.name} draws minibatches of {problem.batch}: the exact theory is for additive noise."
        )
    fields = len(algorithm.init(job.x0, job.x0, job.x0)) + ("lookahead" in algorithm.needs)
    entries = fields * problem.n * problem.p
    if entries > LARGEST:
        raise ValueError(f"the state has {entries} entries: give a problem with n·p small enough for {LARGEST}.")
    rounds = tuple(affine_round(job, r, with_noise) for r in range(topology.period))
    return RoundMap(rounds, layout(job), problem.noise, problem.optimum)


def spectral_radius(algorithm: Algorithm, problem: Problem, topology: Topology) -> float:
    """The modulus by which the slowest mode of a run shrinks in a round; above 1 it diverges.

    What the method conserves, the mean of c, is left out. For a schedule of period T it is the T-th root of the
    period's. See `round_map` for what it needs.

    Example:
        >>> import stgt
        >>> problem = stgt.problems.ridge(n=16, p=4, mu=0.1)
        >>> ring = stgt.topology.ring(16, directed=True)
        >>> plain = stgt.theory.spectral_radius(stgt.STGT(gamma=0.4, tau=50), problem, ring)
        >>> adjoint = stgt.theory.spectral_radius(stgt.STGT(gamma=0.4, tau=50, adjoint=True), problem, ring)
        >>> adjoint < 1 < plain
        True
    """
    return round_map(algorithm, problem, topology, with_noise=False).spectral_radius


def largest_stable_stepsize(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, below: float | None = None, precision: float = 1e-3
) -> float:
    """The largest γ up to which spectral_radius ≤ 1, found by bisection to a relative `precision`.

    Looks at γ = below (2/L if left out) halved again and again until a stable one is found, then between that and the
    one before. Returns 0 if none of 40 halvings is stable.
    """
    top = check_number(below if below is not None else 2.0 / (problem.L or np.nan), "below", above=0)

    def stable(gamma: float) -> bool:
        return spectral_radius(algorithm.bind(gamma=gamma), problem, topology) <= 1.0

    low = top
    for _ in range(40):
        if stable(low):
            break
        low /= 2
    else:
        return 0.0
    if low == top:
        return top
    high = 2 * low
    while high / low - 1 > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def steady_state(algorithm: Algorithm, problem: Problem, topology: Topology) -> SteadyState:
    """E‖x̄ − x*‖² and E‖X − 1x̄‖² in the long run, exactly; a ValueError if the method is unstable there."""
    found = round_map(algorithm, problem, topology)
    if found.spectral_radius >= 1 - 1e-12:
        raise ValueError(
            f"{algorithm.label} with gamma={algorithm.gamma} on {topology.name} has spectral radius "
            f"{found.spectral_radius:.6f}, so there is no steady state: give a smaller gamma or another topology."
        )
    offset, covariance = _over_period(found)
    M = found.period_matrix
    mean = np.linalg.solve(np.eye(len(M)) - M, offset)
    P = linalg.solve_discrete_lyapunov(M, covariance)
    seen = []
    for step in found.steps:
        seen.append(_measured(found, mean, P))
        mean, P = _push(step, mean, P)
    residual, consensus, bias = np.mean(seen, axis=0)
    return SteadyState(float(residual), float(consensus), float(bias))


def expected_curve(
    algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int, x0: Any = None
) -> np.ndarray:
    """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,), exactly."""
    rounds = check_count(rounds, "rounds", 0)
    found = round_map(algorithm, problem, topology, x0=x0)
    Z = found.basis
    mean, P = Z.T @ found.layout.start, found.noise * Z.T @ found.layout.start_noise @ Z
    curve = []
    for r in range(rounds + 1):
        curve.append(_measured(found, mean, P)[0])
        mean, P = _push(found.steps[r % len(found.steps)], mean, P)
    return np.array(curve)


def _over_period(found: RoundMap) -> tuple[np.ndarray, np.ndarray]:
    """What a period adds to a state 0: the offset and the covariance of its noise."""
    size = found.basis.shape[1]
    mean, P = np.zeros(size), np.zeros((size, size))
    for step in found.steps:
        mean, P = _push(step, mean, P)
    return mean, P


def _push(
    step: tuple[np.ndarray, np.ndarray, np.ndarray], mean: np.ndarray, P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    M, b, Q = step
    return M @ mean + b, M @ P @ M.T + Q


def _measured(found: RoundMap, mean: np.ndarray, P: np.ndarray) -> tuple[float, float, float]:
    """(E‖x̄ − x*‖², E‖X − 1x̄‖², ‖E x̄ − x*‖²) of a state with this mean and covariance."""
    bias = float(((found.to_mean @ mean - found.optimum) ** 2).sum())
    apart = float(((found.to_disagreement @ mean) ** 2).sum())
    return bias + _spread(found.to_mean, P), apart + _spread(found.to_disagreement, P), bias


def _spread(A: np.ndarray, P: np.ndarray) -> float:
    """E‖A v‖² of a v with mean 0 and covariance P: the trace of A P Aᵀ."""
    return float(np.vdot(A @ P, A))
