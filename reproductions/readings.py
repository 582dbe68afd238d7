"""The readings of the paper's ridge experiments: named sets of choices where the paper is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from reproductions.options import check_choice
from stgt import theory
from stgt.study import Named, RunSpec, build_run

NODES, DIMENSION, NOISE = 32, 10, 0.1
SYMMETRIC = (
    Named.model_validate({"name": "exponential", "neighbors": 3, "symmetric": True}),
    Named.model_validate({"name": "exponential", "neighbors": 15, "symmetric": True}),
)
DIRECTED = (
    Named.model_validate({"name": "exponential", "neighbors": 3}),
    Named.model_validate({"name": "exponential", "neighbors": 15}),
)
STANDARD = (Named(name="exponential"), DIRECTED[1])
STANDARD_SYMMETRIC = (STANDARD[0], SYMMETRIC[1])


@dataclass(frozen=True)
class Reading:
    """One set of choices where the paper is open: μ, the scaling of θ, the noise, x_0, the graphs, FlexGT's snapshot.

    Attributes:
        name: the name.
        words: a description.
        graphs: the graphs with 3 and with 15 neighbours.
        snapshot: FlexGT's snapshot.
        scale: the scaling of θ, as in `problems.ridge`.
        mu: the weight of the regularisation.
        noise_kind: the noise of the gradients, as in `problems.ridge`.
        x0: the initial point.
        stepsize: "printed" is the paper's γ = 20/τ. "mean" is γ/n: a node's sampled gradient is its part
            (∇f_i + δ_i)/n of that of F = (1/n)Σ f_i. "theorem" is the limit of Theorem 1 on the sparser graph.
    """

    name: str
    words: str
    graphs: tuple[Named, Named]
    snapshot: str = "first"
    scale: str = "sqrt_p"
    mu: float = 0.5
    noise_kind: Literal["isotropic", "scalar", "labels"] = "isotropic"
    x0: Literal["zero", "optimum"] = "zero"
    stepsize: Literal["printed", "mean", "theorem"] = "printed"

    @property
    def problem(self) -> Named:
        arguments = {"n": NODES, "p": DIMENSION, "mu": self.mu, "scale": self.scale, "seed": 0}
        arguments |= {"noise": NOISE, "noise_kind": self.noise_kind}
        return Named.model_validate({"name": "ridge", **arguments})

    def gamma(self, tau: int) -> float:
        """The paper's γ = 0.8, 0.4, 0.2 for τ = 25, 50, 100, or that over n, or the theorem's limit. γτ is constant."""
        if self.stepsize == "theorem":
            return _theorem_gamma_tau(self) / tau
        return 20.0 / tau / (NODES if self.stepsize == "mean" else 1)

    def run(self, label: str, algorithm: dict[str, Any], topology: Named | dict[str, Any], **options: Any) -> RunSpec:
        """A run on this reading's problem."""
        return RunSpec.model_validate(
            {
                "label": label,
                "reading": self.name,
                "algorithm": algorithm,
                "problem": self.problem.model_dump(),
                "topology": topology if isinstance(topology, dict) else topology.model_dump(),
                "x0": self.x0,
                **options,
            }
        )


READINGS = {
    reading.name: reading
    for reading in (
        Reading("printed", "θ in [0, 1]^p, hops {1, 2, 4}", DIRECTED, scale="none"),
        Reading("normalised", "θ/√p, hops {±1, 16}, FlexGT's last snapshot", SYMMETRIC, snapshot="last"),
        Reading("normalised-first", "θ/√p, hops {±1, 16}, FlexGT's first snapshot", SYMMETRIC),
        Reading("exp5", "θ/√p, the standard exponential graph (5 neighbours) for 3", STANDARD),
        Reading(
            "mean-gradient",
            "θ as printed, gradients of F = (1/n)Σf_i (so γ/32), FlexGT's last snapshot",
            STANDARD,
            snapshot="last",
            scale="none",
            stepsize="mean",
        ),
        Reading(
            "scalar-noise",
            "as mean-gradient, with one δ for all coordinates and FlexGT's first snapshot",
            STANDARD_SYMMETRIC,
            scale="none",
            noise_kind="scalar",
            stepsize="mean",
        ),
        Reading(
            "label-noise",
            "as scalar-noise, but noise through the sampled d_i",
            STANDARD_SYMMETRIC,
            scale="none",
            noise_kind="labels",
            stepsize="mean",
        ),
        Reading(
            "theory",
            "θ/√p, standard exponential graph, γ at Theorem 1's limit, x_0 = x*",
            STANDARD,
            mu=1.0,
            x0="optimum",
            stepsize="theorem",
        ),
    )
}


def choose_readings(names: Iterable[str] | None = None) -> list[Reading]:
    """The readings with these names, or all."""
    return [READINGS[check_choice(name, "readings", READINGS)] for name in names or READINGS]


@lru_cache(maxsize=8)
def _theorem_gamma_tau(reading: Reading) -> float:
    algorithm = {"name": "STGT", "gamma": 1.0}
    made = build_run(reading.run("", algorithm, reading.graphs[0], rounds=0))
    return theory.stepsize(theory.constants(made.problem, made.topology, tau=1)).limit
