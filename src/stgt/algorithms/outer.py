"""Outer momentum: a method that wraps another. Known ones by their names: DiLoCo, NoLoCo and FedAvgM."""

from __future__ import annotations

from dataclasses import dataclass, field

from stgt._internal.checks import check_number
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm
from stgt.algorithms.declare import State, Vector
from stgt.algorithms.federated import FedAvg
from stgt.algorithms.outer_step import OuterStep


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

    lr: float = 0.7
    momentum: float = 0.6
    nesterov: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            lr=check_number(self.lr, "lr", above=0),
            momentum=check_number(self.momentum, "momentum", least=0, below=1),
        )

    def step(self, start: Vector, merged: Vector, state: State) -> dict[str, Vector]:
        d = start - merged
        m = self.momentum * state["m"] + d
        return {"x": start - self.lr * (d + self.momentum * m if self.nesterov else m), "m": m}

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

    @property
    def label(self) -> str:
        return "FedAvgM"
