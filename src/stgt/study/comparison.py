"""Which method is better on a problem: each over its stepsizes, all by one rule, the losers kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.checks import InputError, spelt
from stgt._internal.loggers import as_logger
from stgt._internal.markup import element, esc, interval, line, many, table
from stgt._internal.progress import as_progress, split_progress
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator import Rule, Trace
from stgt.simulator.choice import choose, distinct, edge, fresh_seeds, in_a_row, in_words, labels, noted
from stgt.simulator.drive import interrupts
from stgt.simulator.instance import check_algorithm_object, check_problem_object, check_topology_object
from stgt.simulator.metrics import choose_metrics
from stgt.simulator.run import OPTIONS, combinations, run_all
from stgt.simulator.trace import as_frame
from stgt.study.report import curves
from stgt.topology import Topology

if TYPE_CHECKING:
    import pandas

OF_ONE_METHOD = ("resume", "checkpoint", "callback", "every", "state0")  # options that several cannot share


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several methods on one problem, each at the best of its hyper-parameters.

    Attributes:
        rule: what best means; `str(rule)` is a sentence.
        runs: all traces by method, in the order of the grid.
        best: the best one of each method; where there was a choice, its setting run again on fresh seeds, as those that
            chose it make it look better than it is. Tables and curves are of these.
        chosen: the run of each method that was chosen, one of `runs`.
    """

    rule: Rule
    runs: dict[str, list[Trace]]
    best: dict[str, Trace]
    chosen: dict[str, Trace]

    @staticmethod
    def of(rule: Rule, runs: dict[str, list[Trace]], fresh: Mapping[str, Trace] | None = None) -> Comparison:
        """Chooses; `fresh` are the chosen settings on other seeds, if all of them were run to the end."""
        chosen = choose(rule, runs)
        best = {label: (fresh or chosen)[label] for label in runs}
        return Comparison(rule, runs, {label: noted(rule, label, trace) for label, trace in best.items()}, chosen)

    @property
    def losers(self) -> dict[str, list[Trace]]:
        """The runs that are not their method's best."""
        return {label: [one for one in runs if not self._is_best(label, one)] for label, runs in self.runs.items()}

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each method at its best, the winner first: what was chosen, what it reached and what that cost.

        `error` is the mean over the seeds of what is judged after all rounds, `low` and `high` its 95 % interval;
        costs are of the whole network, up to the target if there is one, else for all rounds; `rounds` are those in
        which anything was sent, on average over the seeds.
        """
        return [self._row(label, self.best[label]) for label in self.rule.order(self.best)]

    @property
    def ranking(self) -> list[tuple[str, ...]]:
        """The methods, the best first, in groups: those of a group are not told apart from its first.

        Two are told apart if the 95 % interval of the difference between their errors, seed by seed, does not hold 0;
        with a target, of what it cost each seed to reach it. One seed tells nothing: every method is a group.
        """
        return self.rule.groups(self.best)

    def curves(self, path: Path | str, *, x: str = "rounds", metric: str | None = None, **options: Any) -> list[Path]:
        """Draws the best run of each method; x and the other options are those of `stgt.report.curves`."""
        settings = {label: _setting(trace, self.runs[label]) for label, trace in self.best.items()}
        chosen = {f"{label}, {settings[label]}" if settings[label] else label: self.best[label] for label in self.best}
        return curves(chosen, path, metric=metric or self.rule.metric, x=x, **options)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for every run, losers included; `best` marks those that `table` has."""
        return as_frame(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What `to_pandas` has, as dicts."""
        return [
            {**self._row(label, trace), "seeds": in_a_row(trace.seeds), "best": trace is self.best[label]}
            for label, traces in self.runs.items()
            for trace in (*(self._noted(label, one) for one in traces), *([self.best[label]] if self.fresh else []))
        ]

    @property
    def fresh(self) -> bool:
        """Are the numbers of other seeds than those that chose?"""
        return any(self.best[label].run_state is not one.run_state for label, one in self.chosen.items())

    def _is_best(self, label: str, trace: Trace) -> bool:
        return trace.run_state is self.chosen[label].run_state  # which may have a note more

    def _noted(self, label: str, trace: Trace) -> Trace:
        """The best one as `best` has it, with its note, if it is that run."""
        return self.best[label] if trace.run_state is self.best[label].run_state else trace

    def _row(self, label: str, trace: Trace) -> dict[str, Any]:
        mean, low, high = map(float, self.rule.interval(trace))
        reached = None if self.rule.target is None else self.rule.reached(trace)
        at = trace.rounds if reached is None else reached
        remark = self.rule.failure(trace) or ("diverges" if trace.diverged.any() else "")
        remark = " and ".join(part for part in (remark, "grows" if self.rule.grows(trace) else "") if part)
        remark = remark or ("interrupted" if trace.interrupted else "")
        if not remark and (self._is_best(label, trace) or trace is self.best[label]):
            remark = edge(trace.algorithm, [run.algorithm for run in self.runs[label]])
        if trace is self.best[label]:
            remark = "; ".join(part for part in (remark, self._tie(label)) if part)
        return {
            "method": label,
            "chosen": _setting(trace, self.runs[label]),
            "error": mean,
            "low": low,
            "high": high,
            **{name: float(trace.spent(name)[:, at].mean()) for name in ("rounds", *self._costs)},
            "remark": remark,
        }

    def _tie(self, label: str) -> str:
        first = next(group[0] for group in self.ranking if label in group)
        return "" if label == first else f"tied with {first}"

    @property
    def _costs(self) -> tuple[str, ...]:
        """What is counted, with the clock if that is judged."""
        return ("gradients", "messages", "floats", *(["seconds"] if self.rule.cost == "seconds" else []))

    def cells(self, rows: list[dict[str, Any]] | None = None) -> list[list[str]]:
        """A head and a line for each row, those of `table` if left out, as text."""
        shown = [name for name in self._costs if name != "messages" or self.rule.cost == "messages"]
        head = ["method", "chosen", self.rule.metric, "rounds", *shown, ""]
        lines = [
            [
                row["method"],
                row["chosen"],
                interval(row["error"], row["low"], row["high"]),
                f"{row['rounds']:,.0f}",
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
        if self.choice:
            words += f" {self.choice}"
        if seeds == 1 and len(self.best) > 1:
            words += " One seed, so that nothing is known of chance."
        made = {trace.rounds for traces in self.runs.values() for trace in traces}
        return words if len(made) == 1 else f"Interrupted: the methods made different numbers of rounds. {words}"

    @property
    def choice(self) -> str:
        """On which seeds was chosen, and of which the numbers are; "" where there was no choice."""
        if sum(map(len, self.runs.values())) == len(self.runs):
            return ""
        chosen, best = next(iter(self.chosen.values())), next(iter(self.best.values()))
        chose = in_a_row(chosen.seeds, "seed")
        if self.fresh:
            return f"Chosen on {chose}; all numbers are of the {in_a_row(best.seeds, 'fresh seed')}."
        return f"No fresh seeds were run: all numbers are of {chose}, on which the best look better than they are."

    def __repr__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:], self.caption])

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        return element("div", table(head, rows), line(esc(self.caption), faint=True))


@partial(spelt, also=OPTIONS)
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
    """Runs each method over its hyper-parameters and picks each one's best by one rule.

    The runs of a method that share a program are one compiled batch, and methods run side by side on the machine's
    cores. Where a grid leaves a choice, each method's chosen setting is then run on as many fresh seeds, the next ones,
    and all numbers are of these. Ctrl-C ends all of them where they are.

    Args:
        algorithms: the methods; (algorithm, topology) for one that runs on a topology of its own, such as a server.
        problem, topology, rounds, seeds: as for `simulate`.
        grid: values to try by name, such as {"gamma": [0.05, 0.1, 0.2], "tau": [1, 10]}; of each method those that it
            has.
        by: the measurement to judge by; if left out, "residual" where x* is known, else "loss".
        target: a value of it to reach, at the least `cost`; if left out, the lowest error after all rounds wins.
        cost: "rounds" (those in which anything was sent), "gradients", "messages", "floats" or "seconds", of the whole
            network.
        largest: is a larger value better, as for an accuracy?
        progress: True for a bar; or a function, called with (done, total).
        options: others of `simulate`: x0, oracle, metrics, dtype, engine, logger.

    Returns:
        A `Comparison`: print it, draw its `curves`, or take its `best` traces, its `losers` or `to_pandas()`.

    Example:
        >>> import stgt
        >>> problem, graph = stgt.problems.ridge(n=8, p=2), stgt.topology.ring(8)
        >>> methods = [stgt.STGT(tau=5), stgt.DPSGD(tau=5)]
        >>> found = stgt.compare(methods, problem, graph, 200, seeds=5, grid={"gamma": [0.02, 0.05]})
        >>> found.ranking
        [('ST-GT',), ('D-PSGD',)]
    """
    if isinstance(algorithms, Mapping):
        raise InputError("algorithms", hint=" is a dict: give a list of the methods, list(algorithms.values()).")
    if isinstance(algorithms, Algorithm) or not isinstance(algorithms, Iterable):
        raise InputError("algorithms", algorithms, "give a list of them, such as [stgt.STGT(tau=10), stgt.DPSGD()].")
    check_problem_object(problem)
    refused = sorted({*OF_ONE_METHOD} & set(options))
    if refused:
        raise ValueError(f"{refused[0]} was given: it belongs to one method; use simulate or sweep for it.")
    rule = Rule(by or ("loss" if problem.solve is None else "residual"), target, cost, largest)
    pairs = [_pair(given, topology) for given in algorithms]
    if not pairs:
        raise InputError(
            "algorithms", hint=" is empty: give at least one, such as [stgt.STGT(tau=10), stgt.DPSGD(tau=10)]."
        )
    for algorithm, where in pairs:
        check_measured(rule.metric, options.get("metrics"), algorithm, problem, where)
    batches = [combinations(algorithm, _applicable(algorithm, grid)) for algorithm, _ in pairs]
    names = distinct(labels(pairs))
    logger = as_logger(options.pop("logger", None))
    with as_progress(progress, f"{len(pairs)} methods") as tick, interrupts() as interrupt:
        again = len(pairs) if any(len(batch) > 1 for batch in batches) else 0
        ticks = split_progress(
            tick, [sum(one.tau for one in batch) for batch in batches] + [batch[0].tau for batch in batches[:again]]
        )
        places = [where for _, where in pairs]

        def run(name: str, batch: list[Algorithm], where: Topology, part: Any, seeds: Any) -> list[Trace]:
            given = {**options, "progress": part, "logger": None if logger is None else logger.under(name)}
            return run_all(batch, problem, where, rounds, seeds, interrupt, **given)

        # Where seconds are judged, a method has the machine for itself.
        with ThreadPoolExecutor(1 if cost == "seconds" else os.cpu_count()) as pool:
            found = list(pool.map(run, names, batches, places, ticks[: len(pairs)], [seeds] * len(pairs)))
            runs = dict(zip(names, found, strict=True))
            if not again or interrupt.asked:
                return Comparison.of(rule, runs)
            chosen = [[one.algorithm] for one in choose(rule, runs).values()]
            others = [f"{name}/fresh" for name in names], chosen, places, ticks[again:]
            last = list(pool.map(run, *others, [fresh_seeds(found[0][0].seeds)] * again))
    fresh = {name: trace for name, (trace,) in zip(names, last, strict=True)}
    return Comparison.of(rule, runs, None if interrupt.cut else fresh)


def _pair(given: Any, topology: Topology) -> tuple[Algorithm, Topology]:
    algorithm: Any
    algorithm, where = given if isinstance(given, tuple) and len(given) == 2 else (given, topology)
    check_algorithm_object(algorithm, "stgt.STGT(tau=10)")
    return algorithm, check_topology_object(where)


def check_measured(name: str, metrics: Any, algorithm: Algorithm, problem: Problem, topology: Topology) -> None:
    """A ValueError, before the runs, if what they are to be judged by is not measured."""
    measured, absent = choose_metrics(metrics, algorithm, problem, topology)
    if name in absent:
        raise InputError("by", name, f", but {absent[name]}: choose from {', '.join(measured)}.")
    if name not in measured and not (METRICS.get(name) and METRICS[name].of_trace):
        raise InputError("by", name, f"choose from {', '.join(measured)}.")


def _applicable(algorithm: Algorithm, grid: Any) -> dict[str, Any]:
    """What of the grid the method has."""
    if grid is None:
        return {}
    if not isinstance(grid, Mapping):
        raise InputError("grid", grid, "give a dict of lists of values by name.")
    names = {field.name for field in fields(algorithm)}
    found = {name: values for name, values in grid.items() if name in names}
    if not found:
        raise InputError(
            "grid", hint=f" has {', '.join(grid)}: {algorithm.label} has none of these, but {', '.join(names)}."
        )
    return found


def _setting(trace: Trace, runs: list[Trace]) -> str:
    return in_words(trace.algorithm, [run.algorithm for run in runs])
