"""Runs the batches of a study in parallel. The state and the metrics.csv of each are saved during the run."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stgt._internal.files import write_text
from stgt._internal.progress import Progress
from stgt.simulator.choice import in_words
from stgt.simulator.drive import Interrupt, interrupts
from stgt.simulator.resume import check_same_parts
from stgt.simulator.run import check_same_call, run_together
from stgt.simulator.store import CheckpointFile, load
from stgt.simulator.trace import Trace
from stgt.study.comparison import Comparison
from stgt.study.plans import Batch, Plan

if TYPE_CHECKING:
    from stgt.study.run_folder import Folder

STATE, METRICS = "state.stgt", "metrics.csv"  # the files in the folder of a batch
INTERVAL = 1.0  # seconds between two checkpoints
KEYS = ("method", "setting", "seed", "round")
COUNTED = ("communications", "gradients", "messages", "floats")
OnSave = Callable[[list[Trace]], object]


class LostWorkersError(RuntimeError):
    """Too many workers of a cluster were lost in a row."""


class RemoteWorkers(Protocol):
    """Workers that are not threads of this process, such as those of a cluster."""

    workers: int

    def run(self, batch: Batch, state: Path, on_save: OnSave, interrupt: Interrupt, progress: Progress) -> None:
        """Runs a batch, from the file `state` on if it exists; calls `on_save` after each write of that file."""
        ...


def execute(
    plan: Plan,
    folder: Folder | None,
    progress: Callable[[Batch], Progress],
    *,
    workers: int | None = None,
    remote: RemoteWorkers | None = None,
) -> tuple[Comparison, bool]:
    """Runs all batches that are not finished; returns the comparison, and whether all of it ran without interruption.

    If a comparison has to choose settings, it does so after all other batches, and then runs the fresh seeds.

    Args:
        plan: the batches to run.
        folder: the folder to which it is saved during the run; None keeps it in memory only.
        progress: returns the callback of a batch, when the batch begins.
        workers: the number of batches at the same time; by default the number of cores, here or remote.
        remote: the workers that run the batches; by default threads of this process.
    """
    alone = plan.rule.cost == "seconds"  # if time is compared, a method must have the machine to itself
    there = os.cpu_count() or 1 if remote is None else remote.workers
    at_once = 1 if alone else workers or there
    fresh = None
    with nullcontext() if folder is None else folder.alone(), interrupts() as interrupt:
        if folder is not None:
            folder.begin(plan)

        def run(batch: Batch) -> list[Trace]:
            if interrupt.asked and folder is not None:
                interrupt.cut = True
                return _kept(batch, folder)
            try:
                return _run(batch, folder, interrupt, progress(batch), remote)
            except BaseException:
                interrupt.asked = True  # the others stop and save their state
                raise

        try:
            with ThreadPoolExecutor(max(1, min(at_once, len(plan.batches)))) as pool:
                runs = by_method(zip(plan.batches, pool.map(run, plan.batches), strict=True))
                if plan.fresh and not interrupt.cut:
                    chosen = [_chosen(plan, batch, runs[batch.method]) for batch in plan.fresh]
                    if folder is not None:
                        folder.choose(chosen)
                    again = list(pool.map(run, chosen))
                    if not interrupt.cut:
                        fresh = {batch.method: trace for batch, (trace,) in zip(chosen, again, strict=True)}
        except BaseException:
            if folder is not None:
                folder.end(finished=False)
            raise
        if interrupt.cut and folder is not None:
            folder.end(finished=False)
    if not runs and folder is not None:
        raise folder.nothing_yet()
    return Comparison.of(plan.rule, runs, fresh), not interrupt.cut


def by_method(found: Iterable[tuple[Batch, Sequence[Trace]]]) -> dict[str, list[Trace]]:
    """The traces of batches by method, in the order of its combinations; without methods that have not begun."""
    placed: dict[str, dict[int, Trace]] = {}
    for batch, traces in found:
        if traces:
            placed.setdefault(batch.method, {}).update(zip(batch.places, traces, strict=True))
    return {method: [of[place] for place in sorted(of)] for method, of in placed.items()}


def _chosen(plan: Plan, batch: Batch, traces: list[Trace]) -> Batch:
    """The batch of fresh seeds, with the setting that was chosen by the method's runs."""
    algorithm = plan.rule.choose(traces).algorithm
    return replace(batch, algorithms=(algorithm,), settings=(in_words(algorithm, [one.algorithm for one in traces]),))


