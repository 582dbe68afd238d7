"""Runs of a spec, simulated and, if the exact theory covers them, predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from reproductions.outcome import finite, lost_at
from stgt import NotCovered, theory
from stgt.simulator import Trace, simulate
from stgt.study import (
    BuiltRun,
    Progress,
    RunSpec,
    build_run,
    error_interval,
    initial_point,
    mean_interval,
    parallel_map,
    split_progress,
)
from stgt.theory import STABLE_BELOW
from stgt.topology import Topology, sequence

TIE = 1e-3
SURE = 0.99  # the confidence of the statement that a run has not reached its steady state
EXACTLY = "exact values"  # a possible basis of a comparison
EARLY = 20  # rounds in double precision that show how a run diverges
AT_ONCE = 2  # runs in parallel: one run leaves a second core idle


class Prediction(NamedTuple):
    """The exact prediction of the steady state; the errors are infinite if the run is not stable."""

    radius: float
    error: float
    consensus: float

    @property
    def stable(self) -> bool:
        return self.radius < STABLE_BELOW


def predict(made: BuiltRun) -> Prediction | None:
    """The exact spectral radius, E‖x̄ − x*‖² and E‖X − 1x̄‖²; None if the exact theory does not cover the run."""
    parts = made.algorithm, made.problem, as_matrices(made.topology)
    try:
        radius = theory.spectral_radius(*parts)
        if radius >= STABLE_BELOW:
            return Prediction(radius, np.inf, np.inf)
        found = theory.steady_state(*parts)
    except NotCovered:
        return None
    return Prediction(radius, found.residual, found.consensus)


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """A run and its results. Errors are E‖x̄ − x*‖² at the steady state: over the last quarter of the rounds."""

    run: RunSpec
    made: BuiltRun
    trace: Trace
    predicted: Prediction | None

    @property
    def radius(self) -> float | None:
        """The exact spectral radius of a round; None if unknown."""
        return None if self.predicted is None else self.predicted.radius

    @property
    def exact(self) -> float | None:
        """The exact steady-state error; infinite if unstable, None if unknown."""
        return None if self.predicted is None else self.predicted.error

    @cached_property
    def errors(self) -> np.ndarray:
        """The simulated error of each seed; infinite if it diverged."""
        values = self.trace.tail("residual").astype(np.float64)
        return np.where(np.isfinite(values) & ~self.trace.diverged, values, np.inf)

    @property
    def growing(self) -> bool:
        """Has a seed diverged, or does the exact theory predict that the run diverges?"""
        return not np.isfinite(self.errors).all() or (self.predicted is not None and not self.predicted.stable)

    @property
    def level(self) -> float:
        """The steady-state error: exact if known, infinite if it grows, otherwise simulated."""
        if self.growing:
            return np.inf
        return self.exact if self.exact is not None else float(self.errors.mean())

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the steady-state error: both ends are the exact value, or the simulated 95 % interval."""
        if self.growing or self.exact is not None:
            return self.level, self.level
        _, low, high = error_interval(self.errors)
        return float(low), float(high)

    @property
    def settled(self) -> bool:
        """Has the run reached its steady state?

        It has if the 99 % interval of its last quarter contains the exact error, to 0.1 %. If that is unknown: if the
        interval of the difference between the last eighth and the eighth before contains 0.
        """
        if self.growing:
            return False
        if self.exact is not None:
            mean, low, high = error_interval(self.errors, SURE)
            return bool(low <= self.exact <= high or abs(mean - self.exact) <= TIE * self.exact)
        values = self.trace.residual.astype(np.float64)
        eighth = max(1, values.shape[1] // 8)
        rise = values[:, -eighth:].mean(axis=1) - values[:, -2 * eighth : -eighth].mean(axis=1)
        _, low, high = mean_interval(rise, SURE)
        return bool(low <= 0 <= high)

    def summary(self) -> dict[str, Any]:
        """The numbers for a claim: mean error, its 95 % interval, the exact prediction, the spectral radius."""
        found: dict[str, Any] = {"error": None, "low": None, "high": None}
        if np.isfinite(self.errors).all():
            found = dict(zip(found, map(float, error_interval(self.errors)), strict=True))
        found |= {"diverged": int((lost_at(self.trace.residual) >= 0).sum()), "settled": self.settled}
        if self.predicted is not None:
            found |= {"exact": finite(self.exact), "radius": self.radius}
        return found

    def rows(self, **names: Any) -> list[dict[str, Any]]:
        """A row for each seed."""
        algorithm = self.made.algorithm
        shared = {
            "reading": self.run.reading,
            **names,
            "method": self.run.label,
            "graph": self.made.topology.name,
            "gamma": algorithm.gamma,
            "tau": algorithm.tau,
            "rounds": self.trace.rounds,
        }
        predicted = {"exact": finite(self.exact), "radius": self.radius}
        return [
            {**shared, "seed": seed, "error": finite(error), "diverged_at": int(at) if at >= 0 else None, **predicted}
            for seed, error, at in zip(self.trace.seeds, self.errors, lost_at(self.trace.residual), strict=True)
        ]

    def curve_rows(self, **names: Any) -> list[dict[str, Any]]:
        """A row for each round: the mean over seeds and its 95 % interval; empty where a seed is not finite."""
        found = zip(*error_interval(self.trace.residual), strict=True)
        shared = {"reading": self.run.reading, **names, "method": self.run.label}
        return [
            {**shared, "round": r, "mean": finite(mean), "low": finite(low), "high": finite(high)}
            for r, (mean, low, high) in enumerate(found)
        ]


def simulate_run(run: RunSpec, progress: Progress | None = None) -> SimulatedRun:
    """Simulates a run and predicts it."""
    made = build_run(run)
    where = as_matrices(made.topology)
    options = {"metrics": ["residual"], "progress": progress, **initial_point(run, made)}
    trace = whole(simulate(made.algorithm, made.problem, where, run.rounds, run.seeds, **options))
    return SimulatedRun(run, made, replace(trace, topology=made.topology), predict(made))


def first_rounds(one: SimulatedRun) -> Trace:
    """The first rounds of a run's first seed in double precision, in which a diverging run stays finite for longer."""
    options = {"metrics": ["residual"], "dtype": "float64", **initial_point(one.run, one.made)}
    where = as_matrices(one.made.topology)
    return whole(simulate(one.made.algorithm, one.made.problem, where, EARLY, 1, **options))


def simulate_runs(runs: Sequence[RunSpec], progress: Progress | None = None) -> list[SimulatedRun]:
    """All runs, two at a time; runs that differ only in their labels are run once."""
    keys = [run.model_copy(update={"label": "", "reading": ""}) for run in runs]
    different = {key.model_dump_json(): key for key in keys}
    work = [run.rounds * run.seed_count * run.algorithm.arguments.get("tau", 1) for run in different.values()]
    ticks = split_progress(progress, work)
    # One thread of linear algebra per run: more threads would wait for each other.
    with threadpool_limits(1, "blas"):
        made = parallel_map(simulate_run, different.values(), ticks, at_once=AT_ONCE)
    found = dict(zip(different, made, strict=True))
    return [replace(found[key.model_dump_json()], run=run) for key, run in zip(keys, runs, strict=True)]


def lower(a: SimulatedRun, b: SimulatedRun) -> bool:
    """Is a's steady-state error below b's, beyond the 95 % interval of the difference?

    It takes exact errors if they are known; then a lead below 0.1 % is a tie. If both are simulated, they share seeds.
    A run that grows is above one that does not.
    """
    if a.growing or b.growing:
        return b.growing and not a.growing
    if a.exact is not None and b.exact is not None:
        return a.exact < (1 - TIE) * b.exact
    above, below = (one.errors if one.exact is None else np.full(len(one.errors), one.exact) for one in (b, a))
    return bool(mean_interval(above - below)[1] > 0)


def beyond(high: np.ndarray, low: np.ndarray) -> bool:
    """Is `high` above `low` by more than the 95 % interval of the mean difference, seed by seed? One value each: above.

    Values that are not finite are above all others.
    """
    if not np.isfinite(low).all() or not np.isfinite(high).all():
        return bool(np.isfinite(low).all())
    mean, least, _ = mean_interval(high - low)
    return bool((least if np.isfinite(least) else mean) > 0)


def decided_by(*runs: SimulatedRun) -> str:
    """The basis of a comparison of these runs."""
    if all(one.exact is not None for one in runs):
        return EXACTLY
    return "runs that grow" if any(one.growing for one in runs) else "95 % intervals"


def as_matrices(topology: Topology) -> Topology:
    """The same schedule as dense matrices, so that all graphs with the same period share a compiled program."""
    if topology.period is None or topology.has_server:
        return topology
    return sequence([topology.matrix(r) for r in range(topology.period)])


def whole(trace: Trace) -> Trace:
    """The trace. Ctrl-C would only shorten a simulation; here it ends the experiment."""
    if trace.interrupted:
        raise KeyboardInterrupt
    return trace
