"""The folder of a training: the spec that it belongs to, and what rank 0 writes into it: curves, logs, figures."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.files import read_table, write_table, write_text
from stgt.study.report import Figure, Line, Panel, draw
from stgt.study.spec import spec_text
from stgt.study.spec.training import Training, TrainingSpec

PROGRESS = "progress.json"  # completed and total rounds, from the first round on
CURVE = "curve.csv"
MODEL = "model.safetensors"  # written last: the run is finished
NOT_FINITE = "not-finite.txt"  # why a run ended without a model
EVENTS = "events.out.tfevents.*.stgt"  # TensorBoard's
BEFORE_TRAINING = (CURVE, EVENTS, NOT_FINITE)  # what a run may have written before its first round is complete

Curves = dict[str, np.ndarray]  # a column of the curves by name, (seeds, measurements)


# -- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFolder:
    """The folder for the runs of a spec.

    Attributes:
        spec: the spec's file in it.
        new: did this training write that file?
        made: the folders that did not exist before, the innermost first.
    """

    spec: Path
    new: bool
    made: tuple[Path, ...] = ()

    def remove_unused(self) -> None:
        """Removes the files of a training without a finished round, and nothing else."""
        if not self.new:
            return
        self.spec.unlink(missing_ok=True)
        for folder in self.made:
            for pattern in BEFORE_TRAINING:
                for path in folder.glob(pattern):
                    path.unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def create_run_folder(out: Path, runs: TrainingSpec) -> RunFolder:
    """Creates the folder and writes the spec into it; a ValueError if it has the runs of another spec."""
    text, path = spec_text(runs), out / "spec.toml"
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") != text:
                raise InputError("out", out, " has the runs of another spec: give another folder.")
            return RunFolder(path, new=False)
        folders = [*(out / run.folder for run in runs.runs), out, *out.parents]
        missing = tuple(folder for folder in folders if not folder.exists())
        return RunFolder(write_text(path, text), new=True, made=missing)
    except OSError as error:
        raise InputError("out", out, f" cannot be written ({error.strerror}): give another folder.") from None


def not_finite(out: Path, runs: TrainingSpec) -> dict[str, str]:
    """The error of each run that diverged, by the run's name."""
    found = {run.name: out / run.folder / NOT_FINITE for run in runs.runs}
    return {name: path.read_text(encoding="utf-8").strip() for name, path in found.items() if path.exists()}


def unfinished(out: Path, runs: TrainingSpec) -> list[Training]:
    """The runs that have no model and have not diverged, in order."""
    over = not_finite(out, runs)
    return [run for run in runs.runs if run.name not in over and not (out / run.folder / MODEL).exists()]


# -- what is written during a run ------------------------------------------------------------------------------------


