"""Where runs stand between two rounds: all that they need to go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.markup import many


@dataclass(frozen=True, eq=False)
class Standing:
    """One or more runs after the same number of rounds; the first axis of every array is the run.

    All randomness is looked up by (seed, step), so that nothing of it has to be kept.

    Attributes:
        rounds: rounds made so far, which is the number of the next one.
        state: the algorithm's fields, (runs, n, p).
        memory: the oracle's, (runs, n, …).
        ahead: the gradient at x that a method with two exchanges has computed already, (runs, n, p).
        diverged_at: (runs,) the first round at whose start some model, or a built-in measurement of it, was not finite;
            −1 if all stayed finite.
        links: how many links each round used, (runs, rounds).
    """

    rounds: int
    state: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    ahead: np.ndarray | None
    diverged_at: np.ndarray
    links: np.ndarray

    def __repr__(self) -> str:
        lost = int((self.diverged_at >= 0).sum())
        words = f"{many(len(self.diverged_at), 'run')} after {many(self.rounds, 'round')}"
        words += f", {lost} diverged" if lost else ""
        return f"Standing({words}: {', '.join([*self.state, *self.memory])})"

    def of(self, cut: slice) -> Standing:
        """That of some of the runs."""
        return Standing(
            rounds=self.rounds,
            state={name: value[cut] for name, value in self.state.items()},
            memory={name: value[cut] for name, value in self.memory.items()},
            ahead=None if self.ahead is None else self.ahead[cut],
            diverged_at=self.diverged_at[cut],
            links=self.links[cut],
        )


def joined(parts: Iterable[Standing]) -> Standing:
    """Several standings after the same number of rounds as one."""
    parts = list(parts)

    def together(values: list[Any]) -> Any:
        return None if values[0] is None else np.concatenate(values)

    def fields(dicts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([one[name] for one in dicts]) for name in dicts[0]}

    return Standing(
        rounds=parts[0].rounds,
        state=fields([part.state for part in parts]),
        memory=fields([part.memory for part in parts]),
        ahead=together([part.ahead for part in parts]),
        diverged_at=together([part.diverged_at for part in parts]),
        links=together([part.links for part in parts]),
    )
