"""The problem that a spec names, with data from your own files or from LIBSVM's data sets."""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stgt import problems
from stgt._internal.checks import InputError, check_count, check_flag, under
from stgt._internal.serialize import call, unknown_argument
from stgt.problems.base import Problem
from stgt.problems.tables import DataTable, is_file, load_table, prepared
from stgt.study.spec.build import find_problem
from stgt.study.spec.load import Named

OF_FILES = ("label", "node", "drop")
OF_DATA = ("standardise", "intercept")


def problem_of(given: Named, data_dir: Path | None = None) -> Problem:
    """The named problem. If it takes `features` and `labels`, the table may give `data` instead.

    With `data`, you can also give the options of `stgt.problems.load_table`, and `rows` for one of LIBSVM's data sets.
    """
    arguments = given.model_dump()
    return _problem(json.dumps(arguments, sort_keys=True), data_dir, _stamp(arguments.get("data")))


def _stamp(data: Any) -> tuple[int, int] | None:
    """A value that changes when the file changes."""
    try:
        found = Path(data).stat() if is_file(data) else None
    except (OSError, ValueError):
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _problem(text: str, data_dir: Path | None, stamp: tuple[int, int] | None) -> Problem:
    arguments = json.loads(text)
    name = arguments.pop("name")
    with under("problem"):
        function = find_problem(name)
        taken = inspect.signature(function).parameters
        if not {"features", "labels"} <= set(taken) or "data" in taken or "features" in arguments:
            return call(function, arguments, name)
        given = _with_data(name, arguments, taken, data_dir)
        try:
            return call(function, given, name)
        except InputError as error:
            if error.path[:1] not in (("features",), ("labels",)):
                raise
            raise InputError("data", hint=f"{error}") from None


def _with_data(name: str, arguments: dict[str, Any], taken: Any, data_dir: Path | None) -> dict[str, Any]:
    """The arguments with features and labels instead of `data` and its options."""
    options = {key: arguments.pop(key) for key in (*OF_FILES, *OF_DATA) if key in arguments and key not in taken}
    options |= {key: arguments[key] for key in ("test", "seed") if key in arguments and "test" in taken}
    data = arguments.pop("data", ...)
    if not isinstance(data, str):
        wanted = "a file, such as data = 'own.csv', or a data set, such as data = 'a9a'."
        raise InputError("data", data, f" was left out: {name} needs {wanted}" if data is ... else f"give {wanted}")
    for key in arguments:
        if key not in (*taken, "rows"):
            known = ["data", *OF_FILES, *OF_DATA, "rows", *(one for one in taken if one not in ("features", "labels"))]
            raise unknown_argument(key, name, known)
    if is_file(data):
        if "rows" in arguments:
            raise InputError("rows", hint="it is for LIBSVM's data sets only; leave it out.")
        table = load_table(data, **options)
    else:
        table = _known_set(data, arguments.pop("rows", None), data_dir, **options)
    if table.parts is not None:
        if "partition" in arguments or "partition" not in taken:
            raise InputError("partition", hint=f"node = {options['node']!r} defines the partition; leave it out.")
        if arguments.pop("n", len(table.parts)) != len(table.parts):
            raise InputError("n", hint=f"node = {options['node']!r} gives {len(table.parts)} nodes; leave n out.")
        arguments["partition"] = table.parts
    return {"features": table.features, "labels": table.labels, **arguments}


def _known_set(
    data: str,
    rows: Any,
    data_dir: Path | None,
    standardise: bool = False,
    intercept: bool = False,
    test: float = 0.0,
    seed: int = 0,
    **columns: Any,
) -> DataTable:
    """One of LIBSVM's data sets, or `rows` of its rows."""
    for key in columns:
        raise InputError((key,), hint="it is for a file of your own only; leave it out.")
    rows = None if rows is None else check_count(rows, "rows", 2)
    try:
        features, labels = _data(data, rows, data_dir)
    except InputError as error:
        if error.path != ("data_dir",):
            raise
        raise InputError("data", data, error.text({"data_dir": "{other}"}), other="data_dir") from None
    table = DataTable(features, labels, tuple(str(column + 1) for column in range(features.shape[1])))
    return prepared(table, data, check_flag(standardise, "standardise"), check_flag(intercept, "intercept"), test, seed)


@lru_cache(maxsize=4)
def _data(name: str, rows: int | None, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """A data set, or `rows` of its rows: half of them of each label, drawn at random with a fixed seed."""
    features, labels = problems.load_libsvm(name, data_dir)
    if rows is None:
        return features, labels
    half, rng = rows // 2, np.random.default_rng(0)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if len(members) != 2:
        raise InputError("rows", rows, f"{name} has {len(members)} different labels, not two; leave rows out.")
    fewest = min(len(member) for member in members)
    if half > fewest:
        raise InputError("rows", rows, f"{name} has {fewest} rows of its rarer label; give at most {2 * fewest}.")
    chosen = np.sort(np.concatenate([rng.choice(member, half, replace=False) for member in members]))
    return features[chosen], labels[chosen]
