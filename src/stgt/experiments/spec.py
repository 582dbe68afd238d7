"""A run as data: which algorithm, problem and topology by name, from a TOML file or to one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stgt import problems
from stgt.algorithms import Algorithm
from stgt.checks import check_count
from stgt.problems.base import Problem
from stgt.specs import Named, make_algorithm, make_problem, make_topology, read_spec
from stgt.topology import Topology


class RunSpec(BaseModel):
    """One algorithm on one problem over one topology."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: str = ""
    reading: str = ""
    algorithm: Named
    problem: Named
    topology: Named
    rounds: int = Field(default=700, ge=0)
    seeds: int = Field(default=20, ge=1)
    x0: Literal["zero", "optimum"] = "zero"
    target: float | None = Field(default=None, gt=0)


class Spec(BaseModel):
    """What an experiment ran: its options and its runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    experiment: str = ""
    options: dict[str, Any] = {}
    runs: tuple[RunSpec, ...] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class Made:
    """The objects that a `RunSpec` names."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology

    @property
    def objects(self) -> tuple[Algorithm, Problem, Topology]:
        return self.algorithm, self.problem, self.topology


def make(run: RunSpec, data_dir: Path | None = None) -> Made:
    """The algorithm, problem and topology of a run; a ValueError names the entry to change."""
    problem = _problem(json.dumps(run.problem.model_dump(), sort_keys=True), data_dir)
    topology = make_topology(run.topology.model_dump(), problem.n)
    return Made(make_algorithm(run.algorithm), problem, topology)


def load_spec(path: Path) -> Spec:
    """Reads a TOML file: the tables [algorithm], [problem], [topology] of one run, or several runs as [[runs]]."""
    return read_spec(path, Spec)


@lru_cache(maxsize=8)
def _problem(text: str, data_dir: Path | None) -> Problem:
    arguments = json.loads(text)
    name = arguments.pop("name")
    if name == "logistic" and "features" not in arguments:
        chosen = arguments.pop("data", None)
        if not isinstance(chosen, str):
            raise ValueError("problem.data was left out: logistic needs the name of a data set, such as data = 'a9a'.")
        rows = arguments.pop("rows", None)
        features, labels = _data(chosen, None if rows is None else check_count(rows, "problem.rows", 2), data_dir)
        arguments = {"features": features, "labels": labels, **arguments}
    return make_problem(name, arguments)


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
