"""The result of a federated run: the outcome of each round, the aggregated metrics, tables and curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp.strategy import Result

from stgt._internal.files import write_table, write_text
from stgt.flower.protocol import METRICS, NUM_EXAMPLES, QUIET
from stgt.simulator.trace import as_frame

if TYPE_CHECKING:
    import pandas

REASONS = {
    "late": "it did not reply in time",
    "gone": "it is no longer connected",
    "crashed": "its code failed",
    "refused": "its reply cannot be used",
    "lost": "it has lost its state",
}
COUNTS = ("_num-examples", "_clients", "_steps", "_uplink-bytes", "_downlink-bytes")
MEASURED = {  # the label of a curve, and the prefix of the table's columns that it shows
    "training, by clients": "train_",
    "evaluation, by clients": "evaluate_",
    "evaluation, by the server": "server_",
}
COUNTED = {"clients accepted": "clients", "clients left out": "left out"}
Aggregate = Callable[[list[RecordDict], str], MetricRecord]  # as in Flower's own strategies


@dataclass(frozen=True)
class Absence:
    """A client that was called and left out of the round.

    Attributes:
        client: its partition.
        reason: one of REASONS.
        detail: what happened, as text.
        diverged: was it left out because its numbers are not finite, or far larger than those of others?
    """

    client: int
    reason: str
    detail: str
    diverged: bool = False

    def __str__(self) -> str:
        return f"client {self.client} {self.reason}: {self.detail}"


@dataclass
class RoundOutcome:
    """What happened in a round.

    Attributes:
        round: its number, from 1.
        called, taken: the clients, by partition, that were called and whose replies were accepted. `taken` is empty if
            the round does not count.
        absent: the clients that were called and left out.
        sampled: how many were to be called; fewer are called if fewer are connected.
        problem: why the round does not count; "" if it does.
        metrics: the clients' training metrics, aggregated.
        evaluation: the metrics of the clients that evaluated, aggregated.
        unevaluated: the clients that were asked to evaluate and did not.
        server: the metrics of `evaluate_fn`.
        up, down: bytes of the arrays in all clients' messages.
        seconds: from the call to the end of the aggregation.
    """

    round: int
    called: list[int]
    taken: list[int] = field(default_factory=list)
    absent: list[Absence] = field(default_factory=list)
    sampled: int = 0
    problem: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    unevaluated: list[Absence] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    up: int = 0
    down: int = 0
    seconds: float = 0.0

    @property
    def reasons(self) -> str:
        """Why the round does not count, with the reasons of all clients."""
        return "; ".join([self.problem, *grouped(self.absent)])

    def line(self, rounds: int) -> str:
        """The round in one line."""
        loss = self.metrics.get("loss")
        parts = [f"{len(self.taken)} of {max(self.sampled, len(self.called))} clients"]
        parts += [f"loss {loss:.4g}"] if isinstance(loss, int | float) else []
        parts += [f"{self.up / 1e6:.3g} MB up", f"{self.down / 1e6:.3g} MB down", f"{self.seconds:.1f} s"]
        left = ", ".join(f"{one.client} {one.reason}" for one in self.absent)
        note = f"; {len(self.called)} connected" if len(self.called) < self.sampled else ""
        note += ("; left out: " + left if left else "") + (f"; does not count: {self.problem}" if self.problem else "")
        return f"round {self.round} of {rounds}: {', '.join(parts)}{note}"

    def row(self) -> dict[str, Any]:
        """The round as a row of a table."""
        counts = Counter(one.reason for one in self.absent)
        found: dict[str, Any] = {
            "round": self.round,
            "called": len(self.called),
            "clients": len(self.taken),
            **{reason: counts[reason] for reason in REASONS},
            "left_out": "; ".join(map(str, self.absent)),
            "unevaluated": "; ".join(map(str, self.unevaluated)),
            "problem": self.problem,
        }
        for prefix, numbers in (("train", self.metrics), ("evaluate", self.evaluation), ("server", self.server)):
            found |= {f"{prefix}_{name}": value for name, value in numbers.items() if _is_number(value)}
        return {**found, "bytes_up": self.up, "bytes_down": self.down, "seconds": self.seconds}


def grouped(absent: list[Absence]) -> list[str]:
    """Each reason, with all clients that have it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in absent:
        groups.setdefault((one.reason, one.detail), []).append(one.client)
    return [
        f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))} {reason}: {detail}"
        for (reason, detail), clients in groups.items()
    ]


