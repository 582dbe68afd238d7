"""Traces as numbers for a page: means and intervals over the seeds, at a limited number of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from stgt._internal.statistics import Interval
from stgt.algorithms import Algorithm
from stgt.simulator import Trace
from stgt.simulator.choice import SHARE, varied
from stgt.simulator.metrics import over_seeds
from stgt.study.comparison import Comparison
from stgt.study.report.study import Study

POINTS = 1000  # the most points of a curve
MOST_CURVES = 20  # up to this many runs of a sweep, all are drawn
DIGITS = 5  # significant digits of the numbers in the page


def curves(study: Study) -> list[dict[str, Any]]:
    """A curve for the best run of each method, or for each run of a sweep with few runs."""
    found = study.comparison
    every = study.kind == "sweep" and sum(map(len, found.runs.values())) <= MOST_CURVES
    chosen = found.runs if every else {method: [found.best[method]] for method in found.order}
    drawn = []
    for method, traces in chosen.items():
        for trace in traces:
            setting = found.setting(method, trace) if study.kind != "run" else ""
            name = f"{method}, {setting}" if setting else method
            drawn.append({**curve(name, trace, found.metrics), "best": found.is_chosen(method, trace)})
    return drawn


def curve(name: str, trace: Trace, metrics: Iterable[str]) -> dict[str, Any]:
    """The data of a curve: at some rounds, the measurements and the cumulative costs of all nodes."""
    rounds = drawn_rounds(trace)
    values = {}
    for metric in metrics:
        if metric in trace:
            mean, low, high = interval(metric, trace[metric][:, rounds])
            known = not np.isnan(low).all()
            values[metric] = [plain(mean), *((plain(low), plain(high)) if known else (None, None))]
    communications = trace["communications"][:, rounds].mean(axis=0)
    return {
        "name": name,
        "rounds": rounds.tolist(),
        "gradients": plain(trace["gradients"][:, rounds].mean(axis=0)),
        "floats": plain(trace["floats"][:, rounds].mean(axis=0)),
        "communications": None if (communications == rounds).all() else plain(communications),
        "steps": steps(trace),
        "bytes": itemsize(trace),
        "working": working(trace),
        "values": values,
    }


def drawn_rounds(trace: Trace) -> np.ndarray:
    """Every k-th round, the last one, and the last at which every seed is finite."""
    last = trace.rounds
    every = stride(last)
    lost = trace.diverged_at[trace.diverged]
    ends = [last, *([max(0, int(lost.min()) - 1)] if len(lost) else [])]
    return np.unique(np.concatenate([np.arange(0, last + 1, every), ends]).astype(int))


def stride(rounds: int) -> int:
    """The number of rounds between two drawn ones."""
    return max(1, math.ceil(rounds / (POINTS - 3)))


def interval(metric: str, values: np.ndarray) -> Interval:
    """The mean and the ends of its interval; NaN where a seed is not finite."""
    values = values.astype(np.float64)
    finite = np.isfinite(values).all(axis=0)
    return over_seeds(metric, np.where(finite, values, np.nan))


def steps(trace: Trace) -> int:
    """Gradients that an active node computes in a round, one after another."""
    algorithm: Any = trace.algorithm
    return algorithm.tau + (isinstance(algorithm, Algorithm) and "start_gradient" in algorithm.spec().reads)


def itemsize(trace: Trace) -> int:
    return 8 if trace.dtype == "float64" else 4


def working(trace: Trace) -> float:
    """The mean number of active nodes in a round."""
    return trace.topology.participation * trace.topology.n


def share(trace: Trace, at: int) -> dict[str, float]:
    """The parts of the modelled time until the start of round `at`, from which the page computes it again."""
    bits = 8 * itemsize(trace) * float(trace["floats"][:, at].mean()) / working(trace)
    return {"steps": at * steps(trace), "communications": float(trace["communications"][:, at].mean()), "bits": bits}


def points(found: Comparison) -> list[dict[str, Any]]:
    """The final errors of all runs, for methods with several runs, with the hyper-parameters in which these differ."""
    ends = []
    for style, method in enumerate(found.order):
        runs = found.runs[method]
        names = varied([run.algorithm for run in runs]) if len(runs) > 1 else []
        for run in runs:
            given = {name: getattr(run.algorithm, name) for name in names}
            numbers = {name: value for name, value in given.items() if _is_number(value)}
            if numbers:
                ends.append(
                    {
                        "method": method,
                        "style": style,
                        "setting": found.setting(method, run),
                        "parameters": numbers,
                        "ends": {name: _ending(run, name) for name in found.metrics if name in run},
                        "lost": int(run.diverged.sum()),
                        "best": found.is_chosen(method, run),
                    }
                )
    return ends


def _ending(trace: Trace, metric: str) -> list[float | None]:
    found = interval(metric, np.where(trace.diverged, np.nan, trace.tail(metric, SHARE))[:, None])
    return [one for part in found for one in plain(part)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON: a few digits, whole numbers as integers, null for values that are not finite."""
    return [_short(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    if value == round(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
