"""Methods that mix models only."""

from __future__ import annotations

from dataclasses import dataclass

from stgt._internal.checks import check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm
from stgt.algorithms.declare import Linear, Local, MessageVar, RoundSpec, State, StateVar, Vector


@register
@dataclass(frozen=True, kw_only=True)
class DPSGD(Algorithm):
    """D-PSGD: x ← W x − γ g(x), with the gradient taken before mixing. Biased if nodes hold different data.

    `atc=True` adapts, then combines: x ← W(x − γ g(x)). With tau > 1, g(x) is the sum over the local steps.
    Reference: Lian et al., arXiv:1705.09056.
    """

    atc: bool = False

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"end"} if self.atc else {"start", "end"},
            messages=(MessageVar("x", replaces=self.atc, value=Linear(start=1.0, moved=float(self.atc))),),
        )

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.end if self.atc else local.start}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {"x": mixed["x"] if self.atc else mixed["x"] + (local.end - local.start)}

    @property
    def label(self) -> str:
        return "D-PSGD (ATC)" if self.atc else "D-PSGD"


@register
@dataclass(frozen=True, kw_only=True)
class ProxSkip(Algorithm):
    """ProxSkip (Scaffnew): x̂ = x − γ(g − h). With probability p, by a shared coin, x ← mean x̂, otherwise x ← x̂. Then
    h ← h + (p/γ)(x − x̂), so that Σ_i h_i = 0.

    A round has one coin toss: `tau` local steps (1 in the paper), then communication with probability `p`, and the
    weight p/(γτ). Costs count only rounds with communication. `p=1, tau=T` is the periodic variant with p = 1/T, which
    equals ST-GT with W = J. The paper's prox is the mean, `complete(n)`. On another fixed W, which must be symmetric,
    this is the decentralised variant, which needs W ⪰ 0 (weights="lazy"). With p < 1 it can diverge at any stepsize if
    W_r changes or a server samples. Use p = 1 and tau there.
    Reference: Mishchenko, Malinovsky, Stich, Richtárik, arXiv:2202.09357.
    """

    p: float = hyper(1.0, check_number, above=0, most=1)

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"end", "gamma"},
            state=(StateVar("h", zero_sum=True),),
            communication_probability=self.p,
            symmetric_only=True,
        )

    def correction(self, state: State, x: Vector) -> Vector:
        return -state["h"]

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        weight = self.p / (local.gamma * self.tau)
        return {"x": mixed["x"], "h": state["h"] + weight * (mixed["x"] - local.end)}
