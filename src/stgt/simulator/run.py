"""The entry points: `simulate` and `sweep`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, spelt, under
from stgt._internal.hyper import other_fields, real_fields
from stgt._internal.loggers import as_logger
from stgt._internal.progress import Progress, as_progress, split_progress
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.choice import Rule, in_words, varied
from stgt.simulator.costs import counts
from stgt.simulator.drive import Engine, Interrupt, Result, drive, interrupts
from stgt.simulator.job import Callback, Job, prepare
from stgt.simulator.resume import (
    as_traces,
    check_same_measurements,
    check_same_parts,
    check_same_seeds,
    join_traces,
    resume_job,
    resumed_options,
)
from stgt.simulator.store import CheckpointFile, as_checkpoint, load_checkpoint
from stgt.simulator.trace import Trace
from stgt.topology import Topology

OPTIONS = (
    "x0", "state0", "oracle", "metrics", "dtype", "engine", "resume", "checkpoint", "callback", "every", "logger",
    "progress",
)  # fmt: skip
ENGINES = {"jax": "jax", "numpy": "numpy", "simulator": "jax", "reference": "numpy"}


@spelt
def simulate(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    *,
    x0: Any = None,
    state0: Mapping[str, Any] | None = None,
    oracle: Oracle | None = None,
    metrics: Any = None,
    dtype: str | None = None,
    engine: str | None = None,
    resume: Trace | None = None,
    checkpoint: Path | str | None = None,
    callback: Callback | None = None,
    every: int | None = None,
    logger: Any = None,
    progress: Progress | bool | None = None,
) -> Trace:
    """Runs an algorithm on a problem over a topology, and measures it at the start of each round.

    Args:
        algorithm: such as `stgt.STGT(gamma=0.1, tau=10)`.
        problem: from `stgt.problems`.
        topology: from `stgt.topology`, with as many nodes as the problem.
        rounds: number of rounds. Each has `algorithm.tau` local steps and an exchange, which ProxSkip's coin may skip.
        seeds: the number of runs (seeds 0, 1, …), or the list of their seeds. A run's seed determines its gradient
            noise or samples and, together with the topology's own seed, its random graphs.
        x0: the initial model, (p,), or one per node, (n, p), or a pytree like the problem's parameters. By default the
            parameters that the problem was made with, or 0.
        state0: initial values of the algorithm's other variables by name, such as {"c": …}. They are refused if they
            violate what the algorithm conserves.
        oracle: computes the gradients; by default the problem's own.
        metrics: a list of names to measure, to save time; by default all that exist. {"accuracy": f} measures f(mean
            model) in addition, and `stgt.of_state(f)` f of all nodes' state. A list may hold names and such dicts.
        dtype: "float32" or "float64"; by default float32 for the simulator and float64 for the reference.
        engine: "jax" (or "simulator"), compiled, the default; or "numpy" (or "reference"), plain NumPy.
        resume: a trace to continue, for `rounds` more rounds. All its seeds continue, with the same bits as in one run.
        checkpoint: a file to which the run saves itself regularly. The same call resumes it, up to `rounds` rounds.
        callback: called with (round, state) every `every` rounds; `state` is a dict of arrays (seeds, n, p).
        every: rounds between two callbacks (default 1) and two checkpoints (default: about 30 seconds).
        logger: receives the mean over the seeds of each measurement as it is made, by name, with the round as the step:
            a TensorBoard `SummaryWriter`, a W&B run, `mlflow`, a path that ends in .csv, or a function of (values,
            step). If it fails there is a warning, and the run continues.
        progress: True for a bar with rounds per second and the current error; or a function of (done, total).

    Returns:
        A `Trace`. A run that diverges is a result: `trace.diverged_at` has the round. Ctrl-C ends a run early: you get
        its trace so far, marked as `interrupted`, and `resume` can continue it.

    Example:
        >>> import stgt
        >>> problem = stgt.problems.ridge(n=8, p=2, noise=0.0)
        >>> trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=5), problem, stgt.topology.ring(8), rounds=300)
        >>> bool(trace.residual[0, -1] < 1e-8)
        True
    """
    return sweep(
        algorithm, problem, topology, rounds, seeds, grid={}, x0=x0, state0=state0, oracle=oracle, metrics=metrics,
        dtype=dtype, engine=engine, resume=resume, checkpoint=checkpoint, callback=callback, every=every,
        logger=logger, progress=progress,
    )[0]  # fmt: skip


@partial(spelt, also=OPTIONS)
def sweep(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    *,
    grid: Mapping[str, Iterable[Any]],
    **options: Any,
) -> list[Trace]:
    """`simulate` for every combination of the hyper-parameters in `grid`. Runs that share a program are one batch.

    Args:
        grid: values by name, such as {"gamma": [0.1, 0.2, 0.4]}; stepsizes may be functions of the round. The last name
            varies fastest. An option that is compiled into the program, such as tau, makes a batch for each value.
        options: those of `simulate`. `resume` takes the list of traces that a sweep returned. `callback` receives the
            runs of all combinations, one after the other. `logger` receives their values as "gamma=0.1/residual", or
            as "tau=5/gamma=0.1/residual" if there are several batches. `callback` and `checkpoint` need a single batch.

    Returns:
        A trace for each combination; `trace.algorithm` has its values.
    """
    algorithms = combinations(algorithm, grid)
    words = getattr(algorithm, "label", "rounds")
    with as_progress(options.pop("progress", None), words) as progress, interrupts() as interrupt:
        return run_all(algorithms, problem, topology, rounds, seeds, interrupt, progress=progress, **options)


def run_all(
    algorithms: list[Algorithm],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: Any,
    interrupt: Interrupt,
    *,
    progress: Progress | None = None,
    logger: Any = None,
    resume: Any = None,
    **options: Any,
) -> list[Trace]:
    """Runs algorithms of one class, those that share a program in one batch; a trace for each, in their order."""
    groups = by_program(algorithms)
    if len(groups) == 1:
        given = {"progress": progress, "logger": logger, "resume": resume, **options}
        return run_together(algorithms, problem, topology, rounds, seeds, interrupt, **given)
    firsts = [algorithms[group[0]] for group in groups]
    for name in ("checkpoint", "callback"):
        if options.get(name) is not None:
            shapes = ", ".join(varied(firsts))
            raise ValueError(f"{name} was given, but {shapes} in the grid needs several programs: leave one out.")
    before = None if resume is None else as_traces(resume, len(algorithms))
    ticks = split_progress(progress, [sum(algorithms[i].tau for i in group) for group in groups])
    logger, found = as_logger(logger), dict[int, Trace]()
    for group, first, tick in zip(groups, firsts, ticks, strict=True):
        own = {
            "progress": tick,
            "logger": None if logger is None else logger.under(in_words(first, firsts)),
            "resume": None if before is None else [before[i] for i in group],
        }
        members = [algorithms[i] for i in group]
        traces = run_together(members, problem, topology, rounds, seeds, interrupt, **own, **options)
        found |= zip(group, traces, strict=True)
    return [found[i] for i in range(len(algorithms))]


def by_program(algorithms: list[Algorithm]) -> list[list[int]]:
    """The indices of the algorithms in groups that share a compiled program: only real-valued fields differ."""
    if len(algorithms) == 1:
        return [[0]]
    found: dict[Any, list[int]] = {}
    for place, one in enumerate(algorithms):
        found.setdefault(tuple(getattr(one, name) for name in other_fields(type(one))), []).append(place)
    return list(found.values())


def run_together(
    algorithms: list[Algorithm],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: Any,
    interrupt: Interrupt,
    *,
    engine: str | None = None,
    resume: Any = None,
    checkpoint: Path | str | CheckpointFile | None = None,
    until: Rule | None = None,
    **options: Any,
) -> list[Trace]:
    """Runs algorithms that share a compiled program, until all rounds are complete or `interrupt` is set.

    With `until` they also end when this rule's target has decided which of them is the best.
    """
    if engine is not None:
        engine = ENGINES[check_choice(engine, "engine", ENGINES)]
    before = None if resume is None else as_traces(resume, len(algorithms))
    rounds = check_count(rounds, "rounds", 0) + (before[0].rounds if before else 0)
    file = as_checkpoint(checkpoint)
    if file is not None and file.path.exists():
        before = load_checkpoint(file.path, len(algorithms), rounds, before)
    engine, job = _job(algorithms, problem, topology, rounds, seeds, engine, before, resume is None, options)
    made = load_engine(engine)(job)
    if before:
        check_same_measurements(job, made, before)

    def finished(results: list[Result]) -> list[Trace]:
        found = [_trace(job, engine, which, result) for which, result in enumerate(results)]
        return [join_traces(*pair) for pair in zip(before, found, strict=True)] if before else found

    stop = None if until is None else lambda results: until.settled(finished(results))
    if file is None:
        return finished(drive(job, made, interrupt, stop=stop))
    traces = finished(drive(job, made, interrupt, lambda results: file.save(finished(results)), file.interval, stop))
    file.save(traces)
    return traces


def check_same_call(
    algorithms: list[Algorithm], problem: Problem, topology: Topology, seeds: Any, before: list[Trace], **options: Any
) -> None:
    """A ValueError if the traces are not of a call with these arguments; computes nothing."""
    engine = options.pop("engine", None)
    options.pop("until", None)
    engine = None if engine is None else ENGINES[check_choice(engine, "engine", ENGINES)]
    _job(algorithms, problem, topology, before[0].rounds, seeds, engine, before, True, options)


def _job(
    algorithms: list[Algorithm],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: Any,
    engine: str | None,
    before: list[Trace] | None,
    same_call: bool,
    options: dict[str, Any],
) -> tuple[str, Job]:
    """The engine's name and its job, up to `rounds` rounds, after the traces `before` if there are any."""
    if before:
        check_same_parts(algorithms, problem, topology, before)
        engine = engine or before[0].engine
        own_oracle = isinstance(algorithms[0], Algorithm) and algorithms[0].spec().oracle is not None
        options = resumed_options(options, before[0], own_oracle, same_call)
        seeds = check_same_seeds(seeds, before[0], same_call)
    engine = engine or "jax"
    options = {**options, "dtype": options.get("dtype") or ("float32" if engine == "jax" else "float64")}
    job = prepare(algorithms, problem, topology, rounds, seeds, **options)
    if before:
        job = resume_job(job, engine, before, rounds - before[0].rounds, same_call)
    return engine, job


