"""The main loop of a job on either engine: chunks of rounds; between them progress, logging, checkpoints, Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import numpy as np

from stgt._internal.loggers import Logger
from stgt._internal.progress import Bar
from stgt.simulator.choice import distinct, in_words
from stgt.simulator.job import Job, RunState

CHUNK = 256  # the most rounds in one call of an engine
PACE = 0.2  # seconds that a chunk takes, approximately: an interrupt and a progress bar wait that long
STOPS = 32  # rounds between two looks whether a job may stop; fixed, so that a run's length does not depend on time
SAVING = 0.05  # the largest share of the time for checkpoints, if no number of rounds is given


class Engine(Protocol):
    """Computes the rounds of all runs of a job: one run for each instance and seed, an instance's runs adjacent."""

    def advance(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Runs `count` ≤ CHUNK rounds. Returns the measurements at their starts and their "links", (runs, count)."""
        ...

    def measure(self, r: int) -> dict[str, np.ndarray]:
        """The measurements now, before round r, (runs,)."""
        ...

    @property
    def diverged_at(self) -> np.ndarray:
        """(runs,); see `RunState`."""
        ...

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the algorithm's variables, (runs, n, p)."""
        ...

    def run_state(self, rounds: int, links: np.ndarray) -> RunState:
        """The state of the runs after `rounds` rounds; `links` are the links that these used."""
        ...


@dataclass(frozen=True, eq=False)
class Result:
    """The measurements of one instance of a job: arrays whose first axis is the seed.

    Attributes:
        values: measurements by name, from the job's first round to its last one, (seeds, rounds + 1).
        seconds: since the job's first round, (rounds + 1,).
        run_state: the state after the last round.
        interrupted: was the job stopped before its last round?
    """

    values: dict[str, np.ndarray]
    seconds: np.ndarray
    run_state: RunState
    interrupted: bool


Save = Callable[[list[Result]], None]
Stop = Callable[[list[Result]], bool]
Mapped = TypeVar("Mapped")
_current: list[Interrupt] = []  # the interrupt of the current runs, if there are any
_presses = SimpleNamespace(last=-math.inf, pending=False)  # time of the last Ctrl-C, and whether it stopped nothing
SOON = 2.0  # seconds between two Ctrl-C


@dataclass(eq=False)
class Interrupt:
    """Was a stop requested, and did it end a run early?"""

    asked: bool = False
    cut: bool = False


def drive(
    job: Job,
    engine: Engine,
    interrupt: Interrupt,
    save: Save | None = None,
    interval: float = 0.0,
    stop: Stop | None = None,
) -> list[Result]:
    """Runs the rounds of a job; an interrupt ends it early.

    `save` receives the results so far every `job.every` rounds, or every `interval` seconds if that is None. `stop`
    receives them every STOPS rounds, and ends the job if it returns True.
    """
    record = _Record(job, engine)
    end, size, due = job.first + job.rounds, 1, time.perf_counter() + interval
    while record.made < end and not interrupt.asked:
        if stop is not None and record.made % STOPS == 0 and record.made and stop(record.results(interrupted=False)):
            end = record.made
            if job.progress is not None:
                job.progress(1, 1)
            break
        last = min(end, record.made + size, _next(record.made, CHUNK), _skipped_from(engine.diverged_at))
        if last <= record.made:
            record.skip(end)
            _report_progress(job, record, end)
            break
        last = min(int(last), _next(record.made, _longest(job, save)), _next(record.made, STOPS if stop else CHUNK))
        pace = record.make(last)
        size = int(np.clip(PACE / pace, 1, CHUNK))
        _report(job, record, end, pace)
        if save is not None and record.made < end and _is_due(job, record.made, due):
            began = time.perf_counter()
            save(record.results(interrupted=True))
            due = time.perf_counter() + max(interval, (time.perf_counter() - began) / SAVING)
    interrupt.cut |= record.made < end
    results = record.results(interrupted=record.made < end)
    if job.logger is not None and record.made == end:
        names = job.measured
        last = {name: np.concatenate([result.values[name][:, -1:] for result in results]) for name in names}
        log_rounds(job.logger, job, end, last)
    return results


def log_rounds(logger: Logger, job: Job, first: int, found: Mapping[str, np.ndarray]) -> None:
    """Logs measurements (runs, rounds) from round `first` on: means over the seeds; several instances by name."""
    algorithms = [instance.algorithm for instance in job.instances]
    prefixes = [f"{words}/" for words in distinct([in_words(one, algorithms) for one in algorithms])]
    prefixes = prefixes if len(prefixes) > 1 else [""]
    with np.errstate(over="ignore", invalid="ignore"):
        means = {
            f"{prefix}{name}": runs.astype(np.float64).mean(axis=0).tolist()
            for name in job.measured
            for prefix, runs in zip(prefixes, np.split(found[name], len(prefixes)), strict=True)
        }
    for r, row in enumerate(zip(*means.values(), strict=True), first):
        if r >= job.log_from:
            logger.log(dict(zip(means, row, strict=True)), r)


def _report(job: Job, record: _Record, end: int, pace: float) -> None:
    """Calls the progress bar, the logger and the callback after a chunk."""
    if isinstance(job.progress, Bar):
        job.progress.describe(1 / pace, record.latest)
    _report_progress(job, record, end)
    if job.logger is not None:
        log_rounds(job.logger, job, *record.last_chunk)
    if job.callback is not None and record.made % (job.every or 1) == 0:
        job.callback(record.made, record.engine.state)


def _report_progress(job: Job, record: _Record, end: int) -> None:
    if job.progress is not None:
        runs = len(job.instances) * len(job.seeds)
        job.progress((record.made - job.first) * runs, (end - job.first) * runs)


def _longest(job: Job, save: Save | None) -> int:
    """The most rounds for a chunk, so that it ends when the callback or a checkpoint is due."""
    wanted = job.callback is not None or (save is not None and job.every is not None)
    return (job.every or 1) if wanted else CHUNK


def _is_due(job: Job, made: int, due: float) -> bool:
    return made % job.every == 0 if job.every else time.perf_counter() >= due


def _next(made: int, every: int) -> int:
    """The next multiple of `every`."""
    return (made // every + 1) * every


def _skipped_from(diverged_at: np.ndarray) -> float:
    """The first round that is not computed, because all runs diverged earlier.

    It depends on round numbers only, so a resumed run skips the same rounds.
    """
    return _next(int(diverged_at.max()), CHUNK) if (diverged_at >= 0).all() else np.inf


class _Record:
    """The measurements so far."""

    def __init__(self, job: Job, engine: Engine):
        self.job, self.engine, self.made = job, engine, job.first
        runs = len(job.instances) * len(job.seeds)
        self._links = [np.zeros((runs, 0)) if job.run_state is None else job.run_state.links]
        self._chunks: list[dict[str, np.ndarray]] = []
        self._seconds = [np.zeros(1)]

    @property
    def links(self) -> np.ndarray:
        """The links of all rounds so far, (runs, rounds)."""
        self._links = [np.concatenate(self._links, axis=1)]
        return self._links[0]

    def make(self, last: int) -> float:
        """Runs the rounds up to `last`; returns the seconds per round."""
        began = time.perf_counter()
        self._add(self.engine.advance(self.made, last - self.made))
        pace = (time.perf_counter() - began) / (last - self.made)
        self._seconds.append(self._seconds[-1][-1] + pace * np.arange(1, last - self.made + 1))
        self.made = last
        return pace

    def skip(self, end: int) -> None:
        """Records NaN for the rounds up to `end`. They are not computed, because every run has diverged."""
        runs, count = len(self._links[0]), end - self.made
        missing = {name: np.full((runs, count), np.nan, self.job.dtype) for name in self.job.measured}
        self._add({**missing, "links": np.repeat(self.links[:, -1:], count, axis=1)})
        self._seconds.append(np.full(count, self._seconds[-1][-1]))
        self.made = end

    def _add(self, chunk: dict[str, np.ndarray]) -> None:
        self._links.append(chunk.pop("links").astype(np.float64))
        self._chunks.append(chunk)

    @property
    def last_chunk(self) -> tuple[int, dict[str, np.ndarray]]:
        """The first round of the last chunk, and its measurements, (runs, rounds)."""
        return self.made - len(self._seconds[-1]), self._chunks[-1]

    @property
    def latest(self) -> dict[str, float]:
        """The last measurements, means over the runs."""
        if not self._chunks:
            return {}
        with np.errstate(over="ignore", invalid="ignore"):
            return {name: float(np.mean(values[:, -1])) for name, values in self._chunks[-1].items()}

    def results(self, interrupted: bool) -> list[Result]:
        """A result for each instance."""
        now = self.engine.measure(self.made)
        values = {
            name: np.concatenate([*(chunk[name] for chunk in self._chunks), now[name][:, None]], axis=1)
            for name in self.job.measured
        }
        seconds, run_state = np.concatenate(self._seconds), self.engine.run_state(self.made, self.links)
        width = len(self.job.seeds)
        cuts = [slice(i * width, (i + 1) * width) for i in range(len(self.job.instances))]
        return [
            Result({name: value[cut] for name, value in values.items()}, seconds, run_state.of(cut), interrupted)
            for cut in cuts
        ]


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Inside the block, a first Ctrl-C requests a stop. A second one within `SOON` seconds raises KeyboardInterrupt.

    The second one may also come in a later run. A Ctrl-C that was too late to stop anything is raised when the next run
    begins. Nested calls, also in other threads, yield the same `Interrupt`, so parallel runs end together.
    """
    if _current:
        yield _current[-1]
        return
    interrupt = Interrupt()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield interrupt
        return
    if _presses.pending:
        _presses.pending = False
        if time.monotonic() - _presses.last < SOON:
            raise KeyboardInterrupt

    def handle(number: int, frame: Any) -> None:
        again, _presses.last = time.monotonic() - _presses.last < SOON, time.monotonic()
        if interrupt.asked or again:
            signal.default_int_handler(number, frame)
        interrupt.asked = True
        if sys.stderr.isatty():
            print("stopping this run; press Ctrl-C again to exit", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    _current.append(interrupt)
    try:
        yield interrupt
    finally:
        _current.remove(interrupt)
        _presses.pending = interrupt.asked and not interrupt.cut
        signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_as_ever() -> Iterator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt as usual: for functions that simulate as part of their work."""
    if _current:
        yield
        return
    with _shared():
        yield


@contextmanager
def _shared() -> Iterator[Interrupt]:
    """An interrupt shared by the runs of all threads. Ctrl-C does not set it."""
    shared = Interrupt()
    _current.append(shared)
    try:
        yield shared
    finally:
        _current.remove(shared)


def parallel_map(function: Callable[..., Mapped], *arguments: Iterable[Any], at_once: int) -> list[Mapped]:
    """Like `map`, with `at_once` calls at a time in threads. Ctrl-C ends all their simulations and is then raised.

    Args:
        function: of one item of each argument.
        arguments: iterables of the same length.
        at_once: the number of calls that run at the same time.

    Returns:
        The results, in the order of the items.
    """
    with _shared() as shared, ThreadPoolExecutor(at_once) as pool:

        def one(*given: Any) -> Mapped:
            if shared.asked:
                raise KeyboardInterrupt
            return function(*given)

        try:
            return list(pool.map(one, *arguments))
        except BaseException:
            shared.asked = True
            raise
