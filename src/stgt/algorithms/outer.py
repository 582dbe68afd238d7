"""A step on what a whole round did, around any method: momentum (Outer) and adaptive steps (Adaptive).

Known ones by their names: DiLoCo, NoLoCo, FedAvgM, FedAdam and FedYogi.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from stgt._internal.checks import check_choice, check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Local, RoundSpec, State, StateVar, Vector
from stgt.algorithms.federated import FedAvg
from stgt.algorithms.wrapper import Wrapper


@dataclass(frozen=True, kw_only=True)
class OuterStep(Wrapper):
    """Any method with an optimiser's step in the place of its round: with a the round's start and x⁺ what the method's
    merge gives, x is what `step` makes of both and of the vectors that it `remembers`.

    The method's corrections are kept as they were, so a tracker inside stays one and what it conserves stays conserved.
    A `step` that stays where x⁺ = a, once what it remembers of older rounds has died away, has the method's own fixed
    points. Where a server holds the model, what is remembered lives there too, and is not sent.

    A class of this kind gives `step`, and `init` where what it remembers does not begin at 0.
    """

    remembers: ClassVar[tuple[str, ...]] = ("m",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.spec().communication_probability or 1) < 1:
            raise ValueError(f"{self.inner.label} may end a round in silence, which has no outer step: give it p=1.")

    def spec(self) -> RoundSpec:
        inner = super().spec()
        for name in self.remembers:
            if name in inner.state_fields:
                raise ValueError(f"{self.method.label} keeps its own {name}: wrap the method inside it.")
        at_server = "x" in inner.server_fields
        return replace(
            inner,
            reads=inner.reads | {"start"},
            state=(*inner.state, *(StateVar(name, at_server=at_server) for name in self.remembers)),
            messages=tuple(replace(sent, replaces=sent.replaces and sent.name != "x") for sent in inner.messages),
        )

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        """x and what is remembered, from the round's start a, what the method made of the round, x⁺, and `state`."""
        raise NotImplementedError

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        merged = super().merge(state, local, mixed)
        return {**merged, **self.step(local.start, merged["x"], state)}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        served = super().serve(state, mixed)
        return {**served, **self.step(state["x"], served["x"], state)}

    def cost(self, samples: int | None = None) -> Cost:
        cost = super().cost(samples)
        anew = self.tau > 1 and not super().spec().reads & {"start", "direction"}
        return replace(cost, buffers=cost.buffers + len(self.remembers) + anew)

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return {**super().init(x, gradient, mean), **dict.fromkeys(self.remembers, 0 * x)}

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        kept = {name: state[name] for name in self.remembers}
        return {**super().second_merge(state, gradient, mixed), **kept}


@register
@dataclass(frozen=True, kw_only=True)
class Outer(OuterStep):
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

    lr: float = hyper(0.7, check_number, above=0)
    momentum: float = hyper(0.6, check_number, least=0, below=1)
    nesterov: bool = True

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        d = start - merged
        m = self.momentum * state["m"] + d
        return {"x": start - self.lr * (d + self.momentum * m if self.nesterov else m), "m": m}

    def same_as(self, has_server: bool) -> str:
        plain = self.lr == 1.0 and self.momentum == 0.0
        return (self.inner.same_as(has_server) or self.inner.label) if plain else ""

    @property
    def label(self) -> str:
        return f"{self.method.label} + outer momentum" if type(self) is Outer else super().label


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


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgM(Outer):
    """FedAvgM: m ← μm + mean_S(x − h), x ← x − m: FedAvg with a momentum at the server, and FedAvg's bias.

    Flower's FedAvgM is the same but for its weights, the clients' numbers of samples, and its default momentum, 0.
    Reference: Hsu, Qi, Brown, arXiv:1909.06335.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False


@register
@dataclass(frozen=True, kw_only=True)
class Adaptive(OuterStep):
    """Any method with an adaptive step on what a whole round did. With a the round's start and x⁺ what the method's
    merge gives, entry by entry,

        Δ = x⁺ − a;   m ← β₁m + (1 − β₁)Δ;   x ← a + η m/(√v + ε),   where before the step

        v ← β₂v + (1 − β₂)Δ²                      (`rule="adam"`)
        v ← v − (1 − β₂)Δ² sign(v − Δ²)           ("yogi")
        v ← v + Δ²                                ("adagrad", which has no β₂; the paper takes β₁ = 0 with it).

    m = 0 and v = ε² at first: the least that the paper allows, whose ε is called τ and whose v_{−1} is at least τ².
    There is no correction of the start. Flower's own FedAdam and FedYogi begin at v = 0, and its FedAdam multiplies η
    by √(1 − β₂ᵏ)/(1 − β₁ᵏ) with k = 2 in the first round, 3 in the second; they weigh clients by their samples.

    The method's corrections are kept as they were: c of Scaffold⁺ stays (γ_c n/s) times the mean of own, and what the
    method converges to does not change, as it stays where Δ = 0. There Adam's v dies away, and its step becomes η m/ε:
    without noise it settles if η < 2ε(1 + β₁)/(1 − β₁), 38 ε by default, where a round goes at most all of its way, and
    may wander by a part of η if not. The step is not linear in Δ, so the exact theory does not cover it. Where a
    server holds the model it holds m and v too.

    Reference: Reddi et al., arXiv:2003.00295, Algorithm 2. The defaults but lr are also Flower's.

    Args:
        method: such as ScaffoldPlus(tau=20). Its gamma and tau may be given here instead.
        lr: η, about how far an entry of x goes in a round; to be tuned.
        beta_1, beta_2: β₁ and β₂, each at least 0 and below 1.
        epsilon: ε, in the units of Δ.
        rule: see above.
    """

    lr: float = hyper(0.01, check_number, above=0)
    beta_1: float = hyper(0.9, check_number, least=0, below=1)
    beta_2: float = hyper(0.99, check_number, least=0, below=1)
    epsilon: float = hyper(1e-3, check_number, above=0)
    rule: str = hyper("adam", check_choice, ("adam", "yogi", "adagrad"))

    remembers: ClassVar[tuple[str, ...]] = ("m", "v")

    def spec(self) -> RoundSpec:
        return replace(super().spec(), linear=False)

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return {**super().init(x, gradient, mean), "v": 0 * x + self.epsilon**2}

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        moved = merged - start
        m = self.beta_1 * state["m"] + (1 - self.beta_1) * moved
        v = self._spread(state["v"], moved * moved)
        return {"x": start + self.lr * m / (v**0.5 + self.epsilon), "m": m, "v": v}

    def _spread(self, v: Vector, squared: Vector) -> Vector:
        if self.rule == "adam":
            return self.beta_2 * v + (1 - self.beta_2) * squared
        if self.rule == "yogi":
            return v - (1 - self.beta_2) * (squared * (v > squared) - squared * (v < squared))
        return v + squared

    @property
    def label(self) -> str:
        return f"{self.method.label} + outer {self.rule.capitalize()}" if type(self) is Adaptive else super().label


@register
@dataclass(frozen=True, kw_only=True)
class FedAdam(Adaptive):
    """FedAdam: FedAvg with Adam's step at the server, as `Adaptive` has it. On nodes with different data it keeps
    FedAvg's bias; `Adaptive(ScaffoldPlus())` does not have it.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="adam", init=False)


@register
@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """FedYogi: FedAvg with Yogi's step at the server, as `Adaptive` has it; otherwise as FedAdam.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="yogi", init=False)
