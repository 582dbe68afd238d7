"""Stepsizes that change from round to round: give a function of the round's number instead of a number.

`gamma` of a method may be one of these, or any function of the round that gives a positive number::

    stgt.STGT(gamma=stgt.schedules.cosine(0.2, rounds=500), tau=10)
    stgt.STGT(gamma=lambda r: 0.2 if r < 100 else 0.02, tau=10)

Within a round the stepsize is constant, so a tracker's mean direction is (start − end)/(γ_r τ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeGuard

from stgt._internal.checks import check_count, check_number
from stgt._internal.hyper import Frozen

if TYPE_CHECKING:
    import numpy as np

Stepsize = Callable[[int], float]


@dataclass(frozen=True, repr=False)
class StepsizeSchedule(Frozen):
    """Base of the schedules in this module; two with equal numbers are equal."""

    start: float

    def __post_init__(self) -> None:
        self._set(start=check_number(self.start, "start", above=0))

    def __call__(self, r: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def __repr__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        rest = [f"{field.name}={value!r}" for field, value in zip(fields(self)[1:], values[1:], strict=True)]
        return f"{type(self).__name__.lower()}({', '.join([repr(values[0]), *rest])})"


@dataclass(frozen=True, repr=False)
class Cosine(StepsizeSchedule):
    """From `start` down to `end` along half a cosine, over `rounds` rounds; constant `end` afterwards."""

    end: float
    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(end=check_number(self.end, "end", least=0), rounds=check_count(self.rounds, "rounds"))

    def __call__(self, r: int) -> float:
        share = min(r / self.rounds, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True, repr=False)
class Step(StepsizeSchedule):
    """`start`, multiplied by `factor` after every `every` rounds."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(factor=check_number(self.factor, "factor", above=0), every=check_count(self.every, "every"))

    def __call__(self, r: int) -> float:
        return self.start * self.factor ** (r // self.every)


@dataclass(frozen=True, repr=False)
class Inverse(StepsizeSchedule):
    """start/(1 + r/delay): `start` in round 0, half of it in round `delay`, proportional to 1/r for large r."""

    delay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(delay=check_number(self.delay, "delay", above=0))

    def __call__(self, r: int) -> float:
        return self.start / (1 + r / self.delay)


def cosine(start: float, *, rounds: int, end: float = 0.0) -> Cosine:
    """γ_r = end + (start − end)(1 + cos(πr/rounds))/2, and `end` from round `rounds` on.

    With `end=0` a run can have at most `rounds` rounds, as a stepsize must be positive.
    """
    return Cosine(start, end, rounds)


def step(start: float, *, every: int, factor: float = 0.1) -> Step:
    """γ_r = start · factor^⌊r/every⌋."""
    return Step(start, factor, every)


def inverse(start: float, *, delay: float = 1.0) -> Inverse:
    """γ_r = start/(1 + r/delay), which decreases like the 1/r of stochastic approximation."""
    return Inverse(start, delay)


def is_schedule(gamma: object) -> TypeGuard[Stepsize]:
    """Is the stepsize a function of the round?"""
    return callable(gamma)


def stepsizes(gamma: Any, first: int, count: int) -> np.ndarray:
    """The stepsizes of rounds first, …, first + count − 1: (count,), or (count, n) if each node has its own.

    A ValueError names the round for which a schedule does not give a positive number.
    """
    import numpy as np

    if not is_schedule(gamma):
        constant = np.asarray(gamma, dtype=np.float64)
        return np.broadcast_to(constant, (count, *constant.shape))
    return np.array([stepsize(gamma, r) for r in range(first, first + count)], dtype=np.float64)


def stepsize(gamma: Stepsize, r: int) -> float:
    """The value of a schedule in round r; a ValueError if it is not a positive number."""
    try:
        value = gamma(r)
    except Exception as error:
        raise ValueError(
            f"gamma({r}) failed ({type(error).__name__}: {error}): give a number, or a function of the round's number."
        ) from error
    return check_number(value, f"gamma({r})", above=0)
