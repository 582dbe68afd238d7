"""What an algorithm is: what a node computes, what it sends, and what it does with what it receives.

Every method of the family has one shape::

    tau times:  x ← x − gamma · (g + correction)       local work, nothing sent
    once:       message(state, local)                  what a node sends
                mixed = W_r · message                  the network (W_rᵀ for a field that is `transposed`, on
                                                       `push_pull` C_r for one that is `pushed`)
                state ← merge(state, local, mixed)     what it does with what it received

An algorithm is a frozen dataclass written with ``+ − · /`` on vectors only. It needs no array library and no engine:
a vector may be an (n, p) stack of all nodes, one node's flat buffer, or a chunk of it. What it reads of a round, keeps
and exchanges it declares; an engine hands over just that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from stgt._internal.checks import InputError, check_count, check_flag, check_number
from stgt._internal.hyper import Frozen, ShortRepr, real_fields
from stgt._internal.schedules import Stepsize, stepsize
from stgt.algorithms.declare import PARTS, Local, MessageVar, State, StateVar, Vector


@dataclass(frozen=True)
class Cost:
    """What a round that ends with communication costs a node, in units of one model; see docs/algorithms.md.

    Attributes:
        gradients: gradients computed a round; of one sample each where the method is made of an oracle for samples.
        vectors: vectors sent to each neighbour in a round.
        up, down: vectors to and from the server, where there is one.
        buffers: model-sized buffers kept, the gradient's included.
        initial: gradients computed once, at the start.
    """

    gradients: float
    vectors: int
    buffers: float
    up: int
    down: int
    initial: float = 0


@dataclass(frozen=True, kw_only=True)
class Algorithm(Frozen, ShortRepr):
    """Base of all methods. `gamma` may be left out only where an engine supplies it (a torch optimiser's lr).

    Your own method declares `reads`, `state_vars` and `messages`, as class attributes, or as properties where options
    change them, and overrides `correction`, `message` and `merge`; the rest follows, or may be overridden.
    """

    # A number, or a function of the round's number (stgt.schedules); one for each node only where the method has that.
    gamma: float | tuple[float, ...] | Stepsize | None = None
    tau: int = 1

    reads: ClassVar[frozenset[str]] = frozenset({"end"})  # what it reads of a round: names of `Local`'s fields
    state_vars: ClassVar[tuple[StateVar, ...]] = ()
    messages: ClassVar[tuple[MessageVar, ...]] = (MessageVar("x", replaces=True),)
    second_messages: ClassVar[tuple[MessageVar, ...]] = ()  # a second time, after a gradient at the merged model
    mixing_steps: ClassVar[int] = 1  # how often a message is mixed in a round
    random_communication: ClassVar[bool] = False  # does a coin decide whether a round ends with communication?
    oracle: ClassVar[str | None] = None  # the name of the oracle the method is made of, if it insists on one
    least_eigenvalue: ClassVar[float | None] = None  # a bound that the eigenvalues of a fixed symmetric W must exceed
    symmetric_only: ClassVar[bool] = False  # is it for symmetric W_r, and diverges on directed ones at any stepsize?
    linear: ClassVar[bool] = (
        True  # is a round linear in the state and the gradients, so that the exact theory covers it?
    )
    row_stochastic: ClassVar[str] = "never"  # where W_r may be row-stochastic only: "never", "server" or "any"
    invariant: ClassVar[str] = "Σ_i c_i must be 0"  # what `conserved` means, in words

    def __post_init__(self) -> None:
        self.check_class()
        if self.gamma is not None:
            self._set(gamma=_schedule(self.gamma) if callable(self.gamma) else self._stepsize())
        self._set(tau=check_count(self.tau, "tau"))
        for name in real_fields(type(self)):
            value = getattr(self, name)
            if name != "gamma" and value is not None:
                self._set(**{name: check_number(value, name)})
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                self._set(**{field.name: check_flag(value, field.name)})
            elif isinstance(value, list):  # as files have them
                self._set(**{field.name: tuple(value)})
        _check_declaration(self)

    def _stepsize(self) -> float | tuple[float, ...]:
        return check_number(self.gamma, "gamma", above=0)

    @classmethod
    def check_class(cls) -> None:
        """A ValueError unless the class is a dataclass itself: it is then a frozen one, as its base is."""
        if "__dataclass_params__" not in vars(cls):
            raise ValueError(
                f"{cls.__name__} is not a frozen dataclass: put @dataclass(frozen=True, kw_only=True) above it."
            )

    # -- the four parts of a method ------------------------------------------------------------------------------

    def init(self, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
        """The state before round 0. `gradient` at x and its `mean` over nodes come if it `needs_initial_gradient`."""
        return {name: x if name == "x" else 0 * x for name in self.state_fields}

    def correction(self, state: State, x: Vector) -> Vector:
        """What is added to the gradient at x in a local step."""
        return 0.0

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        """What a node sends at the end of a round."""
        return {"x": local.end}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        """The state after a node has received `mixed` = W_r · message."""
        return {"x": mixed["x"]}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        """What a server makes of `mixed`, the mean of its workers' messages: the fields that live there.

        For engines whose server is a process of its own. It does to these fields what `merge` does; a method that does
        more there than to put what was mixed in their place writes both.
        """
        return {name: mixed[name] for name in self.server_fields}

    # -- methods that exchange twice -----------------------------------------------------------------------------

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        """What is sent after `merge`, given the gradient at the merged x, if it `second_messages`."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        """The state after the second exchange of a round."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    # -- what follows from the declaration -----------------------------------------------------------------------

    @property
    def state_fields(self) -> tuple[str, ...]:
        """The names of all that a node keeps, x first."""
        return "x", *(kept.name for kept in self.state_vars if kept.name != "x")

    @property
    def server_fields(self) -> tuple[str, ...]:
        """The fields that live at the server, where there is one."""
        return tuple(kept.name for kept in self.state_vars if kept.at_server)

    @property
    def needs_initial_gradient(self) -> bool:
        """Does `init` take the gradient at the start and its mean over the nodes?"""
        return False

    @property
    def tracks(self) -> bool:
        """Do the corrections follow the network's gradient, with a sum over the nodes that stays 0?"""
        return any(kept.zero_sum for kept in self.state_vars)

    @property
    def oracle_options(self) -> dict[str, Any]:
        """The arguments of the oracle that the method is made of."""
        return {}

    @property
    def communication_probability(self) -> Any:
        """The probability that a round ends with communication."""
        return 1.0

    def tracker(self, state: State) -> Vector:
        """y − g, the part of the tracking variable that is not the local gradient, of a method that `tracks`."""
        return self.correction(state, state["x"])

    def conserved(self, state: State, participation: Any) -> Vector:
        """A vector of each node whose sum over all nodes stays 0 for ever, of a method that `tracks`."""
        return next(state[kept.name] for kept in self.state_vars if kept.zero_sum)

    def check(self, participation: float) -> None:
        """Raises a ValueError if the method is wrong where this share of the nodes works in a round."""

    def cost(self, samples: int | None = None) -> Cost:
        """What a round costs a node; `samples` is m, the number of samples a node holds."""
        sent = self.mixing_steps * (len(self.messages) + len(self.second_messages))
        # The model, the gradient, and the round's start where it is needed after the first step.
        begun = self.tau > 1 and bool(self.reads & {"start", "direction"})
        buffers = len(self.state_fields) + 1 + begun + ("first" in self.reads) + bool(self.second_messages)
        gradients = self.tau + ("start_gradient" in self.reads)
        return Cost(gradients, sent, buffers, up=sent, down=sent, initial=int(self.needs_initial_gradient))

    def same_as(self, has_server: bool) -> str:
        """Which other method this one is, as it was given, with or without a server; "" if it is none."""
        return ""

    @property
    def label(self) -> str:
        """The method's usual name, with the options that make it another method."""
        return type(self).__name__


def _schedule(gamma: Stepsize) -> Stepsize:
    """A stepsize that is a function of the round, tried on the first one."""
    stepsize(gamma, 0)
    return gamma


def one_step(algorithm: Algorithm) -> None:
    """Refuses local steps for a method that is defined with one gradient a round."""
    if algorithm.tau != 1:
        raise InputError(
            "tau",
            algorithm.tau,
            f"{algorithm.label} takes one gradient step a round (tau=1); use STGT, KGT, FlexGT or LUGT for local "
            "steps.",
        )


def _check_declaration(algorithm: Algorithm) -> None:
    """A ValueError that names what is wrong with a method's declaration."""
    name = type(algorithm).__name__
    reads = algorithm.reads
    if isinstance(reads, str) or not all(isinstance(part, str) for part in reads):
        raise ValueError(f"{name}.reads={reads!r}: give a frozenset of names, such as frozenset({{'end', 'gamma'}}).")
    for part in sorted(reads):
        if part not in PARTS:
            raise ValueError(f"{name}.reads has {part!r}: choose from {', '.join(map(repr, PARTS))}.")
    for what, kind in (("state_vars", StateVar), ("messages", MessageVar), ("second_messages", MessageVar)):
        given = getattr(algorithm, what)
        if not isinstance(given, tuple) or not all(isinstance(one, kind) for one in given):
            example = f"({kind.__name__}('c'),)" if kind is StateVar else "(MessageVar('x'), MessageVar('z'))"
            raise ValueError(f"{name}.{what}={given!r}: give a tuple of {kind.__name__}, such as {example}.")
        names = [one.name for one in given]
        for one in given:
            if isinstance(one, MessageVar) and one.transposed and one.pushed:
                raise ValueError(f"{name}.{what} has {one.name!r} both transposed and pushed: a field is one or none.")
        for one in names:
            if names.count(one) > 1:
                raise ValueError(f"{name}.{what} has {one!r} twice: give each name once.")
    if not algorithm.messages:
        raise ValueError(f"{name}.messages is empty: a method sends something, such as (MessageVar('x'),).")
