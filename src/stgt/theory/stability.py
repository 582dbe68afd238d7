"""What a round does exactly, on a quadratic: stability, steady state and the expected curve.

For a quadratic problem with additive noise of variance σ² a coordinate the round is v ← M v + b + B ξ. Its spectral
radius decides stability; the discrete Lyapunov equation P = M P Mᵀ + σ² B Bᵀ gives the covariance in the long run; and
a schedule of period T is the product of its T rounds. Small states have dense maps; see `large` for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg

from stgt.algorithms import Algorithm
from stgt.checks import check_count, check_number
from stgt.engines.start import first_models
from stgt.hyper import Brief
from stgt.problems.base import Problem
from stgt.setting import Setting, check_constant_stepsize, fitting
from stgt.theory.large import ROOM, LargeMap, isotropic_variance, lyapunov
from stgt.topology import Topology
from stgt.topology.base import check_repeats

if TYPE_CHECKING:
    from stgt.engines.affine import AffineRound, Layout

LARGEST = 2000  # entries of the state whose dense maps are still ordinary
HUGEST = 2_000_000  # entries of the state that is still worked with at all


@dataclass(frozen=True, eq=False)
class RoundMap(Brief):
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
        """(M, b, B Bᵀ) of each round, in the coordinates of `basis`."""
        Z = self.basis
        return [(M, Z.T @ step.b, Z.T @ step.Q @ Z) for M, step in zip(self.matrices, self.rounds, strict=True)]

    @cached_property
    def period_matrix(self) -> np.ndarray:
        """M of a whole period."""
        product = np.eye(self.basis.shape[1])
        for M in self.matrices:
            product = M @ product
        return product

    @cached_property
    def mean(self) -> np.ndarray:
        """From the coordinates of `basis` to x̄, (p, d)."""
        return self.layout.mean @ self.basis

    @cached_property
    def disagreement(self) -> np.ndarray:
        """From the coordinates of `basis` to all x_i − x̄, (n p, d)."""
        n = len(self.layout.models) // len(self.layout.mean)
        return (self.layout.models - np.tile(self.layout.mean, (n, 1))) @ self.basis

    @cached_property
    def spectral_radius(self) -> float:
        """The modulus by which the slowest mode shrinks in a round; above 1 the run diverges."""
        return float(np.abs(linalg.eigvals(self.period_matrix)).max() ** (1 / len(self.rounds)))

    @property
    def period(self) -> int:
        return len(self.rounds)

    @property
    def start(self) -> np.ndarray:
        """The state before round 0, in the coordinates of `basis`."""
        return self.basis.T @ self.layout.start

    def advance(self, r: int, v: np.ndarray) -> np.ndarray:
        """M v + b, in round r of the period."""
        M, b, _ = self.steps[r]
        return M @ v + b

    def pull(self, r: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u M and u B Bᵀ for each row u, in round r of the period."""
        M, _, Q = self.steps[r]
        return rows @ M, rows @ Q

    @cached_property
    def start_noise(self) -> np.ndarray:
        """B Bᵀ of the noise before round 0, in the coordinates of `basis`."""
        return self.basis.T @ self.layout.start_noise @ self.basis

    def start_spread(self, rows: np.ndarray) -> np.ndarray:
        """u B Bᵀ for each row u, with B of the noise before round 0."""
        return rows @ self.start_noise if self.start_noise.any() else np.zeros_like(rows)

    def steady_state(self) -> tuple[float, float, float, float]:
        """The fields of `SteadyState`; needs a spectral radius below 1."""
        M, size = self.period_matrix, self.basis.shape[1]
        mean, P = np.zeros(size), np.zeros((size, size))
        for r in range(self.period):
            mean, P = self._push(r, mean, P)
        mean = np.linalg.solve(np.eye(size) - M, mean)
        P = lyapunov(M, P)
        assert P is not None
        seen = []
        for r in range(self.period):
            bias = float(((self.mean @ mean - self.optimum) ** 2).sum())
            apart = float(((self.disagreement @ mean) ** 2).sum())
            spreads = (float(self.noise * np.vdot(A @ P, A)) for A in (self.mean, self.disagreement))
            seen.append((bias + next(spreads), apart + next(spreads), bias, 0.0))
            mean, P = self._push(r, mean, P)
        residual, consensus, bias, error = np.mean(seen, axis=0).tolist()
        return residual, consensus, bias, error

    def _push(self, r: int, mean: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A mean and a covariance, in units of σ², after round r of the period."""
        M, b, Q = self.steps[r]
        return M @ mean + b, M @ P @ M.T + Q


@dataclass(frozen=True)
class SteadyState:
    """The long run of a stable method.

    Attributes:
        residual: E‖x̄ − x*‖² at the starts of rounds; over a period, their mean.
        consensus: E‖X − 1x̄‖², likewise.
        bias: ‖E x̄ − x*‖², the part of `residual` that is no noise; 0 for methods that are exact.
        consensus_error: the standard error of `consensus`, which is estimated for large states; 0 where it is exact.
    """

    residual: float
    consensus: float
    bias: float
    consensus_error: float = 0.0


def round_map(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: Any = None, with_noise: bool = True
) -> RoundMap:
    """The round of an algorithm on a quadratic problem, as affine maps; a map for each round of the schedule's period.

    `x0` is the first model, as in `simulate`; the maps do not depend on it, only the state before round 0 does.
    `with_noise=False` leaves out how noise enters, which takes longest and is not needed for stability.

    Raises:
        ValueError: the problem is not quadratic with additive noise, the schedule has no period, or the state is large.
    """
    setting, start, entries = _accept(algorithm, problem, topology, x0)
    if entries > LARGEST:
        raise ValueError(
            f"the state has {entries} entries: give a problem with n·p small enough for {LARGEST}, or use "
            "spectral_radius, steady_state or expected_curve, which need no dense map."
        )
    return _dense(setting, start, with_noise)


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
    return _find(algorithm, problem, topology, with_noise=False).spectral_radius


def largest_stable_stepsize(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, below: float | None = None, precision: float = 1e-3
) -> float:
    """The largest γ up to which spectral_radius ≤ 1, found by bisection to a relative `precision`.

    Looks at γ = below (2/L if left out) halved again and again until a stable one is found, then between that and the
    one before. Returns 0 if none of 40 halvings is stable.
    """
    top = check_number(below if below is not None else 2.0 / (problem.L or np.nan), "below", above=0)

    def stable(gamma: float) -> bool:
        return spectral_radius(replace(algorithm, gamma=gamma), problem, topology) <= 1.0

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
    """E‖x̄ − x*‖² and E‖X − 1x̄‖² in the long run, exactly; a ValueError if the method is unstable there.

    For a state of more than 2,000 entries `residual` is found by projection, to about eight digits, and `consensus` is
    estimated, with its standard error in `consensus_error`.
    """
    found = _find(algorithm, problem, topology, x0=getattr(problem, "optimum", None))
    if found.spectral_radius >= 1 - 1e-12:
        raise ValueError(
            f"{algorithm.label} with gamma={algorithm.gamma} on {topology.name} has spectral radius "
            f"{found.spectral_radius:.6f}, so there is no steady state: give a smaller gamma or another topology."
        )
    return SteadyState(*found.steady_state())


def expected_curve(
    algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int, x0: Any = None
) -> np.ndarray:
    """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,), exactly."""
    rounds = check_count(rounds, "rounds", 0)
    found = _find(algorithm, problem, topology, x0=x0)
    curve, v = np.zeros(rounds + 1), found.start
    for r in range(rounds + 1):
        curve[r] = ((found.mean @ v - found.optimum) ** 2).sum()
        v = found.advance(r % found.period, v) if r < rounds else v
    if found.noise == 0:
        return curve
    # The noise of round k reaches x̄ at round r as mean · M_{r−1} ⋯ M_{k+1} B_k. Backwards from r, these depend on r
    # only by its place in the period, so one way back serves all r of the same place.
    for place in range(min(found.period, rounds + 1)):
        rows, total = found.mean, 0.0
        for back in range(rounds + 1):
            if back % found.period == place:
                curve[back] += found.noise * (total + np.vdot(rows, found.start_spread(rows)))
            if back + found.period > rounds and back % found.period == place:
                break
            earlier, spread = found.pull((place - back - 1) % found.period, rows)
            rows, total = earlier, total + np.vdot(rows, spread)
    return curve


def _find(
    algorithm: Algorithm, problem: Problem, topology: Topology, *, x0: Any = None, with_noise: bool = True
) -> RoundMap | LargeMap:
    """The rounds of a period, as dense maps or, if the state is large, as operators."""
    setting, start, entries = _accept(algorithm, problem, topology, x0)
    most = min(HUGEST, ROOM // problem.p)
    if entries > most:
        raise ValueError(f"the state has {entries} entries: give a problem with n·p small enough for {most}.")
    return LargeMap(setting, start) if entries > LARGEST else _dense(setting, start, with_noise)


def _accept(algorithm: Algorithm, problem: Problem, topology: Topology, x0: Any) -> tuple[Setting, np.ndarray, int]:
    """The setting, if its rounds may be periodic affine maps, its first models, and how many entries its state has."""
    setting = fitting(algorithm, problem, topology)
    check_constant_stepsize(algorithm)
    check_repeats(topology)
    if topology.period is None:
        raise ValueError(f"{topology.name} is random, so no single map describes a round: use one with a period.")
    if setting.tosses:
        raise ValueError(f"{algorithm.label} with p={algorithm.talks:g} tosses a coin: give p=1 and tau.")
    if problem.optimum is None:
        raise ValueError(f"{problem.name} has no known optimum: the exact theory is for quadratics.")
    if problem.batch is not None:
        raise ValueError(
            f"{problem.name} draws minibatches of {problem.batch}: the exact theory is for additive noise."
        )
    isotropic_variance(problem)
    fields = len(algorithm.state_fields) + bool(algorithm.exchanges_again)
    return setting, first_models(x0, setting), fields * problem.n * problem.p


def _dense(setting: Setting, x0: np.ndarray, with_noise: bool) -> RoundMap:
    from stgt.engines.affine import affine_round, layout

    rounds = tuple(affine_round(setting, x0, r, with_noise) for r in range(setting.topology.period or 1))
    return RoundMap(
        rounds, layout(setting, x0), isotropic_variance(setting.problem), np.asarray(setting.problem.optimum)
    )
