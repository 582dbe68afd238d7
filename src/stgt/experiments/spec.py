"""A run as data: which algorithm, problem and topology by name, from a TOML file or to one."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stgt import problems
from stgt.algorithms import ALGORITHMS, Algorithm
from stgt.checks import check_choice, check_count
from stgt.problems.base import Problem
from stgt.topology import CONSTRUCTORS, Topology

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "ridge": problems.ridge,
    "Quadratic": problems.Quadratic,
    "logistic": problems.logistic,
}


class Part(BaseModel):
    """A name and the arguments that go with it, such as {name = "exponential", neighbors = 3}."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Run(BaseModel):
    """One algorithm on one problem over one topology."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: str = ""
    reading: str = ""
    algorithm: Part
    problem: Part
    topology: Part
    rounds: int = Field(default=700, ge=0)
    seeds: int = Field(default=20, ge=1)
    x0: Literal["zero", "optimum"] = "zero"
    target: float | None = Field(default=None, gt=0)


class Spec(BaseModel):
    """What an experiment ran: its options and its runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    experiment: str = ""
    options: dict[str, Any] = {}
    runs: tuple[Run, ...] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class Made:
    """The objects that a `Run` names."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology

    @property
    def objects(self) -> tuple[Algorithm, Problem, Topology]:
        return self.algorithm, self.problem, self.topology


def make(run: Run, data_dir: Path | None = None) -> Made:
    """The algorithm, problem and topology of a run; a ValueError names the entry to change."""
    problem = _problem(json.dumps(run.problem.model_dump(), sort_keys=True), data_dir)
    topology = _topology(run.topology.model_dump(), problem.n)
    check_choice(run.algorithm.name, "algorithm.name", ALGORITHMS)
    algorithm = _call(ALGORITHMS[run.algorithm.name], run.algorithm.arguments, "algorithm", run.algorithm.name)
    return Made(algorithm, problem, topology)


def load_spec(path: Path) -> Spec:
    """Reads a TOML file: the tables [algorithm], [problem], [topology] of one run, or several runs as [[runs]]."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"spec {path} cannot be read ({error.strerror}): give the path of a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"spec {path} is not TOML: {error}.") from None
    if "runs" not in given:
        given = {"runs": [given]}
    try:
        return Spec.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"] if step not in ("runs", 0)) or "the file"
        raise ValueError(f"spec {path}: {where}: {first['msg'].lower()}.") from None


def spec_text(spec: Spec) -> str:
    """The spec as TOML, which `load_spec` reads back."""
    return tomli_w.dumps(spec.model_dump(exclude_defaults=True))


@lru_cache(maxsize=8)
def _problem(text: str, data_dir: Path | None) -> Problem:
    arguments = json.loads(text)
    name = check_choice(arguments.pop("name"), "problem.name", PROBLEMS)
    if name == "logistic" and "features" not in arguments:
        chosen = arguments.pop("data", None)
        if not isinstance(chosen, str):
            raise ValueError("problem.data was left out: logistic needs the name of a data set, such as data = 'a9a'.")
        rows = arguments.pop("rows", None)
        features, labels = _data(chosen, None if rows is None else check_count(rows, "problem.rows", 2), data_dir)
        arguments = {"features": features, "labels": labels, **arguments}
    return _call(PROBLEMS[name], arguments, "problem", name)


@lru_cache(maxsize=4)
def _data(name: str, rows: int | None, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """A data set, or `rows` of its rows: half of each label, drawn at random, always the same."""
    features, labels = problems.load_libsvm(name, data_dir)
    if rows is None:
        return features, labels
    half, rng = rows // 2, np.random.default_rng(0)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    fewest = min(len(member) for member in members)
    if half > fewest:
        raise ValueError(
            f"problem.rows={rows}: {name} has {fewest} rows of its rarer label; give at most {2 * fewest}."
        )
    chosen = np.sort(np.concatenate([rng.choice(member, half, replace=False) for member in members]))
    return features[chosen], labels[chosen]


def _topology(given: Mapping[str, Any], n: int) -> Topology:
    arguments = dict(given)
    allowed = [name for name in CONSTRUCTORS if name != "from_networkx"]
    name = check_choice(arguments.pop("name"), "topology.name", allowed)
    arguments = {
        key: _topology(value, n) if isinstance(value, Mapping) and "name" in value else value
        for key, value in arguments.items()
    }
    if "n" in inspect.signature(CONSTRUCTORS[name]).parameters:
        arguments.setdefault("n", n)
    return _call(CONSTRUCTORS[name], arguments, "topology", name)


def _call(function: Callable[..., Any], arguments: dict[str, Any], table: str, name: str) -> Any:
    allowed = inspect.signature(function).parameters
    unknown = sorted(set(arguments) - set(allowed))
    if unknown:
        raise ValueError(f"{table}.{unknown[0]}: {name} takes {', '.join(allowed)}.")
    missing = [key for key, one in allowed.items() if one.default is one.empty and key not in arguments]
    if missing:
        raise ValueError(f"{table}.{missing[0]} was left out: {name} needs it.")
    try:
        return function(**arguments)
    except TypeError as error:
        raise ValueError(f"{table}: {name} does not take these values ({error}).") from None
