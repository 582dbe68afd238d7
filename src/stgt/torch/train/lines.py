"""A training in words: a line for each measurement, as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from stgt._internal.files import read_table
from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch.train.run_folder import CURVE


def line(run: Training, row: Mapping[str, Any]) -> str:
    """A row of the curve, its numbers as they are or as text, and at the pace so far the time to the last round."""
    done, seconds = int(row["round"]), float(row["seconds"])
    time = ""
    if 0 < done < run.rounds:
        time = f", {timedelta(seconds=round(seconds / done * (run.rounds - done)))} to go"
    elif done:
        time = f", after {timedelta(seconds=round(seconds))}"
    return (
        f"{run.name}: round {done} of {run.rounds}, training loss {float(row['train_loss']):.4g}, test accuracy "
        f"{float(row['test_accuracy']):.2%}, {float(row['bytes_sent']) / 1e6:.1f} MB sent a node{time}"
    )


class Lines:
    """The lines of a training that other processes make, read from its curves; each once."""

    def __init__(self, runs: TrainingSpec, out: Path):
        self.runs, self.out = runs, out
        self._seen: dict[str, set[int]] = {run.folder: set() for run in runs.runs}
        self.new()  # what an earlier start has measured

    def new(self) -> list[str]:
        """Those of the measurements since the last call."""
        found = []
        for run in self.runs.runs:
            path, seen = self.out / run.folder / CURVE, self._seen[run.folder]
            for row in read_table(path) if path.exists() else ():
                if int(row["round"]) not in seen:
                    seen.add(int(row["round"]))
                    found.append(line(run, row))
        return found
