"""Figures: curves with their bands in one or several panels, as plain data, and drawn as PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_flag, check_number
from stgt._internal.files import write_atomically, writing
from stgt._internal.hyper import short_repr
from stgt._internal.registry import METRICS
from stgt.simulator.choice import distinct, labels
from stgt.simulator.metrics import over_seeds
from stgt.simulator.serialize import Serialized
from stgt.simulator.trace import Trace

# Okabe and Ito's palette, which people with colour blindness can distinguish. Dashes and marks differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)), "-")
MARKS = ("o", "s", "^", "x", "D", "v", "P")
OVER = {
    "gradients": "gradients computed",
    "messages": "messages sent",
    "floats": "floats sent",
    "seconds": "seconds on this computer, all seeds together",
}
ENDINGS = (".png", ".pdf")
WIDTH, HEIGHT = 3.5, 2.9  # of one panel, in inches
HIGHEST = 1e280  # the largest value on a logarithmic axis
BELOW = "this axis cannot show values ≤ 0: bands end at its bottom"
MANY_DECADES = 100  # for a longer axis, the ticks are 50 decades apart
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}


Limits = tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class Line:
    """A curve with its band. `style` is the number of its colour, dash and mark; None takes the next one.

    `backdrop` draws it wide and grey behind the others, as a reference. `thin` draws it thin and dotted. With
    `joined=False` only its marks and bars are drawn.
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
    """One pair of axes. `levels` are horizontal lines by name. Curves are cut off above `ymax`.

    `xlim` and `ylim` are the ends of the axes; None leaves them to the curves.

    A logarithmic x axis also shows 0 if a curve begins there.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: tuple[Line, ...]
    xlog: bool = False
    ylog: bool = True
    levels: dict[str, float] = field(default_factory=dict)
    ymax: float | None = None
    xlim: Limits | None = None
    ylim: Limits | None = None
    ticks: tuple[str, ...] = ()  # labels of the positions 0, 1, … on the x axis


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels in rows of `columns`, each row with one y axis if `shared`; `notes` are lines below."""

    name: str
    panels: tuple[Panel, ...]
    columns: int = 2
    title: str = ""
    shared: bool = True
    notes: tuple[str, ...] = ()


def band(
    label: str, trace: Trace, metric: str = "residual", over: str = "rounds", per_node: bool = False, **style: Any
) -> Line:
    """A trace as a curve: the mean over its seeds and its 95 % interval, while all seeds are finite.

    `over` is "rounds", those with communication, or another cost; `per_node` divides the cost by the number of nodes.
    """
    values = trace[metric].astype(np.float64)
    seen = np.isfinite(values).all(axis=0)
    return Line(label, _costs_so_far(trace, over, per_node)[seen], *over_seeds(metric, values[:, seen]), **style)


def long_band(
    label: str, trace: Trace, metric: str = "residual", over: str = "rounds", per_node: bool = False, **style: Any
) -> Line:
    """A trace for a logarithmic axis: means over windows that grow with the round, and their intervals.

    Up to round 8 a point is a single round, then the mean over a window of about r/8 rounds. `over` and
    `per_node` are as in `band`.
    """
    values = trace[metric].astype(np.float64)
    places = _costs_so_far(trace, over, per_node)
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


def _costs_so_far(trace: Trace, over: str, per_node: bool) -> np.ndarray:
    """The cumulative cost at each round, on average over the seeds."""
    x = trace.spent(over).mean(axis=0)
    return x / trace.problem.n if per_node and over not in ("rounds", "seconds") else x