class Record:
    """The files of a run that continues from these rows of its curve.

    Anything that an earlier start has written after these rows is written again: the files are the same as without an
    interruption.
    """

    def __init__(self, run: Training, nodes: int, folder: Path, rows: Sequence[Mapping[str, Any]]):
        self.run, self.nodes, self.folder = run, nodes, folder
        self._log = EventLog(folder, rows) if has_tensorboard() else None

    def add(self, rows: Sequence[Mapping[str, Any]], print_line: Callable[[str], None]) -> None:
        """Writes the rows, of which the last one is new."""
        write_table(self.folder / CURVE, rows)
        if self._log is not None:
            self._log.add(rows[-1])
        print_line(line(self.run, rows[-1]))

    def finish(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Ends the run: the last row now has each node's own accuracy."""
        write_table(self.folder / CURVE, rows)
        if self._log is not None:
            self._log.add({name: rows[-1][name] for name in ("round", "seconds", "own_accuracy")})
            self._log.close()
        draw_run(self.run, rows, self.nodes, self.folder)


class EventLog:
    """TensorBoard's log of a curve: each column over the rounds, without duplicate points."""

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]]):
        from torch.utils.tensorboard import SummaryWriter

        for old in folder.glob(EVENTS):
            old.unlink()
        self._writer = SummaryWriter(str(folder), filename_suffix=Path(EVENTS).suffix)
        self._began = time.time() - (rows[-1]["seconds"] if rows else 0.0)
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row's numbers, with the time of their measurement."""
        for name, value in row.items():
            if name not in ("label", "round", "seconds"):
                self._writer.add_scalar(name, value, row["round"], walltime=self._began + row["seconds"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def has_tensorboard() -> bool:
    """Can TensorBoard logs be written?"""
    try:
        return importlib.util.find_spec("tensorboard") is not None
    except ValueError:  # another module has its name
        return False


def left_out() -> list[str]:
    """Messages about what a training will not write, and how to get it."""
    if has_tensorboard():
        return []
    return ["TensorBoard logs are left out because TensorBoard is not installed: pip install tensorboard."]


def line(run: Training, row: Mapping[str, Any]) -> str:
    """A row of the curve as a line of text, with the remaining time at the pace so far. Numbers may be text."""
    done, seconds = int(row["round"]), float(row["seconds"])
    time = ""
    if 0 < done < run.rounds:
        time = f", {timedelta(seconds=round(seconds / done * (run.rounds - done)))} to go"
    elif done:
        time = f", after {timedelta(seconds=round(seconds))}"
    return (
        f"{run.name}: round {done} of {run.rounds}, training loss {float(row['train_loss']):.4g}, test accuracy "
        f"{float(row['test_accuracy']):.2%}, {float(row['bytes_sent']) / 1e6:.1f} MB sent a node{time}"
    )


class Lines:
    """The lines of a training in other processes, read from its curves; each line once."""

    def __init__(self, runs: TrainingSpec, out: Path):
        self.runs, self.out = runs, out
        self._seen: dict[str, set[int]] = {run.folder: set() for run in runs.runs}
        self.new()  # skips what an earlier start has measured

    def new(self) -> list[str]:
        """The lines of the measurements since the last call."""
        found = []
        for run in self.runs.runs:
            path, seen = self.out / run.folder / CURVE, self._seen[run.folder]
            for row in read_table(path) if path.exists() else ():
                if int(row["round"]) not in seen:
                    seen.add(int(row["round"]))
                    found.append(line(run, row))
        return found


# -- figures ---------------------------------------------------------------------------------------------------------


def curve_panels(curves: Mapping[str, Curves], rounds: str = "round", per_round: int = 0) -> tuple[Panel, ...]:
    """Training loss and test accuracy over rounds, then both over the amount of data that a node has sent.

    Args:
        curves: by the name in the legend.
        rounds: the label of the axis for the rounds.
        per_round: the number of steps of a round, to plot over steps divided by it; 0 to plot over rounds.
    """
    top = 1.5 * max(float(one["train_loss"][:, 0].max()) for one in curves.values())
    panels = []
    for x, xlabel, scale in (
        ("steps" if per_round else "round", rounds, per_round or 1),
        ("bytes_sent", "MB sent by a node", 1e6),
    ):
        for y, ylabel, ymax in (("train_loss", "training loss", top), ("test_accuracy", "test accuracy", np.inf)):
            lines = [  # a run that diverges leaves the frame
                _line(label, one[x].mean(axis=0) / scale, np.minimum(one[y], 1.1 * ymax), i)
                for i, (label, one) in enumerate(curves.items())
            ]
            panels.append(Panel("", xlabel, ylabel, tuple(lines), ylog=False, ymax=ymax))
    return tuple(panels)


def draw_run(run: Training, rows: Iterable[Mapping[str, Any]], nodes: int, folder: Path) -> list[Path]:
    """Draws a run's curve into its folder."""
    title = f"{run.model.name} on {run.data.name}: {nodes} nodes, {run.topology.name}, {run.data.words}"
    return _draw("curve", {run.name: _columns(rows)}, title, folder)


def draw_runs(runs: TrainingSpec, nodes: int, out: Path) -> list[Path]:
    """Draws the curves of all runs into one figure."""
    paths = {run.name: out / run.folder / CURVE for run in runs.runs}
    curves = {name: _columns(read_table(path)) for name, path in paths.items() if path.exists()}
    return _draw("curves", curves, f"{len(curves)} runs, {nodes} nodes", out)


def _draw(name: str, curves: Mapping[str, Curves], title: str, folder: Path) -> list[Path]:
    return draw(Figure(name, curve_panels(curves), columns=2, title=title, shared=False), folder / name)


def _columns(rows: Iterable[Mapping[str, Any]]) -> Curves:
    rows = list(rows)
    names = ("round", "train_loss", "test_accuracy", "bytes_sent")
    return {name: np.array([[float(row[name]) for row in rows]]) for name in names}


def _line(label: str, x: np.ndarray, values: np.ndarray, style: int) -> Line:
    """The mean. The band spans the seeds: an interval for so few could leave the possible range."""
    if len(values) < 2:
        return Line(label, x, values[0], style=style)
    return Line(label, x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), style=style)
