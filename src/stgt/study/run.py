"""The entry point `compare`: which method is better on a problem, each over its hyper-parameters, all by one rule."""

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
    stop: bool = False,
    folder: Path | str | None = None,
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
        stop: end the runs of a method when its target has decided: some setting has reached it in the mean and with
            every seed, and no other setting can do so at less cost. This is looked at every 32 rounds. Costs and
            ranking are those of whole runs; errors are those of the rounds that were run.
        folder: where the runs are kept as they go, as by `stgt compare`; the same call goes on from it, to the same
            bits, and computes nothing again that is finished. More rounds make it longer, any other change is refused;
            functions of one's own are compared by their names. `stgt show` and `stgt report` read it.
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
    """The batch with its part of a logger, named by the method and, if it has several batches, what sets it apart."""
    if logger is None:
        return batch
    firsts = [one.algorithms[0] for one in planned.methods[batch.method]]
    more = "/fresh" if batch.fresh else "" if len(firsts) == 1 else f"/{in_words(batch.algorithms[0], firsts)}"
    return replace(batch, options={**batch.options, "logger": logger.under(f"{batch.method}{more}")})


def _opened(path: Path, planned: Plan) -> Folder:
    """The folder of this comparison, new or as it was left."""
    from stgt.study.run_folder import RECORD, Folder

    if not (path / RECORD).is_file():
        if path.is_file():
            raise InputError("folder", path, " is a file: give a folder.")
        if path.is_dir() and any(path.iterdir()):  # which nothing here overwrites
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