def curves(
    traces: Mapping[str, Trace] | Iterable[Trace],
    path: Path | str,
    *,
    metric: str = "residual",
    x: str = "rounds",
    per_node: bool = False,
    title: str = "",
    size: tuple[float, float] | None = None,
    xlim: Limits | None = None,
    ylim: Limits | None = None,
    xlog: bool = False,
    ylog: bool | None = None,
) -> list[Path]:
    """Draws a measurement with a curve for each trace: the mean over its seeds and its 95 % interval.

    The notes of the traces are written below the axes, for example that two methods are the same under their options.

    Args:
        traces: traces by the name for the legend, or a list of traces, which are then named by their methods.
        path: the picture, if it ends in .png or .pdf; without an ending, both are written.
        metric: the name of the measurement.
        x: the x axis: "rounds" (with communication), "gradients", "messages", "floats" or "seconds".
        per_node: divide gradients, messages or floats by the number of nodes, instead of the whole network's total.
        title: the title above the axes.
        size: width and height in inches.
        xlim, ylim: the ends of an axis, (low, high); None for one of them leaves it to the curves.
        xlog, ylog: is the axis logarithmic? By default the x axis is not, and the y axis is for errors.

    Returns:
        The files written.
    """
    check_choice(x, "x", ("rounds", *OVER))
    named = _named(traces)
    lines = tuple(band(label, trace, metric, over=x, per_node=per_node) for label, trace in named.items())
    ylog = _is_logarithmic(metric, lines) if ylog is None else check_flag(ylog, "ylog")
    panel = Panel(
        title,
        _over(x, per_node),
        meaning(metric, named.values()),
        lines,
        xlog=check_flag(xlog, "xlog"),
        ylog=ylog,
        xlim=_limits(xlim, "xlim", above_0=False),
        ylim=_limits(ylim, "ylim", above_0=ylog),
    )
    notes = tuple(dict.fromkeys(note for trace in named.values() for note in trace.notes))
    size = (5.6, 3.6 + 0.15 * len(notes)) if size is None else size
    if np.shape(size) != (2,):
        raise InputError("size", size, "give the width and the height in inches, such as (6, 4).")
    width, height = (check_number(one, "size", above=0) for one in size)
    return draw(Figure(Path(path).name, (panel,), columns=1, notes=notes), path, size=(width, height))


def _limits(given: Any, name: str, above_0: bool) -> Limits | None:
    """The ends of an axis, checked."""
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(name, given, "give (low, high), with None for an end that is left to the curves.")
    least = {"above": 0.0} if above_0 else {}
    low, high = (None if one is None else check_number(one, name, **least) for one in given)
    if low is not None and high is not None and low >= high:
        raise InputError(name, given, "give a low end that is below the high one.")
    return low, high


def _named(traces: Any) -> dict[str, Trace]:
    """Traces by distinct names."""
    if isinstance(traces, Mapping):
        named = dict(traces)
    else:
        listed = [traces] if isinstance(traces, Trace) else list(traces)
        if not all(isinstance(one, Trace) for one in listed):
            raise InputError("traces", hint="give a dict of traces by name, or a list of traces.")
        names = labels([(trace.algorithm, trace.topology) for trace in listed])
        several = {name for name in names if names.count(name) > 1}
        names = [
            f"{name}, gamma={short_repr(trace.algorithm.gamma)}" if name in several else name
            for name, trace in zip(names, listed, strict=True)
        ]
        named = dict(zip(distinct(names), listed, strict=True))
    if not named:
        raise InputError("traces", hint=" is empty: give at least one.")
    return named


def meaning(metric: str, traces: Iterable[Trace]) -> str:
    """The label of a measurement; for the loss it is f(x̄) if the minimum is unknown."""
    known = [
        one.problem.solved if isinstance(one.problem, Serialized) else one.problem.solve is not None for one in traces
    ]
    registered = METRICS.get(metric)
    words = registered.formula if registered is not None else metric
    return "f(x̄)" if metric == "loss" and not all(known) else words


def _over(x: str, per_node: bool) -> str:
    if x == "rounds":
        return "communication round"
    whose = "a node" if per_node else "network total"
    return OVER[x] if x == "seconds" else f"{OVER[x]} ({whose})"


