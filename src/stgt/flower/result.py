"""What a federated run gives back: Flower's result, with what became of each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp.strategy import Result

from stgt._internal.files import write_table
from stgt.flower.outcome import Outcome
from stgt.simulator.trace import as_frame

if TYPE_CHECKING:
    import pandas

COUNTS = ("_num-examples", "_clients", "_steps", "_uplink-bytes", "_downlink-bytes")
MEASURED = {  # what a curve shows, and how the table's columns begin that it is drawn from
    "training, by clients": "train_",
    "evaluation, by clients": "evaluate_",
    "evaluation, by the server": "server_",
}
COUNTED = {"clients taken in": "clients", "clients left out": "left out"}


@dataclass(repr=False)
class FederatedResult(Result):
    """Flower's result and the history of the run, those rounds included that a checkpoint had behind it."""

    history: list[Outcome] = field(default_factory=list)
    title: str = ""

    def __repr__(self) -> str:
        """The run in one line; `rows` is all of it."""
        counted = sum(bool(one.taken) for one in self.history)
        left = sum(len(one.absent) for one in self.history)
        said = f"{self.title}: {len(self.history)} rounds, {counted} of them counted, {left} replies left out"
        loss = self.history[-1].metrics.get("loss") if self.history else None
        return f"<{said}{f'; loss {loss:.4g}' if isinstance(loss, int | float) else ''}>"

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
        """Draws what was measured over the rounds, and how many clients each round had.

        Args:
            path: of the picture, if it ends in .png or .pdf; without an ending, of both.
        """
        from stgt.study.report import Figure, Line, Panel, draw

        rows = [{**row, "left out": row["called"] - row["clients"]} for row in self.rows]
        if not rows:
            raise ValueError("the run has no rounds: there is nothing to draw.")

        def line(label: str, name: str) -> Line:
            known = [(row["round"], row[name]) for row in rows if np.isfinite(row.get(name, np.nan))]
            x, y = np.array(known, dtype=float).reshape(-1, 2).T
            return Line(label, x, y, style=[*MEASURED, *COUNTED].index(label))

        names = {name: None for row in rows for name in row if not name.endswith(COUNTS)}
        panels = []
        for quantity in dict.fromkeys(
            name.removeprefix(prefix) for name in names for prefix in MEASURED.values() if name.startswith(prefix)
        ):
            lines = [line(label, prefix + quantity) for label, prefix in MEASURED.items() if prefix + quantity in names]
            panels.append(Panel("", "round", quantity.replace("_", " "), tuple(lines), ylog=False))
        counts = tuple(line(label, name) for label, name in COUNTED.items())
        panels.append(Panel("", "round", "clients", counts, ylog=False))
        columns = len(panels) if len(panels) < 4 else 2
        return draw(Figure(Path(path).name, tuple(panels), columns, title=self.title, shared=False), path)
