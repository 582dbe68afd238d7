"""A server step around any method, on the change of a whole round: momentum (Outer) and adaptive steps (Adaptive).

Published special cases: DiLoCo, NoLoCo, FedAvgM, FedAdam and FedYogi.
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
    """Any method, followed by an optimiser's step on the change of the whole round. Let a be the round's start and x⁺
    the result of the method's merge: `step` computes x from both and from the vectors named in `remembers`.

    The method's corrections are unchanged, so a tracker inside stays a tracker, and what it conserves stays conserved.
    The fixed points are the method's own if `step` returns a for x⁺ = a, once its memory of older rounds has decayed.
    If a server holds the model, it also holds these vectors, and does not send them.

    A subclass defines `step`, and `init` if one of its vectors does not start at 0.
    """

    remembers: ClassVar[tuple[str, ...]] = ("m",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.spec().communication_probability or 1) < 1:
            raise ValueError(f"{self.inner.label} may skip the communication of a round: an outer step needs p=1.")

    def spec(self) -> RoundSpec:
        inner = super().spec()
        for name in self.remembers:
            if name in inner.state_fields:
                raise ValueError(f"{self.method.label} has a state variable {name} too: wrap the method inside it.")
        at_server = "x" in inner.server_fields
        return replace(
            inner,
            reads=inner.reads | {"start"},
            state=(*inner.state, *(StateVar(name, at_server=at_server) for name in self.remembers)),
            messages=tuple(replace(sent, replaces=sent.replaces and sent.name != "x") for sent in inner.messages),
        )

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        """x and the remembered vectors, from the round's start a, the method's result x⁺, and `state`."""
        raise NotImplementedError

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        merged = super().merge(state, local, mixed)
        return {**merged, **self.step(local.start, merged["x"], state)}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        served = super().serve(state, mixed)
        return {**served, **self.step(state["x"], served["x"], state)}

    def cost(self, samples: int | None = None) -> Cost:
        cost = super().cost(samples)
        added = self.tau > 1 and not super().spec().reads & {"start", "direction"}
        return replace(cost, buffers=cost.buffers + len(self.remembers) + added)

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return {**super().init(x, gradient, mean), **dict.fromkeys(self.remembers, 0 * x)}

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        kept = {name: state[name] for name in self.remembers}
        return {**super().second_merge(state, gradient, mixed), **kept}


@register
@dataclass(frozen=True, kw_only=True)
class Outer(OuterStep):
    """Any method with momentum on the change of a whole round. Let a be the round's start and x⁺ the result of the
    method's merge:

        d = a − x⁺;   m ← μm + d;   x ← a − η(d + μm)    (Nesterov), or   x ← a − ηm    with `nesterov=False`.

    `lr=1, momentum=0` is the method itself. Its corrections are unchanged, so a tracker inside stays a tracker: Σ_i
    c_i = 0, and its limit does not change. If a server holds the model, it holds m too.

    Args:
        method: such as STGT(tau=20, beta=0.25). You may give its gamma and tau here instead.
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
    """DiLoCo: FedAvg with Nesterov momentum on its rounds. It has FedAvg's bias if nodes hold different data;
    `Outer(STGT(beta=0.25))` does not.

    The inner steps are the engine's. The paper uses AdamW, and each node keeps AdamW's momentum.
    Reference: Douillard et al., arXiv:2311.08105; the defaults are theirs.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    momentum: float = 0.9


@register
@dataclass(frozen=True, kw_only=True)
class NoLoCo(Outer):
    """NoLoCo, for `random_matching(n)`: m ← μm + (a − mean of the pair's h), x ← a − ηm, without Nesterov's step.

    This is the form of the public code. It has one coefficient for the pair's mean step and for the attraction of the
    two models: η(mean Δ + a − mean a). The sum is one vector, so one vector is sent.
    Reference: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, arXiv:2506.10911; the defaults are those of its public code.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    momentum: float = 0.5
    nesterov: bool = False


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgM(Outer):
    """FedAvgM: m ← μm + mean_S(x − h), x ← x − m: FedAvg with momentum at the server. It has FedAvg's bias.

    Flower's FedAvgM differs in its weights, the clients' numbers of samples, and in its default momentum, 0.
    Reference: Hsu, Qi, Brown, arXiv:1909.06335.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False


@register
@dataclass(frozen=True, kw_only=True)
class Adaptive(OuterStep):
    """Any method with an adaptive step on the change of a whole round. Let a be the round's start and x⁺ the result of
    the method's merge. Entry by entry,

        Δ = x⁺ − a;   m ← β₁m + (1 − β₁)Δ;   x ← a + η m/(√v + ε),   where before the step
        v ← β₂v + (1 − β₂)Δ²                      (`rule="adam"`)
        v ← v − (1 − β₂)Δ² sign(v − Δ²)           ("yogi")
        v ← v + Δ²                                ("adagrad", which has no β₂; the paper uses it with β₁ = 0).

    At first m = 0 and v = ε². This is the least v that the paper allows: it calls ε τ, and needs v_{−1} ≥ τ². There is
    no bias correction. Flower's own FedAdam and FedYogi start from v = 0, and weight clients by their samples. Its
    FedAdam multiplies η by √(1 − β₂ᵏ)/(1 − β₁ᵏ), with k = 2 in the first round and 3 in the second.

    The method's corrections are unchanged: c of Scaffold⁺ stays (γ_c n/s) times the mean of own. The method's limit
    does not change either, as x = a if Δ = 0. There Adam's v decays, and its step becomes η m/ε. Without noise it
    settles if η < 2ε(1 + β₁)/(1 − β₁), 38 ε by default, as long as a round does not overshoot; otherwise it may wander
    by a part of η. The step is not linear in Δ, so the exact theory does not cover it. If a server holds the model, it
    holds m and v too.

    Reference: Reddi et al., arXiv:2003.00295, Algorithm 2. All defaults except lr are also Flower's.

    Args:
        method: such as ScaffoldPlus(tau=20). You may give its gamma and tau here instead.
        lr: η, approximately the change of an entry of x in a round; tune it.
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
    """FedAdam: FedAvg with Adam's step at the server, as in `Adaptive`. It has FedAvg's bias if nodes hold different
    data; `Adaptive(ScaffoldPlus())` does not.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="adam", init=False)


@register
@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """FedYogi: FedAvg with Yogi's step at the server, as in `Adaptive`; otherwise as FedAdam.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="yogi", init=False)
