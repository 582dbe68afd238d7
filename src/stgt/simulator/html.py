"""A trace as a notebook shows it: what was run, a sparkline of the error, and a table of the measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.markup import count, interval, many, number, render
from stgt._internal.schedules import StepsizeSchedule
from stgt.simulator.costs import COUNTED
from stgt.simulator.metrics import is_error, over_seeds

if TYPE_CHECKING:
    from stgt.simulator.trace import Trace

WIDTH, HEIGHT = 300, 80  # of the curve, in pixels
SIDE, ABOVE = 84, 22  # the space for words left and right of the curve, and above and below it
POINTS = 300  # if there are more rounds, the curve shows the smallest and largest value of each stretch


def trace_html(trace: Trace) -> str:
    """The HTML of a trace."""
    measured = [name for name in trace.values if name not in COUNTED]
    shown = next((name for name in ("residual", "loss") if name in measured), next(iter(measured), None))
    seeds, sent = many(len(trace.seeds), "seed"), float(trace["communications"][:, -1].mean())
    seconds = float(trace.seconds[-1]) if len(trace.seconds) else math.nan
    lost = trace.diverged_at[trace.diverged]
    first = f", {'' if len(trace.seeds) == 1 else 'the first '}at round {lost.min()}" if len(lost) else ""
    return render(
        "simulator/trace.html.j2",
        trace=trace,
        options=_options(trace.algorithm),
        amounts=[
            seeds,
            many(trace.rounds, "round") + ("" if sent == trace.rounds else f", {count(sent)} with communication"),
            f"{trace.engine}, {trace.dtype}",
            f"{number(seconds)} s" if math.isfinite(seconds) else "",
        ],
        lost="" if not len(lost) else "diverged" if len(trace.seeds) == 1 else f"{len(lost)} of {seeds} diverged",
        first=first,
        rounds=many(trace.rounds, "round"),
        shown=shown,
        curve=None if shown is None else _sparkline(trace, shown),
        head=[
            "measured",
            "start",
            f"end, mean of {seeds} and its 95 % interval" if len(trace.seeds) > 1 else "end",
            "best",
        ],
        measured=[_measured(trace, name) for name in measured],
        counted=list(_counted(trace)),
    )


def _options(algorithm: Any) -> str:
    gamma = algorithm.gamma
    known = isinstance(gamma, float | StepsizeSchedule)
    words = gamma if known else "one per node" if isinstance(gamma, tuple | list) else "a function of the round"
    return f"(gamma{'=' if known else ': '}{words}, tau={algorithm.tau})"


def _measured(trace: Trace, name: str) -> list[str]:
    """The row of a measurement."""
    values = trace[name].astype(np.float64)
    end = interval(*map(float, over_seeds(name, values[:, -1])))
    lost = int((~np.isfinite(values[:, -1])).sum())
    if lost and len(values) > 1:
        end = f"not finite in {lost} of {len(values)} seeds"
    return [name, number(float(_mean(values[:, 0]))), end, _best(trace, name)]


def _mean(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        return values.mean(axis=0)


def _best(trace: Trace, name: str) -> str:
    """The lowest value of an error; the range of any other metric, as its larger values may be better."""
    try:
        low, high = trace.best(name), trace.best(name, largest=True)
    except ValueError:
        return "never finite"
    if is_error(name):
        return f"{number(low.value)} (round {low.round})"
    return f"from {number(low.value)} to {number(high.value)}"


def _counted(trace: Trace) -> Iterator[list[str]]:
    n = trace.problem.n
    for name in COUNTED:
        if name in trace.values and trace.values[name].size:
            totals = trace.values[name][:, -1]
            total = float(totals.mean())
            words = count(total) if (totals == totals[0]).all() else f"{count(total)}, mean of the seeds"
            yield [name, words, count(total / n)]


def _sparkline(trace: Trace, name: str) -> dict[str, Any] | None:
    """The mean over the seeds for each round, with gaps where it is not finite; None if it never is."""
    mean = _mean(trace[name].astype(np.float64))
    finite = mean[np.isfinite(mean)]
    if not len(finite):
        return None
    logarithmic = bool((finite > 0).all())
    heights = _heights(mean, logarithmic)
    places = np.linspace(0, WIDTH, len(mean)) if len(mean) > 1 else np.array([WIDTH / 2])
    there = np.flatnonzero(np.isfinite(heights))
    first, last = number(float(mean[0])), number(float(mean[-1]))
    over = f"{name}, mean of {many(len(trace.seeds), 'seed')}" if len(trace.seeds) > 1 else name
    return {
        "left": SIDE, "width": WIDTH, "whole": WIDTH + 2 * SIDE, "height": HEIGHT + 2 * ABOVE + 6,
        "bottom": ABOVE + HEIGHT + 6,
        "title": f"{over}, from {first} to {last}",
        "words": f"{over} ({'logarithmic' if logarithmic else 'linear'} scale)",
        "path": _path(places, heights),
        "ends": [
            (SIDE + float(places[at]), ABOVE + float(heights[at]), words, side, anchor)
            for at, words, side, anchor in ((there[0], first, -8, "end"), (there[-1], last, 8, "start"))
        ],
    }  # fmt: skip


def _heights(mean: np.ndarray, logarithmic: bool) -> np.ndarray:
    """Pixels below the top of the curve; NaN where there is nothing to draw."""
    kept = np.where(np.isfinite(mean), mean, np.nan)
    # Divide by the largest: the difference of two huge numbers would overflow.
    level = np.log(kept) if logarithmic else kept / (np.nanmax(np.abs(kept)) or 1.0)
    low, high = np.nanmin(level), np.nanmax(level)
    return HEIGHT * (high - level) / (high - low) if high > low else np.where(np.isnan(level), np.nan, HEIGHT / 2)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    words, down = [], False
    for at in _chosen(y):
        drawn = bool(np.isfinite(y[at]))
        if drawn:
            words.append(f"{'L' if down else 'M'}{SIDE + x[at]:.1f} {ABOVE + y[at]:.1f}")
            alone = not down and (at + 1 == len(y) or not np.isfinite(y[at + 1]))
            words += ["h0"] if alone else []  # a dot
        down = drawn
    return "".join(words)


def _chosen(y: np.ndarray) -> list[int]:
    """The rounds to draw: all if they are few; otherwise the smallest and largest of each stretch, and one per gap."""
    if len(y) <= POINTS:
        return list(range(len(y)))
    found: set[int] = {0, len(y) - 1}
    for stretch in np.array_split(np.arange(len(y)), POINTS // 2):
        finite = stretch[np.isfinite(y[stretch])]
        if len(finite):
            found |= {int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])}
        if len(finite) < len(stretch):
            found.add(int(stretch[~np.isfinite(y[stretch])][0]))
    return sorted(found)
