"""A run with checked arguments: everything that an engine needs to start it, or to resume it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, check_seed, first_repeated
from stgt._internal.digest import digest
from stgt._internal.loggers import Logger, as_logger
from stgt._internal.markup import many
from stgt._internal.progress import Progress
from stgt._internal.schedules import stepsizes
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import Checked
from stgt.oracles import Oracle
from stgt.problems.base import Problem, check_array
from stgt.simulator.instance import Instance, validate_all
from stgt.simulator.metrics import Metric, choose_metrics
from stgt.topology import Topology

Callback = Callable[[int, dict[str, np.ndarray]], Any]
OFF = 1e-8  # how far from 0 a conserved sum may be, relative to its terms, in float64
ARRAYS = ("state", "memory", "ahead", "diverged_at", "links")  # the array fields of a `RunState`
ROUNDING = 200  # allowed error of a sum whose terms are given in single precision, in units of that precision


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything needed to resume runs after the same number of rounds; axis 0 of every array is the run.

    It contains no state of a generator, because every random number is a function of (seed, step).

    Attributes:
        rounds: the number of completed rounds, which is the number of the next one.
        state: the algorithm's variables, (runs, n, p).
        memory: the oracle's variables, (runs, n, …).
        ahead: the gradient at x that a method with two exchanges has already computed, (runs, n, p).
        diverged_at: (runs,) the first round at whose start some model, or a built-in measurement of it, was not finite;
            −1 if all stayed finite.
        links: the number of links that each round used, (runs, rounds).
    """

    rounds: int
    state: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    ahead: np.ndarray | None
    diverged_at: np.ndarray
    links: np.ndarray

    def __repr__(self) -> str:
        lost = int((self.diverged_at >= 0).sum())
        words = f"{many(len(self.diverged_at), 'run')} after {many(self.rounds, 'round')}"
        words += f", {lost} diverged" if lost else ""
        return f"RunState({words}: {', '.join([*self.state, *self.memory])})"

    def of(self, cut: slice) -> RunState:
        """The state of some of the runs."""
        return RunState(self.rounds, **join_fields([self], lambda arrays: arrays[0][cut]))


def concatenate(parts: Iterable[RunState]) -> RunState:
    """The states of several groups of runs as one state."""
    parts = list(parts)
    return RunState(parts[0].rounds, **join_fields(parts, np.concatenate))


def join_fields(
    parts: Sequence[Any], join: Callable[[list[np.ndarray]], np.ndarray], names: Iterable[str] = ARRAYS
) -> dict[str, Any]:
    """The fields of a `RunState`, each joined from those of the parts: an array, a dict of arrays, or None."""

    def joined(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: join([one[name] for one in values]) for name in values[0]}
        return None if values[0] is None else join(values)

    return {name: joined([getattr(part, name) for part in parts]) for name in names}