def _is_logarithmic(metric: str, lines: tuple[Line, ...]) -> bool:
    """The axis of the library's errors is logarithmic, as are positive values over two decades; an accuracy is not."""
    values = np.concatenate([line.y for line in lines]) if lines else np.ones(1)
    registered = METRICS.get(metric)
    if registered is not None and registered.kind != "value":
        return metric != "loss" or bool((values > 0).all())
    return bool(len(values) and values.min() > 0 and values.max() > 100 * values.min())


def draw(figure: Figure, path: Path | str, size: tuple[float, float] | None = None) -> list[Path]:
    """Draws panels side by side, with one legend, as PNG and PDF, or in the format of the path's ending.

    Returns the files written.
    """
    import matplotlib

    paths = picture_paths(path)
    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure as Canvas

        columns = min(figure.columns, len(figure.panels))
        rows = -(-len(figure.panels) // columns)
        canvas = Canvas(
            figsize=size or (WIDTH * columns, HEIGHT * rows + 0.6 + 0.13 * len(figure.notes)), layout="constrained"
        )
        grid = canvas.subplots(rows, columns, squeeze=False, sharey="row" if figure.shared else False)
        for axes, panel in zip(grid.flat, figure.panels, strict=False):
            _panel(axes, panel)
        for axes in grid.flat[len(figure.panels) :]:
            axes.set_visible(False)
        if figure.shared:
            for axes in grid[:, 1:].flat:
                axes.set_ylabel("")
        _legend(canvas, grid, figure)
        if figure.title:
            canvas.suptitle(figure.title, fontsize=9)
        return save_pictures(canvas, paths)


def picture_paths(path: Path | str) -> list[Path]:
    """The PNG and the PDF with this name, or only the one with its ending; a ValueError for another ending.

    The digits after the point in a name such as "gamma=0.05" are not an ending.
    """
    given = Path(path).expanduser()
    if given.suffix.lower() in ENDINGS:
        return [given]
    if given.suffix[1:].isalpha():
        raise InputError("path", path, f" ends in {given.suffix}: end it in .png or .pdf, or leave it out for both.")
    return [given.with_name(given.name + ending) for ending in ENDINGS]


def save_pictures(canvas: Any, paths: list[Path]) -> list[Path]:
    """Writes the pictures; a ValueError if they cannot be written."""
    with writing(paths[0]):
        return [write_atomically(one, lambda file: save_canvas(canvas, file)) for one in paths]


def save_canvas(canvas: Any, path: Path) -> None:
    """Writes a picture. A PNG gets few colours, which makes it a third of the size."""
    canvas.savefig(path, dpi=160)
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as picture:
            picture.convert("RGB").quantize(128).save(path, optimize=True)


def _panel(axes: Any, panel: Panel) -> None:
    floor = _floor(panel) if panel.ylog else None
    for i, line in enumerate(panel.lines):
        _line(axes, line, i if line.style is None else line.style, floor)
    for name, level in panel.levels.items():
        axes.axhline(level, color="black", linewidth=0.9, linestyle=(0, (1, 2)), zorder=3, label=name)
    if not any(len(line.x) for line in panel.lines):
        axes.text(0.5, 0.5, "no run is finite after one round", transform=axes.transAxes, ha="center")
        axes.set_xticks([])
        axes.set_yticks([])
    elif panel.ylog:
        values = np.concatenate([line.y for line in panel.lines])
        if values.max(initial=0.0) > HIGHEST:  # a margin above it would overflow
            axes.set_ylim(values[values > 0].min(), HIGHEST)
        axes.set_yscale("log", nonpositive="mask")
        low, high = np.log10(axes.get_ylim())
        if high - low > MANY_DECADES:
            axes.set_yticks(10.0 ** np.arange(0, high, MANY_DECADES / 2))
            axes.minorticks_off()
        if floor is not None:
            axes.set_ylim(bottom=floor)
            axes.text(0.01, 0.01, BELOW, transform=axes.transAxes, fontsize=6, color="0.35")
    if panel.ymax is not None and panel.lines:
        axes.set_ylim(top=min(panel.ymax, axes.get_ylim()[1]))
    if panel.xlog and any(len(line.x) for line in panel.lines):
        _logarithmic(axes, np.concatenate([line.x for line in panel.lines]))
    elif any(line.marked for line in panel.lines) and all((line.x == np.round(line.x)).all() for line in panel.lines):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    axes.set_title(panel.title)
    if not any(line.marked for line in panel.lines):
        axes.margins(x=0)
    for limits, set_limits in ((panel.xlim, axes.set_xlim), (panel.ylim, axes.set_ylim)):
        if limits is not None:
            set_limits(*limits)
    axes.grid(True, which="major", alpha=0.3)


def _logarithmic(axes: Any, x: np.ndarray) -> None:
    """A logarithmic x axis; if a curve begins at 0, the axis shows 0 to the left of the smallest positive value."""
    if (x > 0).all():
        axes.set_xscale("log")
        return
    from matplotlib.ticker import FuncFormatter

    least = x[x > 0].min() if (x > 0).any() else 1.0
    axes.set_xscale("symlog", linthresh=least, linscale=0.3)
    decades = np.arange(np.ceil(np.log10(least)), np.floor(np.log10(max(x.max(), least))) + 1)
    axes.set_xticks([0, *10**decades])
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e4 else f"$10^{{{np.log10(value):.0f}}}$")
    )


