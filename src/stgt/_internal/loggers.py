"""Loggers of measurements: TensorBoard, Weights & Biases, MLflow, a CSV file, a function.

They are recognised by their methods and not imported. Standard library only.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stgt._internal.checks import InputError, quoted
from stgt._internal.files import check_writable, write_table

Log = Callable[[dict[str, float], int], object]
ROUND = "round"  # the first column of a CSV file
AXIS = "stgt/round"  # the x-axis of all other values in W&B


class Logger(Protocol):
    """Takes measurements by name; `step` is the round at whose start they were made."""

    def log(self, values: Mapping[str, float], step: int) -> object: ...


class SharedLogger:
    """A `Logger` that several threads may use. If it fails, its values are lost and the run continues."""

    def __init__(self, function: Log, prefix: str = "", lock: Any = None):
        self._function, self._prefix, self._lock = function, prefix, lock or threading.Lock()

    def log(self, values: Mapping[str, float], step: int) -> None:
        with self._lock:
            try:
                self._function({f"{self._prefix}{name}": float(value) for name, value in values.items()}, step)
            except Exception as error:
                warnings.warn(
                    f"logger failed ({quoted(error)}): these values are lost, the run continues.", stacklevel=2
                )

    def under(self, label: str) -> SharedLogger:
        """The same logger, with a label in front of every name."""
        return SharedLogger(self._function, f"{self._prefix}{label}/", self._lock)


def as_logger(given: Any) -> SharedLogger | None:
    """Makes a logger of what was given as `logger=`; raises InputError if nothing can be logged to it."""
    return given if given is None or isinstance(given, SharedLogger) else SharedLogger(_function(given))


def _function(given: Any) -> Log:
    if isinstance(given, str | Path):
        if Path(given).suffix == ".csv":
            return CsvLogger(given).log
    elif not isinstance(given, type):
        if _takes(getattr(given, "add_scalar", None), "name", 0.0, 0):
            return partial(_to_tensorboard, given)
        if _takes(getattr(given, "log_metrics", None), {}, step=0):
            return _mlflow(given) if hasattr(given, "active_run") else partial(_call, given.log_metrics)
        if _takes(getattr(given, "log", None), {}, step=0):
            return _wandb(given) if hasattr(given, "define_metric") else partial(_call, given.log)
        if _takes(given, {}, 0):
            return given
    raise InputError(
        "logger",
        given,
        "give a TensorBoard SummaryWriter, a W&B run, mlflow, a path that ends in .csv, or a function of (values, "
        "step).",
    )


def _takes(function: Any, *arguments: Any, **named: Any) -> bool:
    """Does the function's signature accept these arguments?"""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # a function written in C has no signature
        return True
    return True


def _call(function: Any, values: dict[str, float], step: int) -> None:
    function(values, step=step)


def _to_tensorboard(writer: Any, values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def _wandb(run: Any) -> Log:
    """Logs every call as W&B's next step, and declares the round as the x-axis.

    W&B drops values for a step that is in its past. Your own logging may count batches, and methods may run in
    parallel, so the round cannot be W&B's step.
    """
    run.define_metric(AXIS, hidden=True)
    known = {AXIS}

    def log(values: dict[str, float], step: int) -> None:
        for name in values:
            if name not in known:
                run.define_metric(name, step_metric=AXIS)
                known.add(name)
        run.log({**values, AXIS: step})

    return log


def _mlflow(mlflow: Any) -> Log:
    """Logs into the active MLflow run. Each thread has its own; without one, MLflow starts a run as it usually does."""
    run = (mlflow.active_run() or mlflow.start_run()).info.run_id

    def log(values: dict[str, float], step: int) -> None:
        here = mlflow.active_run()
        elsewhere = {} if here is not None and here.info.run_id == run else {"run_id": run}  # an explicit id is slower
        allowed = {re.sub(r"[^/\w.\- :]", "_", name): value for name, value in values.items()}
        mlflow.log_metrics(allowed, step=step, **elsewhere)

    return log


class CsvLogger:
    """A table with a row for each call and a column for each name, readable at any moment.

    A later process continues the file: it replaces the rows from the first round that it logs on. Values logged twice
    by one process are replaced too.
    """

    def __init__(self, path: Path | str):
        self._path = Path(path).expanduser()
        self._names: list[str] | None = None  # the columns, once they are known
        self._last: dict[str, int] = {}  # the last round at which each name was logged
        if self._path.is_dir():
            raise InputError("logger", self._path, " is a folder: give the path of a file.")
        try:
            check_writable(self._path.parent)
            self._rows()
        except OSError as error:
            raise InputError(
                "logger", self._path, f" cannot be written ({error.strerror}): give another path."
            ) from None
        except (ValueError, csv.Error):
            raise InputError("logger", self._path, " is not a log of stgt: give another path.") from None

    def log(self, values: Mapping[str, float], step: int) -> None:
        try:
            if self._names is None or not all(self._last.get(name, step) < step for name in values):
                self._put(values, step)
            else:
                self._append(values, step, self._names)
        except OSError:
            self._names = None  # a row may have been cut off: read the file again
            raise
        self._last |= dict.fromkeys(values, step)

    def _append(self, values: Mapping[str, float], step: int, names: list[str]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, names, lineterminator="\n").writerow({ROUND: step, **values})
        with self._path.open("r+", encoding="utf-8", newline="") as stream:
            stream.seek(0, io.SEEK_END)
            stream.write(line.getvalue())

    def _put(self, values: Mapping[str, float], step: int) -> None:
        """Rewrites the table: for this process's first row, for a new column, or if a round repeats."""
        rows = self._rows()
        gone = set(values) if self._last else {name for row in rows for name in row if name != ROUND}
        for row in rows:
            if int(row[ROUND]) >= step:
                row |= dict.fromkeys(gone & set(row), "")
        rows = [row for row in rows if any(value for name, value in row.items() if name != ROUND)]
        rows.append({ROUND: step, **values})
        write_table(self._path, rows)
        self._names = list(dict.fromkeys(name for row in rows for name in row))

    def _rows(self) -> list[dict[str, Any]]:
        """The rows of the file as text; an incomplete last row is dropped."""
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
        table = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
        rows = list(table)
        known = (table.fieldnames or [""])[0] == ROUND
        if text and not (known and all(row[ROUND].isdecimal() and None not in row for row in rows)):
            raise ValueError(f"{self._path} has no column named round.")
        return rows
