"""An experiment's outcome on disk: figures, results.csv, curves.csv, spec.toml, claims.json."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stgt.experiments.outcome import Outcome
from stgt.files import write_atomically
from stgt.parts import spec_text
from stgt.report.figures import draw


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes everything into a folder, each file whole or not at all; claims.json comes last.

    Returns:
        The files written.
    """
    written = [path for figure in outcome.figures for path in draw(figure, folder / figure.name)]
    written.append(_table(outcome.rows, folder / "results.csv"))
    if outcome.curves:
        written.append(_table(outcome.curves, folder / "curves.csv"))
    written.append(_text(spec_text(outcome.spec), folder / "spec.toml"))
    claims = json.dumps([asdict(claim) for claim in outcome.claims], indent=2, ensure_ascii=False, allow_nan=False)
    written.append(_text(claims + "\n", folder / "claims.json"))
    return written


def _text(text: str, path: Path) -> Path:
    return write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def _table(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)

    return write_atomically(path, write)
