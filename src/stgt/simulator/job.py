"""A run, checked: everything an engine needs, with nothing left to complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stgt._internal.checks import check_choice, check_count, check_seed, first_repeated
from stgt._internal.fingerprint import fingerprint
from stgt._internal.loggers import Logger, as_logger
from stgt._internal.progress import Progress
from stgt._internal.schedules import stepsizes
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.metrics import Measured, choose_metrics
from stgt.simulator.setting import Setting, all_fitting
from stgt.simulator.standing import Standing
from stgt.simulator.start import first_models, first_state
from stgt.topology import Topology

Callback = Callable[[int, dict[str, np.ndarray]], Any]


@dataclass(frozen=True, eq=False)
class Job:
    """One or more settings that differ in their algorithms' real-valued hyper-parameters only, and how they are run.

    Attributes:
        first, rounds: the number of the first round to make, and how many to make.
        gammas: each setting's stepsizes from the round `known_from` on, (…,) or (…, n).
        standing: where the runs stand before the round `first`; None at the very beginning.
        log_from: the first round whose measurements are not yet with the logger.
    """

    settings: tuple[Setting, ...]
    rounds: int
    seeds: tuple[int, ...]
    x0: np.ndarray
    state0: dict[str, np.ndarray]
    dtype: str
    measured: Measured
    absent: dict[str, str]
    gammas: tuple[np.ndarray, ...]
    progress: Progress | None = None
    callback: Callback | None = None
    every: int | None = None
    first: int = 0
    standing: Standing | None = None
    logger: Logger | None = None
    log_from: int = 0

    @property
    def known_from(self) -> int:
        """The round before the first, if there is one: what a run measures where it stopped is that round's matter."""
        return max(0, self.first - 1)

    @cached_property
    def origin(self) -> str:
        """A checksum of what the runs begin at."""
        return fingerprint(self.x0, self.state0)

    @property
    def algorithm(self) -> Algorithm:
        """The first of the algorithms, for all that they share."""
        return self.settings[0].algorithm

    @property
    def problem(self) -> Problem:
        return self.settings[0].problem

    @property
    def topology(self) -> Topology:
        return self.settings[0].topology

    @property
    def oracle(self) -> Oracle:
        return self.settings[0].oracle

    @property
    def optimum(self) -> np.ndarray | None:
        """x*, if it is measured against: it may have to be solved for."""
        return self.problem.optimum if "residual" in self.measured else None

    @property
    def minimum(self) -> float | None:
        """f*, if it is measured against."""
        return self.problem.minimum if "loss" in self.measured else None

    def going_on(self, standing: Standing, rounds: int) -> Job:
        """The same job for `rounds` more rounds from where its runs stand."""
        count = _check_steps(rounds, self.algorithm, standing.rounds)
        return replace(
            self, standing=standing, first=standing.rounds, rounds=count, gammas=_gammas(self.settings, standing, count)
        )


def prepare(
    algorithms: Iterable[Algorithm],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int],
    *,
    dtype: str,
    x0: Any = None,
    state0: Mapping[str, Any] | None = None,
    oracle: Oracle | None = None,
    metrics: Any = None,
    progress: Progress | None = None,
    callback: Callback | None = None,
    every: int | None = None,
    logger: Any = None,
) -> Job:
    """Checks everything a run is made of; a ValueError says what is wrong and which argument to change."""
    settings = all_fitting(algorithms, problem, topology, oracle)
    first = settings[0].algorithm
    start = first_models(x0, settings[0])
    rounds = _check_steps(rounds, first)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback={callback!r}: give a function of (round, state), or leave it out.")
    measured, absent = choose_metrics(metrics, first, problem, topology)
    return Job(
        settings=settings,
        rounds=rounds,
        seeds=check_seeds(seeds),
        x0=start,
        state0=first_state(state0, settings, start),
        dtype=check_choice(dtype, "dtype", ("float32", "float64")),
        measured=measured,
        absent=absent,
        gammas=_representable(_gammas(settings, None, rounds), dtype),
        progress=progress,
        callback=callback,
        every=None if every is None else check_count(every, "every"),
        logger=as_logger(logger),
    )


def check_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """The seeds, from how many there are or from a list of them."""
    if isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1):
        chosen = tuple(check_seed(seed) for seed in seeds)
        if not chosen:
            raise ValueError("seeds is empty: give a number of seeds, or a list of them.")
        again = first_repeated(chosen)
        if again is not None:  # a run that counts twice would narrow every interval
            raise ValueError(f"seeds has {again} more than once: give each seed once.")
        return chosen
    return tuple(range(check_count(seeds, "seeds")))


def _check_steps(rounds: Any, algorithm: Algorithm, before: int = 0) -> int:
    rounds = check_count(rounds, "rounds", 0)
    if (before + rounds + 1) * algorithm.tau >= 2**31:
        after = f" after {before}" if before else ""
        raise ValueError(f"rounds={rounds}{after} of tau={algorithm.tau} steps: give fewer than 2**31 steps in all.")
    return rounds


def _representable(gammas: tuple[np.ndarray, ...], dtype: str) -> tuple[np.ndarray, ...]:
    """The stepsizes, if none is 0 in the run's precision."""
    least = min(float(one.min()) for one in gammas)
    if least < np.finfo(dtype).tiny:
        raise ValueError(f"gamma comes down to {least:.3g}, which is 0 in {dtype}: give larger ones, or fewer rounds.")
    return gammas


def _gammas(settings: tuple[Setting, ...], standing: Standing | None, rounds: int) -> tuple[np.ndarray, ...]:
    """Each setting's stepsizes, of the round before, where there is one, and of each to come; at least one."""
    end = rounds if standing is None else standing.rounds + rounds
    first = 0 if standing is None else max(0, standing.rounds - 1)
    return tuple(stepsizes(setting.algorithm.gamma, first, max(1, end - first)) for setting in settings)