def _floor(panel: Panel) -> float | None:
    """Half of the least value on a logarithmic axis, where bands that reach 0 or below end; None if no band does."""
    parts = [part for line in panel.lines for part in (line.y, line.low) if part is not None]
    values = np.concatenate([part[np.isfinite(part)] for part in parts]) if parts else np.ones(1)
    positive = values[values > 0]
    return float(positive.min()) / 2 if len(positive) < len(values) and len(positive) else None


def _line(axes: Any, line: Line, style: int, floor: float | None) -> None:
    colour, dash = COLOURS[style % len(COLOURS)], DASHES[(style + style // len(COLOURS)) % len(DASHES)]
    if line.backdrop:
        axes.plot(line.x, line.y, color="0.75", linewidth=4, zorder=1, label=line.label)
        return
    if line.thin:
        axes.plot(line.x, line.y, color=colour, linewidth=1, linestyle=(0, (1, 2)), zorder=3, label=line.label)
        return
    mark = {"marker": MARKS[style % len(MARKS)], "markersize": 4} if line.marked else {}
    axes.plot(line.x, line.y, color=colour, linestyle=dash if line.joined else "none", label=line.label, **mark)
    if line.low is None or line.high is None or not np.isfinite(line.low).any():
        return
    low = line.low if floor is None else np.maximum(line.low, floor)
    if line.marked:
        axes.errorbar(
            line.x, line.y, (np.maximum(line.y - low, 0.0), line.high - line.y), fmt="none", ecolor=colour, capsize=2
        )
    else:
        axes.fill_between(line.x, low, line.high, color=colour, alpha=0.25, linewidth=0)


def _legend(canvas: Any, grid: Any, figure: Figure) -> None:
    """One legend, inside the axes of a single panel, below several, and the notes."""
    found: dict[str, Any] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    notes = "\n".join(figure.notes)
    if len(figure.panels) == 1:
        grid.flat[0].legend(found.values(), found.keys(), frameon=False)
        if notes:
            canvas.supxlabel(notes, fontsize=7, color="0.35")
    elif found:
        entry = 0.6 + 0.06 * max(map(len, found))  # inches
        columns = max(1, min(len(found), 5, int(canvas.get_figwidth() / entry)))
        where = {"loc": "outside lower center", "ncols": columns, "frameon": False}
        below = canvas.legend(found.values(), found.keys(), title=notes, title_fontsize=7, **where)
        below.get_title().set(color="0.35", multialignment="center")
