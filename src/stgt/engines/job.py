"""A run, checked: everything an engine needs, with nothing left to complain about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.algorithms.calls import begin, whole
from stgt.checks import check_choice, check_count, check_seed
from stgt.engines.metrics import choose_metrics
from stgt.oracles import Oracle
from stgt.problems.base import Problem, check_array
from stgt.progress import Progress
from stgt.setting import Setting, fitting
from stgt.topology import Topology


@dataclass(frozen=True, eq=False)
class Job:
    """One or more settings that differ in their algorithms' real-valued hyper-parameters only, and how they are run."""

    settings: tuple[Setting, ...]
    rounds: int
    seeds: tuple[int, ...]
    x0: np.ndarray
    state0: dict[str, np.ndarray]
    dtype: str
    metrics: tuple[str, ...]
    absent: dict[str, str]
    progress: Progress | None

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
        return self.problem.optimum if "residual" in self.metrics else None

    @property
    def minimum(self) -> float | None:
        """f*, if it is measured against."""
        return self.problem.minimum if "loss" in self.metrics else None


@dataclass(frozen=True, eq=False)
class Result:
    """What an engine found for one setting of a job: arrays whose first axis is the seed.

    Attributes:
        values: measurements by name, (seeds, rounds + 1).
        state: the last state by field, (seeds, n, p).
        diverged_at: (seeds,) the first round at whose start some model was not finite, −1 if all stayed finite.
        links: links used in each round, (seeds, rounds).
    """

    values: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    diverged_at: np.ndarray
    links: np.ndarray


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
    metrics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Job:
    """Checks everything a run is made of; a ValueError says what is wrong and which argument to change."""
    settings = tuple(fitting(algorithm, problem, topology, oracle) for algorithm in algorithms)
    first = settings[0].algorithm
    start = first_models(x0, settings[0])
    rounds = check_count(rounds, "rounds", 0)
    if (rounds + 1) * first.tau >= 2**31:
        raise ValueError(f"rounds={rounds} of tau={first.tau} steps: give fewer than 2**31 steps in all.")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress={progress!r}: give a function of (done, total), or leave it out.")
    wanted, absent = choose_metrics(metrics, first, problem, topology)
    return Job(
        settings=settings,
        rounds=rounds,
        seeds=_seeds(seeds),
        x0=start,
        state0=_state0(state0, settings, start),
        dtype=check_choice(dtype, "dtype", ("float32", "float64")),
        metrics=wanted,
        absent=absent,
        progress=progress,
    )


def first_models(x0: Any, setting: Setting) -> np.ndarray:
    """The nodes' first models, (n, p), from what was given: one for all, one for each, or None for 0."""
    if x0 is None:
        return np.zeros((setting.problem.n, setting.problem.p))
    return _rows(x0, "x0", setting, held="x" in setting.algorithm.held)


def _rows(value: Any, name: str, setting: Setting, held: bool) -> np.ndarray:
    """One vector for each node, (n, p), from such or from one for all; the same for all if a server holds it."""
    n, p = setting.problem.n, setting.problem.p
    try:
        shape = (n, p) if np.ndim(value) == 2 else (p,)
    except ValueError:  # ragged
        shape = (p,)
    rows = check_array(value, name, shape, f"one vector (p,) = ({p},), or one for each node (n, p) = ({n}, {p})")
    rows = np.array(np.broadcast_to(rows, (n, p)))
    if held and setting.topology.has_server and (rows != rows[0]).any():
        raise ValueError(
            f"{name} has different rows, but with a server {setting.algorithm.label} has one for all: "
            f"give shape (p,) = ({p},)."
        )
    return rows


def _state0(given: Mapping[str, Any] | None, settings: tuple[Setting, ...], x0: np.ndarray) -> dict[str, np.ndarray]:
    if given is None:
        return {}
    first = settings[0].algorithm
    if not isinstance(given, Mapping):
        raise ValueError(f"state0 is a {type(given).__name__}: give a dict of first values by the field's name.")
    if first.starts_warm:
        raise ValueError(f"state0 and warm_start=True: {first.label} can start from one of them only; leave one out.")
    state = begin(first, x0)
    for name, value in given.items():
        if name not in state or name == "x":
            allowed = [field for field in state if field != "x"]
            raise ValueError(f"state0 has {name!r}: {first.label} keeps {allowed or 'nothing'} beside x (give x0).")
        state[name] = _rows(value, f"state0[{name!r}]", settings[0], held=name in first.held)
    for setting in settings:
        algorithm = setting.algorithm
        if algorithm.tracks:
            conserved = algorithm.conserved(whole(algorithm, state), setting.topology.participation)
            scale = max(1.0, float(sum(np.abs(value).sum() for name, value in state.items() if name != "x")))
            off = float(np.abs(conserved.sum(axis=0)).max())
            if off > 1e-8 * scale:
                raise ValueError(
                    f"state0 breaks what {algorithm.label} conserves (off by {off:.3g}), so it would converge to a "
                    f"wrong point: {algorithm.invariant}."
                )
    return {name: state[name] for name in given}


def _seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    if isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1):
        chosen = tuple(check_seed(seed) for seed in seeds)
        if not chosen:
            raise ValueError("seeds is empty: give a number of seeds, or a list of them.")
        return chosen
    return tuple(range(check_count(seeds, "seeds")))
