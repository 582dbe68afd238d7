"""What an algorithm is: what a node computes, says, and makes of what it hears.

Every method of the family has one shape::

    tau times:  x ← x − gamma · (g + correction)       local work, nothing sent
    once:       message(state, local)                  what a node says
                mixed = W_r · message                  the network (W_rᵀ for the fields in `against`)
                state ← merge(state, local, mixed)     what it makes of what it heard

An algorithm is a frozen dataclass written with ``+ − · /`` on vectors only. It knows no array library and no engine:
a vector may be an (n, p) stack of all nodes, one node's flat buffer, or a chunk of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from stgt.checks import check_count, check_flag, check_number
from stgt.hyper import Hyper

Vector = Any
State = Mapping[str, Vector]


@dataclass(frozen=True)
class Local:
    """What the engine hands over after the local steps of a round.

    `direction` is the mean of (g + correction) over the round: (start − end)/(gamma·tau) for plain SGD. The gradients
    are None unless the algorithm `needs` them.
    """

    start: Vector
    end: Vector
    direction: Vector
    gamma: Any
    round: Any = 0
    participation: Any = 1.0  # the share of nodes that work in a round, s/n
    first: Vector = None  # the round's first gradient
    last: Vector = None  # the round's last gradient
    anchor: Vector = None  # one more gradient, at `start`, on a sample of its own


@dataclass(frozen=True)
class Cost:
    """What a round that ends with communication costs a node, in units of one model; see docs/algorithms.md.

    Attributes:
        gradients: gradients computed a round; of one sample each where the method is made of an oracle for samples.
        vectors: vectors said to each neighbour a round.
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
class Algorithm(Hyper):
    """Base of all methods. `gamma` may be left out only where an engine supplies it (a torch optimiser's lr)."""

    gamma: float | tuple[float, ...] | None = None  # one for each node only where the method has that
    tau: int = 1

    held: ClassVar[tuple[str, ...]] = ()  # the fields that live at the server, where there is one
    oracle: ClassVar[str | None] = None  # the name of the oracle the method is made of, if it insists on one
    row_stochastic: ClassVar[str] = "never"  # where W_r may be row-stochastic only: "never", "server" or "any"
    invariant: ClassVar[str] = "Σ_i c_i must be 0"  # what `conserved` says, in words

    def __post_init__(self) -> None:
        if self.gamma is not None:
            self._set(gamma=self._stepsize())
        self._set(tau=check_count(self.tau, "tau"))
        for field in fields(self):
            if isinstance(field.default, bool):
                self._set(**{field.name: check_flag(getattr(self, field.name), field.name)})

    def _stepsize(self) -> float | tuple[float, ...]:
        return check_number(self.gamma, "gamma", above=0)

    # -- the four parts of a method ------------------------------------------------------------------------------

    def init(self, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
        """The state before round 0. `gradient` at x and its `mean` over nodes come if "initial" is in `needs`."""
        return {"x": x}

    def correction(self, state: State, x: Vector) -> Vector:
        """What is added to the gradient at x in a local step."""
        return 0.0

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        """What a node says at the end of a round."""
        return {"x": local.end}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        """The state after a node has heard `mixed` = W_r · message."""
        return {"x": mixed["x"]}

    # -- methods that exchange twice -----------------------------------------------------------------------------

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        """What is said after `merge`, given the gradient at the merged x, if "lookahead" is in `needs`."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        """The state after the second exchange of a round."""
        raise NotImplementedError(f"{type(self).__name__} exchanges once a round")

    # -- what an engine has to know ------------------------------------------------------------------------------

    @property
    def needs(self) -> frozenset[str]:
        """What the engine must supply: of "initial", "first", "last", "anchor", "lookahead", "coin"."""
        return frozenset()

    @property
    def against(self) -> tuple[str, ...]:
        """The message fields that travel against the edges, mixed with W_rᵀ."""
        return ()

    @property
    def oracle_options(self) -> dict[str, Any]:
        """The arguments of the oracle that the method is made of."""
        return {}

    @property
    def talks(self) -> Any:
        """The probability that a round ends with communication."""
        return 1.0

    def tracker(self, state: State) -> Vector:
        """y − g, the part of the tracking variable that is not the local gradient; None if nothing is tracked."""
        return None

    def conserved(self, state: State, participation: float) -> Vector:
        """A vector of each node whose sum over all nodes stays 0 for ever; None if there is none."""
        return self.tracker(state)

    def check(self, participation: float) -> None:
        """Raises a ValueError if the method is wrong where this share of the nodes works in a round."""

    def cost(self, samples: int | None = None) -> Cost:
        """What a round costs a node; `samples` is m, the number of samples a node holds."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The method's usual name, with the options that make it another method."""
        return type(self).__name__


def one_step(algorithm: Algorithm) -> None:
    """Refuses local steps for a method that is defined with one gradient a round."""
    if algorithm.tau != 1:
        raise ValueError(
            f"tau={algorithm.tau}: {algorithm.label} takes one gradient step a round (tau=1); "
            "use STGT, KGT, FlexGT or LUGT for local steps."
        )
