"""Shared code of the experiments that train networks: runs of several methods in the same processes, and curves."""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproductions import register
from reproductions.outcome import Claim, Outcome, TableRow, finite
from stgt.study import Progress, error_interval, mean_interval
from stgt.study.report import Figure
from stgt.torch.train import StoppedTrainingError, Training, TrainingSpec, curve_panels, launch

Curves = dict[str, np.ndarray]  # a column of the curves by name, (seeds, measurements)
Claims = Callable[[dict[str, Curves]], list[Claim]]


def a_run(method: str, rate: float, seed: int, **others: Any) -> Training:
    """A run with SGD; its label has the method, the stepsize and the seed. `others` are other entries of the spec."""
    label, optimizer = f"{method} · lr {rate:g} · seed {seed}", {"name": "SGD", "lr": rate}
    return Training.model_validate({"label": label, "optimizer": optimizer, "seed": seed, **others})


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
    """Trains all runs in the same processes; returns their curves as a figure with claims, or the table of a grid."""
    spec, rows = TrainingSpec(runs=tuple(runs)), train_all(runs, nodes, folder, data_dir, progress)
    if grid:
        return Outcome(spec, by_stepsize(rows), [], [], rows)
    curves = by_method(rows)
    picture = figure(name, curves, title, f"round of {tau} steps", tau)
    return Outcome(spec, summary(curves), claims(curves), [picture], rows)


def train_all(
    runs: Iterable[Training], nodes: int, folder: Path | None, data_dir: Path | None, progress: Progress | None
) -> list[TableRow]:
    """Trains all runs in the same processes; returns the rows of all curves, with the stepsizes and seeds.

    Args:
        runs: runs with distinct labels.
        nodes: the number of processes.
        folder: the folder of curves, checkpoints and models; an interrupted training continues from it. By default a
            temporary folder.
        data_dir: the folder with the data set.
        progress: called with the finished and the total rounds.
    """
    spec = TrainingSpec(runs=tuple(runs))
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return train_all(spec.runs, nodes, Path(temporary), data_dir, progress)
    try:
        launch(spec, nodes, folder, data_dir=data_dir, scripts=[Path(register.__file__)], progress=progress)
    except StoppedTrainingError as error:
        if error.code != 4:  # 4: numbers are not finite, which is a valid result
            raise
    return [names_of(run) | row for run in spec.runs for row in _curve(run, folder / run.folder / "curve.csv")]


def _curve(run: Training, path: Path) -> list[TableRow]:
    """The numbers of a run's curve; NaN for measurements after it diverged."""
    rows = [
        {name: float(value) for name, value in row.items() if name != "label" and value != ""}
        for row in read_table(path)
    ]
    measured = [*range(0, run.rounds, run.evaluate_every), run.rounds]
    nothing, tau = dict.fromkeys(rows[0], math.nan), run.build_algorithm().tau
    return rows + [nothing | {"round": float(r), "steps": float(r * tau)} for r in measured[len(rows) :]]


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def names_of(run: Training) -> TableRow:
    """The values that identify a run in its rows."""
    return {"method": run.label.split(" · ")[0], "lr": run.optimizer.arguments["lr"], "seed": run.seed}


def figure(name: str, curves: Mapping[str, Curves], title: str, rounds: str, per_round: int) -> Figure:
    """Training loss and test accuracy over rounds and over the bytes that a node sent, with a curve for each method.

    Args:
        name: the name of the file.
        curves: curves by the name for the legend.
        title: the title above the panels.
        rounds: the label of the axis of rounds.
        per_round: the number of steps per round.
    """
    return Figure(name, curve_panels(curves, rounds, per_round), columns=2, title=title, shared=False)


def figure_of_readings(
    name: str, readings: Mapping[str, Mapping[str, Curves]], title: str, rounds: str, per_round: int
) -> Figure:
    """The panels of `figure` for several readings: a column for each, under its name."""
    columns = [curve_panels(curves, rounds, per_round) for curves in readings.values()]
    first, *others = zip(*columns, strict=True)
    named = [replace(panel, title=reading) for reading, panel in zip(readings, first, strict=True)]
    panels = (*named, *(panel for row in others for panel in row))
    return Figure(name, panels, columns=len(columns), title=title, shared=False)


def by_method(rows: Iterable[TableRow]) -> dict[str, Curves]:
    """The curves of each method, its seeds stacked. A model whose loss is not finite has no accuracy either: NaN."""
    seeds: dict[str, dict[int, list[TableRow]]] = {}
    for row in rows:
        known = row if np.isfinite(row["train_loss"]) else row | {"test_accuracy": np.nan}
        seeds.setdefault(row["method"], {}).setdefault(row["seed"], []).append(known)
    return {
        method: {
            name: np.array([[row[name] for row in one] for one in runs.values()])
            for name in ("lr", "steps", "train_loss", "test_accuracy", "bytes_sent", "consensus")
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
    """The bytes that a node sent in the run that sends least; NaN if a run diverged."""
    return float(np.min([one["bytes_sent"][:, -1].min() for one in curves.values()]))


def at_bytes(curves: Curves, name: str, sent: float) -> np.ndarray:
    """A column at this number of bytes sent by a node, for each seed, by linear interpolation."""
    pairs = zip(curves["bytes_sent"], curves[name], strict=True)
    return np.array([np.interp(sent, x, y) for x, y in pairs])


def written(values: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers of a claim, one per method."""
    return {method: finite(value) for method, value in values.items()}


def by_seed(values: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    """The numbers of a claim, one per seed of a method."""
    return {method: [finite(value) for value in seeds] for method, seeds in values.items()}


def by_stepsize(rows: Sequence[TableRow]) -> list[TableRow]:
    """A grid's table: the last measurement of each method with each stepsize, best first."""
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
    """A row for each method with its last measurements."""
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
            "consensus": float(one["consensus"][:, -1].mean()),
        }
        for method, one in curves.items()
    ]