def _run(
    batch: Batch, folder: Folder | None, interrupt: Interrupt, progress: Progress, remote: RemoteWorkers | None
) -> list[Trace]:
    if folder is None:
        return run_batch(batch, None, interrupt, progress)
    path = folder.batch(batch.folder)
    path.mkdir(exist_ok=True)
    before = _kept(batch, folder)
    table = MetricsFile(path / METRICS, batch.method, batch.settings, batch.every)
    done = bool(before) and before[0].rounds == batch.rounds and not before[0].interrupted
    table.begin(before, done)
    if done:
        progress(1, 1)
        return before
    if remote is not None:
        remote.run(batch, path / STATE, table.add, interrupt, progress)
        return _kept(batch, folder)
    return run_batch(batch, CheckpointFile(path / STATE, INTERVAL, table.add), interrupt, progress)


def _kept(batch: Batch, folder: Folder) -> list[Trace]:
    """The saved traces of a batch, with the batch's own objects; a ValueError if they are of another batch."""
    state = folder.batch(batch.folder) / STATE
    if not state.exists():
        return []
    before, parts = load(state), (batch.problem, batch.topology)
    check_same_parts(list(batch.algorithms), *parts, before)
    if folder.record["spec"] is None:  # a call of stgt.compare may have other options
        check_same_call(list(batch.algorithms), *parts, batch.seeds, before, **batch.options)
    return [
        replace(trace, algorithm=algorithm, problem=batch.problem, topology=batch.topology)
        for algorithm, trace in zip(batch.algorithms, before, strict=True)
    ]


def run_batch(
    batch: Batch, checkpoint: CheckpointFile | None, interrupt: Interrupt, progress: Progress | None
) -> list[Trace]:
    """Runs a batch in this process."""
    options = {**batch.options, "checkpoint": checkpoint, "progress": progress}
    parts = (list(batch.algorithms), batch.problem, batch.topology)
    return run_together(*parts, batch.rounds, batch.seeds, interrupt, **options)


class MetricsFile:
    """metrics.csv of a batch: a row for each setting, seed and round.

    The rows depend only on the traces, not on when or how often rows were added.
    """

    def __init__(self, path: Path, method: str, settings: tuple[str, ...], every: int):
        self.path, self._method, self._settings, self._every = path, method, settings, every
        self._next = 0  # the first round that is not in the file

    def begin(self, traces: list[Trace], done: bool) -> None:
        """Replaces the file, whose last row may be cut off, with the rows of the traces so far."""
        self._next = 0
        if not traces:
            self.path.unlink(missing_ok=True)
            return
        write_text(self.path, self._head(traces) + self._rows(traces, done))

    def add(self, traces: list[Trace]) -> None:
        """Adds the new rounds."""
        head = "" if self.path.exists() else self._head(traces)
        text = head + self._rows(traces, done=not traces[0].interrupted)
        if not text:
            return
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(text)
        except OSError as error:  # for example of a full disk, whose error has no file name
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _head(self, traces: list[Trace]) -> str:
        return _lines([[*KEYS, *_columns(traces[0])]])

    def _rows(self, traces: list[Trace], done: bool) -> str:
        """The rows of new rounds. The current point is a row of the next round, or of the end if the run is done."""
        first, last = self._next, traces[0].rounds + done
        rounds = [r for r in range(first, last) if r % self._every == 0 or r == traces[0].rounds]
        self._next = max(first, last)
        if not rounds:
            return ""
        # (rounds, seeds, names), so that the rows of a round are consecutive.
        cells = [np.stack([_texts(trace[name][:, rounds].T) for name in _columns(trace)], axis=2) for trace in traces]
        return _lines(
            [self._method, setting, seed, r, *row]
            for i, r in enumerate(rounds)
            for setting, trace, found in zip(self._settings, traces, cells, strict=True)
            for seed, row in zip(trace.seeds, found[i].tolist(), strict=True)
        )


def _columns(trace: Trace) -> list[str]:
    return [*trace.measured, *COUNTED]


def _texts(values: np.ndarray) -> np.ndarray:
    """Each number with the fewest digits that identify it in its own precision."""
    return values.astype(str)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
