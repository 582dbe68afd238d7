"""Estimates from short runs, where the exact theory does not apply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator import simulate, sweep
from stgt.theory.stepsizes import StableStepsize
from stgt.topology import Topology

Array = Any
ROUNDS, SEEDS = 400, 8
DOUBLINGS = 6  # stepsizes tried are the given one, halved and doubled up to so often


class ShortRuns(NamedTuple):
    """Estimates from the runs.

    Attributes:
        radius: the factor a round by which the distance to the minimum changes without noise there, the worst seed's.
        largest_gamma: the largest stepsize tried up to which all are stable.
        curve: the mean over the seeds of ‖x̄ − x*‖² with noise, (rounds + 1,); None where it is unstable.
        error: its mean in the long run; None likewise.
    """

    radius: float
    largest_gamma: StableStepsize
    curve: np.ndarray | None = None
    error: float | None = None


def short_runs(algorithm: Algorithm, problem: Problem, topology: Topology, oracle: Oracle | None) -> ShortRuns:
    """Runs a method from a point near the minimum: without noise there for the radius, as it is for the error."""
    assert problem.optimum is not None
    away = {"x0": problem.optimum + 1.0, "dtype": "float64", "metrics": ["residual", "consensus"], "oracle": oracle}
    given = np.asarray(algorithm.gamma, dtype=float)
    gammas = np.array([given * 2.0**k for k in range(-DOUBLINGS, DOUBLINGS + 1)])
    grid = {"gamma": gammas.tolist()}
    runs = sweep(algorithm, _quiet(problem), topology, ROUNDS, SEEDS, grid=grid, **away)
    growths = np.array([growth(trace) for trace in runs])
    radius = float(growths[DOUBLINGS])
    # Up to the first unstable one, so that a gamma is safe only if all smaller ones are.
    safe = int(np.argmax(growths >= 1)) if (growths >= 1).any() else len(growths)
    seen = {float(np.max(gamma)): float(growth) for gamma, growth in zip(gammas, growths, strict=True)}
    largest = StableStepsize(float(np.max(gammas[safe - 1])) if safe else 0.0, (), seen)
    if radius >= 1:
        return ShortRuns(radius, largest)
    options = {"dtype": "float64", "metrics": ["residual"], "oracle": oracle}
    trace = simulate(algorithm, problem, topology, 4 * ROUNDS, SEEDS, **options)
    return ShortRuns(radius, largest, trace.residual.mean(axis=0), float(trace.tail("residual").mean()))


def growth(trace: Any) -> float:
    """The factor a round by which the distance to the optimum changes in runs without noise there, the worst one's."""
    with np.errstate(all="ignore"):
        distance = np.sqrt(trace["residual"] + trace["consensus"])
        if trace.diverged.any() or not np.isfinite(distance).all():
            return np.inf
        kept = np.maximum(distance, 1e-13 * distance[:, :1])  # below it is rounding
    worst = 0.0
    for one in kept:
        last = int(np.argmax(one <= 1e-13 * one[0])) or len(one) - 1
        first = last // 2
        worst = max(worst, float((one[last] / one[first]) ** (1 / max(1, last - first))))
    return worst


@dataclass(frozen=True)
class _QuietModel:
    """A problem whose minibatch gradients at x* are all ∇f_i(x*): what noise they have elsewhere grows from 0 there."""

    model: Any

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self.model.losses(xp, self._own(data), x)

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self.model.gradients(xp, self._own(data), x)

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        own, there = self._own(data), xp.asarray(data["x*"], x.dtype)
        here = self.model.sample_gradients(xp, own, x, index)
        return here - self.model.sample_gradients(xp, own, there, index) + data["gradient at x*"]

    @staticmethod
    def _own(data: dict[str, Array]) -> dict[str, Array]:
        return {name: value for name, value in data.items() if name not in ("x*", "gradient at x*")}


def _quiet(problem: Problem) -> Problem:
    """The problem without noise at its minimum."""
    if problem.batch is None:
        return replace(problem, noise=0.0)
    optimum: Any = problem.optimum
    more = {"x*": np.broadcast_to(optimum, (problem.n, problem.p)).copy(), "gradient at x*": problem.gradients(optimum)}
    return replace(problem, model=_QuietModel(problem.model), data={**problem.data, **more})
