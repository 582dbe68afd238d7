"""What a federated run gives back: Flower's result, with what became of each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp.strategy import Result

from stgt.engines.trace import as_frame
from stgt.files import write_table
from stgt.flower.outcome import REASONS, Outcome

if TYPE_CHECKING:
    import pandas


@dataclass
class FederatedResult(Result):
    """Flower's result and the history of the run, those rounds included that a checkpoint had behind it."""

    history: list[Outcome] = field(default_factory=list)
    title: str = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each round: how many clients were called and taken in, who was left out and why, what they measured
        ("train_loss", "evaluate_…", "server_…"), bytes and seconds."""
        return [one.row() for one in self.history]

    def to_pandas(self) -> pandas.DataFrame:
        """The table of `rows`."""
        return as_frame(self.rows)

    def to_csv(self, path: Path | str) -> Path:
        """Writes the table of `rows` as a CSV file; needs no pandas."""
        return write_table(Path(path).expanduser(), self.rows)

    def curves(self, path: Path | str) -> list[Path]:
        """Draws what was measured over the rounds, and how many clients each round had; PNG and PDF.

        Args:
            path: of the pictures, without an ending.
        """
        from stgt.report.figures import draw
        from stgt.report.panels import Figure, Line, Panel

        rows = self.rows
        if not rows:
            raise ValueError("the run has no rounds: there is nothing to draw.")

        def line(label: str, name: str) -> Line:
            known = [(row["round"], row[name]) for row in rows if np.isfinite(row.get(name, np.nan))]
            x, y = np.array(known, dtype=float).reshape(-1, 2).T
            return Line(label, x, y)

        apart = ("_num-examples", "_clients", "_steps", "_uplink-bytes", "_downlink-bytes")
        names = dict.fromkeys(
            name for row in rows for name in row if name.startswith(("train_", "evaluate_", "server_"))
        )
        panels = []
        for quantity in dict.fromkeys(name.split("_", 1)[1] for name in names if not name.endswith(apart)):
            lines = [
                line(label, f"{prefix}_{quantity}")
                for prefix, label in (("train", "clients, training"), ("evaluate", "clients"), ("server", "server"))
                if f"{prefix}_{quantity}" in names
            ]
            panels.append(Panel("", "round", quantity.replace("_", " "), tuple(lines), ylog=False))
        counts = [line("taken in", "clients")]
        counts += [line(reason, reason) for reason in REASONS if any(row[reason] for row in rows)]
        panels.append(Panel("", "round", "clients", tuple(counts), ylog=False))
        figure = Figure(Path(path).name, tuple(panels), columns=min(2, len(panels)), title=self.title, shared=False)
        return draw(figure, path)
