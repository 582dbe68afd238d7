"""An experiment's outcome on disk: figures, results.csv, curves.csv, spec.toml, claims.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from stgt.experiments.outcome import Outcome
from stgt.files import write_table, write_text
from stgt.parts import spec_text
from stgt.report.figures import draw


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes everything into a folder, each file whole or not at all; claims.json comes last.

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
