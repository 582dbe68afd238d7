"""Your own data: features and labels from CSV, npz or LIBSVM files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_flag, did_you_mean
from stgt._internal.files import is_number, read_rows, readable
from stgt.problems.datasets import check_finite, read_libsvm
from stgt.problems.partition import held_out

SPARSE = (".libsvm", ".svm", ".txt", ".bz2")
FORMATS = (".csv", ".npz", *SPARSE)
MISSING = ("", "na", "nan", "null", "none", "?")


@dataclass(frozen=True, eq=False)
class DataTable:
    """Rows of data.

    Attributes:
        features: (rows, p), finite numbers.
        labels: (rows,), numbers; or words if one of them is not a number.
        columns: the names of the features, for messages.
        parts: the rows of each node, if the file has a column for the node.
    """

    features: np.ndarray
    labels: np.ndarray
    columns: tuple[str, ...]
    parts: list[np.ndarray] | None = None


def is_file(data: Any) -> bool:
    """Is this the path of a file, and not the name of a data set?"""
    return isinstance(data, str) and (bool(Path(data).suffix) or "/" in data or "\\" in data)


def load_table(
    data: Path | str,
    label: str | int | None = None,
    node: str | int | None = None,
    standardise: bool = False,
    intercept: bool = False,
    test: float = 0.0,
    seed: int = 0,
    drop: Sequence[str | int] = (),
) -> DataTable:
    """Reads features and labels from a file. An error names the row and column of a missing, non-finite or wrong cell.

    Args:
        data: .csv, with a header or without, its cells separated by commas, semicolons or tabs; .npz with the arrays
            `features` (rows, p) and `labels` (rows,); or LIBSVM's format, in .libsvm, .svm, .txt or .bz2.
        label: of a CSV file, the column with the labels, by its name or its number from 0; by default the last.
        node: the column of a CSV file, or the array of an npz file, with the node that holds the row.
        standardise: give every column of the features mean 0 and variance 1.
        intercept: add a column of ones.
        test, seed: those of the problem that the table is for: `standardise` then ignores its test samples.
        drop: columns of a CSV file that are not read, by their names or numbers, such as ["id", "date"].

    Returns:
        The rows. Nodes are in the order of their entries in `node`: numbers by size, other names alphabetically.
    """
    path = Path(data)
    standardise, intercept = check_flag(standardise, "standardise"), check_flag(intercept, "intercept")
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise InputError("data", path, f"give a file that ends in {', '.join(FORMATS)}.")
    if kind != ".csv" and label is not None:
        raise InputError("label", label, "only a CSV file has columns to choose from; leave it out.")
    if kind != ".csv" and drop:
        raise InputError("drop", drop, "only a CSV file has columns to choose from; leave it out.")
    if kind in SPARSE and node is not None:
        raise InputError("node", node, "a file in LIBSVM's format does not say who holds its rows; leave it out.")
    with readable(path, "data"):
        table = (
            _csv(path, label, node, drop) if kind == ".csv" else _npz(path, node) if kind == ".npz" else _libsvm(path)
        )
    return prepared(table, f"data {path}", standardise, intercept, test, seed)


def prepared(
    table: DataTable, data: str, standardise: bool, intercept: bool, test: float = 0.0, seed: int = 0
) -> DataTable:
    """The table with its features standardised, and with a column of ones, if you ask for it.

    Mean and variance are computed without the rows that `test` and `seed` hold out.
    """
    features, columns = table.features, table.columns
    if standardise:
        train = np.delete(features, held_out(len(features), test, seed), axis=0) if test else features
        spread = train.std(axis=0)
        constant = np.flatnonzero(np.ptp(train, axis=0) == 0)
        if len(constant):
            raise ValueError(
                f"standardise=true: column {columns[constant[0]]} of {data} has one value in all rows; leave it out "
                "(of a CSV file, by `drop`), and give intercept = true for a column of ones."
            )
        features = (features - train.mean(axis=0)) / spread
    if intercept:
        features, columns = np.column_stack([features, np.ones(len(features))]), (*columns, "intercept")
    return replace(table, features=features, columns=columns)


# -- CSV ----------------------------------------------------------------------------------------------------------


def _csv(path: Path, label: str | int | None, node: str | int | None, drop: Sequence[str | int]) -> DataTable:
    lines, rows = read_rows(path, "data")
    if not rows:
        raise InputError("data", path, " is empty: give a row for each sample.")
    names = [cell.strip() for cell in rows[0]] if not any(is_number(cell) for cell in rows[0]) else None
    if names is not None:
        lines, rows = lines[1:], rows[1:]
        if not rows:
            raise InputError("data", path, " has a header and no rows: give a row for each sample.")
    width = len(names or rows[0])
    shown = names or [str(column) for column in range(width)]
    if isinstance(drop, str) or not isinstance(drop, Sequence):
        raise InputError("drop", drop, "give a list of columns, such as ['id', 'date'].")
    dropped = [_column(one, "drop", names, width, path) for one in drop]
    last = max((column for column in range(width) if column not in dropped), default=0)
    labels_at = _column(label, "label", names, width, path) if label is not None else last
    node_at = _column(node, "node", names, width, path) if node is not None else None
    if node_at == labels_at:
        raise InputError("node", node, f"column {shown[labels_at]} holds the labels; give another.")
    if used := {labels_at, node_at} & {*dropped}:
        raise InputError("drop", drop, f"column {shown[used.pop()]} is the label or the node; do not drop it.")
    features_at = [column for column in range(width) if column not in (labels_at, node_at, *dropped)]
    if not features_at:
        raise InputError("data", path, " has only a column of labels: give features.")
    columns = list(zip(*rows, strict=True))

    def numbers(column: int) -> np.ndarray:
        return _numbers(columns[column], lines, shown[column], path)

    features = np.column_stack([numbers(column) for column in features_at])
    labels = _words_or_numbers(columns[labels_at], lines, shown[labels_at], path)
    parts = None if node_at is None else _parts(_words_or_numbers(columns[node_at], lines, shown[node_at], path))
    return DataTable(features, labels, tuple(f"{shown[column]!r}" for column in features_at), parts)


def _column(given: Any, argument: str, names: Sequence[str] | None, width: int, path: Path) -> int:
    """The number of a column that is given by its name or number."""
    if isinstance(given, int) and not isinstance(given, bool):
        if 0 <= given < width:
            return given
        raise InputError(argument, given, f"{path} has columns 0 to {width - 1}.")
    if names is None:
        raise InputError(argument, given, f"{path} has no header; give a column's number, 0 to {width - 1}.")
    if given not in names:
        raise InputError(
            argument, given, f"the columns of {path} are {', '.join(map(repr, names))}{did_you_mean(given, names)}"
        )
    if names.count(given) > 1:
        raise InputError(argument, given, f"several columns of {path} are called so; give the column's number.")
    return names.index(given)


def _numbers(cells: Sequence[str], lines: Sequence[int], column: str, path: Path) -> np.ndarray:
    """The numbers of a column; a ValueError names the first cell that is not a number."""
    found = np.empty(len(cells))
    for index, (line, cell) in enumerate(zip(lines, cells, strict=True)):
        _check_there(cell, line, column, path)
        if not is_number(cell):
            raise InputError(
                "data",
                path,
                f"column {column!r} has {cell.strip()[:40]!r} in line {line}; features are numbers: write it as "
                "numbers, or leave the column out by `drop`.",
            )
        found[index] = float(cell)
        if not math.isfinite(found[index]):
            raise InputError(
                "data", path, f"column {column!r} has {cell.strip()} in line {line}; give a finite number."
            )
    return found


def _words_or_numbers(cells: Sequence[str], lines: Sequence[int], column: str, path: Path) -> np.ndarray:
    for line, cell in zip(lines, cells, strict=True):
        _check_there(cell, line, column, path)
    if all(is_number(cell) for cell in cells):
        return _numbers(cells, lines, column, path)
    return np.array([cell.strip() for cell in cells])


def _check_there(cell: str, line: int, column: str, path: Path) -> None:
    if cell.strip().lower() in MISSING:
        words = f"nothing but {cell.strip()!r}" if cell.strip() else "nothing"
        raise InputError(
            "data", path, f"column {column!r} has {words} in line {line}; fill the cell, or leave the row out."
        )


def _parts(holders: np.ndarray) -> list[np.ndarray]:
    """The rows of each node, in the order of the nodes' numbers or names."""
    return [np.flatnonzero(holders == holder) for holder in np.unique(holders)]


