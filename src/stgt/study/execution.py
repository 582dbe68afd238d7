"""Runs the batches of a study side by side; the state and the metrics.csv of each are kept as it goes."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from stgt._internal.files import write_text
from stgt._internal.progress import Progress
from stgt.simulator.drive import Interrupt, interrupts
from stgt.simulator.resume import check_same_parts
from stgt.simulator.run import run_together
from stgt.simulator.store import CheckpointFile, load
from stgt.simulator.trace import Trace
from stgt.study.plans import Batch, Plan
from stgt.study.run_folder import METRICS, STATE, Folder

INTERVAL = 1.0  # seconds between two checkpoints
KEYS = ("method", "setting", "seed", "round")
COUNTED = ("communications", "gradients", "messages", "floats")
OnSave = Callable[[list[Trace]], object]


class LostWorkersError(RuntimeError):
    """Workers of a cluster were lost again and again."""


class RemoteWorkers(Protocol):
    """Workers that are not threads of this process, such as a cluster's."""

    workers: int

    def run(self, batch: Batch, state: Path, on_save: OnSave, interrupt: Interrupt, progress: Progress) -> None:
        """Runs a batch, from the file `state` on if it is there; calls `on_save` whenever that was written."""
        ...


def execute(
    plan: Plan,
    folder: Folder,
    progress: Callable[[Batch], Progress],
    *,
    workers: int | None = None,
    remote: RemoteWorkers | None = None,
) -> bool:
    """Runs what is not finished yet; returns whether all of it is finished, and not interrupted.

    Where a comparison has to choose, it does so when all else has run, and then runs the batches of fresh seeds.

    Args:
        plan, folder: what to run, and where it is kept.
        progress: gives the callback of a batch, when that begins.
        workers: how many batches at once; as many as there are cores, here or remote, if left out.
        remote: runs the batches, if it is not this process.
    """
    alone = plan.rule.cost == "seconds"  # a method has the machine for itself where the clock is judged
    there = os.cpu_count() or 1 if remote is None else remote.workers
    at_once = 1 if alone else workers or there
    with folder.alone(), interrupts() as interrupt:
        folder.begin(plan)

        def run(batch: Batch) -> None:
            if interrupt.asked:
                interrupt.cut = True
                return
            try:
                _run(batch, folder, interrupt, progress(batch), remote)
            except BaseException:
                interrupt.asked = True  # the others end where they are, and are kept
                raise

        try:
            with ThreadPoolExecutor(max(1, min(at_once, len(plan.batches)))) as pool:
                list(pool.map(run, plan.batches))
                if plan.fresh and not interrupt.cut:
                    fresh = _chosen(plan, folder)
                    folder.choose(fresh)
                    list(pool.map(run, fresh))
        except BaseException:
            folder.end(finished=False)
            raise
        if interrupt.cut:
            folder.end(finished=False)
        return not interrupt.cut


def _chosen(plan: Plan, folder: Folder) -> list[Batch]:
    """The batches of fresh seeds, with the setting that each method's runs so far choose."""
    runs = folder.runs()
    found = []
    for batch in plan.fresh:
        traces, tried = runs[batch.method], plan.methods[batch.method]
        place = traces.index(plan.rule.choose(traces))
        algorithm = [one for of in tried for one in of.algorithms][place]
        setting = [one for of in tried for one in of.settings][place]
        found.append(replace(batch, algorithms=(algorithm,), settings=(setting,)))
    return found


def _run(batch: Batch, folder: Folder, interrupt: Interrupt, progress: Progress, remote: RemoteWorkers | None) -> None:
    path = folder.batch(batch.folder)
    path.mkdir(exist_ok=True)
    state = path / STATE
    before = load(state) if state.exists() else []
    if before:
        check_same_parts(list(batch.algorithms), batch.built.problem, batch.built.topology, before)
    table = MetricsFile(path / METRICS, batch.method, batch.settings, batch.every)
    done = bool(before) and before[0].rounds == batch.rounds and not before[0].interrupted
    table.begin(before, done)
    if done:
        progress(1, 1)
        return
    if remote is not None:
        remote.run(batch, state, table.add, interrupt, progress)
        return
    run_batch(batch, CheckpointFile(state, INTERVAL, table.add), interrupt, progress)


def run_batch(batch: Batch, checkpoint: CheckpointFile, interrupt: Interrupt, progress: Progress | None) -> None:
    """Runs a batch in this process."""
    run_together(
        list(batch.algorithms),
        batch.built.problem,
        batch.built.topology,
        batch.rounds,
        batch.seeds,
        interrupt,
        checkpoint=checkpoint,
        progress=progress,
        **batch.options,
    )


class MetricsFile:
    """metrics.csv of a batch: a row for each setting, seed and round.

    The rows follow from the traces alone, whenever and however often it was added to.
    """

    def __init__(self, path: Path, method: str, settings: tuple[str, ...], every: int):
        self.path, self._method, self._settings, self._every = path, method, settings, every
        self._next = 0  # the first round that is not in the file

    def begin(self, traces: list[Trace], done: bool) -> None:
        """Replaces the file, whose last row may be cut off, by the rows of the traces so far."""
        self._next = 0
        if not traces:
            self.path.unlink(missing_ok=True)
            return
        write_text(self.path, self._head(traces) + self._rows(traces, done))

    def add(self, traces: list[Trace]) -> None:
        """Adds the rounds that are new."""
        head = "" if self.path.exists() else self._head(traces)
        text = head + self._rows(traces, done=not traces[0].interrupted)
        if not text:
            return
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(text)
        except OSError as error:  # such as a full disk, which has no file name
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _head(self, traces: list[Trace]) -> str:
        return _lines([[*KEYS, *_columns(traces[0])]])

    def _rows(self, traces: list[Trace], done: bool) -> str:
        """What was measured at the starts of new rounds; where a run stands now is its next round's, if it has one."""
        first, last = self._next, traces[0].rounds + done
        rounds = [r for r in range(first, last) if r % self._every == 0 or r == traces[0].rounds]
        self._next = max(first, last)
        if not rounds:
            return ""
        # (rounds, seeds, names), so that the rows of a round stand together.
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
    """Each number by the fewest digits that tell it from its neighbours in its own precision."""
    return values.astype(str)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
