"""A step on what a whole round did, around any method: what Outer and Adaptive share."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Kept, Local, Sent, State, Vector


def _handed_on(name: str) -> Any:
    """What the method inside says."""
    return property(lambda outer: getattr(outer.inner, name))


@dataclass(frozen=True, kw_only=True)
class OuterStep(Algorithm):
    """Any method with an optimiser's step in the place of its round: with a the round's start and x⁺ what the method's
    merge gives, x is what `step` makes of both and of the vectors that it `remembers`.

    The method's corrections are kept as they were, so a tracker inside stays one and what it conserves stays conserved.
    A `step` that stays where x⁺ = a, once what it remembers of older rounds has died away, has the method's own fixed
    points. Where a server holds the model, what is remembered lives there too, and is not sent.

    A class of this kind gives `step`, and `init` where what it remembers does not begin at 0.
    """

    method: Algorithm = field(kw_only=False)
    tau: int = 0  # the method's, if left out

    remembers: ClassVar[tuple[str, ...]] = ("m",)

    def __post_init__(self) -> None:
        method: Any = self.method
        if not isinstance(method, Algorithm):
            raise ValueError(f"method={method!r}: give an instance of the method to wrap, such as STGT(tau=20).")
        for name, given, without in (("gamma", self.gamma, None), ("tau", self.tau, 0)):
            inside, plain = getattr(method, name), 1 if name == "tau" else None
            if given == without:
                self._set(**{name: inside})
            elif inside not in (plain, given):
                raise ValueError(f"{name}={given} and {name}={inside} of the method inside: give it once.")
        for name in self.remembers:
            if name in method.state_fields:
                raise ValueError(f"{method.label} keeps its own {name}: wrap the method inside it.")
        self._set(method=replace(method, gamma=None, tau=1))
        super().__post_init__()
        replace(method, gamma=self.gamma, tau=self.tau)  # which may refuse them
        if self.inner.coin and self.inner.talks < 1:
            raise ValueError(f"{self.inner.label} may end a round in silence, which has no outer step: give it p=1.")

    @property
    def inner(self) -> Algorithm:
        """The method with this one's stepsize and tau."""
        made = copy(self.method)
        made._set(gamma=self.gamma, tau=self.tau)
        return made

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        """x and what is remembered, from the round's start a, what the method made of the round, x⁺, and `state`."""
        raise NotImplementedError

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        merged = self.inner.merge(state, local, mixed)
        return {**merged, **self.step(local.start, merged["x"], state)}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        served = self.inner.serve(state, mixed)
        return {**served, **self.step(state["x"], served["x"], state)}

    # -- what the method inside says of itself, with what is remembered beside it ---------------------------------

    @property
    def reads(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.reads | {"start"}

    @property
    def keeps(self) -> tuple[Kept, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        at_server = "x" in self.method.held
        return (*self.method.keeps, *(Kept(name, at_server=at_server) for name in self.remembers))

    @property
    def exchanges(self) -> tuple[Sent, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(replace(sent, replaces=sent.replaces and sent.name != "x") for sent in self.inner.exchanges)

    exchanges_again = _handed_on("exchanges_again")
    gossips = _handed_on("gossips")
    coin = _handed_on("coin")
    talks = _handed_on("talks")  # pyright: ignore[reportIncompatibleMethodOverride]
    oracle = _handed_on("oracle")
    oracle_options = _handed_on("oracle_options")  # pyright: ignore[reportIncompatibleMethodOverride]
    starts_warm = _handed_on("starts_warm")  # pyright: ignore[reportIncompatibleMethodOverride]
    tracks = _handed_on("tracks")  # pyright: ignore[reportIncompatibleMethodOverride]
    invariant = _handed_on("invariant")
    linear = _handed_on("linear")
    row_stochastic = _handed_on("row_stochastic")
    least_eigenvalue = _handed_on("least_eigenvalue")
    symmetric_only = _handed_on("symmetric_only")

    def cost(self, samples: int | None = None) -> Cost:
        inner, reads = self.inner, {"start", "direction"}
        cost, anew = inner.cost(samples), self.tau > 1 and not inner.reads & reads
        return replace(cost, buffers=cost.buffers + len(self.remembers) + anew)

    def init(self, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
        return {**self.inner.init(x, gradient, mean), **dict.fromkeys(self.remembers, 0 * x)}

    def correction(self, state: State, x: Vector) -> Vector:
        return self.inner.correction(state, x)

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return self.inner.message(state, local)

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        return self.inner.second_message(state, gradient)

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        kept = {name: state[name] for name in self.remembers}
        return {**self.inner.second_merge(state, gradient, mixed), **kept}

    def tracker(self, state: State) -> Vector:
        return self.inner.tracker(state)

    def conserved(self, state: State, participation: Any) -> Vector:
        return self.inner.conserved(state, participation)

    def check(self, participation: float) -> None:
        self.inner.check(participation)
