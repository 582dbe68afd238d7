"""The base of all algorithms: what a node computes, what it sends, and what it does with what it receives.

Every method of the family has one shape::

    tau times:  x ← x − gamma · (g + correction)       local steps, no communication
    once:       message(state, local)                  what a node sends
                mixed = W_r · message                  the network (W_rᵀ for a `transposed` message, C_r of a
                                                       `push_pull` topology for a `pushed` one)
                state ← merge(state, local, mixed)     the new state from what the node received

An algorithm is a frozen dataclass. It uses only ``+ − · /`` on vectors, so it needs no array library and no engine: a
vector may be an (n, p) stack of all nodes, one node's flat buffer, or a chunk of it. The algorithm declares what it
reads of a round, keeps and sends. The engine passes it exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from stgt._internal.checks import InputError, check_count, check_flag, check_number
from stgt._internal.hyper import Frozen, ShortRepr, declared, real_fields
from stgt._internal.schedules import Stepsize, stepsize
from stgt.algorithms.declare import Local, RoundSpec, State, Vector


@dataclass(frozen=True)
class Cost:
    """The cost of a round that ends with communication, for a node, in units of one model; see docs/algorithms.md.

    Attributes:
        gradients: gradients computed per round. With an oracle for samples (SAGA, SVRG), gradients of one sample each.
        vectors: vectors sent to each neighbour per round.
        up, down: vectors to and from the server, if there is one.
        buffers: model-sized buffers in memory, including the gradient's.
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
    """Base of all methods. You may omit `gamma` only if an engine supplies it (the lr of a torch optimiser).

    Your own method declares its round in `spec` and overrides `correction`, `message` and `merge`. All other methods
    have defaults, which you may override.
    """

    # A number, or a function of the round's number (stgt.schedules). Some methods also take one number per node.
    gamma: float | tuple[float, ...] | Stepsize | None = None
    tau: int = 1

    title: ClassVar[str] = ""  # its usual name, if that is not the class's name

    def __post_init__(self) -> None:
        self.check_class()
        if self.gamma is not None:
            self._set(gamma=_schedule(self.gamma) if callable(self.gamma) else self._stepsize())
        self._set(tau=check_count(self.tau, "tau"))
        for name in (one.name for one in fields(self) if one.name not in ("gamma", "tau")):
            value, found = getattr(self, name), declared(type(self), name)
            if checks := [one.metadata["check"] for one in found if "check" in one.metadata]:
                value = checks[0](value, name)
            elif name in real_fields(type(self)) and value is not None:
                value = check_number(value, name)
            elif isinstance(found[0].default, bool):
                value = check_flag(value, name)
            self._set(**{name: tuple(value) if isinstance(value, list) else value})  # spec files have lists
        try:
            spec: Any = self.spec()
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}'s spec: {error}") from None
        if not isinstance(spec, RoundSpec):
            raise ValueError(f"{type(self).__name__}'s spec returns a {type(spec).__name__}: return a RoundSpec.")

    def _stepsize(self) -> float | tuple[float, ...]:
        return check_number(self.gamma, "gamma", above=0)

    @classmethod
    def check_class(cls) -> None:
        """Raises a ValueError if a subclass is not itself a dataclass. If it is one, it is frozen, as its base is."""
        if "__dataclass_params__" not in vars(cls):
            raise ValueError(
                f"{cls.__name__} is not a frozen dataclass: put @dataclass(frozen=True, kw_only=True) above it."
            )

    # -- a method: its declaration and four functions --------------------------------------------------------------

    def spec(self) -> RoundSpec:
        """What the method reads of a round, keeps and sends. Must be cheap, and independent of traced values."""
        return RoundSpec()

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        """The state before round 0. `needs_initial_gradient` adds the gradient at x and its mean over the nodes."""
        return {name: x if name == "x" else 0 * x for name in self.spec().state_fields}

    def correction(self, state: State, x: Vector) -> Vector | float:
        """What is added to the gradient at x in a local step."""
        return 0.0

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        """What a node sends at the end of a round."""
        return {"x": local.end}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        """The state after a node has received `mixed` = W_r · message."""
        return {"x": mixed["x"]}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        """The server's fields after it has computed `mixed`, the mean of its workers' messages.

        Used by engines whose server is a separate process. It must set these fields as `merge` does. The default
        stores what was mixed. A method whose `merge` does more than that overrides both.
        """
        return {name: mixed[name] for name in self.spec().server_fields}

    # -- methods that exchange twice -----------------------------------------------------------------------------

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        """What is sent after `merge`, given the gradient at the merged x. Needs `second_messages` in the spec."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        """The state after the second exchange of a round."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    # -- what follows from the declaration -----------------------------------------------------------------------

    def tracker(self, state: State) -> Vector | float:
        """y − g: the tracking variable without the local gradient. For methods that `tracks` is true for."""
        return self.correction(state, state["x"])

    def conserved(self, state: State, participation: Any) -> Vector:
        """A vector of each node whose sum over all nodes is always 0. For methods that `tracks` is true for."""
        return next(state[kept.name] for kept in self.spec().state if kept.zero_sum)

    def check(self, participation: float) -> None:
        """Raises a ValueError if the method does not converge when only this share of the nodes works in a round."""

    def cost(self, samples: int | None = None) -> Cost:
        """The cost of a round for a node; `samples` is m, the number of samples of a node."""
        spec = self.spec()
        sent = spec.mixing_steps * (len(spec.messages) + len(spec.second_messages))
        # The model, the gradient, and the round's start if it is needed after the first step.
        begun = self.tau > 1 and bool(spec.reads & {"start", "direction"})
        buffers = len(spec.state_fields) + 1 + begun + ("first" in spec.reads) + bool(spec.second_messages)
        gradients = self.tau + ("start_gradient" in spec.reads)
        return Cost(gradients, sent, buffers, up=sent, down=sent, initial=int(spec.needs_initial_gradient))

    def same_as(self, has_server: bool) -> str:
        """The other method that this one equals with these options, with or without a server; "" if there is none."""
        return ""

    @property
    def label(self) -> str:
        """The method's usual name, with those options that make it a different method."""
        return self.title or type(self).__name__


def _schedule(gamma: Stepsize) -> Stepsize:
    """Checks a stepsize that is a function of the round, by its value in round 0."""
    stepsize(gamma, 0)
    return gamma


def one_step(algorithm: Algorithm) -> None:
    """Raises an error if a method that is defined with one gradient per round has local steps."""
    if algorithm.tau != 1:
        raise InputError(
            "tau",
            algorithm.tau,
            f"{algorithm.label} takes one gradient step a round (tau=1); use STGT, KGT, FlexGT or LUGT for local "
            "steps.",
        )
