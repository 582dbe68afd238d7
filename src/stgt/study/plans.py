"""Turns a spec file or a call of `stgt.compare` into batches of runs that share a compiled program."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator import Rule
from stgt.simulator.choice import distinct, fresh_seeds, in_words, labels
from stgt.simulator.instance import validate
from stgt.simulator.metrics import choose_metrics
from stgt.simulator.run import by_program, combinations
from stgt.topology import Topology

if TYPE_CHECKING:
    from stgt.study.spec.runs import BuiltRun, Spec

KINDS = ("run", "sweep", "compare")
POINTS = 4  # the most grid points in a batch. If it depended on the number of workers, the bits of results would too
SHARED = ("problem", "rounds", "seeds", "x0", "target", "metrics")  # entries that all compared methods must share


@dataclass(frozen=True, eq=False)
class Batch:
    """Runs of one method that share a compiled program: a task for a worker.

    Attributes:
        folder: its name in the study's folder.
        run: the number of its run in the spec, or of its method.
        method: its label.
        algorithms: one for each combination of hyper-parameters.
        settings: the options in which each differs from the method's others, as text.
        places: the position of each among all combinations of the method.
        options: options of `simulate`.
        every: rounds between two rows of metrics.csv.
        fresh: is it the chosen setting of the method, on fresh seeds? Until all other batches have run, the first
            setting is a placeholder for it.
    """

    folder: str
    run: int
    method: str
    algorithms: tuple[Algorithm, ...]
    settings: tuple[str, ...]
    places: tuple[int, ...]
    problem: Problem
    topology: Topology
    rounds: int
    seeds: tuple[int, ...]
    options: dict[str, Any]
    every: int = 1
    fresh: bool = False

    @property
    def title(self) -> str:
        """The name on a progress bar."""
        more = ", fresh seeds" if self.fresh else "" if len(self.settings) == 1 else " …"
        return f"{self.method}, {self.settings[0]}{more}"

    @property
    def work(self) -> float:
        """The amount of work, in gradients of a node."""
        return float(len(self.algorithms) * len(self.seeds) * self.algorithms[0].tau * max(1, self.rounds))


@dataclass(frozen=True, eq=False)
class Plan:
    """A study before it runs: its batches, and the rule that ranks the methods.

    If a comparison has to choose settings, `fresh` has the batches of its second stage. A call from Python has no spec.
    """

    kind: str
    spec: Spec | None
    batches: tuple[Batch, ...]
    rule: Rule
    fresh: tuple[Batch, ...] = ()

    @property
    def methods(self) -> dict[str, list[Batch]]:
        """The batches by method."""
        names = dict.fromkeys(batch.method for batch in self.batches)
        return {name: [batch for batch in self.batches if batch.method == name] for name in names}

    @property
    def runs(self) -> int:
        """The number of runs; seeds are not counted."""
        return sum(len(batch.algorithms) for batch in self.batches)


def plan(kind: str, spec: Spec, path: Path, data_dir: Path | None = None) -> Plan:
    """The plan of a spec. Before anything runs, a ValueError names the file `path` and the wrong entry.

    `kind` is one of KINDS, or "check" for a plan that is not run.
    """
    try:
        return _plan(kind, spec, path, data_dir)
    except InputError as error:
        error.file = error.file or path
        raise
    except ValueError as error:
        raise ValueError(f"spec {path}: {error}") from None


def _plan(kind: str, spec: Spec, path: Path, data_dir: Path | None) -> Plan:
    from stgt.study.spec.runs import build_all, initial_point

    built = build_all(spec, path, data_dir)
    if kind == "run" and any(run.grid for run in spec.runs):
        raise InputError(
            "grid",
            hint=" is for `stgt sweep`, which runs all of it, and `stgt compare`, which picks each method's best: use "
            "one of these, or leave grid out.",
        )
    if kind == "sweep" and not any(run.grid for run in spec.runs):
        raise InputError(
            "grid", hint=" was left out: give values to try, such as grid.gamma = [0.01, 0.1], or use `stgt run`."
        )
    if kind == "compare":
        _check_comparable(spec)
    names = labels([(one.algorithm, one.topology) for one in built])
    names = distinct([run.label or name for run, name in zip(spec.runs, names, strict=True)])
    rule, batches = _rule(spec, built), list[Batch]()
    for number, (run, one, name) in enumerate(zip(spec.runs, built, names, strict=True)):
        algorithms = combinations(one.algorithm, one.grid)
        options = {
            "oracle": one.oracle,
            "metrics": None if run.metrics is None else list(run.metrics),
            "engine": run.engine,
            "dtype": run.dtype,
            **initial_point(run, one),
            **({"until": rule} if rule.stop and kind == "compare" else {}),
        }
        seeds = tuple(range(run.seeds)) if isinstance(run.seeds, int) else run.seeds
        shared = {"problem": one.problem, "topology": one.topology, "rounds": run.rounds, "seeds": seeds}
        batches += batches_of(number, name, algorithms, POINTS, **shared, options=options, every=run.every)
        check_measured(rule.metric, options["metrics"], algorithms[0], one.problem, one.topology)
    return with_fresh(Plan(kind, spec, tuple(batches), rule))


def _check_comparable(spec: Spec) -> None:
    first = spec.runs[0]
    for run in spec.runs[1:]:
        for name in SHARED:
            if getattr(run, name) != getattr(first, name):
                hint = f"compared methods must share it; use `stgt run`, or give one {name} for all."
                raise InputError(name, hint=f" differs between the runs: {hint}")


def _rule(spec: Spec, built: list[BuiltRun]) -> Rule:
    """The ranking's measurement: the spec's `by`, else the residual if all methods measure it, else the loss."""
    wanted = [name for run in spec.runs for name in run.metrics or ()]
    is_known = all(one.problem.solve is not None for one in built) and all(
        run.metrics is None or {"residual", "lyapunov"} & set(run.metrics) for run in spec.runs
    )
    measured = "residual" if is_known else "loss" if not wanted or "loss" in wanted else wanted[0]
    return Rule(spec.by or measured, spec.runs[0].target, spec.cost, spec.largest, spec.stop)


def batches_of(
    run: int, method: str, algorithms: list[Algorithm], most: int | None = None, **shared: Any
) -> list[Batch]:
    """The runs of a method in batches that share a program, of at most `most` points each."""
    for one in algorithms:
        validate(one, shared["problem"], shared["topology"], shared["options"].get("oracle"))
    folder = f"{run + 1:02d}-{_slug(method)}"
    parts = [
        part.tolist()
        for group in by_program(algorithms)
        for part in np.array_split(group, -(-len(group) // (most or len(group))))
    ]
    return [
        Batch(
            folder=folder if len(parts) == 1 else f"{folder}.{number}",
            run=run,
            method=method,
            algorithms=tuple(algorithms[i] for i in part),
            settings=tuple(in_words(algorithms[i], algorithms) for i in part),
            places=tuple(part),
            **shared,
        )
        for number, part in enumerate(parts, 1)
    ]


def with_fresh(plan: Plan) -> Plan:
    """The plan. If a comparison has to choose settings, one setting of each method is added on as many other seeds."""
    if plan.kind != "compare" or plan.runs == len(plan.methods):
        return plan
    fresh = [
        replace(
            batch,
            folder=f"{batch.folder.partition('.')[0]}-fresh",
            algorithms=batch.algorithms[:1],
            settings=batch.settings[:1],
            places=(0,),
            seeds=fresh_seeds(batch.seeds),
            fresh=True,
        )
        for batch, *_ in plan.methods.values()
    ]
    return replace(plan, fresh=tuple(fresh))


def check_measured(name: str, metrics: Any, algorithm: Algorithm, problem: Problem, topology: Topology) -> None:
    """Raises a ValueError before the runs if the ranking's measurement is not made."""
    measured, absent = choose_metrics(metrics, algorithm, problem, topology)
    if name in absent:
        raise InputError("by", name, f", but {absent[name]}: choose from {', '.join(measured)}.")
    if name not in measured and not (METRICS.get(name) and METRICS[name].of_trace):
        raise InputError("by", name, f"choose from {', '.join(measured)}.")


def _slug(name: str) -> str:
    """A valid name of a folder on any system."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40].strip("-") or "run"
