"""What to draw, as plain data: curves with their bands, on pairs of axes, side by side in a figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from stgt.simulator.metrics import over_seeds
from stgt.simulator.trace import Trace


@dataclass(frozen=True, eq=False)
class Line:
    """A curve with its band. `style` is the number of its colour, dash and mark; None for the next one.

    `backdrop` draws it wide and grey behind the others: what they are compared with; `thin` draws it thin and dotted.
    Without `joined` only its marks and bars are drawn.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    style: int | None = None
    marked: bool = False
    backdrop: bool = False
    thin: bool = False
    joined: bool = True


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes. `levels` are horizontal lines by name; above `ymax` curves leave the frame.

    A logarithmic x axis has a place for 0 if some curve begins there.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: tuple[Line, ...]
    xlog: bool = False
    ylog: bool = True
    levels: dict[str, float] = field(default_factory=dict)
    ymax: float | None = None
    ticks: tuple[str, ...] = ()  # names of the places 0, 1, … on the x axis


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels in rows of `columns`, each row with one y axis if `shared`; `notes` stand below, a line each."""

    name: str
    panels: tuple[Panel, ...]
    columns: int = 2
    title: str = ""
    shared: bool = True
    notes: tuple[str, ...] = ()


def band(
    label: str, trace: Trace, metric: str = "residual", over: str = "rounds", per_node: bool = False, **style: Any
) -> Line:
    """A trace as a curve: the mean over its seeds and its 95 % interval, as far as all seeds are finite.

    `over` is "rounds", those in which anything was sent, or what else the run counted; `per_node` a node's share of it.
    """
    values = trace[metric].astype(np.float64)
    seen = np.isfinite(values).all(axis=0)
    return Line(label, _places(trace, over, per_node)[seen], *over_seeds(metric, values[:, seen]), **style)


def long_band(
    label: str, trace: Trace, metric: str = "residual", over: str = "rounds", per_node: bool = False, **style: Any
) -> Line:
    """A trace for a logarithmic axis: means over windows that grow with the round, and their intervals.

    Round r stands for itself up to 8, then for a window of about r/8 rounds. `over` and `per_node` as in `band`.
    """
    values = trace[metric].astype(np.float64)
    places = _places(trace, over, per_node)
    ends = [0, 1]
    while ends[-1] < values.shape[1]:
        ends.append(ends[-1] + max(1, ends[-1] // 8))
    ends[-1] = values.shape[1]
    windows = list(pairwise(ends))
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        means = np.stack([values[:, start:end].mean(axis=1) for start, end in windows], axis=1)
    seen = np.isfinite(means).all(axis=0)
    x = np.array([places[start:end].mean() for start, end in windows])
    return Line(label, x[seen], *over_seeds(metric, means[:, seen]), **style)


def _places(trace: Trace, over: str, per_node: bool) -> np.ndarray:
    """What rounds have cost so far, on average over the seeds."""
    x = trace.spent(over).mean(axis=0)
    return x / trace.problem.n if per_node and over not in ("rounds", "seconds") else x
