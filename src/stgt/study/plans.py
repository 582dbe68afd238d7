"""What a spec file or `stgt.compare` asks for, as batches of runs that share a compiled program."""

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
POINTS = 4  # of a grid, at most, in a batch; it does not depend on the number of workers, as bits would then too
SHARED = ("problem", "rounds", "seeds", "x0", "target", "metrics")  # what methods that are compared have in common


@dataclass(frozen=True, eq=False)
class Batch:
    """Runs of one method that share a compiled program: a task for a worker.

    Attributes:
        folder: its name in the study's folder.
        run: the number of the spec's run, or of the method, that it belongs to.
        method: its label.
        algorithms: one for each combination of hyper-parameters.
        settings: what sets each apart from the method's others, in words.
        places: of each among all combinations of the method.
        options: of `simulate`.
        every: rounds between two rows of metrics.csv.
        fresh: is it the chosen setting of the method, on other seeds than those that chose? Until all others have
            run, the first setting stands for it.
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
        """Its name on a progress bar."""
        more = ", fresh seeds" if self.fresh else "" if len(self.settings) == 1 else " …"
        return f"{self.method}, {self.settings[0]}{more}"

    @property
    def work(self) -> float:
        """How long it takes, in gradients of a node."""
        return float(len(self.algorithms) * len(self.seeds) * self.algorithms[0].tau * max(1, self.rounds))


@dataclass(frozen=True, eq=False)
class Plan:
    """A study before it runs: its batches, and the rule that ranks the methods.

    Where a comparison has to choose, `fresh` are the batches of its second stage. What Python asks for has no spec.
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
        """How many there are, seeds not counted."""
        return sum(len(batch.algorithms) for batch in self.batches)


def plan(kind: str, spec: Spec, path: Path, data_dir: Path | None = None) -> Plan:
    """What is to be run; a ValueError, before anything is, names the file `path` and the entry that is wrong.

    `kind` is one of KINDS, or "check" for what is not run.
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
            hint=" is for `stgt sweep`, which runs it all, and `stgt compare`, which picks each method's best: use one "
            "of these, or leave grid out.",
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
                hint = f"methods that are compared share it; use `stgt run`, or give one {name} for all."
                raise InputError(name, hint=f" differs between the runs: {hint}")


def _rule(spec: Spec, built: list[BuiltRun]) -> Rule:
    """What methods are ranked by: the spec's `by`, else the residual where it is measured everywhere, else the loss."""
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
    """The plan; of a comparison that has to choose, with one setting of each method on as many other seeds."""
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
    """A ValueError, before the runs, if what they are to be judged by is not measured."""
    measured, absent = choose_metrics(metrics, algorithm, problem, topology)
    if name in absent:
        raise InputError("by", name, f", but {absent[name]}: choose from {', '.join(measured)}.")
    if name not in measured and not (METRICS.get(name) and METRICS[name].of_trace):
        raise InputError("by", name, f"choose from {', '.join(measured)}.")


def _slug(name: str) -> str:
    """A name for a folder, on any system."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40].strip("-") or "run"
