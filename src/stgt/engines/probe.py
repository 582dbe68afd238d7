"""What a method reads, found out by calling it with numbers in the vectors' place: nothing is kept or sent for show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stgt.algorithms import Algorithm


class Recorder(dict):
    """Stands in for a state or a `Local` of numbers, and remembers what was asked of it."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __getattr__(self, name: str) -> Any:
        return self[name]


def recorders(algorithm: Algorithm) -> tuple[Recorder, Recorder]:
    """A state and a `Local` of different numbers, to call the method's functions with."""
    local = {"start": 0.5, "end": 3.0, "direction": 7.0, "gamma": 11.0, "round": 0, "participation": 1.0}
    return Recorder(algorithm.init(0.5, 13.0, 17.0)), Recorder(local | {"first": 19.0, "last": 23.0, "anchor": 29.0})


def uses(algorithm: Algorithm) -> tuple[frozenset[str], tuple[str, ...]]:
    """What the method reads of a round, fields of `Local` and "x", the state's model; and its message's fields."""
    state, local = recorders(algorithm)
    algorithm.correction(state, 0.0)
    message = algorithm.message(state, local)  # pyright: ignore[reportArgumentType]
    algorithm.merge(state, local, message)  # pyright: ignore[reportArgumentType]
    return frozenset(local.asked | (state.asked & {"x"})), tuple(message)