def save_history(path: Path, history: list[RoundOutcome]) -> None:
    """Writes the rounds to a JSON file, atomically."""
    write_text(path, json.dumps([asdict(one) for one in history], default=float))


def load_history(path: Path, rounds: int) -> list[RoundOutcome]:
    """The first `rounds` rounds of a file; an empty list, with a warning, if it cannot be read."""
    if not path.exists():
        return []
    try:
        found = [_outcome(one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log(WARNING, "the history in %s cannot be read (%s): a new history begins.", path, error)
        return []
    return [one for one in found if one.round <= rounds]


def _outcome(one: Mapping[str, Any]) -> RoundOutcome:
    absences = {name: [Absence(**each) for each in one[name]] for name in ("absent", "unevaluated")}
    return RoundOutcome(**{**one, **absences})


def aggregate_metrics(
    rows: Sequence[Mapping[str, Any]], function: Aggregate | None, weight: str = ""
) -> dict[str, Any]:
    """The result of a user's function of the clients' metrics. By default, the mean of each number that all have.

    Args:
        rows: the metrics of each client.
        function: called with a list of {"metrics": …} and the name of the weight, as in Flower.
        weight: the metric used as weight, if all clients have it and it is finite and above 0.
    """
    if function is not None:
        return dict(function([RecordDict({METRICS: MetricRecord(dict(row))}) for row in rows], NUM_EXAMPLES))
    weight = weight if all(_is_number(row.get(weight)) and 0 < row[weight] < np.inf for row in rows) else ""
    weights = np.array([float(row[weight]) if weight else 1.0 for row in rows])
    names = [name for name in rows[0] if name != weight and all(_is_number(row.get(name)) for row in rows)]
    return {name: _mean([float(row[name]) for row in rows], weights) for name in names}


@QUIET
def _mean(values: list[float], weights: np.ndarray) -> float:
    """The weighted mean. The mean of inf and -inf is NaN."""
    return float(np.average(values, weights=weights))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


@dataclass(repr=False)
class FederatedResult(Result):
    """Flower's result, with the history of the run. The history includes the rounds before a checkpoint."""

    history: list[RoundOutcome] = field(default_factory=list)
    title: str = ""

    def __repr__(self) -> str:
        """The run in one line; `rows` has all details."""
        counted = sum(bool(one.taken) for one in self.history)
        left = sum(len(one.absent) for one in self.history)
        text = f"{self.title}: {len(self.history)} rounds, {counted} of them counted, {left} replies left out"
        loss = self.history[-1].metrics.get("loss") if self.history else None
        return f"<{text}{f'; loss {loss:.4g}' if isinstance(loss, int | float) else ''}>"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each round: the number of clients called and accepted, the clients left out with the reason, the
        metrics ("train_loss", "evaluate_…", "server_…"), bytes and seconds."""
        return [one.row() for one in self.history]

    def to_pandas(self) -> pandas.DataFrame:
        """The table of `rows`."""
        return as_frame(self.rows)

    def to_csv(self, path: Path | str) -> Path:
        """Writes the table of `rows` as a CSV file; needs no pandas."""
        return write_table(Path(path).expanduser(), self.rows)

    def curves(self, path: Path | str) -> list[Path]:
        """Draws the metrics over the rounds, and the number of clients of each round.

        Args:
            path: of the figure, if it ends in .png or .pdf; without a suffix, both are written.
        """
        from stgt.study.report import Figure, Line, Panel, draw

        rows = [{**row, "left out": row["called"] - row["clients"]} for row in self.rows]
        if not rows:
            raise ValueError("the run has no rounds: there is nothing to draw.")

        def line(label: str, name: str) -> Line:
            points = [(row["round"], row[name]) for row in rows if np.isfinite(row.get(name, np.nan))]
            x, y = np.array(points, dtype=float).reshape(-1, 2).T
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
