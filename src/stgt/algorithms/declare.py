"""What a method declares about its round (`RoundSpec`), and what it receives (`Local`, `Fields`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from stgt._internal.checks import InputError


class Vector(Protocol):
    """A vector in the recursions: an array of any library (one node's, or a stack of all), or an affine form.

    Powers and comparisons are entry by entry. Only methods whose spec has `linear=False` may use them.
    """

    def __add__(self, other: Vector | float, /) -> Vector: ...
    def __radd__(self, other: float, /) -> Vector: ...
    def __sub__(self, other: Vector | float, /) -> Vector: ...
    def __rsub__(self, other: float, /) -> Vector: ...
    def __mul__(self, other: Vector | float, /) -> Vector: ...
    def __rmul__(self, other: float, /) -> Vector: ...
    def __truediv__(self, other: Vector | float, /) -> Vector: ...
    def __neg__(self) -> Vector: ...
    def __pow__(self, other: float, /) -> Vector: ...
    def __lt__(self, other: Vector | float, /) -> Vector: ...
    def __gt__(self, other: Vector | float, /) -> Vector: ...
    def __le__(self, other: Vector | float, /) -> Vector: ...


State = Mapping[str, Vector]


@dataclass(frozen=True)
class StateVar:
    """A vector that a node keeps from round to round. It is 0 before round 0, unless `init` gives another value.

    Attributes:
        name: of the variable. "x", the model, is always kept; list it only to set `at_server`.
        zero_sum: is its sum over all nodes always 0?
        at_server: does the server hold it, if there is one?
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
    """A vector that a node sends to its neighbours. They receive W_r times it.

    Attributes:
        name: of the message.
        transposed: is it sent against the direction of the edges, so that the nodes receive W_rᵀ times it?
        replaces: does `merge` store what was received, unchanged, in the state variable of this name? A server that
            has only the last model of each worker relies on it.
        value: what is sent, if that is a combination of the round's start and direction, or a function of the round's
            number that gives such a combination. The message can then be sent in two halves, the first at the round's
            start.
        pushed: is it mixed by the column-stochastic matrix of a `push_pull` topology, which keeps the sum over the
            nodes? Other topologies mix it by W_r.
    """

    name: str
    transposed: bool = False
    replaces: bool = False
    value: Linear | Callable[[int], Linear] | None = None
    pushed: bool = False

    def __post_init__(self) -> None:
        if self.transposed and self.pushed:
            raise InputError("pushed", True, f"{self.name!r} is transposed too: a message can be only one of the two.")

    def at(self, r: int) -> Linear:
        """What is sent in round r; nothing if `value` is not declared."""
        if self.value is None:
            return Linear()
        return self.value if isinstance(self.value, Linear) else self.value(r)


@dataclass(frozen=True, kw_only=True)
class RoundSpec:
    """The declaration of a method: all that an engine needs to know about a round before it runs one.

    Attributes:
        reads: what the method reads of a round: names of `Local`'s fields.
        state: what a node keeps in addition to its model.
        messages: what a node sends at the end of a round.
        second_messages: what it sends a second time, after a gradient at the merged model.
        mixing_steps: how often a message is mixed in a round.
        needs_initial_gradient: does `init` take the gradient at the start and its mean over the nodes?
        communication_probability: the probability that a round ends with communication; None if every round does.
        oracle, oracle_options: the name and the arguments of the oracle that the method requires, if it requires one.
        least_eigenvalue: a bound that the eigenvalues of a fixed symmetric W must exceed.
        symmetric_only: is the method for symmetric W_r only, and may diverge on directed ones at any stepsize?
        linear: is a round linear in the state and the gradients, so that the exact theory covers it?
        row_stochastic: where W_r may be only row-stochastic: "never", "server" or "any".
        invariant: what `conserved` means, in words, if it is more than a sum that is always 0.
    """

    reads: Set[str] = frozenset({"end"})
    state: Sequence[StateVar] = ()
    messages: Sequence[MessageVar] = (MessageVar("x", replaces=True),)
    second_messages: Sequence[MessageVar] = ()
    mixing_steps: int = 1
    needs_initial_gradient: bool = False
    communication_probability: Any = None
    oracle: str | None = None
    oracle_options: Mapping[str, Any] = field(default_factory=dict)
    least_eigenvalue: float | None = None
    symmetric_only: bool = False
    linear: bool = True
    row_stochastic: str = "never"
    invariant: str = ""

    def __post_init__(self) -> None:
        reads: Any = self.reads
        if isinstance(reads, str) or not all(isinstance(part, str) for part in reads):
            raise InputError("reads", reads, "give a set of names, such as {'end', 'gamma'}.")
        for part in sorted(reads):
            if part not in PARTS:
                raise InputError("reads", hint=f" has {part!r}: choose from {', '.join(map(repr, PARTS))}.")
        object.__setattr__(self, "reads", frozenset(reads))
        for what, kind in (("state", StateVar), ("messages", MessageVar), ("second_messages", MessageVar)):
            given = tuple(getattr(self, what))
            if not all(isinstance(one, kind) for one in given):
                example = "[StateVar('c')]" if kind is StateVar else "[MessageVar('x'), MessageVar('z')]"
                raise InputError(what, given, f"give a list of {kind.__name__}, such as {example}.")
            names = [one.name for one in given]
            for one in names:
                if names.count(one) > 1:
                    raise InputError(what, hint=f" has {one!r} twice: give each name once.")
            object.__setattr__(self, what, given)
        if not self.messages:
            raise InputError("messages", hint=" is empty: a method must send something, such as [MessageVar('x')].")

    @property
    def state_fields(self) -> tuple[str, ...]:
        """The names of all variables that a node keeps, x first."""
        return "x", *(kept.name for kept in self.state if kept.name != "x")

    @property
    def server_fields(self) -> tuple[str, ...]:
        """The fields that the server holds, if there is one."""
        return tuple(kept.name for kept in self.state if kept.at_server)

    @property
    def tracks(self) -> bool:
        """Do the corrections track the network's gradient, with a sum over the nodes that is always 0?"""
        return bool(self.conserves)

    @property
    def conserves(self) -> str:
        """What the method's `conserved` means, in words; "" if nothing is conserved."""
        return self.invariant or ("Σ_i c_i must be 0" if any(kept.zero_sum for kept in self.state) else "")


class Local:
    """What the engine passes to the method after the local steps of a round: only what the method `reads`.

    `direction` is the mean of (g + correction) over the round: (start − end)/(gamma·tau) for plain SGD.
    """

    start: Vector  # the model at the round's start; `state["x"]` is the same
    end: Vector  # the model after the local steps
    direction: Vector
    gamma: Any  # the stepsize; its mean over the round if it changes
    round: Any  # the round's number, from 0
    participation: Any  # the share of nodes that work in a round, s/n
    first: Vector  # the round's first gradient
    last: Vector  # the round's last gradient
    start_gradient: Vector  # an additional gradient at `start`, on a separate sample

    def __init__(self, label: str, reads: Set[str], **values: Any):
        self._label, self._reads = label, reads
        self.__dict__.update({name: value for name, value in values.items() if name in reads})

    def __getattr__(self, name: str) -> Any:
        if name not in PARTS:
            raise AttributeError(f"local.{name}: a round has {', '.join(PARTS)}.")
        why = "which it does not declare: add it to its reads" if name not in self._reads else "which is not known here"
        raise ValueError(f"{self._label} reads {name!r} of a round, {why}.")

    def mapped(self, function: Callable[[Any], Any]) -> Local:
        """A copy with `function` applied to every vector, for example to cut out a chunk."""
        values = {name: value for name, value in vars(self).items() if name in PARTS}
        vectors = {name: function(value) for name, value in values.items() if name in VECTORS}
        return Local(self._label, self._reads, **(values | vectors))


PARTS = tuple(Local.__annotations__)  # all that a method may read of a round
VECTORS = frozenset({"start", "end", "direction", "first", "last", "start_gradient"})


class Fields(dict[str, Any]):
    """A state or a mixture. Reading a field that it does not have raises a ValueError that says what to declare."""

    def __init__(self, values: Mapping[str, Any], label: str, missing: Callable[[str], str]):
        super().__init__(values)
        self._label, self._missing = label, missing

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self._label} reads {self._missing(name)}.")
