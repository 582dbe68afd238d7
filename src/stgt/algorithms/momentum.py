"""Trackers with momentum and one gradient a round: Momentum Tracking and GTAdam."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stgt._internal.checks import check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.declare import Local, MessageVar, RoundSpec, State, StateVar, Vector
from stgt.algorithms.tracking import START, TRACKED, OneStepTracking


@register
@dataclass(frozen=True, kw_only=True)
class MomentumTracking(OneStepTracking):
    """Momentum Tracking: u ← μu + g, x ← W(x − γ(u + c)), c ← c + W(u + c) − (u + c). It tracks the momentum.

    The paper's c has the opposite sign. μ = 0 is DSGT.
    Reference: Takezawa, Bao, Niwa, Sato, Yamada, arXiv:2209.15505.
    """

    title = "Momentum Tracking"

    momentum: float = hyper(0.9, check_number, least=0, below=1)

    def spec(self) -> RoundSpec:
        return replace(super().spec(), state=(StateVar("c", zero_sum=True), StateVar("u")))

    def correction(self, state: State, x: Vector) -> Vector:
        return state["c"] + self.momentum * state["u"]

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {**super().merge(state, local, mixed), "u": local.direction - state["c"]}

    def tracker(self, state: State) -> Vector:
        return state["c"]

    def same_as(self, has_server: bool) -> str:
        return "DSGT" if (self.momentum, self.beta) == (0.0, 1.0) else ""


@register
@dataclass(frozen=True, kw_only=True)
class GTAdam(OneStepTracking):
    """GTAdam: y ← W y + g⁺ − g as in gradient tracking, and Adam's step on y without bias correction:

        m ← β₁m + (1 − β₁)y;   v ← min(β₂v + (1 − β₂)y², G);   x ← W x − γ m/√(v + ε).

    This is the paper's √(v + ε). The public code has √v + ε.
    Reference: Carnevale, Farina, Notarnicola, Notarstefano, arXiv:2009.01745.
    """

    beta_1: float = hyper(0.9, check_number, least=0, below=1)
    beta_2: float = hyper(0.999, check_number, least=0, below=1)
    epsilon: float = hyper(1e-8, check_number, above=0)
    bound: float = hyper(1e6, check_number, above=0)

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"start", "direction", "gamma"},
            state=(StateVar("c", zero_sum=True), StateVar("m"), StateVar("v")),
            messages=(MessageVar("x", value=START), TRACKED),
            linear=False,
        )

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.start, "z": local.direction}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        y = local.direction
        m = self.beta_1 * state["m"] + (1 - self.beta_1) * y
        v = self.beta_2 * state["v"] + (1 - self.beta_2) * (y * y)
        v = (v <= self.bound) * v + (v > self.bound) * self.bound
        x = mixed["x"] - local.gamma * (m / (v + self.epsilon) ** 0.5)
        return {"x": x, "c": state["c"] + self.beta * (mixed["z"] - y), "m": m, "v": v}
