"""The largest stable stepsize: the end of the stable interval that begins at 0, and the unstable gaps beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import linalg
from scipy.optimize import minimize_scalar
from threadpoolctl import threadpool_limits

from stgt._internal.checks import check_number
from stgt._internal.progress import Progress
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.theory.mean_square import MeanSquare
from stgt.theory.network import STABLE_BELOW, NetworkRounds
from stgt.theory.node_round import Curvature, NotFiniteError, curvature
from stgt.theory.solvers import Tries, by_all_means, by_arnoldi, by_ritz_values
from stgt.theory.stability import LARGEST, accept, by_second_moments, map_of
from stgt.topology import Topology

EIGENVALUES_UP_TO = 250  # up to this many entries of a state, all eigenvalues are computed; otherwise only the slowest
FIRST = (1e-5, 1e-2, 1e-2)  # the first γτL, by effort
LEAST = 1e-9  # the smallest γτL, tried if larger ones were unstable
QUICKLY = 4.0  # the largest factor between stepsizes, if the growth is small
DECADE, COARSE = 10.0, 2.0  # factors between the stepsizes up to γτL = 0.01, and up to γL = 0.2
FINE = (1.05, 1.15, 1.3)  # above it, by effort: small states, states of some hundreds of entries, larger ones
HOPELESS = 3.0  # beyond this spectral radius no larger stepsize is tried
HALF_WAY = 0.5  # below this growth, the random part of rounds is far from making second moments grow
FARTHER = 4.0  # gaps are searched for up to this multiple of the first unstable stepsize
MOST = 200  # the most stepsizes
VECTORS = 120  # vectors of the space in which a spectral radius is estimated
QUICK: Tries = ((40, 8, 1e-9),)


class StableStepsize(float):
    """The end of the stable interval that begins at 0: a number, with the results of the search.

    Attributes:
        gaps: unstable intervals (low, high) above which stepsizes are stable again.
        seen: the spectral radius, or growth, at each stepsize tried; it is stable below 1.
    """

    gaps: tuple[tuple[float, float], ...]
    seen: dict[float, float]

    def __new__(
        cls, value: float, gaps: tuple[tuple[float, float], ...] = (), seen: dict[float, float] | None = None
    ) -> StableStepsize:
        self = super().__new__(cls, value)
        self.gaps, self.seen = gaps, seen or {}
        return self

    def __getnewargs__(self) -> tuple:
        return float(self), self.gaps, self.seen

    @property
    def up_to(self) -> float:
        """The largest stepsize tried."""
        return max(self.seen, default=0.0)

    def __repr__(self) -> str:
        beyond = "".join(f", unstable from {low:.6g} to {high:.6g}" for low, high in self.gaps)
        return f"StableStepsize({float(self):.6g}{beyond}, searched up to {self.up_to:.6g})"

    __str__ = float.__repr__


@threadpool_limits.wrap(limits=1, user_api="blas")
def largest_stable_stepsize(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    *,
    below: float | None = None,
    precision: float = 1e-3,
    progress: Progress | None = None,
    also: Iterable[float] = (),
) -> StableStepsize:
    """The largest γ up to which every stepsize is stable: the end of the stable interval that begins at 0.

    The search tries stepsizes from γτL = 1e-5 upwards, 5 % apart if γL > 0.2, and more of them where the spectral
    radius has a maximum. Then it refines the end. For states of more than 250 entries it starts at γτL = 0.01, goes
    down only if that is unstable, and takes steps of 15 %, or 30 % for more than 1,000 entries. Unstable gaps below
    stable stepsizes are in `.gaps`. It may miss a gap that is narrower than its steps. For states of more than 2,000
    entries the radii are estimates, from spaces of 120 vectors.

    If rounds are random or gradients are those of minibatches, stable means that E‖x − x*‖² stays bounded. Steps are
    then 30 %, and larger if the random part is far from making it grow. Above this limit most runs may look stable for
    a long time: the mean is dominated by rare runs with large errors.

    Args:
        algorithm: gamma may be omitted. If nodes have their own, their ratios are kept, and the largest is returned.
        problem, topology: as for `spectral_radius`.
        below: the largest stepsize to try.
        precision: relative, of the end and of the gaps.
        progress: called with (done, total) from time to time.
        also: additional stepsizes to try.

    Returns:
        A number, with `.gaps` and `.up_to`; 0 if the smallest stepsize is already unstable.
    """
    top = np.inf if below is None else check_number(below, "below", above=0)
    precision = check_number(precision, "precision", above=0)
    return search(Probe(algorithm, problem, topology), top, precision, progress, also)


def search(
    probe: Probe, top: float, precision: float, progress: Progress | None, also: Iterable[float]
) -> StableStepsize:
    """The search of `largest_stable_stepsize`."""
    scan = _Scan(probe, probe.algorithm.tau, top, progress)
    return scan.find(precision, [gamma for gamma in also if gamma <= top])


class Probe:
    """The spectral radius or growth as a function of the stepsize. Parts that do not depend on it are computed once.

    Attributes:
        by_growth: is stability that of second moments, by their `growth`, and not by the spectral radius of one map?
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        topology: Topology,
        quadratic: Curvature | None = None,
        conserved: np.ndarray | None = None,
    ) -> None:
        self.algorithm, self.problem, self.topology = algorithm, problem, topology
        gamma: Any = algorithm.gamma
        self._ratios = np.array(gamma) / max(gamma) if isinstance(gamma, tuple) else None
        self._conserved = conserved
        instance, _, entries = accept(self._at(1.0), problem, topology, None)
        self.quadratic = curvature(instance) if quadratic is None else quadratic
        self.L = float(np.abs(np.linalg.eigvalsh(self.quadratic.H)).max())  # the largest curvature of any node
        self.by_growth = by_second_moments(instance)
        many = self.by_growth or entries > 4 * EIGENVALUES_UP_TO
        self.effort = 2 if many else int(entries > EIGENVALUES_UP_TO)  # the index of FIRST and FINE

    def radius(self, gamma: float) -> float:
        """The spectral radius (an estimate for a large state), or the growth; infinite if a round overflows. The
        stepsize is stable below 1."""
        instance, x0, entries = accept(self._at(gamma), self.problem, self.topology, None)
        try:
            found = map_of(instance, x0, entries, self.quadratic, self._conserved)
        except NotFiniteError:
            return np.inf
        self._conserved = found.conserved
        return found.growth if isinstance(found, MeanSquare) else _radius(found, entries) ** (1 / found.period)

    def _at(self, gamma: float) -> Algorithm:
        return replace(self.algorithm, gamma=gamma if self._ratios is None else tuple(gamma * self._ratios))


