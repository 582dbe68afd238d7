"""SAGA and SVRG: estimates of a node's full gradient. Their noise vanishes as the models converge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stgt._internal.checks import check_count
from stgt._internal.ops import Ops
from stgt._internal.randomness import Clock
from stgt._internal.registry import register
from stgt.oracles.stochastic import Oracle, needs_samples
from stgt.problems.base import Problem

Array = Any


@register
@dataclass(frozen=True)
class SAGA(Oracle):
    """v = ∇f_j(x) − T_j + mean(T), then T_j ← ∇f_j(x). The table T starts with all gradients at x_0.

    So the first v is the full gradient, for any j.
    """

    def check(self, problem: Problem) -> None:
        needs_samples(self, problem)

    def init(self, ops: Ops, model: Any, data: dict[str, Array], x: Array) -> dict[str, Array]:
        table = model.component_gradients(ops.xp, data, x)
        return {"table": table, "mean": (table * data["weight"][:, :, None]).sum(axis=1)}

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return clock.integers(1, counts)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        xp, index = ops.xp, drawn
        fresh = model.sample_gradients(xp, data, x, index)
        change = fresh - state["table"][xp.arange(len(x)), index[:, 0]]
        share = data["weight"].max(axis=1)[:, None]
        return change + state["mean"], {
            "table": ops.put(state["table"], index[:, 0], fresh),
            "mean": state["mean"] + share * change,
        }

    def calls(self, samples: float) -> float:
        return 1

    def initial_calls(self, samples: float) -> float:
        return samples


@register
@dataclass(frozen=True)
class SVRG(Oracle):
    """v = ∇f_j(x) − ∇f_j(x̃) + ∇f_i(x̃). The snapshot x̃ ← x is taken before v, every `period` steps."""

    period: int = 20

    def __post_init__(self) -> None:
        self._set(period=check_count(self.period, "period"))

    def check(self, problem: Problem) -> None:
        needs_samples(self, problem)

    def init(self, ops: Ops, model: Any, data: dict[str, Array], x: Array) -> dict[str, Array]:
        return {"snapshot": x, "full": model.gradients(ops.xp, data, x)}

    def draw(self, clock: Clock, p: int, counts: Array | None) -> dict[str, Array]:
        return {"index": clock.integers(1, counts), "refresh": clock.step % self.period == 0}

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        xp, index = ops.xp, drawn["index"]
        state = ops.cond(drawn["refresh"], lambda _: self.init(ops, model, data, x), state)
        fresh = model.sample_gradients(xp, data, x, index)
        stale = model.sample_gradients(xp, data, state["snapshot"], index)
        return fresh - stale + state["full"], state

    def calls(self, samples: float) -> float:
        return 2 + samples / self.period
