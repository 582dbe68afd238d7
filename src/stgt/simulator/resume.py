"""Resuming a run: the checks that it is the same run, and one trace of its old and new measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.drive import Engine
from stgt.simulator.job import Job, check_seeds, concatenate
from stgt.simulator.serialize import DERIVED, first_difference, mean_model_loss, serialize, stored_mean_model_loss
from stgt.simulator.trace import Trace
from stgt.topology import Topology

ROUNDING = {"float32": 1e-2, "float64": 1e-6}  # the relative difference allowed between two machines
ROUNDED_TO_ZERO = 1e-2  # smaller values are compared as this value: a loss near its minimum is rounding error
FIXED = ("x0", "state0")  # options of new runs only


def as_traces(resume: Any, count: int) -> list[Trace]:
    """The argument `resume=` as a list with one trace for each instance of the job."""
    found = [resume] if isinstance(resume, Trace) else list(resume) if isinstance(resume, Sequence) else []
    if len(found) != count or not all(isinstance(one, Trace) for one in found):
        wanted = "a Trace" if count == 1 else f"the {count} traces that the sweep returned"
        raise InputError("resume", resume, f"give {wanted}.")
    return found


def resumed_options(options: dict[str, Any], trace: Trace, own_oracle: bool, same_call: bool) -> dict[str, Any]:
    """The options of a resumed run, which are those of its trace; a ValueError if others were given.

    `own_oracle`: does the method require an oracle? `same_call`: does the call repeat all arguments of the run, as with
    `checkpoint=`, or does it only continue the run?
    """
    for name in FIXED:
        if options.get(name) is not None and not same_call:
            raise ValueError(f"{name} was given with resume: the run has begun already; leave {name} out.")
    options = {**options}
    if options.get("oracle") is None and not own_oracle and isinstance(trace.oracle, Oracle):
        options["oracle"] = trace.oracle
    options["dtype"] = options.get("dtype") or trace.dtype
    if options.get("metrics") is None:
        missing = [name for name, metric in trace.measured.items() if metric is None]
        if missing:
            raise ValueError(
                f"the run measures {missing[0]!r} by a function of your own, which a file cannot hold: give "
                f"metrics={{{missing[0]!r}: …}} again."
            )
        options["metrics"] = [
            one.name if METRICS.get(one.name) else one for one in trace.measured.values() if one is not None
        ]
    return options


def check_same_seeds(seeds: Any, trace: Trace, same_call: bool) -> tuple[int, ...]:
    """The seeds of the resumed run; a ValueError if others were given.

    `seeds=1` is the default, so it counts as omitted unless `same_call`.
    """
    left_out = isinstance(seeds, int) and seeds == 1 and not same_call
    if not left_out and check_seeds(seeds) != trace.seeds:
        what = "give these" if same_call else "leave seeds out"
        raise InputError("seeds", seeds, f", but the run to resume has {list(trace.seeds)}: {what}.")
    return trace.seeds


def check_same_parts(algorithms: list[Any], problem: Any, topology: Any, traces: list[Trace]) -> None:
    """A ValueError if these are not the parts of the run. `prepare` later refuses arguments of a wrong type."""
    for algorithm, trace in zip(algorithms, traces, strict=True):
        for name, part, kind in (
            ("algorithm", algorithm, Algorithm),
            ("problem", problem, Problem),
            ("topology", topology, Topology),
        ):
            if isinstance(part, kind):
                _check_same(serialize(part, trace.rounds), serialize(getattr(trace, name), trace.rounds), f"{name}.")
        if isinstance(problem, Problem):
            now, then = mean_model_loss(problem, trace.x), stored_mean_model_loss(trace)
            if not np.isclose(now, then, rtol=1e-5, atol=1e-8, equal_nan=True):
                raise ValueError(
                    f"the run to resume is a different one: f at its last models is {now:.6g}, and was {then:.6g}. "
                    "Give the problem that it began with."
                )


def resume_job(job: Job, engine: str, traces: list[Trace], rounds: int, same_call: bool) -> Job:
    """The job for `rounds` more rounds after the traces; a ValueError if they are of a different run."""
    for instance, trace in zip(job.instances, traces, strict=True):
        now = {"engine": engine, "dtype": job.dtype, "measured": sorted(job.measured)}
        then = {"engine": trace.engine, "dtype": trace.dtype, "measured": sorted(trace.measured)}
        now["seeds"], then["seeds"] = list(job.seeds), list(trace.seeds)
        _check_same(now, then)
        _check_same(serialize(instance.oracle), serialize(trace.oracle), "oracle.")
        if same_call and trace.origin != job.origin:
            raise ValueError("the run to resume is a different one: it began with another x0 or state0; give that one.")
        if trace.rounds != traces[0].rounds:
            raise ValueError(
                f"the traces to resume have {traces[0].rounds} and {trace.rounds} rounds: give equally long ones."
            )
    job = job.resume(concatenate(trace.run_state for trace in traces), rounds)
    # A run logs its last measurement only if it was complete. An interrupted run measures that round again.
    return replace(job, log_from=job.first if traces[0].interrupted else job.first + 1)


def _check_same(now: Mapping[str, Any], then: Mapping[str, Any], path: str = "") -> None:
    difference = first_difference(_compared(now), _compared(then), path)
    if difference is not None:
        raise ValueError(
            f"the run to resume is a different one: {difference}. Give what it began with. To begin a new run from its "
            "models, give x0=trace.x[seed]."
        )


def _compared(one: Mapping[str, Any]) -> dict[str, Any]:
    """All entries except those that follow from others: L and mu follow from the data, up to rounding."""
    return {name: value for name, value in one.items() if name not in ("L", "mu", *DERIVED)}


def check_same_measurements(job: Job, engine: Engine, traces: list[Trace]) -> None:
    """A ValueError if the measurements at the resumed state differ from those of the trace: a function has changed."""
    now = engine.measure(job.first)
    for name, values in now.items():
        then = np.concatenate([trace.values[name][:, -1] for trace in traces]).astype(np.float64)
        rounding, scale = ROUNDING[job.dtype], float(np.abs(then[np.isfinite(then)]).max(initial=0.0))
        allowed = rounding * max(scale, ROUNDED_TO_ZERO)
        close = np.isclose(values.astype(np.float64), then, rtol=rounding, atol=allowed, equal_nan=True)
        if name != "sum_c" and not close.all():
            i = int(np.argmin(close))
            raise ValueError(
                f"the run to resume is a different one: {name} at its last models is {values[i]:.6g}, and was "
                f"{then[i]:.6g}. Give the problem and the metrics that it began with."
            )


def join_traces(before: Trace, after: Trace) -> Trace:
    """Two parts of a run as one trace. If both have measured a round, the later values are used."""
    return replace(
        after,
        origin=before.origin,
        values={
            **after.values,
            **{
                name: np.concatenate([before.values[name][:, :-1], after.values[name]], axis=1)
                for name in after.measured
            },
        },
        seconds=np.concatenate([before.seconds[:-1], before.seconds[-1] + after.seconds]),
    )