def _trace(job: Job, engine: str, which: int, result: Result) -> Trace:
    instance = job.instances[which]
    notes = _notes(instance.algorithm, instance.topology)
    if result.interrupted:
        end = job.first + job.rounds
        notes += (f"{instance.algorithm.label} was interrupted after {result.run_state.rounds} of {end} rounds.",)
    return Trace(
        algorithm=instance.algorithm,
        problem=instance.problem,
        topology=instance.topology,
        oracle=instance.oracle,
        seeds=job.seeds,
        values={**result.values, **counts(instance, result.run_state.links)},
        seconds=result.seconds,
        origin=job.origin,
        run_state=result.run_state,
        measured=job.measured,
        engine=engine,
        dtype=job.dtype,
        interrupted=result.interrupted,
        absent=job.absent,
        notes=notes,
    )


def _notes(algorithm: Algorithm, topology: Topology) -> tuple[str, ...]:
    other = algorithm.same_as(topology.has_server)
    if not other:
        return ()
    where = "" if algorithm.same_as(not topology.has_server) == other else " without a server"
    return (f"{algorithm.label} with these options{where} is {other}: their curves coincide.",)


def load_engine(name: str) -> Callable[[Job], Engine]:
    """The class of an engine, by its name: "jax" or "numpy"."""
    # Imported here, as JAX takes a second to load and the reference does not need it.
    if name == "numpy":
        from stgt.simulator.reference import Reference

        return Reference
    from stgt.simulator.simulator import Simulator

    return Simulator


def combinations(algorithm: Algorithm, grid: Mapping[str, Iterable[Any]]) -> list[Algorithm]:
    """The algorithm with every combination of the values in `grid`."""
    if not isinstance(grid, Mapping):
        raise InputError("grid", grid, "give a dict of lists of values by name.")
    if not isinstance(algorithm, Algorithm) or not grid:
        return [algorithm]
    names = {field.name for field in fields(algorithm)}
    chosen: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if name not in names:
            raise InputError("grid", hint=f" has {name!r}: {algorithm.label} has {', '.join(sorted(names))}.")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(("grid", name), values, "give a list of values.")
        chosen[name] = list(values)
        if not chosen[name]:
            raise InputError(("grid", name), hint=" is empty: give at least one value.")
    with under("grid"):
        made = [
            replace(algorithm, **dict(zip(chosen, one, strict=True))) for one in itertools.product(*chosen.values())
        ]
    for name in chosen:
        if name in real_fields(type(algorithm)) and len({np.shape(getattr(one, name)) for one in made}) > 1:
            raise InputError(("grid", name), hint=" mixes one value and one for each node: give all in one form.")
    return made
