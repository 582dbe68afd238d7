"""Makes the batches of a study side by side, each kept as it goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from stgt._internal.progress import Progress
from stgt.simulator.drive import Interrupt, interrupts
from stgt.simulator.resume import check_same_parts
from stgt.simulator.run import run_together
from stgt.simulator.store import CheckpointFile, load
from stgt.simulator.trace import Trace
from stgt.study.metrics import MetricsFile
from stgt.study.plans import Batch, Plan
from stgt.study.run_folder import METRICS, STATE, Folder

INTERVAL = 1.0  # seconds between two savings
Kept = Callable[[list[Trace]], object]


class LostWorkersError(RuntimeError):
    """Workers of a cluster were lost again and again."""


class Elsewhere(Protocol):
    """Workers that are not threads of this process, such as a cluster's."""

    workers: int

    def make(self, batch: Batch, state: Path, kept: Kept, interrupt: Interrupt, progress: Progress) -> None:
        """Makes a batch, going on from the file `state` if it is there; `kept` is told whenever it was written."""
        ...


def execute(
    plan: Plan,
    folder: Folder,
    progress: Callable[[Batch], Progress],
    *,
    workers: int | None = None,
    elsewhere: Elsewhere | None = None,
) -> bool:
    """Makes all that is still to be made; returns whether it is finished, and not interrupted.

    Where a comparison has to choose, it does so when all else is made, and then makes the batches of fresh seeds.

    Args:
        plan, folder: what to make, and where it is kept.
        progress: gives the callback of a batch, when that begins.
        workers: how many batches at once; as many as there are cores, here or elsewhere, if left out.
        elsewhere: who makes the batches, if it is not this process.
    """
    alone = plan.rule.cost == "seconds"  # a method has the machine for itself where the clock is judged
    there = os.cpu_count() or 1 if elsewhere is None else elsewhere.workers
    at_once = 1 if alone else workers or there
    with folder.alone(), interrupts() as interrupt:
        folder.begin(plan)

        def make(batch: Batch) -> None:
            if interrupt.asked:
                interrupt.cut = True
                return
            try:
                _make(batch, folder, interrupt, progress(batch), elsewhere)
            except BaseException:
                interrupt.asked = True  # the others end where they are, and are kept
                raise

        try:
            with ThreadPoolExecutor(max(1, min(at_once, len(plan.batches)))) as pool:
                list(pool.map(make, plan.batches))
                if plan.fresh and not interrupt.cut:
                    fresh = _chosen(plan, folder)
                    folder.choose(fresh)
                    list(pool.map(make, fresh))
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


def _make(batch: Batch, folder: Folder, interrupt: Interrupt, progress: Progress, elsewhere: Elsewhere | None) -> None:
    path = folder.batch(batch.folder)
    path.mkdir(exist_ok=True)
    state = path / STATE
    before = load(state) if state.exists() else []
    if before:
        check_same_parts(list(batch.algorithms), batch.made.problem, batch.made.topology, before)
    table = MetricsFile(path / METRICS, batch.method, batch.settings, batch.every)
    done = bool(before) and before[0].rounds == batch.rounds and not before[0].interrupted
    table.begin(before, done)
    if done:
        progress(1, 1)
        return
    if elsewhere is not None:
        elsewhere.make(batch, state, table.add, interrupt, progress)
        return
    run_batch(batch, CheckpointFile(state, INTERVAL, table.add), interrupt, progress)


def run_batch(batch: Batch, checkpoint: CheckpointFile, interrupt: Interrupt, progress: Progress | None) -> None:
    """Makes a batch in this process."""
    run_together(
        list(batch.algorithms),
        batch.made.problem,
        batch.made.topology,
        batch.rounds,
        batch.seeds,
        interrupt,
        checkpoint=checkpoint,
        progress=progress,
        **batch.options,
    )
