"""The outcome of an experiment: rows of numbers, tested claims and figures; and the files with them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from stgt.study import Spec, spec_text
from stgt.study.report import Figure, draw

TableRow = dict[str, Any]  # a row of a table, by the names of its columns
RATES = ("gamma", "lr")
NAMES = ("reading", "setting", "data", "partition", "method", "form", "graph", *RATES)  # columns that distinguish runs


@dataclass(frozen=True)
class Claim:
    """A claim under a reading, with the numbers that decide it."""

    id: str
    claim: str
    reading: str
    holds: bool
    figures: dict[str, Any]
    picture: str = ""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The whole result. `rows` is the tidy table; `curves` has one row for each run and round."""

    spec: Any  # a `stgt.study.Spec`, or that of trainings
    rows: list[TableRow]
    claims: list[Claim]
    figures: list[Figure]
    curves: list[TableRow] = field(default_factory=list)


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes figures, results.csv, curves.csv, spec.toml and claims.json, all atomically; claims.json last.

    Returns:
        The files written.
    """
    written = [path for figure in outcome.figures for path in draw(figure, folder / figure.name)]
    written.append(write_table(folder / "results.csv", outcome.rows))
    if outcome.curves:
        written.append(write_table(folder / "curves.csv", outcome.curves))
    written.append(_write(folder / "spec.toml", spec_text(outcome.spec)))
    claims = json.dumps([asdict(claim) for claim in outcome.claims], indent=2, ensure_ascii=False, allow_nan=False)
    written.append(_write(folder / "claims.json", claims + "\n"))
    return written


def write_table(path: Path, rows: Sequence[TableRow]) -> Path:
    """Writes rows as CSV. The columns are all names that occur, in the order of their first occurrence."""
    text = StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return _write(path, text.getvalue())


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def lost_at(values: np.ndarray) -> np.ndarray:
    """The first round at which a measurement, (seeds, rounds), is not finite, for each seed; −1 if there is none."""
    lost = ~np.isfinite(values)
    return np.where(lost.any(axis=1), lost.argmax(axis=1), -1)


def divergences(outcome: Outcome) -> list[str]:
    """A sentence for each setting in which a run diverged: how many did, and from which round on."""
    if isinstance(outcome.spec, Spec):
        rows = [row for row in outcome.rows if "diverged_at" in row]
    else:
        rows = _ends_of_training(outcome.curves)
    found: dict[str, list[int | None]] = {}
    for row in rows:
        words = ", ".join(f"{key} {row[key]:g}" if key in RATES else row[key] for key in NAMES if row.get(key))
        found.setdefault(words, []).append(row["diverged_at"])
    sentences = []
    for words, rounds in found.items():
        lost = [r for r in rounds if r is not None]
        if lost:
            of = f"{len(lost)} of {len(rounds)} {'run' if len(rounds) == 1 else 'runs'}"
            sentences.append(f"{words}: {of} diverged, from round {min(lost):g} on.")
    return sentences


def _ends_of_training(curves: list[TableRow]) -> list[TableRow]:
    """A row for each training run, with the first measurement whose loss is not finite."""
    runs: dict[tuple[Any, ...], TableRow] = {}
    for row in curves:
        run = runs.setdefault((row["method"], row["lr"], row["seed"]), {**row, "diverged_at": None})
        if run["diverged_at"] is None and not np.isfinite(row["train_loss"]):
            run["diverged_at"] = row["round"]
    return list(runs.values())


def finite(value: Any) -> float | None:
    """A number for a file; None if it is not a number or not finite, because JSON has no infinity."""
    return float(value) if value is not None and np.isfinite(value) else None
