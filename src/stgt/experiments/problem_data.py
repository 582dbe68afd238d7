"""The problem that a spec names, with data from the user's files or from LIBSVM's."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from stgt import problems
from stgt.checks import check_count
from stgt.problems.base import Problem
from stgt.specs import Named, make_problem


def problem_of(given: Named, data_dir: Path | None = None) -> Problem:
    """The problem that a table names, with its data."""
    return _problem(json.dumps(given.model_dump(), sort_keys=True), data_dir)


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
