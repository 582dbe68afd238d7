"""What a spec file asks for, as batches of runs that share a compiled program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt.algorithms import Algorithm
from stgt.simulator import Rule
from stgt.simulator.choice import distinct, fresh_seeds, in_words, labels
from stgt.simulator.instance import validate
from stgt.simulator.run import by_program, combinations
from stgt.study.run import check_measured
from stgt.study.spec.runs import BuiltRun, RunSpec, Spec, build_all, initial_point

KINDS = ("run", "sweep", "compare")
POINTS = 4  # of a grid, at most, in a batch; it does not depend on the number of workers, as bits would then too
SHARED = ("problem", "rounds", "seeds", "x0", "target", "metrics")  # what methods that are compared have in common


@dataclass(frozen=True, eq=False)
class Batch:
    """Runs of one method that share a compiled program: a task for a worker.

    Attributes:
        folder: its name in the study's folder.
        run: the number of the spec's run that it belongs to.
        method: its label.
        algorithms: one for each combination of hyper-parameters.
        settings: what sets each apart from the method's others, in words.
        built: the problem, the topology and the oracle.
        options: others of `simulate`.
        every: rounds between two rows of metrics.csv.
        fresh: is it the chosen setting of the method, on other seeds than those that chose? Until all others have
            run, the first setting stands for it.
    """

    folder: str
    run: int
    method: str
    algorithms: tuple[Algorithm, ...]
    settings: tuple[str, ...]
    built: BuiltRun
    rounds: int
    seeds: int | tuple[int, ...]
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
        seeds = self.seeds if isinstance(self.seeds, int) else len(self.seeds)
        return float(len(self.algorithms) * seeds * self.algorithms[0].tau * max(1, self.rounds))


@dataclass(frozen=True, eq=False)
class Plan:
    """A study before it runs: its batches, and the rule that ranks the methods.

    Where a comparison has to choose, `fresh` are the batches of its second stage.
    """

    kind: str
    spec: Spec
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
    batches = [
        batch
        for number, (run, one, name) in enumerate(zip(spec.runs, built, names, strict=True))
        for batch in _batches(run, one, name, number)
    ]
    rule = _rule(spec, built)
    for batch in batches:
        check_measured(
            rule.metric, batch.options["metrics"], batch.algorithms[0], batch.built.problem, batch.built.topology
        )
    found = Plan(kind, spec, tuple(batches), rule)
    chooses = kind == "compare" and found.runs > len(found.methods)
    return replace(found, fresh=tuple(_fresh(of[0]) for of in found.methods.values())) if chooses else found


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
    return Rule(spec.by or measured, spec.runs[0].target, spec.cost, spec.largest)


def _batches(run: RunSpec, built: BuiltRun, name: str, which: int) -> Iterator[Batch]:
    folder = f"{which + 1:02d}-{_slug(name)}"
    algorithms = combinations(built.algorithm, built.grid)
    groups = [[algorithms[i] for i in group] for group in by_program(algorithms)]
    for one in algorithms:
        validate(one, built.problem, built.topology, built.oracle)
    options = {
        "oracle": built.oracle,
        "metrics": None if run.metrics is None else list(run.metrics),
        "engine": run.engine,
        "dtype": run.dtype,
        **initial_point(run, built),
    }
    parts = [part for group in groups for part in np.array_split(np.arange(len(group)), -(-len(group) // POINTS))]
    owners = [group for group in groups for _ in range(-(-len(group) // POINTS))]
    for number, (group, part) in enumerate(zip(owners, parts, strict=True), 1):
        chosen = tuple(group[i] for i in part)
        yield Batch(
            folder=folder if len(parts) == 1 else f"{folder}.{number}",
            run=which,
            method=name,
            algorithms=chosen,
            settings=tuple(in_words(one, algorithms) for one in chosen),
            built=built,
            rounds=run.rounds,
            seeds=run.seeds,
            options=options,
            every=run.every,
        )


def _fresh(batch: Batch) -> Batch:
    """One setting of a method on as many other seeds."""
    return replace(
        batch,
        folder=f"{batch.folder.partition('.')[0]}-fresh",
        algorithms=batch.algorithms[:1],
        settings=batch.settings[:1],
        seeds=fresh_seeds(range(batch.seeds) if isinstance(batch.seeds, int) else batch.seeds),
        fresh=True,
    )


def _slug(name: str) -> str:
    """A name for a folder, on any system."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40].strip("-") or "run"
