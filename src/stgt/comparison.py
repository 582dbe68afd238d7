"""Which method is better on my problem: each over its stepsizes, all by one rule, the losers kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.engines import Rule, Trace
from stgt.engines.choice import distinct, edge, in_words, labels, noted
from stgt.engines.drive import interrupts
from stgt.engines.metrics import COUNTED, choose_metrics
from stgt.engines.run import OPTIONS, combinations, run_together
from stgt.engines.trace import as_frame
from stgt.loggers import as_logger
from stgt.markup import element, line, many, said, table
from stgt.problems.base import Problem
from stgt.progress import shown, split_progress
from stgt.report import curves
from stgt.setting import check_algorithm_object, check_problem_object, check_topology_object
from stgt.statistics import mean_interval
from stgt.topology import Topology

if TYPE_CHECKING:
    import pandas

OF_ONE_METHOD = ("resume", "checkpoint", "callback", "every", "state0")  # options that several cannot share


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several methods on one problem, each at the best of its hyper-parameters.

    Attributes:
        rule: what best means; `str(rule)` says it.
        runs: all traces by method, in the order of the grid.
        best: the best one of each method.
    """

    rule: Rule
    runs: dict[str, list[Trace]]
    best: dict[str, Trace]

    @property
    def losers(self) -> dict[str, list[Trace]]:
        """The runs that are not their method's best."""
        return {label: [one for one in runs if not self._is_best(label, one)] for label, runs in self.runs.items()}

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each method at its best, the winner first: what was chosen, what it reached and what that cost.

        `error` is the mean over the seeds of what is judged after all rounds, `half_width` that of its 95 % interval;
        costs are of the whole network, up to the target if there is one, else for all rounds.
        """
        return [self._row(label, self.best[label]) for label in self.ranking]

    @property
    def ranking(self) -> list[str]:
        """The methods, the best first; those that fail last, by their errors."""
        scores = {label: (self.rule.score(trace), self.rule.ending(trace)) for label, trace in self.best.items()}
        return sorted(self.best, key=lambda label: scores[label])

    def curves(self, path: Path | str, *, x: str = "rounds", metric: str | None = None, **options: Any) -> list[Path]:
        """Draws the best run of each method; x and the other options are those of `stgt.report.curves`."""
        settings = {label: _setting(trace, self.runs[label]) for label, trace in self.best.items()}
        chosen = {f"{label}, {settings[label]}" if settings[label] else label: self.best[label] for label in self.best}
        return curves(chosen, path, metric=metric or self.rule.metric, x=x, **options)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for every run, losers included; `best` marks the method's best one."""
        return as_frame(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What `to_pandas` has, as dicts."""
        return [
            {**self._row(label, trace), "best": self._is_best(label, trace)}
            for label, traces in self.runs.items()
            for trace in traces
        ]

    def _is_best(self, label: str, trace: Trace) -> bool:
        return trace.standing is self.best[label].standing  # which may have a note more

    def _row(self, label: str, trace: Trace) -> dict[str, Any]:
        mean, half = mean_interval(self.rule.error(trace))
        reached = None if self.rule.target is None else self.rule.reached(trace)
        at = trace.rounds if reached is None else reached
        remark = self.rule.failure(trace) or ("diverges" if trace.diverged.any() else "")
        remark = remark or ("interrupted" if trace.interrupted else "")
        if not remark and self._is_best(label, trace):
            remark = edge(trace.algorithm, [run.algorithm for run in self.runs[label]])
        return {
            "method": label,
            "chosen": _setting(trace, self.runs[label]),
            "error": float(mean),
            "half_width": float(half),
            "rounds": at,
            **{name: float(trace[name][:, at].mean()) for name in self._costs},
            "remark": remark,
        }

    @property
    def _costs(self) -> tuple[str, ...]:
        """What is counted, with the clock if that is judged."""
        return ("gradients", "messages", "floats", *(["seconds"] if self.rule.cost == "seconds" else []))

    def cells(self, rows: list[dict[str, Any]] | None = None) -> list[list[str]]:
        """A head and a line for each row, those of `table` if left out, in words."""
        shown = [name for name in self._costs if name != "messages" or self.rule.cost == "messages"]
        head = ["method", "chosen", self.rule.metric, "rounds", *shown, ""]
        lines = [
            [
                row["method"],
                row["chosen"],
                f"{row['error']:.3g}" + ("" if np.isnan(row["half_width"]) else f" ± {row['half_width']:.1g}"),
                f"{row['rounds']:,}",
                *(f"{row[name]:.3g}" if name == "seconds" else f"{row[name]:,.0f}" for name in shown),
                row["remark"],
            ]
            for row in (self.table if rows is None else rows)
        ]
        return [head, *lines]

    @property
    def caption(self) -> str:
        """What best means here, and of how much it was chosen."""
        runs = sum(len(traces) for traces in self.runs.values())
        seeds = len(next(iter(self.best.values())).seeds)
        amount = f"{many(runs, 'run')} of {many(seeds, 'seed')}"
        words = f"Best: {self.rule}. {amount}; gradients and floats of the whole network."
        made = {trace.rounds for traces in self.runs.values() for trace in traces}
        return words if len(made) == 1 else f"Interrupted: the methods made different numbers of rounds. {words}"

    def __repr__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:], self.caption])

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        return element("div", table(head, rows), line(said(self.caption), faint=True))


def compare(
    algorithms: Iterable[Algorithm | tuple[Algorithm, Topology]],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    *,
    grid: Mapping[str, Iterable[Any]] | None = None,
    by: str | None = None,
    target: float | None = None,
    cost: str = "rounds",
    largest: bool = False,
    progress: Any = None,
    **options: Any,
) -> Comparison:
    """Runs each method over its hyper-parameters and picks each one's best by a rule that is said.

    The runs of a method are one compiled batch, and methods run side by side on the machine's cores. Ctrl-C ends all
    of them where they are.

    Args:
        algorithms: the methods; (algorithm, topology) for one that runs on a topology of its own, such as a server.
        problem, topology, rounds, seeds: as for `simulate`.
        grid: values to try by name, such as {"gamma": [0.05, 0.1, 0.2]}; of each method those that it has.
        by: the measurement to judge by; if left out, "residual" where x* is known, else "loss".
        target: a value of it to reach, at the least `cost`; if left out, the lowest error after all rounds wins.
        cost: "rounds", "gradients", "messages", "floats" or "seconds", of the whole network.
        largest: is a larger value better, as for an accuracy?
        progress: True for a bar; or a function, called with (done, total).
        options: others of `simulate`: x0, oracle, metrics, dtype, engine, logger.

    Returns:
        A `Comparison`: print it, draw its `curves`, or take its `best` traces, its `losers` or `to_pandas()`.

    Example:
        >>> import stgt
        >>> problem, graph = stgt.problems.ridge(n=8, p=2), stgt.topology.ring(8)
        >>> methods = [stgt.STGT(tau=5), stgt.DPSGD(tau=5)]
        >>> found = stgt.compare(methods, problem, graph, 200, seeds=3, grid={"gamma": [0.02, 0.05]})
        >>> found.ranking[0]
        'ST-GT'
    """
    taken = [name for name in OPTIONS if name not in OF_ONE_METHOD]
    unknown = sorted(set(options) - {*OPTIONS})
    if unknown:
        raise TypeError(f"compare() has no option {unknown[0]!r}: it takes {', '.join(taken)}.")
    if isinstance(algorithms, Algorithm) or not isinstance(algorithms, Iterable):
        raise ValueError(f"algorithms={algorithms!r}: give a list of them, such as [stgt.STGT(tau=10), stgt.DPSGD()].")
    check_problem_object(problem)
    refused = sorted({*OF_ONE_METHOD} & set(options))
    if refused:
        raise ValueError(f"{refused[0]} was given: it belongs to one method; use simulate or sweep for it.")
    rule = Rule(by or ("loss" if problem.solve is None else "residual"), target, cost, largest)
    pairs = [_pair(given, topology) for given in algorithms]
    if not pairs:
        raise ValueError("algorithms is empty: give at least one, such as [stgt.STGT(tau=10), stgt.DPSGD(tau=10)].")
    for algorithm, where in pairs:
        check_measured(rule.metric, options.get("metrics"), algorithm, problem, where)
    batches = [combinations(algorithm, _fitting(algorithm, grid)) for algorithm, _ in pairs]
    names = distinct(labels(pairs))
    logger = as_logger(options.pop("logger", None))
    with shown(progress, f"{len(pairs)} methods") as tick, interrupts() as interrupt:
        ticks = split_progress(tick, [len(batch) * batch[0].tau for batch in batches])

        def run(name: str, batch: list[Algorithm], where: Topology, part: Any) -> list[Trace]:
            given = {**options, "progress": part, "logger": None if logger is None else logger.under(name)}
            return run_together(batch, problem, where, rounds, seeds, interrupt, **given)

        # Where seconds are judged, a method has the machine for itself.
        with ThreadPoolExecutor(1 if cost == "seconds" else os.cpu_count()) as pool:
            found = list(pool.map(run, names, batches, [where for _, where in pairs], ticks))
    runs = dict(zip(names, found, strict=True))
    return Comparison(rule, runs, {label: noted(rule, label, rule.choose(traces)) for label, traces in runs.items()})


def _pair(given: Any, topology: Topology) -> tuple[Algorithm, Topology]:
    algorithm: Any
    algorithm, where = given if isinstance(given, tuple) and len(given) == 2 else (given, topology)
    check_algorithm_object(algorithm, "stgt.STGT(tau=10)")
    return algorithm, check_topology_object(where)


def check_measured(name: str, metrics: Any, algorithm: Algorithm, problem: Problem, topology: Topology) -> None:
    """A ValueError, before the runs, if what they are to be judged by is not measured."""
    measured, absent = choose_metrics(metrics, algorithm, problem, topology)
    if name in absent:
        raise ValueError(f"by={name!r}, but {absent[name]}: choose from {', '.join(measured.all_names)}.")
    if name not in measured and name not in (*COUNTED, "lyapunov"):
        raise ValueError(f"by={name!r}: choose from {', '.join(measured.all_names)}.")


def _fitting(algorithm: Algorithm, grid: Any) -> dict[str, Any]:
    """What of the grid the method has."""
    if grid is None:
        return {}
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid={grid!r}: give a dict of lists of values by name.")
    names = {field.name for field in fields(algorithm)}
    found = {name: values for name, values in grid.items() if name in names}
    if not found:
        raise ValueError(f"grid has {', '.join(grid)}: {algorithm.label} has none of these, but {', '.join(names)}.")
    return found


def _setting(trace: Trace, runs: list[Trace]) -> str:
    return in_words(trace.algorithm, [run.algorithm for run in runs])