@dataclass(frozen=True, eq=False)
class Job:
    """Instances whose algorithms differ in real-valued hyper-parameters only, so that they share a program.

    Attributes:
        first, rounds: the number of the first round to run, and the number of rounds.
        gammas: each instance's stepsizes from the round `gammas_from` on, (…,) or (…, n).
        run_state: the state before the round `first`; None for a new run.
        log_from: the first round whose measurements the logger has not received yet.
    """

    instances: tuple[Instance, ...]
    rounds: int
    seeds: tuple[int, ...]
    x0: np.ndarray
    state0: dict[str, np.ndarray]
    dtype: str
    measured: dict[str, Metric]
    absent: dict[str, str]
    gammas: tuple[np.ndarray, ...]
    progress: Progress | None = None
    callback: Callback | None = None
    every: int | None = None
    first: int = 0
    run_state: RunState | None = None
    logger: Logger | None = None
    log_from: int = 0

    @property
    def gammas_from(self) -> int:
        """The round before the first, if there is one: the last measurement of a run uses that round's stepsize."""
        return max(0, self.first - 1)

    @cached_property
    def origin(self) -> str:
        """A checksum of the initial values."""
        return digest(self.x0, self.state0)

    @property
    def algorithm(self) -> Algorithm:
        """The first of the algorithms, for the properties that all share."""
        return self.instances[0].algorithm

    @property
    def problem(self) -> Problem:
        return self.instances[0].problem

    @property
    def topology(self) -> Topology:
        return self.instances[0].topology

    @property
    def oracle(self) -> Oracle:
        return self.instances[0].oracle

    @property
    def optimum(self) -> np.ndarray | None:
        """x*, only if it is needed, as its computation may take long."""
        return self.problem.optimum if self._needed("optimum") else None

    @property
    def minimum(self) -> float | None:
        """f*, only if it is needed."""
        return self.problem.minimum if self._needed("losses") else None

    @property
    def test(self) -> dict[str, np.ndarray] | None:
        """The test samples, only if they are needed."""
        return self.problem.test if self._needed("test") else None

    def _needed(self, what: str) -> bool:
        return any(what in one.needs for one in self.measured.values())

    def resume(self, run_state: RunState, rounds: int) -> Job:
        """The same job for `rounds` more rounds from this state."""
        count = _check_steps(rounds, self.algorithm, run_state.rounds)
        return replace(
            self,
            run_state=run_state,
            first=run_state.rounds,
            rounds=count,
            gammas=_gammas(self.instances, run_state, count),
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
    """Checks all arguments of a run; a ValueError says what is wrong and which argument to change."""
    instances = validate_all(algorithms, problem, topology, oracle)
    first = instances[0].algorithm
    start = first_models(x0, instances[0])
    rounds = _check_steps(rounds, first)
    if callback is not None and not callable(callback):
        raise InputError("callback", callback, "give a function of (round, state), or leave it out.")
    measured, absent = choose_metrics(metrics, first, problem, topology)
    return Job(
        instances=instances,
        rounds=rounds,
        seeds=check_seeds(seeds),
        x0=start,
        state0=first_state(state0, instances, start),
        dtype=check_choice(dtype, "dtype", ("float32", "float64")),
        measured=measured,
        absent=absent,
        gammas=_representable(_gammas(instances, None, rounds), dtype),
        progress=progress,
        callback=callback,
        every=None if every is None else check_count(every, "every"),
        logger=as_logger(logger),
    )


def first_models(x0: Any, instance: Instance) -> np.ndarray:
    """The initial models, (n, p). `x0` is one for all nodes, one per node, or None for the problem's own."""
    problem = instance.problem
    if x0 is None:
        return np.array(np.broadcast_to(0.0 if problem.start is None else problem.start, (problem.n, problem.p)))
    if problem.unravel is not None:
        x0 = problem.ravel(x0)
    return _rows(x0, "x0", instance, held="x" in instance.spec.server_fields)


def first_state(
    given: Mapping[str, Any] | None, instances: tuple[Instance, ...], x0: np.ndarray
) -> dict[str, np.ndarray]:
    """Initial values of the algorithm's other variables, (n, p); a ValueError if they violate what it conserves."""
    if given is None:
        return {}
    first = Checked(instances[0].algorithm)
    if not isinstance(given, Mapping):
        raise InputError(
            "state0", hint=f" is a {type(given).__name__}: give a dict of initial values by the variable's name."
        )
    if first.spec.needs_initial_gradient:
        raise InputError(
            "state0", hint=f" and warm_start=True: {first.label} can start from only one of them; leave one out."
        )
    state = first.init(x0)
    for name, value in given.items():
        if name not in state or name == "x":
            allowed = [field for field in state if field != "x"]
            raise InputError(
                "state0", hint=f" has {name!r}: in addition to x (give x0), {first.label} keeps {allowed or 'nothing'}."
            )
        state[name] = _rows(value, f"state0[{name!r}]", instances[0], held=name in first.spec.server_fields)
    single = any(getattr(value, "dtype", None) == np.float32 for value in given.values())
    allowed = ROUNDING * float(np.finfo(np.float32).eps) if single else OFF
    for instance in instances:
        algorithm = instance.algorithm
        if first.spec.tracks:
            conserved = Checked(algorithm).conserved(first.whole(state), instance.topology.participation)
            scale = max(1.0, float(sum(np.abs(value).sum() for name, value in state.items() if name != "x")))
            off = float(np.abs(conserved.sum(axis=0)).max())
            if off > allowed * scale:
                raise InputError(
                    "state0",
                    hint=f" violates what {algorithm.label} conserves (off by {off:.3g}), so it would converge to a "
                    f"wrong point: {first.spec.conserves}.",
                )
    return {name: state[name] for name in given}


def _rows(value: Any, name: str, instance: Instance, held: bool) -> np.ndarray:
    """One vector per node, (n, p), from (n, p) or (p,); all rows must be equal if a server holds the variable."""
    n, p = instance.problem.n, instance.problem.p
    try:
        shape = (n, p) if np.ndim(value) == 2 else (p,)
    except ValueError:  # a ragged list
        shape = (p,)
    rows = check_array(value, name, shape, f"one vector (p,) = ({p},), or one for each node (n, p) = ({n}, {p})")
    rows = np.array(np.broadcast_to(rows, (n, p)))
    if held and instance.topology.has_server and (rows != rows[0]).any():
        raise InputError(
            name,
            hint=f" has different rows, but with a server {instance.algorithm.label} has one for all: give shape "
            f"(p,) = ({p},).",
        )
    return rows


def check_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """The seeds, from their number or from a list of them."""
    if isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1):
        chosen = tuple(check_seed(seed) for seed in seeds)
        if not chosen:
            raise InputError("seeds", hint=" is empty: give a number of seeds, or a list of them.")
        again = first_repeated(chosen)
        if again is not None:  # a run that counted twice would make every confidence interval too narrow
            raise InputError("seeds", hint=f" has {again} more than once: give each seed once.")
        return chosen
    return tuple(range(check_count(seeds, "seeds")))


def _check_steps(rounds: Any, algorithm: Algorithm, before: int = 0) -> int:
    rounds = check_count(rounds, "rounds", 0)
    if (before + rounds + 1) * algorithm.tau >= 2**31:
        after = f" after {before}" if before else ""
        raise ValueError(f"rounds={rounds}{after} of tau={algorithm.tau} steps: give fewer than 2**31 steps in all.")
    return rounds


def _representable(gammas: tuple[np.ndarray, ...], dtype: str) -> tuple[np.ndarray, ...]:
    """The stepsizes; a ValueError if one of them underflows in the run's precision."""
    least = min(float(one.min()) for one in gammas)
    if least < np.finfo(dtype).tiny:
        raise InputError(
            "gamma", hint=f" comes down to {least:.3g}, which is 0 in {dtype}: give larger ones, or fewer rounds."
        )
    return gammas


def _gammas(instances: tuple[Instance, ...], run_state: RunState | None, rounds: int) -> tuple[np.ndarray, ...]:
    """Each instance's stepsizes: of the previous round, if there is one, and of all rounds to run. At least one."""
    end = rounds if run_state is None else run_state.rounds + rounds
    first = 0 if run_state is None else max(0, run_state.rounds - 1)
    return tuple(stepsizes(instance.algorithm.gamma, first, max(1, end - first)) for instance in instances)
