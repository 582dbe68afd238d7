"""A method on a partition of a data set: the final errors of its runs, over draws of the partition and seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reproductions.outcome import finite
from stgt.simulator import Trace
from stgt.study import RunSpec, error_interval

EVERY = 10  # rounds between the rows of a curve


@dataclass(frozen=True, eq=False)
class Cell:
    """A method on a partition of a data set: one run for each draw of the partition."""

    runs: list[RunSpec]
    traces: list[Trace]

    @cached_property
    def losses(self) -> np.ndarray:
        """f(x̄) − f* at the end, for each draw and seed; infinite if it diverged, NaN if f* is unknown."""
        return self._ends("loss", lambda trace, x: trace.problem.value(x) - _minimum(trace))

    @cached_property
    def gradients(self) -> np.ndarray:
        """‖∇f(x̄)‖² at the end, for each draw and seed; infinite if it diverged."""
        return self._ends("squared_gradient_norm", lambda trace, x: float((trace.problem.gradient(x) ** 2).sum()))

    def _ends(self, metric: str, value: Callable[[Trace, np.ndarray], float]) -> np.ndarray:
        """The value after the last round; with minibatches, the mean over the last quarter of the rounds."""
        found = []
        for trace in self.traces:
            if trace.problem.batch is None:
                ends = [
                    np.inf if lost else value(trace, x.mean(axis=0))
                    for x, lost in zip(trace.x, trace.diverged, strict=True)
                ]
            else:
                ends = np.where(trace.diverged, np.inf, trace.tail(metric))
            found.append(np.asarray(ends, dtype=np.float64))
        return np.concatenate(found)

    def summary(self) -> dict[str, Any]:
        """Means and 95 % intervals over draws and seeds."""
        found: dict[str, Any] = {"diverged": int(sum(trace.diverged.sum() for trace in self.traces))}
        for name, values in (("loss", self.losses), ("squared_gradient_norm", self.gradients)):
            if np.isfinite(values).all():
                mean, low, high = error_interval(values)
                found |= {name: float(mean), f"{name} low": finite(low), f"{name} high": finite(high)}
        return found

    def rows(self, **names: Any) -> list[dict[str, Any]]:
        """A row for each draw and seed."""
        found, place = [], 0
        for draw, (run, trace) in enumerate(zip(self.runs, self.traces, strict=True)):
            shared = {
                **names,
                "draw": draw,
                "method": run.label,
                "graph": trace.topology.name,
                "gamma": trace.algorithm.gamma,
                "tau": trace.algorithm.tau,
                "rounds": trace.rounds,
                "spread": _spread(trace),
            }
            for seed, at in zip(trace.seeds, trace.diverged_at, strict=True):
                loss, gradient = self.losses[place], self.gradients[place]
                values = {"loss": finite(loss), "squared_gradient_norm": finite(gradient)}
                found.append({**shared, "seed": seed, **values, "diverged_at": int(at) if at >= 0 else None})
                place += 1
        return found

    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """‖∇f(x̄)‖² at the start of each round: the mean over draws and seeds, and its interval."""
        return error_interval(np.concatenate([trace["squared_gradient_norm"] for trace in self.traces]))

    def curve_rows(self, **names: Any) -> list[dict[str, Any]]:
        """One row for every tenth round."""
        columns = [[finite(value) for value in values] for values in self.curve()]
        return [
            {**names, "method": self.runs[0].label, "round": r, "mean": mean, "low": low, "high": high}
            for r, (mean, low, high) in enumerate(zip(*columns, strict=True))
            if r % EVERY == 0
        ]


def _minimum(trace: Trace) -> float:
    return np.nan if trace.problem.minimum is None else trace.problem.minimum


def _spread(trace: Trace) -> float | None:
    """The heterogeneity of the nodes: the mean of ‖∇f_i(x*)‖², 0 if all have the same minimiser."""
    if trace.problem.optimum is None:
        return None
    return float((trace.problem.gradients(trace.problem.optimum) ** 2).sum(axis=1).mean())
