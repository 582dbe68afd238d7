"""A run that goes on: is it the same one, where does it stand, and what it measured before and after as one trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.description import DERIVED, described, first_difference, known_level, level
from stgt.simulator.drive import Engine
from stgt.simulator.job import Job, check_seeds
from stgt.simulator.standing import joined
from stgt.simulator.trace import Trace
from stgt.topology import Topology

ROUNDING = {"float32": 1e-2, "float64": 1e-6}  # how far what is measured may be from what it was, on another machine
ROUNDED_TO_ZERO = 1e-2  # of what is measured; a loss near its minimum is rounding
FIXED = ("x0", "state0")  # options that belong to the beginning of a run


def as_traces(resume: Any, count: int) -> list[Trace]:
    """What was given to go on from, as one trace for each setting of the job."""
    found = [resume] if isinstance(resume, Trace) else list(resume) if isinstance(resume, Sequence) else []
    if len(found) != count or not all(isinstance(one, Trace) for one in found):
        wanted = "a Trace" if count == 1 else f"the {count} traces that the sweep returned"
        raise ValueError(f"resume={resume!r}: give {wanted}.")
    return found


def resumed_options(options: dict[str, Any], trace: Trace, insists: bool, again: bool) -> dict[str, Any]:
    """The options of a run that goes on: those that it began with; a ValueError if others were given.

    `insists`: is the method made of an oracle of its own? `again`: is it the same call, which says how the run began?
    """
    for name in FIXED:
        if options.get(name) is not None and not again:
            raise ValueError(f"{name} was given with resume: the run has begun already; leave {name} out.")
    options = {**options}
    if options.get("oracle") is None and not insists and isinstance(trace.oracle, Oracle):
        options["oracle"] = trace.oracle
    options["dtype"] = options.get("dtype") or trace.dtype
    if options.get("metrics") is None:
        missing = [name for name, function in trace.measured.own if function is None]
        if missing:
            raise ValueError(
                f"the run measures {missing[0]!r} by a function of your own, which a file cannot hold: give "
                f"metrics={{{missing[0]!r}: …}} again."
            )
        options["metrics"] = [*trace.measured.names, dict(trace.measured.own)]
    return options


def check_seeds_again(seeds: Any, trace: Trace, again: bool) -> tuple[int, ...]:
    """The seeds of the run that goes on; a ValueError if others are asked for.

    One seed, the default, asks for none, unless it is the same call `again`.
    """
    left_out = isinstance(seeds, int) and seeds == 1 and not again
    if not left_out and check_seeds(seeds) != trace.seeds:
        what = "give these" if again else "leave seeds out"
        raise ValueError(f"seeds={seeds!r}, but the run to go on has {list(trace.seeds)}: {what}.")
    return trace.seeds


def check_parts_again(algorithms: list[Any], problem: Any, topology: Any, traces: list[Trace]) -> None:
    """A ValueError if a run with these parts is another one; what is no such part is for others to complain about."""
    for algorithm, trace in zip(algorithms, traces, strict=True):
        for name, thing, kind in (
            ("algorithm", algorithm, Algorithm),
            ("problem", problem, Problem),
            ("topology", topology, Topology),
        ):
            if isinstance(thing, kind):
                _check_same(described(thing, trace.rounds), described(getattr(trace, name), trace.rounds), f"{name}.")
        if isinstance(problem, Problem):
            now, then = level(problem, trace.x), known_level(trace)
            if not np.isclose(now, then, rtol=1e-5, atol=1e-8, equal_nan=True):
                raise ValueError(
                    f"the run to go on is another one: f is {now:.6g} where it stands, and was {then:.6g}. Give the "
                    "problem that it began with."
                )


def going_on(job: Job, engine: str, traces: list[Trace], rounds: int, again: bool) -> Job:
    """The job for `rounds` more rounds from where the traces stand; a ValueError if they are of another run.

    `again`: does the job say how the run began?
    """
    for setting, trace in zip(job.settings, traces, strict=True):
        now = {"engine": engine, "dtype": job.dtype, "measured": sorted(job.measured.all_names)}
        then = {"engine": trace.engine, "dtype": trace.dtype, "measured": sorted(trace.measured.all_names)}
        now["seeds"], then["seeds"] = list(job.seeds), list(trace.seeds)
        _check_same(now, then)
        _check_same(described(setting.oracle), described(trace.oracle), "oracle.")
        if again and trace.origin != job.origin:
            raise ValueError("the run to go on is another one: x0 or state0 is not what it began with; give that.")
        if trace.rounds != traces[0].rounds:
            raise ValueError(
                f"the traces to go on from have {traces[0].rounds} and {trace.rounds} rounds: give equal ones."
            )
    job = job.going_on(joined(trace.standing for trace in traces), rounds)
    # What was measured where a run stopped is with its logger only if that was its end.
    return replace(job, log_from=job.first if traces[0].interrupted else job.first + 1)


def _check_same(now: Mapping[str, Any], then: Mapping[str, Any], path: str = "") -> None:
    difference = first_difference(_compared(now), _compared(then), path)
    if difference is not None:
        raise ValueError(
            f"the run to go on is another one: {difference}. Give what it began with; to begin a new run from its "
            "models, give x0=trace.x[seed]."
        )


def _compared(one: Mapping[str, Any]) -> dict[str, Any]:
    """All but what follows from the rest: the curvature does from the data, up to rounding."""
    return {name: value for name, value in one.items() if name not in ("L", "mu", *DERIVED)}


def check_measured_again(job: Job, engine: Engine, traces: list[Trace]) -> None:
    """A ValueError if what is measured now is not what was measured when the run stopped: a function has changed."""
    now = engine.measure(job.first)
    for name, values in now.items():
        then = np.concatenate([trace.values[name][:, -1] for trace in traces]).astype(np.float64)
        rounding, scale = ROUNDING[job.dtype], float(np.abs(then[np.isfinite(then)]).max(initial=0.0))
        allowed = rounding * max(scale, ROUNDED_TO_ZERO)
        close = np.isclose(values.astype(np.float64), then, rtol=rounding, atol=allowed, equal_nan=True)
        if name != "sum_c" and not close.all():
            i = int(np.argmin(close))
            raise ValueError(
                f"the run to go on is another one: {name} is {values[i]:.6g} where it stands, and was {then[i]:.6g}. "
                "Give the problem and the metrics that it began with."
            )


def longer(before: Trace, after: Trace) -> Trace:
    """Two stretches of a run as one trace; what both measured, at the seam, counts as the later one saw it."""
    seam = before.seconds[-1]
    return replace(
        after,
        origin=before.origin,
        values={
            **after.values,
            **{
                name: np.concatenate([before.values[name][:, :-1], after.values[name]], axis=1)
                for name in after.measured.all_names
            },
        },
        seconds=np.concatenate([before.seconds[:-1], seam + after.seconds]),
    )
