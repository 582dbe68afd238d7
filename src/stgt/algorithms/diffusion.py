"""Methods that compute their corrections from the models alone, so that they send one vector: LED, exact diffusion,
EXTRA.

The correction c adds up what mixing removes from a model, h − W h. At a fixed point this difference is 0, so the models
agree, and c cancels each node's gradient. Σ_i c_i is always 0, as the columns of W sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stgt._internal.checks import check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm, one_step
from stgt.algorithms.declare import Local, MessageVar, RoundSpec, State, StateVar, Vector


@dataclass(frozen=True, kw_only=True)
class Diffusion(Algorithm):
    """Base of the three: the correction is c."""

    def spec(self) -> RoundSpec:
        return RoundSpec(reads={"end", "gamma"}, state=(StateVar("c", zero_sum=True),))

    def correction(self, state: State, x: Vector) -> Vector:
        return state["c"]


@register
@dataclass(frozen=True, kw_only=True)
class LED(Diffusion):
    """Local exact diffusion with a free dual step β:

        tau times  x ← x − γ(g + c);   h = x;   x ← W_r h;   c ← c + β (h − W_r h)/(γτ).

    It sends one vector per round, half of what ST-GT sends, and needs one buffer less. `beta=0.25` is stable on the
    usual undirected graphs and schedules, but no β is stable on all. `stgt.theory.largest_beta(topology)` is a graph's
    limit at small stepsizes: 2(1 + λ)/(1 − λ) for a fixed symmetric W with smallest eigenvalue λ, and as small as the
    spectral gap on a directed graph of few hops (docs/led.md). β = 1 is ProxSkip's periodic form; on W = (I + W')/2 it
    is the paper's LED, and with tau = 1 exact diffusion.
    Reference: Alghunaim, arXiv:2302.00620.
    """

    beta: float = hyper(0.25, check_number, above=0, most=2)

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        step = self.beta / (local.gamma * self.tau)
        return {"x": mixed["x"], "c": state["c"] + step * (local.end - mixed["x"])}

    def same_as(self, has_server: bool) -> str:
        return "ProxSkip (p = 1)" if self.beta == 1.0 else ""


@register
@dataclass(frozen=True, kw_only=True)
class ExactDiffusion(Diffusion):
    """Exact diffusion: ψ = x − γg, then x ← W̄(ψ + x − ψ_prev), with ψ_prev of the round before, W̄ = (I + W)/2. In its
    c-form

        h = x − γ(g + c);   x ← W̄ h;   c ← c + (h − W̄ h)/γ.

    `lazy=False` mixes with W itself, which is D². It needs all eigenvalues of W above −1/3, and refuses any other fixed
    W. Both are LED with tau = 1 and β = 1, on W̄ and on W. For symmetric W.
    References: Yuan, Ying, Zhao, Sayed, arXiv:1702.05122; Tang et al., arXiv:1803.07068.
    """

    lazy: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_step(self)

    def spec(self) -> RoundSpec:
        return replace(
            super().spec(),
            messages=(MessageVar("x", replaces=not self.lazy),),
            least_eigenvalue=None if self.lazy else -1 / 3,
            symmetric_only=True,
        )

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        x = (local.end + mixed["x"]) / 2 if self.lazy else mixed["x"]
        return {"x": x, "c": state["c"] + (local.end - x) / local.gamma}

    @property
    def label(self) -> str:
        return "exact diffusion" if self.lazy else "D²"


@register
@dataclass(frozen=True, kw_only=True)
class EXTRA(Diffusion):
    """EXTRA: x^{k+2} = (I + W) x^{k+1} − W̃ x^k − γ(g^{k+1} − g^k) with W̃ = (I + W)/2 and x^1 = W x^0 − γ g^0. In its
    c-form x ← W x − γ(g + c), c ← c + (x − W x)/(2γ).

    For a fixed symmetric W.
    Reference: Shi, Ling, Wu, Yin, arXiv:1404.6264.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        one_step(self)

    def spec(self) -> RoundSpec:
        reads = {"start", "end", "gamma"}
        return replace(super().spec(), reads=reads, messages=(MessageVar("x"),), symmetric_only=True)

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {"x": local.start}

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {
            "x": mixed["x"] + (local.end - local.start),
            "c": state["c"] + (local.start - mixed["x"]) / (2 * local.gamma),
        }
