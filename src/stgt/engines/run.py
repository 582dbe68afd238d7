"""The way in: `simulate` and `sweep`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.checks import check_choice
from stgt.engines.costs import counts
from stgt.engines.job import Job, Result, prepare
from stgt.engines.trace import Trace
from stgt.hyper import real_fields
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.progress import Progress
from stgt.topology import Topology

ENGINES = {"jax": "jax", "numpy": "numpy", "simulator": "jax", "reference": "numpy"}


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
    metrics: Iterable[str] | None = None,
    dtype: str | None = None,
    engine: str = "jax",
    progress: Progress | None = None,
) -> Trace:
    """Runs an algorithm on a problem over a topology, and measures it at the start of each round.

    Args:
        algorithm: such as `stgt.STGT(gamma=0.1, tau=10)`.
        problem: from `stgt.problems`.
        topology: from `stgt.topology`, with as many nodes as the problem.
        rounds: communication rounds; each has `algorithm.tau` local steps.
        seeds: how many runs (seeds 0, 1, …), or the list of their seeds. A run's seed decides its gradient noise or
            samples and, together with the topology's own, its random graphs.
        x0: the first model, (p,), or one for each node, (n, p); 0 if left out.
        state0: first values of the algorithm's other fields by name, such as {"c": …}; refused if they break what the
            algorithm conserves.
        oracle: where gradients come from; the problem's own if left out.
        metrics: names to measure, to save time; all that there are if left out.
        dtype: "float32" or "float64"; if left out, float32 for the simulator and float64 for the reference.
        engine: "jax" (or "simulator"), compiled, or "numpy" (or "reference"), plain.
        progress: called with (done, total) from time to time.

    Returns:
        A `Trace`. A run that diverges is a result: `trace.diverged_at` says at which round.

    Example:
        >>> import stgt
        >>> problem = stgt.problems.ridge(n=8, p=2, noise=0.0)
        >>> trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=5), problem, stgt.topology.ring(8), rounds=300)
        >>> bool(trace.residual[0, -1] < 1e-8)
        True
    """
    options = {"x0": x0, "state0": state0, "oracle": oracle, "metrics": metrics, "dtype": dtype, "progress": progress}
    return sweep(algorithm, problem, topology, rounds, seeds, grid={}, engine=engine, **options)[0]


def sweep(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    *,
    grid: Mapping[str, Iterable[float]],
    engine: str = "jax",
    **options: Any,
) -> list[Trace]:
    """`simulate` for every combination of the hyper-parameters in `grid`, in one compiled batch.

    Args:
        grid: values by name, such as {"gamma": [0.1, 0.2, 0.4]}; real-valued hyper-parameters only. The last name
            varies fastest.
        options: those of `simulate`.

    Returns:
        A trace for each combination; `trace.algorithm` has its values.
    """
    engine = ENGINES[check_choice(engine, "engine", ENGINES)]
    unknown = sorted(set(options) - set(signature(simulate).parameters))
    if unknown:
        raise TypeError(f"sweep() has no option {unknown[0]!r}: it takes those of simulate.")
    algorithms = _combinations(algorithm, grid)
    if options.get("dtype") is None:
        options["dtype"] = "float32" if engine == "jax" else "float64"
    job = prepare(algorithms, problem, topology, rounds, seeds, **options)
    return [_trace(job, which, result) for which, result in enumerate(_engine(engine)(job))]


def _trace(job: Job, which: int, result: Result) -> Trace:
    setting = job.settings[which]
    return Trace(
        algorithm=setting.algorithm,
        problem=setting.problem,
        topology=setting.topology,
        seeds=job.seeds,
        values={**result.values, **counts(setting, np.asarray(result.links, dtype=np.float64))},
        state=result.state,
        diverged_at=result.diverged_at,
        absent=job.absent,
        notes=_notes(setting.algorithm, setting.topology),
    )


def _notes(algorithm: Algorithm, topology: Topology) -> tuple[str, ...]:
    other = algorithm.same_as(topology.has_server)
    if not other:
        return ()
    where = "" if algorithm.same_as(not topology.has_server) == other else " without a server"
    return (f"{algorithm.label} as given{where} is {other}: their curves coincide.",)


def _engine(name: str) -> Any:
    # Imported late: JAX takes a second to load, and the reference does without.
    if name == "numpy":
        from stgt.engines.reference import run
    else:
        from stgt.engines.simulator import run
    return run


def _combinations(algorithm: Algorithm, grid: Mapping[str, Iterable[float]]) -> list[Algorithm]:
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid={grid!r}: give a dict of lists of values by name.")
    if not isinstance(algorithm, Algorithm) or not grid:
        return [algorithm]
    names = {field.name for field in fields(algorithm)}
    chosen: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if name not in names:
            raise ValueError(f"grid has {name!r}: {algorithm.label} has {', '.join(sorted(names))}.")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"grid[{name!r}]={values!r}: give a list of values.")
        chosen[name] = list(values)
        if not chosen[name]:
            raise ValueError(f"grid[{name!r}] is empty: give at least one value.")
    made = [
        replace(algorithm, **dict(zip(chosen, values, strict=True))) for values in itertools.product(*chosen.values())
    ]
    for name in chosen:
        if name not in real_fields(type(algorithm)):
            raise ValueError(
                f"grid has {name!r}, which shapes the program: vary it in a loop of simulate(...) instead."
            )
        if len({np.shape(getattr(one, name)) for one in made}) > 1:
            raise ValueError(f"grid[{name!r}] mixes one value and one for each node: give all in one form.")
    return made
