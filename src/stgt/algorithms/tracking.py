"""Gradient tracking, one exchange a round: ST-GT, K-GT, FlexGT, DSGT, Push-Pull, DIGing, NEXT, two GT-VR methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stgt._internal.checks import check_choice, check_count, check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm, Cost, one_step
from stgt.algorithms.declare import Linear, Local, MessageVar, RoundSpec, State, StateVar, Vector

END, START, DIRECTION = Linear(start=1.0, moved=1.0), Linear(start=1.0), Linear(direction=1.0)
TRACKED, ADJOINT = MessageVar("z", pushed=True, value=DIRECTION), MessageVar("z", transposed=True, value=DIRECTION)


@dataclass(frozen=True, kw_only=True)
class Tracking(Algorithm):
    """Base of the trackers: y = g + c with c constant inside a round, c_0 = 0, and Σ_i c_i always 0.

    `beta` < 1 relaxes the tracker: c changes only by this part of its full change, c ← c + β(W_r z − z). The fixed
    points, Σ_i c_i = 0 and the messages do not change; see docs/relaxed.md.
    """

    beta: float = hyper(1.0, check_number, above=0, most=1)

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"end", "direction"},
            state=(StateVar("c", zero_sum=True),),
            messages=(MessageVar("x", replaces=True, value=END), TRACKED),
        )

    def correction(self, state: State, x: Vector) -> Vector:
        return state["c"]

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.end, "z": local.direction}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        # z and its mixture come from one quantity, and are subtracted first. With two sources, or in another order,
        # Σ_i c_i would drift in float32.
        return {"x": mixed["x"], "c": state["c"] + self.beta * (mixed["z"] - local.direction)}

    def relaxed(self, c: Vector, tracked: Vector) -> Vector:
        """(1 − β)c + β·tracked: the part β of the full change of c. For β = 1 it is `tracked` to the last bit."""
        return (1.0 - self.beta) * c + self.beta * tracked


@register
@dataclass(frozen=True, kw_only=True)
class STGT(Tracking):
    """Spatio-temporal gradient tracking (Eq_ST_GT), in its c-form:

        tau times  x ← x − γ(g + c);   z = mean of (g + c);   x ← W_r x;   c ← c + β(W_r z − z).

    β = 1 is the paper's method. `beta=0.25` lets deep networks take larger stepsizes (docs/relaxed.md).
    `adjoint=True` mixes the tracker with the transpose, c ← c + β(W_rᵀ z − z). For symmetric W_r it is the same. On
    sparse directed graphs it is stable where the plain form is not (see docs/algorithms.md).

    This implements Eq_ST_GT. Algorithm 1 as printed loses one gradient per round and does not converge.
    Reference: Huang, Xu, Chen, Johansson, arXiv:2512.01732.
    """

    adjoint: bool = False

    def spec(self) -> RoundSpec:
        spec = super().spec()
        return replace(spec, messages=(spec.messages[0], ADJOINT)) if self.adjoint else spec

    @property
    def label(self) -> str:
        return "ST-GT (adjoint)" if self.adjoint else "ST-GT"


@register
@dataclass(frozen=True, kw_only=True)
class KGT(Tracking):
    """K-GT: ST-GT's local phase and tracker, x ← W(a − η_s γ τ z) with a the round's start.

    `eta_s=1` and `warm_start=False` is ST-GT. `warm_start=True` is the K-GT paper's initialisation
    c_i = −g_i(x_0) + mean_j g_j(x_0), which needs one global average.
    Reference: Liu, Lin, Koloskova, Stich, arXiv:2301.01313.
    """

    title = "K-GT"

    eta_s: float = hyper(1.0, check_number, above=0)
    warm_start: bool = False

    def spec(self) -> RoundSpec:
        return replace(
            super().spec(),
            reads={"start", "end", "direction"},
            messages=(MessageVar("x", replaces=True, value=Linear(start=1.0, moved=self.eta_s)), TRACKED),
            needs_initial_gradient=self.warm_start,
        )

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return super().init(x) if gradient is None or mean is None else {"x": x, "c": mean - gradient}

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.start + self.eta_s * (local.end - local.start), "z": local.direction}

    def same_as(self, has_server: bool) -> str:
        return "" if self.warm_start or (self.eta_s, self.beta) != (1.0, 1.0) else "ST-GT"


@register
@dataclass(frozen=True, kw_only=True)
class FlexGT(Tracking):
    """FlexGT: the tracker follows one gradient of the round, c ← W(g* + c) − g*.

    `snapshot="first"` is the equation of the ST-GT paper, Y ← W Y_{rτ} + G_{(r+1)τ} − G_{rτ}. `snapshot="last"` is the
    per-iteration form y ← W y_k + g_{k+1} − g_k. They coincide for tau = 1. `mixing_steps=d` mixes d times at a round's
    end: W_r^d instead of W_r.
    Reference: Huang, Xu, arXiv:2306.07159 and 2509.18129.
    """

    snapshot: str = hyper("first", check_choice, ("first", "last"))
    mixing_steps: int = hyper(1, check_count)

    def spec(self) -> RoundSpec:
        return replace(
            super().spec(),
            reads={"end", self.snapshot},
            messages=(MessageVar("x", replaces=True), MessageVar("y", pushed=True)),
            mixing_steps=self.mixing_steps,
        )

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.end, "y": self._snapshot(local) + state["c"]}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {"x": mixed["x"], "c": self.relaxed(state["c"], mixed["y"] - self._snapshot(local))}

    def _snapshot(self, local: Local) -> Vector:
        return local.first if self.snapshot == "first" else local.last

    def same_as(self, has_server: bool) -> str:
        return "DSGT" if (self.tau, self.mixing_steps, self.beta) == (1, 1, 1.0) else ""

    @property
    def label(self) -> str:
        return f"FlexGT ({self.snapshot})"


@dataclass(frozen=True, kw_only=True)
class OneStepTracking(Tracking):
    """Trackers with one gradient a round; z is then the round's only tracking variable y = g + c."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_step(self)


