"""What the experiments that train networks share: runs of several methods, launched in one world, and their curves."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from reproductions.outcome import Claim, Outcome, TableRow, finite
from stgt._internal.files import read_table
from stgt._internal.progress import Progress
from stgt._internal.statistics import error_interval, mean_interval
from stgt.study.spec import build_algorithm
from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch.train.failure_report import NONFINITE, StoppedTrainingError
from stgt.torch.train.launch import launch
from stgt.torch.train.pictures import Curves, figure
from stgt.torch.train.run_folder import CURVE

Claims = Callable[[dict[str, Curves]], list[Claim]]


def trained(
    name: str,
    runs: Sequence[Training],
    tau: int,
    title: str,
    claims: Claims,
    *,
    grid: bool,
    nodes: int,
    folder: Path | None,
    data_dir: Path | None,
    progress: Progress | None,
) -> Outcome:
    """Trains all runs in one world of processes; their curves as a figure with claims, or where a grid's runs stood."""
    spec, rows = TrainingSpec(runs=tuple(runs)), train_all(runs, nodes, folder, data_dir, progress)
    if grid:
        return Outcome(spec, by_stepsize(rows), [], [], rows)
    curves = by_method(rows)
    picture = figure(name, curves, title, f"round of {tau} steps", tau)
    return Outcome(spec, summary(curves), claims(curves), [picture], rows)


def train_all(
    runs: Iterable[Training], nodes: int, folder: Path | None, data_dir: Path | None, progress: Progress | None
) -> list[TableRow]:
    """Trains all runs in one world of processes; the rows of all their curves, with the run's stepsize and seed.

    Args:
        runs: their labels tell them apart.
        nodes: how many processes.
        folder: of curves, checkpoints and models, where a training that was broken off goes on; a temporary one if
            left out.
        data_dir: a folder with the data set.
        progress: called with the rounds done and in all.
    """
    spec = TrainingSpec(runs=tuple(runs))
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return train_all(spec.runs, nodes, Path(temporary), data_dir, progress)
    try:
        launch(spec, nodes, folder, data_dir=data_dir, progress=progress)
    except StoppedTrainingError as error:
        if error.code != NONFINITE:
            raise
    return [names_of(run) | row for run in spec.runs for row in _curve(run, folder / run.folder / CURVE)]


def _curve(run: Training, path: Path) -> list[TableRow]:
    """The numbers of a run's curve; NaN where it should have been measured after it had left the finite numbers."""
    rows = [
        {name: float(value) for name, value in row.items() if name != "label" and value != ""}
        for row in read_table(path)
    ]
    measured = [*range(0, run.rounds, run.evaluate_every), run.rounds]
    nothing, tau = dict.fromkeys(rows[0], math.nan), build_algorithm(run.algorithm).tau
    return rows + [nothing | {"round": float(r), "steps": float(r * tau)} for r in measured[len(rows) :]]


def names_of(run: Training) -> TableRow:
    """What a run's rows are told apart by."""
    return {"method": run.label.split(" · ")[0], "lr": run.optimizer.arguments["lr"], "seed": run.seed}


def by_method(rows: Iterable[TableRow]) -> dict[str, Curves]:
    """The curves of each method, its seeds stacked. A model whose loss is not finite has no accuracy either: NaN."""
    seeds: dict[str, dict[int, list[TableRow]]] = {}
    for row in rows:
        known = row if np.isfinite(row["train_loss"]) else row | {"test_accuracy": np.nan}
        seeds.setdefault(row["method"], {}).setdefault(row["seed"], []).append(known)
    return {
        method: {
            name: np.array([[row[name] for row in one] for one in runs.values()])
            for name in ("lr", "steps", "train_loss", "test_accuracy", "bytes_sent", "consensus_error")
        }
        for method, runs in seeds.items()
    }


def at_end(curves: Curves, name: str, measurements: int = 3) -> np.ndarray:
    """A column's mean over the last measurements, for each seed."""
    return curves[name][:, -measurements:].mean(axis=1)


def last(curves: Curves, name: str, measurements: int = 3) -> tuple[float, float, float]:
    """The mean of `at_end` over seeds and its 95 % interval, (mean, low, high)."""
    found = (mean_interval if name == "test_accuracy" else error_interval)(at_end(curves, name, measurements))
    mean, low, high = map(float, found)
    return mean, low, high


def equal_bytes(curves: Mapping[str, Curves]) -> float:
    """What a node has sent at the end of the run that sends least; NaN if a run left the finite numbers."""
    return float(np.min([one["bytes_sent"][:, -1].min() for one in curves.values()]))


def at_bytes(curves: Curves, name: str, sent: float) -> np.ndarray:
    """A column when a node has sent so many bytes, for each seed; linear between two measurements."""
    pairs = zip(curves["bytes_sent"], curves[name], strict=True)
    return np.array([np.interp(sent, x, y) for x, y in pairs])


def written(values: Mapping[str, float]) -> dict[str, float | None]:
    """A claim's numbers, a method each."""
    return {method: finite(value) for method, value in values.items()}


def by_seed(values: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    """A claim's numbers, one for each seed of a method."""
    return {method: [finite(value) for value in seeds] for method, seeds in values.items()}


def by_stepsize(rows: Sequence[TableRow]) -> list[TableRow]:
    """A grid's table: where each method stands with each stepsize at the last measurement, best first."""
    found = [
        {
            "method": method,
            "lr": rate,
            "train_loss": last(curves, "train_loss", 1)[0],
            "test_accuracy": last(curves, "test_accuracy", 1)[0],
        }
        for rate in sorted({row["lr"] for row in rows})
        for method, curves in by_method(row for row in rows if row["lr"] == rate).items()
    ]
    return sorted(found, key=lambda row: (row["method"], not np.isfinite(row["train_loss"]), row["train_loss"]))


def summary(curves: dict[str, Curves], ends: int = 3) -> list[TableRow]:
    """A row for each method: what the last measurements say."""
    return [
        {
            "method": method,
            "lr": float(one["lr"][0, 0]),
            "seeds": len(one["steps"]),
            "train_loss": last(one, "train_loss", ends)[0],
            "train_loss_low": finite(last(one, "train_loss", ends)[1]),
            "train_loss_high": finite(last(one, "train_loss", ends)[2]),
            "test_accuracy": last(one, "test_accuracy", ends)[0],
            "test_accuracy_low": finite(last(one, "test_accuracy", ends)[1]),
            "test_accuracy_high": finite(last(one, "test_accuracy", ends)[2]),
            "megabytes_sent": float(one["bytes_sent"][:, -1].mean() / 1e6),
            "consensus_error": float(one["consensus_error"][:, -1].mean()),
        }
        for method, one in curves.items()
    ]