def _radius(rounds: NetworkRounds, entries: int) -> float:
    """The spectral radius of a period, with the precision that a search needs."""
    if entries <= EIGENVALUES_UP_TO:
        return float(np.abs(linalg.eigvals(rounds.over_period(np.eye(entries)))).max())
    C, start = rounds.conserved, np.random.default_rng(0).standard_normal(entries)
    start -= C.T @ (C @ start)

    def forward(v: np.ndarray) -> np.ndarray:
        return rounds.over_period(v[:, None])[:, 0]

    found = None if entries > LARGEST else by_arnoldi(forward, entries, start, QUICK)
    if found is not None:
        return found
    estimate = by_ritz_values(forward, start, VECTORS)
    return estimate if entries > LARGEST else by_all_means(rounds.over_period(np.eye(entries)), estimate, start)


class _Scan:
    """The search over stepsizes."""

    def __init__(self, probe: Probe, tau: int, top: float, progress: Progress | None) -> None:
        self.radius, self.reach, self.tau, self.top, self.progress = probe.radius, probe.L * tau, tau, top, progress
        self.first, self.fine = FIRST[probe.effort], FINE[probe.effort]
        self.by_growth, self.hopeless = probe.by_growth, np.inf if probe.by_growth else HOPELESS
        self.seen: dict[float, float] = {}

    def stable(self, gamma: float) -> bool:
        if gamma not in self.seen:
            self.seen[gamma] = self.radius(gamma)
            if self.progress is not None:
                self.progress(len(self.seen), max(60.0, 1.1 * len(self.seen)))
        return self.seen[gamma] < STABLE_BELOW

    def find(self, precision: float, also: Iterable[float]) -> StableStepsize:
        self._upwards()
        for gamma in also:
            self.stable(gamma)
        self._maxima(precision)
        gammas = sorted(self.seen)
        edges, before = [], True  # stepsizes at which stability ends or begins
        for low, high in zip([0.0, *gammas], gammas, strict=False):
            if self.stable(high) != before:
                edges.append(self._edge(low, high, precision))
                before = not before
        if not edges:
            return StableStepsize(gammas[-1], (), self.seen)
        gaps = tuple(zip(edges[::2], edges[1::2], strict=False))
        return StableStepsize(edges[0] if self.stable(gammas[0]) else 0.0, gaps, self.seen)

    def _upwards(self) -> None:
        gamma, unstable = min(self.first / self.reach, self.top), None
        below = gamma
        while not self.stable(below) and below * self.reach > LEAST:
            below /= DECADE
        for _ in range(MOST):
            if not self.stable(gamma):
                unstable = unstable or gamma
                if self.seen[gamma] > self.hopeless or gamma > FARTHER * unstable:
                    return
            if gamma >= self.top:
                return
            slow = COARSE if gamma * self.reach > 0.009 else DECADE
            step = self.fine if gamma * self.reach > 0.2 * self.tau else slow
            if self.by_growth:  # for larger gamma it is about proportional to gamma
                step = max(step, min(QUICKLY, HALF_WAY / max(self.seen[gamma], 1e-9)))
            gamma = min(step * gamma, self.top)

    def _maxima(self, precision: float) -> None:
        """Tries stepsizes between stable ones where the spectral radius has a maximum."""
        gammas = sorted(self.seen)
        for low, middle, high in zip(gammas, gammas[1:], gammas[2:], strict=False):
            around = [self.seen[low], self.seen[middle], self.seen[high]]
            if self.by_growth and around[1] < HALF_WAY:
                continue
            if max(around) < STABLE_BELOW and around[1] > max(around[0], around[2]):
                minimize_scalar(
                    lambda gamma: -self.seen[gamma] if self.stable(gamma) else -np.inf,
                    bounds=(low, high),
                    method="bounded",
                    options={"maxiter": 10, "xatol": precision * middle},
                )

    def _edge(self, low: float, high: float, precision: float) -> float:
        """The stepsize between two where stability changes; on the stable side."""
        if low == 0.0:
            return high
        begins = self.stable(high)
        while high / low - 1 > precision:
            middle = self._between(low, high, precision)
            low, high = (low, middle) if self.stable(middle) == begins else (middle, high)
        return high if begins else low

    def _between(self, low: float, high: float, precision: float) -> float:
        """The next stepsize to try between a stable and an unstable one. It is the one where the growth would be 1 if
        it were a power of the stepsize, moved a little to the farther end, so that both ends approach it."""
        if not self.by_growth or not np.isfinite([self.seen[low], self.seen[high]]).all():
            return (low * high) ** 0.5
        below, above = (math.log(max(self.seen[one], 1e-9)) for one in (low, high))
        share = min(0.9, max(0.1, below / (below - above)))
        share += math.copysign(0.4 * math.log1p(precision) / math.log(high / low), 0.5 - share)
        return low * (high / low) ** min(0.95, max(0.05, share))
