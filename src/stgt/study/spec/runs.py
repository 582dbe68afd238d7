"""A run as data, from a TOML file or to one, and the objects that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, field_validator

from stgt._internal.checks import InputError, did_you_mean, first_repeated, under
from stgt._internal.registry import ALGORITHMS, METRICS
from stgt._internal.serialize import from_plain, registered
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.problems.tables import is_file
from stgt.simulator.choice import COSTS
from stgt.simulator.instance import validate
from stgt.simulator.metrics import choose_metrics
from stgt.simulator.run import ENGINES, combinations
from stgt.study.spec.build import build_algorithm, build_oracle, build_topology
from stgt.study.spec.load import (
    Count,
    CountOrNone,
    Flag,
    Named,
    NonNegative,
    OneOf,
    Positive,
    Table,
    in_spec,
    read_spec,
    unknown_key,
)
from stgt.study.spec.problem_data import problem_of
from stgt.topology import Topology

MOST_SEEDS = 10**6


def _metric(name: Any) -> str:
    METRICS.find(name, ())
    return name


def _metric_names(schema: dict[str, Any]) -> None:
    schema["enum"] = METRICS.names()


Metric = Annotated[str, Field(json_schema_extra=_metric_names), BeforeValidator(_metric)]


class RunSpec(Table):
    """One algorithm on one problem on one topology."""

    label: str = Field(default="", description="The name of the run in tables and legends.")
    reading: str = Field(default="", description="The reading of the paper to which it belongs.")
    algorithm: Named = Field(description="The method and its hyper-parameters.")
    problem: Named = Field(description="The problem to minimise.")
    topology: Named = Field(description="Which nodes exchange messages, and with which weights.")
    oracle: Named | None = Field(default=None, description="The source of gradients; by default that of the problem.")
    rounds: CountOrNone = Field(default=700, description="The number of communication rounds.")
    seeds: int | tuple[int, ...] = Field(default=20, description="The number of seeds (0, 1, …), or a list of seeds.")
    metrics: tuple[Metric, ...] | None = Field(
        default=None, min_length=1, description="The measurements; all by default."
    )
    engine: Annotated[str, OneOf(*ENGINES)] | None = Field(
        default=None, description="jax (or simulator), compiled, the default; or numpy (or reference), plain."
    )
    dtype: Annotated[str, OneOf("float32", "float64")] | None = Field(
        default=None, description="The precision; by default that of the engine."
    )
    every: Count = Field(default=1, description="Rounds between two rows of metrics.csv.")
    x0: Annotated[str, OneOf("zero", "optimum")] = Field(default="zero", description="The initial point.")
    target: Positive | None = Field(default=None, description="The error to reach.")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default={}, description="Values to try, by hyper-parameter."
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, given: Any) -> Any:
        if isinstance(given, list | tuple):
            is_known = bool(given) and all(type(seed) is int and 0 <= seed < 2**32 for seed in given)
            again = first_repeated(given) if is_known else None
            if again is not None:
                raise InputError((), given, f"it has {again} more than once: give each seed once.")
        else:
            is_known = type(given) is int and 1 <= given <= MOST_SEEDS
        if not is_known:
            hint = f"give a whole number from 1 to {MOST_SEEDS}, or a list of seeds from 0 to 2**32 - 1."
            raise InputError((), given, hint)
        return given

    @property
    def seed_count(self) -> int:
        """The number of seeds."""
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


class NetworkSpec(Table):
    """The speeds from which the modelled time is computed."""

    gradient: NonNegative | None = Field(default=None, description="Seconds per gradient at a node.")
    latency: NonNegative | None = Field(default=None, description="Seconds of latency per round.")
    bandwidth: Positive | None = Field(default=None, description="Bits per second of a node's link.")


class Spec(Table):
    """The runs of an experiment, and its options."""

    name: str = Field(default="", description="The name on pages.")
    experiment: str = Field(default="", description="The experiment of the repository that wrote it.")
    options: dict[str, Any] = Field(default={}, description="The options of that experiment.")
    by: Metric | None = Field(
        default=None,
        description="compare: the measurement that ranks the methods; by default residual, or loss if x* is unknown.",
    )
    cost: Annotated[str, OneOf(*COSTS)] = Field(
        default="rounds", description="compare: the cost of reaching the target, to be minimised."
    )
    largest: Flag = Field(default=False, description="compare: is a larger value better?")
    stop: Flag = Field(default=False, description="compare: end the runs when the target has decided.")
    network: NetworkSpec | None = Field(default=None, description="The speeds for the modelled time.")
    outputs: tuple[Annotated[str, OneOf("summary", "curves", "report")], ...] = Field(
        default=("summary", "curves"),
        description="What a finished study writes: summary.csv, curves.png, report.html.",
    )
    runs: tuple[RunSpec, ...] = Field(min_length=1, description="The runs.")


@dataclass(frozen=True, eq=False)
class BuiltRun:
    """The objects that a `RunSpec` describes.

    Attributes:
        algorithm, problem, topology: its parts.
        oracle: None if the spec has no oracle.
        grid: the values to try, by hyper-parameter; only of those that the algorithm has.
    """

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    oracle: Oracle | None = None
    grid: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def objects(self) -> tuple[Algorithm, Problem, Topology]:
        return self.algorithm, self.problem, self.topology


def build_run(run: RunSpec, data_dir: Path | None = None) -> BuiltRun:
    """The objects of a run; a ValueError names the entry to change."""
    problem = problem_of(run.problem, data_dir)
    topology = build_topology(run.topology.model_dump(), problem.n)
    algorithm = build_algorithm(run.algorithm)
    oracle = None if run.oracle is None else build_oracle(run.oracle)
    return BuiltRun(algorithm, problem, topology, oracle, _grid(run, algorithm))


def build_all(spec: Spec, path: Path, data_dir: Path | None = None) -> list[BuiltRun]:
    """The objects of all runs of a spec, after a check that they fit together.

    Args:
        spec: as read by `load_spec`.
        path: of its file; a ValueError names it and the entry.
        data_dir: the folder with LIBSVM's files.
    """
    found = []
    with in_spec(path, spec.runs):
        for index, run in enumerate(spec.runs):
            with under("runs", index):
                found.append(_validated(build_run(run, data_dir), run, spec.by))
        names = sorted({field.name for built in found for field in fields(built.algorithm)})
        for index, run in enumerate(spec.runs):
            for name in run.grid:
                if name not in names:
                    with under("runs", index, "grid"):
                        raise unknown_key(name, names)
    return found


def load_spec(path: Path, sets: Iterable[str] = ()) -> Spec:
    """Reads a TOML file: the tables [algorithm], [problem], [topology] of one run, or several runs as [[runs]].

    Args:
        path: the file. Paths in it are relative to its folder; in the result they are absolute.
        sets: "key=value" each, which replace entries of the file; see `stgt.study.spec.read_spec`.
    """
    spec = read_spec(path, Spec, sets)
    if spec.cost != "rounds" and any(run.target is None for run in spec.runs):
        with in_spec(path):
            raise InputError("cost", spec.cost, " without a target: give target = …, an error to reach.")
    folder = path.resolve().parent
    runs = [
        run.model_copy(
            update={
                name: Named(**_absolute(getattr(run, name).model_dump(), folder)) for name in ("problem", "topology")
            }
        )
        for run in spec.runs
    ]
    return spec.model_copy(update={"runs": tuple(runs)})


def _absolute(value: Any, folder: Path) -> Any:
    """A table with the paths of its files resolved."""
    if isinstance(value, list):
        return [_absolute(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    paths = {
        key: str(folder / one)
        for key, one in value.items()
        if isinstance(one, str) and (key in ("edges", "W") or (key == "data" and is_file(one)))
    }
    return {key: _absolute(one, folder) for key, one in value.items()} | paths


def _grid(run: RunSpec, algorithm: Algorithm) -> dict[str, list[Any]]:
    """The values to try, for the hyper-parameters that the algorithm has; an InputError if a value is invalid."""
    names = [field.name for field in fields(algorithm)]
    grid = {}
    for name, values in run.grid.items():
        if name in names:
            with under("grid", name):
                grid[name] = [from_plain(value, registered(ALGORITHMS)) for value in values]
            try:
                combinations(algorithm, {name: grid[name]})
            except TypeError as error:
                raise InputError(("grid", name), hint=f"{error}") from None
    if run.grid and not grid:
        first = next(iter(run.grid))
        hint = f"{algorithm.label} has {', '.join(names)}{did_you_mean(first, names)}"
        raise InputError(("grid", first), hint=hint)
    return grid


def _validated(built: BuiltRun, run: RunSpec, by: str | None) -> BuiltRun:
    """Returns `built` if its parts fit together; otherwise an InputError names the part that does not fit."""
    algorithm, topology, problem = built.algorithm, built.topology, built.problem
    if algorithm.gamma is None:
        if "gamma" not in built.grid:
            raise InputError("algorithm.gamma", hint=" was left out: give it, or a list of values in [grid].")
        algorithm = combinations(algorithm, {"gamma": built.grid["gamma"][:1]})[0]
    if problem.n != topology.n:
        raise InputError("topology", hint=f" has {topology.n} nodes, but the problem has {problem.n}: make them equal.")
    if built.oracle is not None:
        with _about("oracle"):
            built.oracle.check(problem)
    with _about("algorithm"):
        validate(algorithm, problem, topology, built.oracle)
    if run.x0 == "optimum" and problem.solve is None:
        raise InputError("x0", run.x0, f", but {problem.name} has no known optimum: give 'zero'.")
    _, absent = choose_metrics(run.metrics, algorithm, problem, topology)
    if by in absent:
        raise InputError("by", by, f", but {absent[by]}: choose another measurement.")
    return built


@contextmanager
def _about(table: str) -> Iterator[None]:
    """Makes an error name the table of a run, unless it already names the oracle or the stepsize."""
    try:
        yield
    except InputError as error:
        if error.path == ("gamma",):
            error.path = ("algorithm", "gamma")
        elif error.path != ("oracle",):
            raise InputError(table, hint=f"{error}") from None
        raise
    except ValueError as error:
        raise InputError(table, hint=f"{error}") from None


def initial_point(run: RunSpec, built: BuiltRun) -> dict[str, Any]:
    """The initial point of a run, as options of `simulate`."""
    if run.x0 == "zero":
        return {}
    if built.problem.optimum is None:
        raise InputError("x0", run.x0, f", but {built.problem.name} has no known optimum: use 'zero'.")
    return {"x0": built.problem.optimum, "state0": _at_optimum(built, built.problem.optimum)}


def _at_optimum(built: BuiltRun, optimum: np.ndarray) -> dict[str, np.ndarray]:
    """The fixed point of the corrections: c_i = −∇f_i(x*) for a tracker, own_i = ∇f_i(x*) for Scaffold.

    Without it, a tracker that starts at x* would first move away.
    """
    gradients = built.problem.gradients(optimum)
    gradients = gradients - gradients.mean(axis=0)  # 0 up to rounding; the conserved sum must be exactly 0
    fields = built.algorithm.init(gradients, gradients, gradients)
    if "own" in fields:
        return {"own": gradients}
    return {"c": -gradients} if "c" in fields else {}
