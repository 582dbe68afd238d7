"""What rank 0 writes of a run while it lasts: the table of its curve, TensorBoard's log, and a line for each row."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stgt._internal.files import write_table
from stgt.study.spec.training import Training
from stgt.torch.train.lines import line
from stgt.torch.train.pictures import draw_run
from stgt.torch.train.run_folder import CURVE, EVENTS


def has_tensorboard() -> bool:
    """Can TensorBoard's logs be written?"""
    try:
        return importlib.util.find_spec("tensorboard") is not None
    except ValueError:  # something else goes by its name
        return False


def left_out() -> list[str]:
    """What a training will not write, and how to get it."""
    if has_tensorboard():
        return []
    return ["TensorBoard's logs are left out, as it is not installed: pip install tensorboard."]


class Record:
    """The files of a run that goes on from these rows, and its lines from there on.

    Whatever an earlier start has written beyond them is written again: the files are those of an uninterrupted run.
    """

    def __init__(self, run: Training, nodes: int, folder: Path, rows: Sequence[Mapping[str, Any]]):
        self.run, self.nodes, self.folder = run, nodes, folder
        self._log = Events(folder, rows) if has_tensorboard() else None

    def add(self, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        """The last of the rows is new."""
        write_table(self.folder / CURVE, rows)
        if self._log is not None:
            self._log.add(rows[-1])
        say(line(self.run, rows[-1]))

    def finish(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """All is measured, and the last row has each node's own accuracy now."""
        write_table(self.folder / CURVE, rows)
        if self._log is not None:
            self._log.add({name: rows[-1][name] for name in ("round", "seconds", "own_accuracy")})
            self._log.close()
        draw_run(self.run, rows, self.nodes, self.folder)


class Events:
    """TensorBoard's log of a curve: each column over the rounds, every point once."""

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]]):
        from torch.utils.tensorboard import SummaryWriter

        for old in folder.glob(EVENTS):
            old.unlink()
        self._writer = SummaryWriter(str(folder), filename_suffix=Path(EVENTS).suffix)
        self._began = time.time() - (rows[-1]["seconds"] if rows else 0.0)
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row's numbers, at the time at which they were measured."""
        for name, value in row.items():
            if name not in ("label", "round", "seconds"):
                self._writer.add_scalar(name, value, row["round"], walltime=self._began + row["seconds"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
