"""The entry point `compare`: which method is better on a problem, each over its hyper-parameters, all by one rule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any

from stgt._internal.checks import InputError, spelt
from stgt._internal.loggers import as_logger
from stgt._internal.progress import as_progress, split_progress
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator import Rule, Trace
from stgt.simulator.choice import choose, distinct, fresh_seeds, labels
from stgt.simulator.drive import interrupts
from stgt.simulator.instance import check_algorithm_object, check_problem_object, check_topology_object
from stgt.simulator.metrics import choose_metrics
from stgt.simulator.run import OPTIONS, combinations, run_all
from stgt.study.comparison import Comparison
from stgt.topology import Topology

OF_ONE_METHOD = ("resume", "checkpoint", "callback", "every", "state0")  # options that several cannot share


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
