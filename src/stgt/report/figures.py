"""Pictures of traces, for the screen and for print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stgt.engines.trace import MEANING, Trace, mean_interval
from stgt.report.files import write_atomically

# Okabe and Ito's palette, told apart with any colour vision; dashes tell the curves apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)), "-")


def curves(traces: Mapping[str, Trace], path: Path | str, *, metric: str = "residual", title: str = "") -> list[Path]:
    """Draws a measurement over the rounds, a curve for each trace: the mean over its seeds and its 95 % interval.

    Args:
        traces: by the name to stand in the legend.
        path: of the pictures, without an ending.
        metric: a measurement's name.
        title: above the axes.

    Returns:
        The files written: PNG and PDF.
    """
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for i, (label, trace) in enumerate(traces.items()):
            values = trace[metric].astype(np.float64)
            rounds = np.arange(values.shape[1])
            seen = np.isfinite(values).all(axis=0)
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
            mean, half = mean_interval(values[:, seen])
            axes.plot(rounds[seen], mean, color=colour, linestyle=dash, label=label)
            low = np.maximum(mean - half, 0.05 * mean)  # a logarithmic axis has no zero
            axes.fill_between(rounds[seen], low, mean + half, color=colour, alpha=0.25, linewidth=0)
        axes.set_yscale("log")
        axes.set_xlabel("communication round")
        axes.set_ylabel(MEANING.get(metric, metric))
        axes.set_title(title)
        axes.margins(x=0)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(frameon=False)
        written = []
        for ending in (".png", ".pdf"):
            target = Path(f"{path}{ending}")
            written.append(write_atomically(target, lambda file: figure.savefig(file, dpi=160)))
    return written


_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}