@register
@dataclass(frozen=True, kw_only=True)
class DSGT(OneStepTracking):
    """Distributed stochastic gradient tracking: x ← W(x − γy), y ← W y + g⁺ − g. It is ST-GT with tau = 1.

    Reference: Pu, Nedić, arXiv:1805.11454.
    """


@register
@dataclass(frozen=True, kw_only=True)
class PushPull(OneStepTracking):
    """Push-Pull: x ← R(x − γy), y ← C y + g⁺ − g with R row-stochastic and C column-stochastic: `push_pull(R, C)`.

    For directed graphs without doubly stochastic weights. If R = C it is DSGT, and DSGT on `push_pull` is Push-Pull.
    STGT on `push_pull` is its form with local steps. The paper allows one stepsize per node; here there is one.
    Reference: Pu, Shi, Xu, Nedić, arXiv:1810.06653.
    """

    title = "Push-Pull"

    def same_as(self, has_server: bool) -> str:
        return "DSGT" if self.beta == 1.0 else ""


@register
@dataclass(frozen=True, kw_only=True)
class DIGing(OneStepTracking):
    """DIGing on time-varying graphs: x ← W_k x − γy, y ← W_k y + g⁺ − g.

    Reference: Nedić, Olshevsky, Shi, arXiv:1607.03218.
    """

    def spec(self) -> RoundSpec:
        reads = {"start", "end", "direction"}
        return replace(super().spec(), reads=reads, messages=(MessageVar("x", value=START), TRACKED))

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.start, "z": local.direction}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {**super().merge(state, local, mixed), "x": mixed["x"] + (local.end - local.start)}


@register
@dataclass(frozen=True, kw_only=True)
class NEXT(OneStepTracking):
    """NEXT with a linear surrogate: x̃ = x − γy, then x ← W(x + α_k(x̃ − x)), y ← W y + g⁺ − g.

    γ = t·n, where 1/t is the surrogate's proximal weight and the paper's objective is the *sum* of the f_i.
    α_k = alpha/(k+1)^decay is the paper's diminishing rule. decay=0 keeps it constant: DSGT with stepsize γ·alpha.
    Reference: Di Lorenzo, Scutari, arXiv:1602.00591.
    """

    alpha: float = hyper(1.0, check_number, above=0, most=1)
    decay: float = hyper(0.0, check_number, least=0, most=1)

    def spec(self) -> RoundSpec:
        moved = MessageVar("x", replaces=True, value=lambda r: Linear(start=1.0, moved=self._alpha(r)))
        reads = {"start", "end", "direction", "round"}
        return replace(super().spec(), reads=reads, messages=(moved, TRACKED))

    def same_as(self, has_server: bool) -> str:
        return "" if self.decay or self.beta != 1.0 else "DSGT with stepsize gamma·alpha"

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.start + self._alpha(local.round) * (local.end - local.start), "z": local.direction}

    def _alpha(self, r: Any) -> Any:
        return self.alpha * (r + 1.0) ** -self.decay


@register
@dataclass(frozen=True, kw_only=True)
class GTSAGA(DIGing):
    """GT-SAGA: x ← W x − γy, y ← W y + v⁺ − v with v a SAGA estimate of each node's full gradient.

    It is DIGing's recursion with the SAGA oracle. An f_i that is not a mean over samples counts as one sample; v is
    then exact.
    Reference: Xin, Khan, Kar, arXiv:1912.04230.
    """

    title = "GT-SAGA"

    def spec(self) -> RoundSpec:
        return replace(super().spec(), oracle="SAGA")

    def cost(self, samples: int | None = None) -> Cost:
        m = check_count(samples, "samples")
        return Cost(gradients=1, vectors=2, buffers=4 + m, up=2, down=2, initial=m)


@register
@dataclass(frozen=True, kw_only=True)
class GTSVRG(DIGing):
    """GT-SVRG: GT-SAGA's recursion with an SVRG estimate, whose snapshot is taken every `period` iterations.

    Reference: Xin, Khan, Kar, arXiv:1912.04230.
    """

    title = "GT-SVRG"

    period: int = hyper(20, check_count)

    def spec(self) -> RoundSpec:
        return replace(super().spec(), oracle="SVRG", oracle_options={"period": self.period})

    def cost(self, samples: int | None = None) -> Cost:
        m = check_count(samples, "samples")
        return Cost(gradients=2 + m / self.period, vectors=2, buffers=5, up=2, down=2)
