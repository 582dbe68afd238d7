"""A trace as a notebook shows it: what was run, a sparkline of its error, and a table of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.markup import count, element, esc, interval, label, line, many, number, svg, table
from stgt._internal.schedules import StepsizeSchedule
from stgt.simulator.costs import COUNTED
from stgt.simulator.metrics import is_error, over_seeds

if TYPE_CHECKING:
    from stgt.simulator.trace import Trace

WIDTH, HEIGHT = 300, 80  # of the curve, in pixels
BESIDE, ABOVE = 84, 22  # of the words left and right of it, and above and below
POINTS = 300  # more rounds than these are drawn by the least and the largest value of a stretch


def trace_html(trace: Trace) -> str:
    """All of it, as one piece of HTML."""
    measured = [name for name in trace.values if name not in COUNTED]
    parts = [*_header(trace)]
    shown = next((name for name in ("residual", "loss") if name in measured), next(iter(measured), None))
    if shown is not None:
        parts.append(_sparkline(trace, shown))
        several = f", mean of {many(len(trace.seeds), 'seed')} and its 95 % interval" if len(trace.seeds) > 1 else ""
        head = ["measured", "start", f"end{several}", "best"]
        parts.append(table(head, [_measured(trace, name) for name in measured]))
    parts.append(table(["counted", "network total", "a node"], _counted(trace)))
    return element("div", *parts)


def _header(trace: Trace) -> Iterator[str]:
    yield line(element("b", esc(trace.algorithm.label)) + esc(_options(trace.algorithm)), esc(trace.topology.name))
    yield line(esc(trace.problem.name), faint=True)
    sent = float(trace["communications"][:, -1].mean())
    some = "" if sent == trace.rounds else f", {count(sent)} with communication"
    amount = many(len(trace.seeds), "seed"), many(trace.rounds, "round") + some
    seconds = float(trace.seconds[-1]) if len(trace.seconds) else math.nan
    took = f"{number(seconds)} s" if math.isfinite(seconds) else ""
    yield line(*amount, esc(f"{trace.engine}, {trace.dtype}"), took)
    lost = int(trace.diverged.sum())
    if lost:
        first = int(trace.diverged_at[trace.diverged].min())
        who = "diverged" if len(trace.seeds) == 1 else f"{lost} of {many(len(trace.seeds), 'seed')} diverged"
        when = "" if len(trace.seeds) == 1 else "the first "
        yield line(element("b", who) + f", {when}at round {first}")
    if trace.interrupted:
        yield line(element("b", "interrupted") + f" after {many(trace.rounds, 'round')}")
    for note in trace.notes:
        yield line(esc(note))


def _options(algorithm: Any) -> str:
    gamma = algorithm.gamma
    known = isinstance(gamma, float | StepsizeSchedule)
    words = gamma if known else "one for each node" if isinstance(gamma, tuple | list) else "a function of the round"
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
    """The lowest of what the library measures; of one's own, which may be better high, the range."""
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


def _sparkline(trace: Trace, name: str) -> str:
    """The mean over the seeds from round to round, with gaps where it is not finite."""
    mean = _mean(trace[name].astype(np.float64))
    finite = mean[np.isfinite(mean)]
    if not len(finite):
        return line(esc(f"{name} is finite at no round."))
    logarithmic = bool((finite > 0).all())
    heights = _heights(mean, logarithmic)
    places = np.linspace(0, WIDTH, len(mean)) if len(mean) > 1 else np.array([WIDTH / 2])
    there = np.flatnonzero(np.isfinite(heights))
    ends = []
    for at, value, side, anchor in ((there[0], mean[0], -8, "end"), (there[-1], mean[-1], 8, "start")):
        x, y = BESIDE + float(places[at]), ABOVE + float(heights[at])
        ends += [
            element("circle", cx=x, cy=y, r=2.5, fill="currentColor"),
            label(x + side, y, number(float(value)), anchor),
        ]
    scale = "logarithmic" if logarithmic else "linear"
    over = f", mean of {many(len(trace.seeds), 'seed')}" if len(trace.seeds) > 1 else ""
    bottom = ABOVE + HEIGHT + 6
    base = f"M{BESIDE} {bottom}h{WIDTH}"
    return svg(
        WIDTH + 2 * BESIDE,
        HEIGHT + 2 * ABOVE + 6,
        f"{name}{over}, from {number(float(mean[0]))} to {number(float(mean[-1]))}",
        label(BESIDE, 8, f"{name}{over} ({scale} scale)", faint=True),
        element("path", d=base, stroke="currentColor", stroke_opacity=0.3, fill="none"),
        label(BESIDE, bottom + 10, "round 0", faint=True),
        label(BESIDE + WIDTH, bottom + 10, f"{trace.rounds:,}", "end", faint=True) if trace.rounds else "",
        element(
            "path", d=_path(places, heights), stroke="currentColor", stroke_width=1.5, stroke_linecap="round",
            stroke_linejoin="round", fill="none",
        ),
        *ends,
    )  # fmt: skip


def _heights(mean: np.ndarray, logarithmic: bool) -> np.ndarray:
    """Pixels below the top of the curve; NaN where there is nothing to draw."""
    kept = np.where(np.isfinite(mean), mean, np.nan)
    # Divided by the largest: the span of two huge numbers would overflow.
    level = np.log(kept) if logarithmic else kept / (np.nanmax(np.abs(kept)) or 1.0)
    low, high = np.nanmin(level), np.nanmax(level)
    return HEIGHT * (high - level) / (high - low) if high > low else np.where(np.isnan(level), np.nan, HEIGHT / 2)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    words, down = [], False
    for at in _chosen(y):
        drawn = bool(np.isfinite(y[at]))
        if drawn:
            words.append(f"{'L' if down else 'M'}{BESIDE + x[at]:.1f} {ABOVE + y[at]:.1f}")
            alone = not down and (at + 1 == len(y) or not np.isfinite(y[at + 1]))
            words += ["h0"] if alone else []  # a dot
        down = drawn
    return "".join(words)


def _chosen(y: np.ndarray) -> list[int]:
    """The rounds to draw: all of a few; of many the least and the largest of each stretch, and one of each gap."""
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
