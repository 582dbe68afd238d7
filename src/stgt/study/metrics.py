"""metrics.csv: a row for each setting, seed and round, added as the rounds come."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from stgt._internal.files import write_text
from stgt.simulator.trace import Trace

KEYS = ("method", "setting", "seed", "round")
COUNTED = ("communications", "gradients", "messages", "floats")


class MetricsFile:
    """The table of a batch. Its rows follow from the traces alone, whenever and however often it was added to."""

    def __init__(self, path: Path, method: str, settings: tuple[str, ...], every: int):
        self.path, self._method, self._settings, self._every = path, method, settings, every
        self._next = 0  # the first round that is not in the file

    def begin(self, traces: list[Trace], done: bool) -> None:
        """Writes what is known so far in the place of what may be there, such as a row that was cut off."""
        self._next = 0
        if not traces:
            self.path.unlink(missing_ok=True)
            return
        write_text(self.path, self._head(traces) + self._rows(traces, done))

    def add(self, traces: list[Trace]) -> None:
        """Adds the rounds that are new."""
        head = "" if self.path.exists() else self._head(traces)
        text = head + self._rows(traces, done=not traces[0].interrupted)
        if not text:
            return
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(text)
        except OSError as error:  # such as a full disk, which does not say where
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _head(self, traces: list[Trace]) -> str:
        return _lines([[*KEYS, *_names(traces[0])]])

    def _rows(self, traces: list[Trace], done: bool) -> str:
        """What was measured at the starts of new rounds; where a run stands now is its next round's, if it has one."""
        first, last = self._next, traces[0].rounds + done
        rounds = [r for r in range(first, last) if r % self._every == 0 or r == traces[0].rounds]
        self._next = max(first, last)
        if not rounds:
            return ""
        # (rounds, seeds, names), so that the rows of a round stand together.
        cells = [np.stack([_words(trace[name][:, rounds].T) for name in _names(trace)], axis=2) for trace in traces]
        return _lines(
            [self._method, setting, seed, r, *row]
            for i, r in enumerate(rounds)
            for setting, trace, found in zip(self._settings, traces, cells, strict=True)
            for seed, row in zip(trace.seeds, found[i].tolist(), strict=True)
        )


def _names(trace: Trace) -> list[str]:
    return [*trace.measured.all_names, *COUNTED]


def _words(values: np.ndarray) -> np.ndarray:
    """Each number by the fewest digits that tell it from its neighbours in its own precision."""
    return values.astype(str)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
