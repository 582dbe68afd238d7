"""What became of each round: who was taken in, who was not and why, and what it cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from stgt._internal.files import write_text

REASONS = {
    "late": "it did not reply in time",
    "gone": "it is no longer connected",
    "crashed": "its code failed",
    "refused": "its reply cannot be used",
    "lost": "it has lost what it kept",
}


@dataclass(frozen=True)
class Absence:
    """A client that was called and not taken in. `reason` is one of REASONS."""

    client: int
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"client {self.client} {self.reason}: {self.detail}"


@dataclass
class Outcome:
    """A round.

    Attributes:
        round: its number, from 1.
        called, taken: clients, by partition; `taken` is empty if the round does not count.
        absent: those who were called and not taken in.
        sampled: how many were to be called; fewer are when fewer are there.
        problem: why the round does not count; "" if it does.
        metrics: the clients' numbers of training, aggregated.
        evaluation: those of the clients that evaluated.
        unevaluated: those who were asked to evaluate and did not.
        server: those of `evaluate_fn`.
        up, down: bytes of the arrays of all clients' messages.
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
        """Why it does not count, with all that is known."""
        return "; ".join([self.problem, *together(self.absent)])

    def line(self, rounds: int) -> str:
        """The round in one line."""
        loss = self.metrics.get("loss")
        parts = [f"{len(self.taken)} of {max(self.sampled, len(self.called))} clients"]
        parts += [f"loss {loss:.4g}"] if isinstance(loss, int | float) else []
        parts += [f"{self.up / 1e6:.3g} MB up", f"{self.down / 1e6:.3g} MB down", f"{self.seconds:.1f} s"]
        left = ", ".join(f"{one.client} {one.reason}" for one in self.absent)
        note = f"; {len(self.called)} there" if len(self.called) < self.sampled else ""
        note += ("; left out: " + left if left else "") + (f"; does not count: {self.problem}" if self.problem else "")
        return f"round {self.round} of {rounds}: {', '.join(parts)}{note}"

    def row(self) -> dict[str, Any]:
        """The round as a row of a table."""
        kinds = Counter(one.reason for one in self.absent)
        found: dict[str, Any] = {
            "round": self.round,
            "called": len(self.called),
            "clients": len(self.taken),
            **{reason: kinds[reason] for reason in REASONS},
            "left_out": "; ".join(map(str, self.absent)),
            "unevaluated": "; ".join(map(str, self.unevaluated)),
            "problem": self.problem,
        }
        for prefix, numbers in (("train", self.metrics), ("evaluate", self.evaluation), ("server", self.server)):
            plain = {name: value for name, value in numbers.items() if isinstance(value, int | float)}
            found |= {f"{prefix}_{name}": value for name, value in plain.items()}
        return {**found, "bytes_up": self.up, "bytes_down": self.down, "seconds": self.seconds}


def together(absent: list[Absence]) -> list[str]:
    """What happened to whom; clients to whom the same happened stand together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in absent:
        groups.setdefault((one.reason, one.detail), []).append(one.client)
    return [
        f"client{'s' if len(who) > 1 else ''} {', '.join(map(str, who))} {reason}: {detail}"
        for (reason, detail), who in groups.items()
    ]


def save_history(path: Path, history: list[Outcome]) -> None:
    """Writes the rounds to a JSON file, whole or not at all."""
    write_text(path, json.dumps([asdict(one) for one in history], default=float))


def load_history(path: Path, rounds: int) -> list[Outcome]:
    """The first `rounds` rounds of a file; none, with a warning, if it cannot be read."""
    if not path.exists():
        return []
    try:
        found = [_outcome(one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log(WARNING, "the rounds so far, in %s, cannot be read (%s): the history begins anew.", path, error)
        return []
    return [one for one in found if one.round <= rounds]


def _outcome(one: Mapping[str, Any]) -> Outcome:
    who = {name: [Absence(**each) for each in one[name]] for name in ("absent", "unevaluated")}
    return Outcome(**{**one, **who})
