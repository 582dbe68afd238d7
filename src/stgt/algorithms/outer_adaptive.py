"""Adaptive outer steps: Adam, Yogi or Adagrad on what a whole round did. Known by their names: FedAdam and FedYogi."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from stgt._internal.checks import check_choice, check_number
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm
from stgt.algorithms.declare import State, Vector
from stgt.algorithms.federated import FedAvg
from stgt.algorithms.outer_step import OuterStep

RULES = ("adam", "yogi", "adagrad")


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
    may wander by a part of η if not. The step is not linear in Δ, so the exact theory has nothing to say of it. Where a
    server holds the model it holds m and v too.

    Reference: Reddi et al., arXiv:2003.00295, Algorithm 2. The defaults but lr are also Flower's.

    Args:
        method: such as ScaffoldPlus(tau=20). Its gamma and tau may be given here instead.
        lr: η, about how far an entry of x goes in a round; to be tuned.
        beta_1, beta_2: β₁ and β₂, each at least 0 and below 1.
        epsilon: ε, in the units of Δ.
        rule: see above.
    """

    lr: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.99
    epsilon: float = 1e-3
    rule: str = "adam"

    remembers: ClassVar[tuple[str, ...]] = ("m", "v")
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            lr=check_number(self.lr, "lr", above=0),
            beta_1=check_number(self.beta_1, "beta_1", least=0, below=1),
            beta_2=check_number(self.beta_2, "beta_2", least=0, below=1),
            epsilon=check_number(self.epsilon, "epsilon", above=0),
            rule=check_choice(self.rule, "rule", RULES),
        )

    def init(self, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
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
        return f"{self.method.label} + outer {self.rule.capitalize()}"


@register
@dataclass(frozen=True, kw_only=True)
class FedAdam(Adaptive):
    """FedAdam: FedAvg with Adam's step at the server, as `Adaptive` has it. On nodes with different data it keeps
    FedAvg's bias; `Adaptive(ScaffoldPlus())` does not have it.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="adam", init=False)

    @property
    def label(self) -> str:
        return "FedAdam"


@register
@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """FedYogi: FedAvg with Yogi's step at the server, as `Adaptive` has it; otherwise as FedAdam.

    Reference: Reddi et al., arXiv:2003.00295.
    """

    method: Algorithm = field(default_factory=FedAvg, init=False)
    rule: str = field(default="yogi", init=False)

    @property
    def label(self) -> str:
        return "FedYogi"
