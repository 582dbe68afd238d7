"""A run as data, from a TOML file or to one, and the objects that its names stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from stgt._internal.checks import InputError, did_you_mean, first_repeated
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.problems.tables import is_file
from stgt.simulator.instance import validate
from stgt.simulator.metrics import choose_metrics
from stgt.simulator.run import combinations
from stgt.study.spec import (
    EntryError,
    Named,
    build_algorithm,
    build_oracle,
    build_topology,
    in_file,
    read_spec,
)
from stgt.study.spec.build import about_argument, with_schedule
from stgt.study.spec.problem_data import problem_of
from stgt.topology import Topology

MOST_ROUNDS, MOST_SEEDS = 10**9, 10**6
Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, Field(strict=True)]


def _metric(name: str) -> str:
    try:
        METRICS.find(name, "metrics")
    except InputError as error:
        raise ValueError(error.hint) from None
    return name


def _metric_names(schema: dict[str, Any]) -> None:
    schema["enum"] = METRICS.names()


Metric = Annotated[str, AfterValidator(_metric), Field(json_schema_extra=_metric_names)]


class RunSpec(BaseModel):
    """One algorithm on one problem over one topology."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: str = Field(default="", description="What the run is called in tables and legends.")
    reading: str = Field(default="", description="Which reading of the paper it belongs to.")
    algorithm: Named = Field(description="The method and its hyper-parameters.")
    problem: Named = Field(description="What is minimised.")
    topology: Named = Field(description="Which nodes exchange messages, with which weights.")
    oracle: Named | None = Field(default=None, description="Where gradients come from; the problem's own if left out.")
    rounds: Whole = Field(default=700, ge=0, le=MOST_ROUNDS, description="Communication rounds.")
    seeds: int | tuple[int, ...] = Field(default=20, description="How many seeds, 0, 1, …, or a list of them.")
    metrics: tuple[Metric, ...] | None = Field(
        default=None, min_length=1, description="What to measure; all if left out."
    )
    engine: Literal["jax", "numpy", "simulator", "reference"] | None = Field(
        default=None, description="jax (or simulator), compiled, if left out; numpy (or reference), plain."
    )
    dtype: Literal["float32", "float64"] | None = Field(
        default=None, description="Precision; the engine's own if left out."
    )
    every: Whole = Field(default=1, ge=1, le=MOST_ROUNDS, description="Rounds between two rows of metrics.csv.")
    x0: Literal["zero", "optimum"] = Field(default="zero", description="The initial point.")
    target: Real | None = Field(default=None, gt=0, description="An error to reach.")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default={}, description="Values to try, by hyper-parameter."
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, given: Any) -> Any:
        one = [given] if isinstance(given, int) else given
        if not isinstance(one, list | tuple) or not one or any(type(seed) is not int for seed in one):
            raise ValueError("give a whole number of at least 1, or a list of seeds.")
        if one is given and not all(0 <= seed < 2**32 for seed in one):
            raise ValueError("give seeds from 0 to 2**32 - 1.")
        again = first_repeated(one)
        if again is not None:
            raise ValueError(f"it has {again} more than once: give each seed once.")
        if one is not given and not 1 <= given <= MOST_SEEDS:
            raise ValueError(f"give a whole number from 1 to {MOST_SEEDS}, or a list of seeds.")
        return given

    @property
    def seed_count(self) -> int:
        """How many seeds it has."""
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


class NetworkSpec(BaseModel):
    """The speeds behind modelled time."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    gradient: Real | None = Field(default=None, ge=0, description="Seconds that a node computes a gradient.")
    latency: Real | None = Field(default=None, ge=0, description="Seconds of latency a round.")
    bandwidth: Real | None = Field(default=None, gt=0, description="Bits a second of a node's link.")


class Spec(BaseModel):
    """What an experiment ran: its options and its runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(default="", description="What it is called, on pages.")
    experiment: str = Field(default="", description="Which of the library's experiments wrote it.")
    options: dict[str, Any] = Field(default={}, description="The options of that experiment.")
    by: Metric | None = Field(
        default=None,
        description="compare: the measurement that ranks the methods; residual, or loss where x* is not known.",
    )
    cost: Literal["rounds", "gradients", "messages", "floats", "seconds"] = Field(
        default="rounds", description="compare: what reaching the target is to cost as little of as possible."
    )
    largest: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="compare: is a larger value better?"
    )
    network: NetworkSpec | None = Field(default=None, description="For modelled time.")
    outputs: tuple[Literal["summary", "curves", "report"], ...] = Field(
        default=("summary", "curves"), description="What a finished study writes: summary.csv, curves.png, report.html."
    )
    runs: tuple[RunSpec, ...] = Field(min_length=1, description="The runs.")


