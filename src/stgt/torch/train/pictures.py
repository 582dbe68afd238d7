"""Curves of trainings as pictures: loss and accuracy over rounds and over what a node has sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.files import read_table
from stgt.study.report import Figure, Line, Panel, draw
from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch.train.run_folder import CURVE

Curves = dict[str, np.ndarray]  # a column of the curves by name, (seeds, measurements)


def figure(name: str, curves: Mapping[str, Curves], title: str, rounds: str = "round", per_round: int = 0) -> Figure:
    """Training loss and test accuracy over rounds and over what a node has sent, a curve for each method or run.

    Args:
        name: of the file.
        curves: by the name to stand in the legend.
        title: above the panels.
        rounds: what the axis of the rounds is called.
        per_round: the steps of a round, where rounds are to be counted by them.
    """
    return Figure(name, _panels(curves, rounds, per_round), columns=2, title=title, shared=False)


def figure_of_readings(
    name: str, readings: Mapping[str, Mapping[str, Curves]], title: str, rounds: str, per_round: int
) -> Figure:
    """The panels of `figure` for several readings: a column for each, under its name."""
    columns = [_panels(curves, rounds, per_round) for curves in readings.values()]
    first, *others = zip(*columns, strict=True)
    named = [replace(panel, title=reading) for reading, panel in zip(readings, first, strict=True)]
    panels = (*named, *(panel for row in others for panel in row))
    return Figure(name, panels, columns=len(columns), title=title, shared=False)


def _panels(curves: Mapping[str, Curves], rounds: str, per_round: int) -> tuple[Panel, ...]:
    top = 1.5 * max(float(one["train_loss"][:, 0].max()) for one in curves.values())
    panels = []
    for x, xlabel, scale in (
        ("steps" if per_round else "round", rounds, per_round or 1),
        ("bytes_sent", "MB sent by a node", 1e6),
    ):
        for y, ylabel, ymax in (("train_loss", "training loss", top), ("test_accuracy", "test accuracy", np.inf)):
            lines = [  # one that diverges leaves the frame
                _line(label, one[x].mean(axis=0) / scale, np.minimum(one[y], 1.1 * ymax), i)
                for i, (label, one) in enumerate(curves.items())
            ]
            panels.append(Panel("", xlabel, ylabel, tuple(lines), ylog=False, ymax=ymax))
    return tuple(panels)


def draw_run(run: Training, rows: Iterable[Mapping[str, Any]], nodes: int, folder: Path) -> list[Path]:
    """Draws a run's curve into its folder."""
    title = f"{run.model.name} on {run.data.name}: {nodes} nodes, {run.topology.name}, {run.data.words}"
    return draw(figure("curve", {run.name: _columns(rows)}, title), folder / "curve")


def draw_runs(runs: TrainingSpec, nodes: int, out: Path) -> list[Path]:
    """Draws the curves of all runs into one picture."""
    paths = {run.name: out / run.folder / CURVE for run in runs.runs}
    curves = {name: _columns(read_table(path)) for name, path in paths.items() if path.exists()}
    return draw(figure("curves", curves, f"{len(curves)} runs, {nodes} nodes"), out / "curves")


def _columns(rows: Iterable[Mapping[str, Any]]) -> Curves:
    rows = list(rows)
    names = ("round", "train_loss", "test_accuracy", "bytes_sent")
    return {name: np.array([[float(row[name]) for row in rows]]) for name in names}


def _line(label: str, x: np.ndarray, values: np.ndarray, style: int) -> Line:
    """The mean; the band spans the seeds, as an interval for so few would leave what can be."""
    if len(values) < 2:
        return Line(label, x, values[0], style=style)
    return Line(label, x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), style=style)
