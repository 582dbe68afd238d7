"""What a method declares: what it reads of a round, its state variables and its messages; and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Vector = Any
State = Mapping[str, Vector]


@dataclass(frozen=True)
class StateVar:
    """A vector that a node keeps from round to round; 0 before round 0, unless `init` gives another start.

    Attributes:
        name: of the field; "x", the model, is kept anyway, and named only to give its place.
        zero_sum: does its sum over all nodes stay 0 for ever?
        at_server: does it live at the server, where there is one?
    """

    name: str
    zero_sum: bool = False
    at_server: bool = False


class Linear(NamedTuple):
    """start · (the round's start) + moved · (its end − its start) + direction · (its mean direction)."""

    start: float = 0.0
    moved: float = 0.0
    direction: float = 0.0


@dataclass(frozen=True)
class MessageVar:
    """A vector that a node sends to its neighbours; they receive W_r times it.

    Attributes:
        name: of the message's field.
        transposed: does it travel against the edges, so that they receive W_rᵀ times it?
        replaces: does `merge` put what was received, as it is, in the place of the state's field of this name? A server
            that has only a worker's last model relies on it.
        value: what is sent, where that is a combination of the round's start and direction, or a function of the
            round's number that gives it: it may then be sent in two halves, the first at the round's start.
        pushed: does it travel by the column-stochastic matrix of a topology that has one (`push_pull`), which keeps its
            sum over the nodes? Elsewhere it travels by W_r.
    """

    name: str
    transposed: bool = False
    replaces: bool = False
    value: Linear | Callable[[int], Linear] | None = None
    pushed: bool = False

    def at(self, r: int) -> Linear:
        """What is sent in round r; without a declared value nothing."""
        if self.value is None:
            return Linear()
        return self.value if isinstance(self.value, Linear) else self.value(r)


class Local:
    """What the engine hands over after the local steps of a round: just what the method `reads`.

    `direction` is the mean of (g + correction) over the round: (start − end)/(gamma·tau) for plain SGD.
    """

    start: Vector  # the model at the round's start; `state["x"]` is the same
    end: Vector  # the model after the local steps
    direction: Vector
    gamma: Any  # the stepsize; the mean over the round where it changes
    round: Any  # its number, from 0
    participation: Any  # the share of nodes that work in a round, s/n
    first: Vector  # the round's first gradient
    last: Vector  # the round's last gradient
    start_gradient: Vector  # one more gradient, at `start`, on a sample of its own

    def __init__(self, label: str, reads: frozenset[str], **values: Any):
        self._label, self._reads = label, reads
        self.__dict__.update({name: value for name, value in values.items() if name in reads})

    def __getattr__(self, name: str) -> Any:
        if name not in PARTS:
            raise AttributeError(f"local.{name}: a round has {', '.join(PARTS)}.")
        why = "which it does not declare: add it to its reads" if name not in self._reads else "which is not known here"
        raise ValueError(f"{self._label} reads {name!r} of a round, {why}.")

    def mapped(self, function: Callable[[Vector], Vector]) -> Local:
        """The same with `function` applied to every vector, such as a cut."""
        values = {name: value for name, value in vars(self).items() if name in PARTS}
        vectors = {name: function(value) for name, value in values.items() if name in VECTORS}
        return Local(self._label, self._reads, **(values | vectors))


PARTS = tuple(Local.__annotations__)  # all that a method may read of a round
VECTORS = frozenset({"start", "end", "direction", "first", "last", "start_gradient"})


class Fields(dict[str, Vector]):
    """A state or a mixture; reading what it does not hold is a sentence."""

    def __init__(self, values: Mapping[str, Vector], label: str, missing: Callable[[str], str]):
        super().__init__(values)
        self._label, self._missing = label, missing

    def __missing__(self, name: str) -> Vector:
        raise ValueError(f"{self._label} reads {self._missing(name)}.")