# -- arrays and LIBSVM --------------------------------------------------------------------------------------------


def _npz(path: Path, node: Any) -> DataTable:
    arrays = {}
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
            for name in ("features", "labels", *([] if node is None else [node])):
                if name not in found.files:
                    have = ", ".join(map(repr, found.files)) or "none"
                    raise InputError("node" if name == node else "data", name, f"no array of {path}, which has {have}.")
                arrays[name] = found[name]
    except InputError:
        raise
    except ValueError as error:
        raise InputError("data", path, f" is not npz with plain arrays ({error}): write it with np.savez.") from None
    features, labels = arrays["features"], arrays["labels"]
    if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "biuf":
        raise InputError(
            "data", path, f"features has shape {features.shape} and type {features.dtype}; give (rows, p)."
        )
    for name, array in arrays.items():
        if name != "features" and array.shape != (len(features),):
            raise InputError(
                "data", path, f"{name} has shape {array.shape}; give ({len(features)},), one for each row."
            )
        check_finite(array, f"data {path}: {name}")
    columns = tuple(str(column) for column in range(features.shape[1]))
    return DataTable(features.astype(np.float64), labels, columns, None if node is None else _parts(arrays[node]))


def _libsvm(path: Path) -> DataTable:
    features, labels = read_libsvm(path, "data")
    return DataTable(features, labels, tuple(str(column + 1) for column in range(features.shape[1])))
