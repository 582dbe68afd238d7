"""Gradient tracking with two exchanges a round, the second after a gradient at the mixed model: Aug-DGM and LU-GT."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stgt._internal.checks import InputError, check_number
from stgt._internal.registry import register
from stgt.algorithms.base import one_step
from stgt.algorithms.declare import Local, MessageVar, RoundSpec, State, Vector
from stgt.algorithms.tracking import Tracking


@register
@dataclass(frozen=True, kw_only=True)
class LUGT(Tracking):
    """LU-GT: W_k = W every tau-th iteration and I between; x ← W_k(x − ηy), y ← W_k(y + α∇f(x⁺) − α∇f(x)).

    Only the product gamma = ηα matters. `atc_y=False` mixes y before the gradients are added, which is
    FlexGT(snapshot="last"). The paper states it for full gradients.
    Reference: Nguyen, Alghunaim, Yuan, Uribe, arXiv:2210.04757.
    """

    title = "LU-GT"

    atc_y: bool = True

    def spec(self) -> RoundSpec:
        x, y = MessageVar("x", replaces=True), MessageVar("y", pushed=True)
        if self.atc_y:
            return replace(super().spec(), reads={"end"}, messages=(x,), second_messages=(y,))
        return replace(super().spec(), reads={"end", "last"}, messages=(x, y))

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        if self.atc_y:
            return {"x": local.end}
        return {"x": local.end, "y": local.last + state["c"]}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        if self.atc_y:
            return {"x": mixed["x"], "c": state["c"]}
        return {"x": mixed["x"], "c": self.relaxed(state["c"], mixed["y"] - local.last)}

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        return {"y": gradient + state["c"]}

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        return {"x": state["x"], "c": self.relaxed(state["c"], mixed["y"] - gradient)}

    def same_as(self, has_server: bool) -> str:
        return "" if self.atc_y else "FlexGT (last)"


@register
@dataclass(frozen=True, kw_only=True)
class AugDGM(LUGT):
    """Aug-DGM: x ← W(x − Dy), y ← W(y + g⁺ − g), D = diag(γ_i).

    `gamma` is one stepsize, or one per node. With equal stepsizes it is LU-GT with tau = 1.
    Reference: Xu, Zhu, Soh, Xie, CDC 2015.
    """

    title = "Aug-DGM"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_step(self)
        if not self.atc_y:
            raise InputError("atc_y", False, "Aug-DGM mixes y after the gradients are added; use LUGT or DSGT instead.")

    def _stepsize(self) -> float | tuple[float, ...]:
        if not isinstance(self.gamma, Iterable) or isinstance(self.gamma, str) or getattr(self.gamma, "ndim", 1) == 0:
            return super()._stepsize()
        return tuple(check_number(value, f"gamma[{i}]", above=0) for i, value in enumerate(self.gamma))
