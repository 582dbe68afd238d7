"""Outer momentum: a method that wraps another. Known ones by their names: DiLoCo and NoLoCo."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Kept, Local, Sent, State, Vector
from stgt.algorithms.federated import FedAvg
from stgt.checks import check_number
from stgt.registry import register


def _handed_on(name: str) -> Any:
    """What the method inside says."""
    return property(lambda outer: getattr(outer.inner, name))


@register
@dataclass(frozen=True, kw_only=True)
class Outer(Algorithm):
    """Any method with a momentum on what a whole round did. With a the round's start and x⁺ what the method's merge
    gives,

        d = a − x⁺;   m ← μm + d;   x ← a − η(d + μm)    (Nesterov), or   x ← a − ηm    with `nesterov=False`.

    `lr=1, momentum=0` is the method itself. Its corrections are kept as they were, so a tracker inside stays one: Σ_i
    c_i = 0, and what it converges to does not change. Where a server holds the model it holds m too.

    Args:
        method: such as STGT(tau=20, beta=0.25). Its gamma and tau may be given here instead.
        lr, momentum: η and μ.
        nesterov: see above.
    """

    method: Algorithm = field(kw_only=False)
    tau: int = 0  # the method's, if left out
    lr: float = 0.7
    momentum: float = 0.6
    nesterov: bool = True

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
        if "m" in method.state_fields:
            raise ValueError(f"{method.label} keeps an m of its own: wrap the method inside it.")
        self._set(method=replace(method, gamma=None, tau=1))
        super().__post_init__()
        replace(method, gamma=self.gamma, tau=self.tau)  # which may refuse them
        self._set(
            lr=check_number(self.lr, "lr", above=0),
            momentum=check_number(self.momentum, "momentum", least=0, below=1),
        )
        if self.inner.coin and self.inner.talks < 1:
            raise ValueError(f"{self.inner.label} may end a round in silence, which has no outer step: give it p=1.")

    @property
    def inner(self) -> Algorithm:
        """The method with this one's stepsize and tau."""
        made = copy(self.method)
        made._set(gamma=self.gamma, tau=self.tau)
        return made

    def _step(self, start: Vector, merged: Vector, m: Vector) -> dict[str, Vector]:
        d = start - merged
        m = self.momentum * m + d
        return {"x": start - self.lr * (d + self.momentum * m if self.nesterov else m), "m": m}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        merged = self.inner.merge(state, local, mixed)
        return {**merged, **self._step(local.start, merged["x"], state["m"])}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        served = self.inner.serve(state, mixed)
        return {**served, **self._step(state["x"], served["x"], state["m"])}

    # -- what the method inside says of itself, with m beside it --------------------------------------------------

    @property
    def reads(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.reads | {"start"}

    @property
    def keeps(self) -> tuple[Kept, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (*self.method.keeps, Kept("m", at_server="x" in self.method.held))

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
    row_stochastic = _handed_on("row_stochastic")
    least_eigenvalue = _handed_on("least_eigenvalue")

    def cost(self, samples: int | None = None) -> Cost:
        inner, reads = self.inner, {"start", "direction"}
        cost, anew = inner.cost(samples), self.tau > 1 and not inner.reads & reads
        return replace(cost, buffers=cost.buffers + 1 + anew)

    def init(self, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
        return {**self.inner.init(x, gradient, mean), "m": 0 * x}

    def correction(self, state: State, x: Vector) -> Vector:
        return self.inner.correction(state, x)

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return self.inner.message(state, local)

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        return self.inner.second_message(state, gradient)

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        return {**self.inner.second_merge(state, gradient, mixed), "m": state["m"]}

    def tracker(self, state: State) -> Vector:
        return self.inner.tracker(state)

    def conserved(self, state: State, participation: Any) -> Vector:
        return self.inner.conserved(state, participation)

    def check(self, participation: float) -> None:
        self.inner.check(participation)

    def same_as(self, has_server: bool) -> str:
        plain = self.lr == 1.0 and self.momentum == 0.0
        return (self.inner.same_as(has_server) or self.inner.label) if plain else ""

    @property
    def label(self) -> str:
        return f"{self.method.label} + outer momentum"


@register
@dataclass(frozen=True, kw_only=True)
class DiLoCo(Outer):
    """DiLoCo: FedAvg with Nesterov's momentum on its rounds. On nodes with different data it keeps FedAvg's bias;
    `Outer(STGT(beta=0.25))` does not have it.

    Inner steps are the engine's: AdamW in the paper, with its momentum kept at each node.
    Reference: Douillard et al., arXiv:2311.08105; the defaults are theirs.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    momentum: float = 0.9

    @property
    def label(self) -> str:
        return "DiLoCo"


@register
@dataclass(frozen=True, kw_only=True)
class NoLoCo(Outer):
    """NoLoCo, for `random_matching(n)`: m ← μm + (a − mean of the pair's h), x ← a − ηm, without Nesterov's step.

    As the public code has it, which takes one coefficient for the pair's mean step and for the pull of its two models
    towards each other: η(mean Δ + a − mean a). Their sum is one vector, and so is what is sent.
    Reference: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, arXiv:2506.10911; the defaults are of its public code.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    momentum: float = 0.5
    nesterov: bool = False

    @property
    def label(self) -> str:
        return "NoLoCo"
