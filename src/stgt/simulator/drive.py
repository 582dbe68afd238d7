"""The rounds of a job, one stretch after the other, on either engine; and what happens between two stretches."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import numpy as np

from stgt._internal.progress import Bar
from stgt.simulator.job import Job
from stgt.simulator.logged import log_rounds
from stgt.simulator.standing import Standing

CHUNK = 256  # rounds that are made between two looks at them, at most
PACE = 0.2  # seconds that a stretch of rounds takes, about: so long does an interrupt wait, or a bar
SAVING = 0.05  # of the time, at most, that goes into checkpoints where no number of rounds is given


class Engine(Protocol):
    """What makes the rounds of all runs of a job: a run for each setting and seed, the seeds of a setting together."""

    def advance(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Makes `count` ≤ CHUNK rounds; what was measured at their starts, and their "links", (runs, count)."""
        ...

    def measure(self, r: int) -> dict[str, np.ndarray]:
        """What is measured now, before round r, (runs,)."""
        ...

    @property
    def diverged_at(self) -> np.ndarray:
        """(runs,); see `Standing`."""
        ...

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the algorithm's fields, (runs, n, p)."""
        ...

    def standing(self, rounds: int, links: np.ndarray) -> Standing:
        """Where the runs stand after `rounds` rounds, which used `links`."""
        ...


@dataclass(frozen=True, eq=False)
class Result:
    """What was found for one setting of a job: arrays whose first axis is the seed.

    Attributes:
        values: measurements by name, from the job's first round to the last one made, (seeds, rounds + 1).
        seconds: since the job's first round, (rounds + 1,).
        standing: where its runs stand.
        interrupted: was it stopped before its last round?
    """

    values: dict[str, np.ndarray]
    seconds: np.ndarray
    standing: Standing
    interrupted: bool


Save = Callable[[list[Result]], None]
Made = TypeVar("Made")
_noting: list[Interrupt] = []  # the one that is asked now, if any
_presses = SimpleNamespace(last=-math.inf, pending=False)  # when Ctrl-C was pressed last, and whether to no effect
SOON = 2.0  # seconds


@dataclass(eq=False)
class Interrupt:
    """Has the user asked to stop, and has that cut a run short?"""

    asked: bool = False
    cut: bool = False


def drive(
    job: Job, engine: Engine, interrupt: Interrupt, save: Save | None = None, interval: float = 0.0
) -> list[Result]:
    """Makes the rounds of a job; an interrupt ends it early. `save` is given the results so far from time to time,
    after `interval` seconds where the job has no number of rounds for it."""
    record = _Record(job, engine)
    end, size, due = job.first + job.rounds, 1, time.perf_counter() + interval
    while record.made < end and not interrupt.asked:
        last = min(end, record.made + size, _next(record.made, CHUNK), _left_out_from(engine.diverged_at))
        if last <= record.made:
            record.leave_out(end)
            _tell_progress(job, record, end)
            break
        last = min(int(last), _next(record.made, _longest(job, save)))
        pace = record.make(last)
        size = int(np.clip(PACE / pace, 1, CHUNK))
        _tell(job, record, end, pace)
        if save is not None and record.made < end and _is_due(job, record.made, due):
            began = time.perf_counter()
            save(record.results(interrupted=True))
            due = time.perf_counter() + max(interval, (time.perf_counter() - began) / SAVING)
    interrupt.cut |= record.made < end
    results = record.results(interrupted=record.made < end)
    if job.logger is not None and record.made == end:
        names = job.measured.all_names
        last = {name: np.concatenate([result.values[name][:, -1:] for result in results]) for name in names}
        log_rounds(job.logger, job, end, last)
    return results


def _tell(job: Job, record: _Record, end: int, pace: float) -> None:
    """What the user asked to hear of."""
    if isinstance(job.progress, Bar):
        job.progress.say(1 / pace, record.latest)
    _tell_progress(job, record, end)
    if job.logger is not None:
        log_rounds(job.logger, job, *record.stretch)
    if job.callback is not None and record.made % (job.every or 1) == 0:
        job.callback(record.made, record.engine.state)


def _tell_progress(job: Job, record: _Record, end: int) -> None:
    if job.progress is not None:
        runs = len(job.settings) * len(job.seeds)
        job.progress((record.made - job.first) * runs, (end - job.first) * runs)


def _longest(job: Job, save: Save | None) -> int:
    """How many rounds a stretch may have, so that it ends where the callback or a checkpoint is due."""
    wanted = job.callback is not None or (save is not None and job.every is not None)
    return (job.every or 1) if wanted else CHUNK


def _is_due(job: Job, made: int, due: float) -> bool:
    return made % job.every == 0 if job.every else time.perf_counter() >= due