@dataclass(frozen=True, eq=False)
class BuiltRun:
    """The objects that a `RunSpec` names.

    Attributes:
        algorithm, problem, topology: its parts.
        oracle: None if the spec gives none.
        grid: the values to try of the hyper-parameters that the algorithm has.
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
    """The objects of all runs of a spec, checked to fit together.

    Args:
        spec: what `load_spec` has read.
        path: of its file, which a ValueError names beside the entry.
        data_dir: folder with LIBSVM's files.
    """
    found = []
    for index, run in enumerate(spec.runs):
        with in_file(path, spec.runs, index):
            found.append(_validated(build_run(run, data_dir), run, spec.by))
    names = sorted({field.name for built in found for field in fields(built.algorithm)})
    for index, run in enumerate(spec.runs):
        for name in run.grid:
            if name not in names:
                with in_file(path, spec.runs, index):
                    known = ", ".join(names)
                    raise EntryError(("grid", name), f" is not known: choose from {known}{did_you_mean(name, names)}")
    return found


def load_spec(path: Path, sets: Iterable[str] = ()) -> Spec:
    """Reads a TOML file: the tables [algorithm], [problem], [topology] of one run, or several runs as [[runs]].

    Args:
        path: of the file; paths in it are relative to its folder, and absolute in what is returned.
        sets: "key=value" each, instead of the entries of the file; see `stgt.study.spec.read_spec`.
    """
    spec = read_spec(path, Spec, sets)
    if spec.cost != "rounds" and any(run.target is None for run in spec.runs):
        raise ValueError(f"spec {path}: cost={spec.cost!r} without a target: give target = …, an error to reach.")
    folder = path.resolve().parent
    return spec.model_copy(update={"runs": tuple(_absolute(run, folder) for run in spec.runs)})


def _absolute(run: RunSpec, folder: Path) -> RunSpec:
    """The run with the paths of its files resolved."""
    problem, topology = run.problem.model_dump(), run.topology.model_dump()
    if is_file(problem.get("data")):
        problem["data"] = str(folder / problem["data"])
    return run.model_copy(
        update={"problem": Named(**problem), "topology": Named(**_with_absolute_files(topology, folder))}
    )


def _with_absolute_files(value: Any, folder: Path) -> Any:
    """A topology's table, with the files of those that are given by a file resolved."""
    if isinstance(value, list):
        return [_with_absolute_files(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str(folder / one) if key in ("edges", "W") and isinstance(one, str) else _with_absolute_files(one, folder)
        for key, one in value.items()
    }


def _grid(run: RunSpec, algorithm: Algorithm) -> dict[str, list[Any]]:
    """The values to try of what the algorithm has; an EntryError if one of them cannot be."""
    names = [field.name for field in fields(algorithm)]
    grid = {
        name: [with_schedule(value, f"grid.{name}") for value in values]
        for name, values in run.grid.items()
        if name in names
    }
    if run.grid and not grid:
        first = next(iter(run.grid))
        words = f": {algorithm.label} has {', '.join(names)}{did_you_mean(first, names)}"
        raise EntryError(("grid", first), words)
    for name, values in grid.items():
        try:
            combinations(algorithm, {name: values})
        except (TypeError, ValueError) as error:
            raise EntryError(("grid", name), f": {error}") from None
    return grid


def _validated(built: BuiltRun, run: RunSpec, by: str | None) -> BuiltRun:
    """The parts, if they fit together; an EntryError names what does not."""
    algorithm = built.algorithm
    if algorithm.gamma is None:
        if "gamma" not in built.grid:
            raise EntryError(("algorithm", "gamma"), " was left out: give it, or a list of values in [grid].")
        algorithm = combinations(algorithm, {"gamma": built.grid["gamma"][:1]})[0]
    if built.problem.n != built.topology.n:
        raise EntryError(
            ("topology",), f" has {built.topology.n} nodes, but the problem has {built.problem.n}: make them equal."
        )
    if built.oracle is not None:
        try:
            built.oracle.check(built.problem)
        except ValueError as error:
            raise about_argument(error, (), ("oracle",)) or EntryError(("oracle",), f": {error}") from None
    try:
        validate(algorithm, built.problem, built.topology, built.oracle)
    except ValueError as error:
        gamma = about_argument(error, ("algorithm",), ("gamma",))
        raise gamma or about_argument(error, (), ("oracle",)) or EntryError(("algorithm",), f": {error}") from None
    if run.x0 == "optimum" and built.problem.solve is None:
        raise EntryError(("x0",), f"='optimum', but {built.problem.name} has no known optimum: give 'zero'.")
    try:
        _, absent = choose_metrics(run.metrics, algorithm, built.problem, built.topology)
    except ValueError as error:
        raise about_argument(error, (), ("metrics",)) or error from None
    if by in absent:
        raise EntryError(("by",), f"={by!r}, but {absent[by]}: judge by something else.")
    return built


def initial_point(run: RunSpec, built: BuiltRun) -> dict[str, Any]:
    """The initial point of a run, as options of `simulate`."""
    if run.x0 == "zero":
        return {}
    if built.problem.optimum is None:
        raise ValueError(f"x0 = 'optimum', but {built.problem.name} has no known optimum: use 'zero'.")
    return {"x0": built.problem.optimum, "state0": _at_optimum(built, built.problem.optimum)}


def _at_optimum(built: BuiltRun, optimum: np.ndarray) -> dict[str, np.ndarray]:
    """The fixed point of the corrections: c_i = −∇f_i(x*) for a tracker, own_i = ∇f_i(x*) for Scaffold.

    A tracker that starts at x* without it would first move away.
    """
    gradients = built.problem.gradients(optimum)
    gradients = gradients - gradients.mean(axis=0)  # 0 but for rounding, and what is conserved must be
    fields = built.algorithm.init(gradients, gradients, gradients)
    if "own" in fields:
        return {"own": gradients}
    return {"c": -gradients} if "c" in fields else {}
