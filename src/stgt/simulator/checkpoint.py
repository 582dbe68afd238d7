"""A run's file that it saves itself to as it goes, and goes on from."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.files import check_writable
from stgt.simulator.store import load, save
from stgt.simulator.trace import Trace

STALE = 3600  # seconds after which a half-written file is nobody's any more
INTERVAL = 30.0  # seconds between two checkpoints, where no number of rounds is given


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A file that a run saves itself to as it goes.

    Attributes:
        path: of the file.
        interval: seconds between two savings, where no number of rounds is given.
        kept: called with the traces that were saved, each time; the last ones are not `interrupted` if the run is done.
    """

    path: Path
    interval: float = INTERVAL
    kept: Callable[[list[Trace]], object] | None = None

    def keep(self, traces: list[Trace]) -> None:
        """Saves them; a full disk costs the checkpoint and not the run."""
        try:
            save(traces, self.path)
        except ValueError as error:
            warnings.warn(f"checkpoint: {error} The run goes on; what was saved before is still there.", stacklevel=2)
        if self.kept is not None:
            self.kept(traces)


def as_checkpoint(given: Any) -> Checkpoint | None:
    """What was given as `checkpoint=`, if a file can be written there; a ValueError before the run and not after it.

    What a killed process left half written beside it goes.
    """
    if given is None:
        return None
    if isinstance(given, Checkpoint):
        _checked(given.path)
        return given
    return Checkpoint(_checked(given))


def _checked(given: Any) -> Path:
    if not isinstance(given, str | Path):
        raise ValueError(f"checkpoint={given!r}: give the path of a file, such as 'run.stgt'.")
    path = Path(given).expanduser()
    try:
        check_writable(path.parent)
        for leftover in path.parent.glob(f".{path.stem}-*{path.suffix}"):
            if time.time() - leftover.stat().st_mtime > STALE:
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be written ({error.strerror}): give another path.") from None
    if path.is_dir():
        raise ValueError(f"checkpoint {path} is a folder: give the path of a file, such as run.stgt.")
    return path


def found_at(path: Path, count: int, rounds: int, resumed: list[Trace] | None) -> list[Trace]:
    """A checkpoint of so many runs, which are to make `rounds` rounds in all, and are those `resumed`, if given."""
    traces = load(path)
    if len(traces) != count:
        raise ValueError(f"checkpoint {path} is of {len(traces)} runs, and not of {count}: give another path.")
    made = traces[0].rounds
    if made > rounds:
        raise ValueError(
            f"checkpoint {path} has {made} rounds, more than the {rounds} that are asked for: give more rounds, or "
            "another path."
        )
    for one, other in zip(traces, resumed or [], strict=resumed is not None):
        begun = other.rounds  # where both were measured in the middle of a run
        same = set(one.values) == set(other.values) and made >= begun
        if not same or any(not _equal(one.values[name], other.values[name], begun) for name in one.values):
            raise ValueError(
                f"checkpoint {path} does not go on from the trace given as resume: give another path, or leave one out."
            )
    return traces


def _equal(one: np.ndarray, other: np.ndarray, rounds: int) -> bool:
    return np.array_equal(one[:, :rounds], other[:, :rounds], equal_nan=True)