def _next(made: int, every: int) -> int:
    """The next multiple of `every`."""
    return (made // every + 1) * every


def _left_out_from(diverged_at: np.ndarray) -> float:
    """The round from which on nothing is computed any more: where all runs have left the finite numbers.

    It depends on the rounds' numbers alone, so that a run that goes on leaves out the same ones.
    """
    return _next(int(diverged_at.max()), CHUNK) if (diverged_at >= 0).all() else np.inf


class _Record:
    """What was measured so far."""

    def __init__(self, job: Job, engine: Engine):
        self.job, self.engine, self.made = job, engine, job.first
        runs = len(job.settings) * len(job.seeds)
        self._links = [np.zeros((runs, 0)) if job.standing is None else job.standing.links]
        self._pieces: list[dict[str, np.ndarray]] = []
        self._seconds = [np.zeros(1)]

    @property
    def links(self) -> np.ndarray:
        """Of all rounds so far, (runs, rounds)."""
        self._links = [np.concatenate(self._links, axis=1)]
        return self._links[0]

    def make(self, last: int) -> float:
        """Makes the rounds up to `last`; returns the seconds that one took."""
        began = time.perf_counter()
        self._add(self.engine.advance(self.made, last - self.made))
        pace = (time.perf_counter() - began) / (last - self.made)
        self._seconds.append(self._seconds[-1][-1] + pace * np.arange(1, last - self.made + 1))
        self.made = last
        return pace

    def leave_out(self, end: int) -> None:
        """NaN stands for the rounds that are not made once every run has left the finite numbers."""
        runs, count = len(self._links[0]), end - self.made
        missing = {name: np.full((runs, count), np.nan, self.job.dtype) for name in self.job.measured.all_names}
        self._add({**missing, "links": np.repeat(self.links[:, -1:], count, axis=1)})
        self._seconds.append(np.full(count, self._seconds[-1][-1]))
        self.made = end

    def _add(self, piece: dict[str, np.ndarray]) -> None:
        self._links.append(piece.pop("links").astype(np.float64))
        self._pieces.append(piece)

    @property
    def stretch(self) -> tuple[int, dict[str, np.ndarray]]:
        """The first round of the last stretch, and what was measured in it, (runs, rounds)."""
        return self.made - len(self._seconds[-1]), self._pieces[-1]

    @property
    def latest(self) -> dict[str, float]:
        """The last measurements, means over the runs."""
        if not self._pieces:
            return {}
        with np.errstate(over="ignore", invalid="ignore"):
            return {name: float(np.mean(values[:, -1])) for name, values in self._pieces[-1].items()}

    def results(self, interrupted: bool) -> list[Result]:
        """A result for each setting."""
        now = self.engine.measure(self.made)
        values = {
            name: np.concatenate([*(piece[name] for piece in self._pieces), now[name][:, None]], axis=1)
            for name in self.job.measured.all_names
        }
        seconds, standing = np.concatenate(self._seconds), self.engine.standing(self.made, self.links)
        width = len(self.job.seeds)
        cuts = [slice(i * width, (i + 1) * width) for i in range(len(self.job.settings))]
        return [
            Result({name: value[cut] for name, value in values.items()}, seconds, standing.of(cut), interrupted)
            for cut in cuts
        ]


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """While it lasts, a first Ctrl-C is only noted; a second one soon after interrupts as ever, also in a later run.

    One that cut no run short, as it came when all was done, is raised when the next run begins. Within it, and in other
    threads, it is the same one: what runs side by side ends together.
    """
    if _noting:
        yield _noting[-1]
        return
    noted = Interrupt()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield noted
        return
    if _presses.pending:
        _presses.pending = False
        if time.monotonic() - _presses.last < SOON:
            raise KeyboardInterrupt

    def note(number: int, frame: Any) -> None:
        again, _presses.last = time.monotonic() - _presses.last < SOON, time.monotonic()
        if noted.asked or again:
            signal.default_int_handler(number, frame)
        noted.asked = True
        if sys.stderr.isatty():
            print("stopping this run; Ctrl-C again to leave", file=sys.stderr)

    signal.signal(signal.SIGINT, note)
    _noting.append(noted)
    try:
        yield noted
    finally:
        _noting.remove(noted)
        _presses.pending = noted.asked and not noted.cut
        signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_as_ever() -> Iterator[None]:
    """Within it Ctrl-C is not noted by runs, but raised: for what simulates on the way to something else."""
    if _noting:
        yield
        return
    with _shared():
        yield


@contextmanager
def _shared() -> Iterator[Interrupt]:
    """One that all runs look at, whatever thread they are in; Ctrl-C does not ask it."""
    shared = Interrupt()
    _noting.append(shared)
    try:
        yield shared
    finally:
        _noting.remove(shared)


def parallel_map(function: Callable[..., Made], *arguments: Iterable[Any], at_once: int) -> list[Made]:
    """As `map`, `at_once` calls at a time in threads; Ctrl-C ends the simulations of all of them and is raised.

    Args:
        function: of an item of each of the arguments.
        arguments: as many items in each.
        at_once: how many calls run at the same time.

    Returns:
        The results, in the order of the items.
    """
    with _shared() as shared, ThreadPoolExecutor(at_once) as pool:

        def one(*given: Any) -> Made:
            if shared.asked:
                raise KeyboardInterrupt
            return function(*given)

        try:
            return list(pool.map(one, *arguments))
        except BaseException:
            shared.asked = True
            raise
