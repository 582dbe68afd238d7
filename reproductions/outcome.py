"""What an experiment found: rows of numbers, claims judged, and what to draw; and the files they are written to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.files import write_table, write_text
from stgt._internal.markup import many
from stgt.study.report import Figure, draw
from stgt.study.spec import spec_text
from stgt.study.spec.runs import Spec
from stgt.study.spec.training import TrainingSpec

TableRow = dict[str, Any]  # a row of a table, by the names of its columns
RATES = ("gamma", "lr")
NAMES = ("reading", "setting", "data", "partition", "method", "form", "graph", *RATES)  # columns that tell runs apart


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

    spec: Spec | TrainingSpec
    rows: list[TableRow]
    claims: list[Claim]
    figures: list[Figure]
    curves: list[TableRow] = field(default_factory=list)


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes figures, results.csv, curves.csv, spec.toml and claims.json, each whole or not at all; claims.json last.

    Returns:
        The files written.
    """
    written = [path for figure in outcome.figures for path in draw(figure, folder / figure.name)]
    written.append(write_table(folder / "results.csv", outcome.rows))
    if outcome.curves:
        written.append(write_table(folder / "curves.csv", outcome.curves))
    written.append(write_text(folder / "spec.toml", spec_text(outcome.spec)))
    claims = json.dumps([asdict(claim) for claim in outcome.claims], indent=2, ensure_ascii=False, allow_nan=False)
    written.append(write_text(folder / "claims.json", claims + "\n"))
    return written


def lost_at(values: np.ndarray) -> np.ndarray:
    """The first round at which a measurement, (seeds, rounds), is not finite, for each seed; −1 if there is none."""
    lost = ~np.isfinite(values)
    return np.where(lost.any(axis=1), lost.argmax(axis=1), -1)


def divergences(outcome: Outcome) -> list[str]:
    """A sentence for each setting in which a run left the finite numbers: how many did, and from which round on."""
    if isinstance(outcome.spec, TrainingSpec):
        rows = _ends_of_training(outcome.curves)
    else:
        rows = [row for row in outcome.rows if "diverged_at" in row]
    found: dict[str, list[int | None]] = {}
    for row in rows:
        words = ", ".join(f"{key} {row[key]:g}" if key in RATES else row[key] for key in NAMES if row.get(key))
        found.setdefault(words, []).append(row["diverged_at"])
    sentences = []
    for words, rounds in found.items():
        lost = [r for r in rounds if r is not None]
        if lost:
            sentences.append(
                f"{words}: {len(lost)} of {many(len(rounds), 'run')} left the finite numbers, from round "
                f"{min(lost):g} on."
            )
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
    """A number for a file; None where it is none, or not finite: JSON has no infinity."""
    return float(value) if value is not None and np.isfinite(value) else None
