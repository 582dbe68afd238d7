"""The entry point `compare`: compares methods on a problem, each over its hyper-parameters, all by one rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.checks import InputError, check_count, spelt
from stgt._internal.loggers import SharedLogger, as_logger
from stgt._internal.progress import as_progress, split_progress
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator import Rule
from stgt.simulator.choice import distinct, in_words, labels
from stgt.simulator.instance import check_algorithm_object, check_problem_object, check_topology_object
from stgt.simulator.job import check_seeds
from stgt.simulator.run import OPTIONS, combinations
from stgt.study.comparison import Comparison
from stgt.study.execution import execute
from stgt.study.plans import Batch, Plan, batches_of, check_measured, with_fresh
from stgt.topology import Topology

if TYPE_CHECKING:
    from stgt.study.run_folder import Folder

OF_ONE_METHOD = ("resume", "checkpoint", "callback", "every", "state0")  # options that several methods cannot share


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
    stop: bool = False,
    folder: Path | str | None = None,
    progress: Any = None,
    **options: Any,
) -> Comparison:
    """Runs each method over its hyper-parameters and picks each one's best by one rule.

    Runs of a method that share a program are one compiled batch, and the methods run in parallel on the machine's
    cores. If a grid leaves a choice, each method's chosen setting then runs on the same number of fresh seeds, the next
    ones, and all numbers are from these. Ctrl-C stops all runs where they are.

    Args:
        algorithms: the methods; (algorithm, topology) for a method with its own topology, such as a server.
        problem, topology, rounds, seeds: as for `simulate`.
        grid: values to try by name, such as {"gamma": [0.05, 0.1, 0.2], "tau": [1, 10]}; each method uses those that
            it has.
        by: the measurement to compare; by default "residual" if x* is known, otherwise "loss".
        target: a value of it to reach, at the least `cost`; by default, the lowest error after all rounds wins.
        cost: "rounds" (those with communication), "gradients", "messages", "floats" or "seconds", of the whole
            network.
        largest: is a larger value better, as for an accuracy?
        stop: end the runs of a method as soon as its target has decided: one setting has reached it in the mean and
            with every seed, and no other setting can do so at less cost. This is tested every 32 rounds. Costs and
            ranking are those of complete runs; errors are those of the rounds that were run.
        folder: the folder to which the runs are saved, as by `stgt compare`. The same call continues from it, to the
            same bits, and does not repeat finished runs. More rounds extend it; any other change is an error. Your own
            functions are compared by their names. `stgt show` and `stgt report` read the folder.
        progress: True for a progress bar, or a function that is called with (done, total).
        options: other options of `simulate`: x0, oracle, metrics, dtype, engine, logger.

    Returns:
        A `Comparison`: print it, draw its `curves`, or use its `best` traces, its `losers` or `to_pandas()`.

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
    rule = Rule(by or ("loss" if problem.solve is None else "residual"), target, cost, largest, stop)
    pairs = [_pair(given, topology) for given in algorithms]
    if not pairs:
        raise InputError(
            "algorithms", hint=" is empty: give at least one, such as [stgt.STGT(tau=10), stgt.DPSGD(tau=10)]."
        )
    for algorithm, where in pairs:
        check_measured(rule.metric, options.get("metrics"), algorithm, problem, where)
    logger, batches = as_logger(options.pop("logger", None)), list[Batch]()
    if rule.stop:
        options["until"] = rule
    shared = {"problem": problem, "rounds": check_count(rounds, "rounds", 0), "seeds": check_seeds(seeds)}
    for number, ((algorithm, where), name) in enumerate(zip(pairs, distinct(labels(pairs)), strict=True)):
        tried = combinations(algorithm, _applicable(algorithm, grid))
        batches += batches_of(number, name, tried, **shared, topology=where, options=options)
    planned = with_fresh(Plan("compare", None, tuple(batches), rule))
    planned = replace(
        planned,
        batches=tuple(_logged(batch, logger, planned) for batch in planned.batches),
        fresh=tuple(_logged(batch, logger, planned) for batch in planned.fresh),
    )
    kept = None if folder is None else _opened(Path(folder).expanduser(), planned)
    with as_progress(progress, f"{len(pairs)} methods") as tick:
        parts = [*planned.batches, *planned.fresh]
        ticks = split_progress(tick, [batch.work for batch in parts])
        by_batch = {batch.folder: one for batch, one in zip(parts, ticks, strict=True)}
        found, finished = execute(planned, kept, lambda batch: by_batch[batch.folder])
    if kept is not None and finished:
        from stgt.study.result import write_results

        write_results(kept, found)
    return found


def _logged(batch: Batch, logger: SharedLogger | None, planned: Plan) -> Batch:
    """The batch with its part of a logger, named by the method and, if it has several batches, by its settings."""
    if logger is None:
        return batch
    firsts = [one.algorithms[0] for one in planned.methods[batch.method]]
    more = "/fresh" if batch.fresh else "" if len(firsts) == 1 else f"/{in_words(batch.algorithms[0], firsts)}"
    return replace(batch, options={**batch.options, "logger": logger.under(f"{batch.method}{more}")})


def _opened(path: Path, planned: Plan) -> Folder:
    """The folder of this comparison, new or from an earlier call."""
    from stgt.study.run_folder import RECORD, Folder

    if not (path / RECORD).is_file():
        if path.is_file():
            raise InputError("folder", path, " is a file: give a folder.")
        if path.is_dir() and any(path.iterdir()):  # nothing here may overwrite it
            raise InputError("folder", path, " is not empty: give another folder.")
        return Folder.create(path, planned, force=False, data_dir=None)
    folder = Folder.open(path)
    folder.check_same(planned)
    return folder


def _pair(given: Any, topology: Topology) -> tuple[Algorithm, Topology]:
    algorithm: Any
    algorithm, where = given if isinstance(given, tuple) and len(given) == 2 else (given, topology)
    check_algorithm_object(algorithm, "stgt.STGT(tau=10)")
    return algorithm, check_topology_object(where)


def _applicable(algorithm: Algorithm, grid: Any) -> dict[str, Any]:
    """The entries of the grid that the method has."""
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
