"""The numbers of a topology: how much it sends, its eigenvalues, and how fast its nodes agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.checks import NotCovered, check_count, first_line
from stgt.topology import Rho, Topology, contraction
from stgt.topology.base import check_repeats
from stgt.topology.circulant import Average, Rolls
from stgt.topology.layout import Layout, layout
from stgt.topology.spectra import norms

DENSE_UP_TO = 400  # up to this many nodes the matrices are multiplied round by round
EIGENVALUES_UP_TO = 1000  # up to this many nodes the eigenvalues of a dense matrix are computed
LINKS_UP_TO = 256  # the most rounds whose links are counted
FEWEST, MOST = 12, 64  # the limits of the default of `rounds` for a schedule
STATIC, RANDOM = 64, 24  # that default for other topologies
DRAWN = {"most_nodes": 300, "most_lines": 4000, "most_heads": 250}  # a picture with more is not legible
ROUNDING = 1e-14  # a norm below this times the number of nodes is taken as 0


@dataclass(frozen=True, eq=False)
class TopologyStats:
    """The numbers of a topology.

    Attributes:
        topology: the topology itself.
        rounds: the number of rounds that were computed, from round 0 on.
        messages: links that carry a message in a round, on average over a period or over these rounds.
        rho: ‖E[WᵀW] − J‖, the largest part of the disagreement that remains after a round; None if unknown.
        gap: 1 − |λ₂|; None if unknown.
        period_rho: the same for a whole period of a schedule; None if there is no period or it is unknown.
        eigenvalues: by the name of the matrix.
        distances: ‖W_{r−1} ⋯ W_0 − J‖ after r = 0, 1, … rounds, or of (I − J) W_{r−1} ⋯ W_0 if W is not doubly
            stochastic; None if unknown.
        drawing: the layout of its nodes and links; None if there are too many.
        unknown: the reason for each unknown number, by its name.
    """

    topology: Topology
    rounds: int
    messages: float
    rho: Rho | None
    gap: float | None
    period_rho: float | None
    eigenvalues: dict[str, np.ndarray]
    distances: np.ndarray | None
    drawing: Layout | None
    unknown: dict[str, str]

    @property
    def agreed_after(self) -> int | None:
        """The first round after which all nodes agree exactly; None if they do not within `rounds`."""
        if self.distances is None or self.distances[-1] > 0:
            return None
        return int(np.argmax(self.distances == 0))

    @property
    def changes(self) -> bool:
        """Do the rounds differ?"""
        return self.topology.period != 1


def topology_stats(topology: Topology, rounds: int | None = None) -> TopologyStats:
    """Computes the numbers of a topology. If it is too large for one of them, `unknown` has the reason.

    Args:
        topology: any topology.
        rounds: the number of rounds to compute. The default is three periods, at least 12 and at most 64, or 24 rounds
            of a random topology, which are drawn with its own seed.
    """
    from stgt.theory import period_contraction, spectral_gap

    if rounds is None:
        period = topology.period
        rounds = RANDOM if period is None else STATIC if period == 1 else min(max(3 * period, FEWEST), MOST)
    rounds, unknown = check_count(rounds, "rounds"), {}

    def covered(name: str, compute: Any) -> Any:
        try:
            return compute()
        except NotCovered as reason:
            unknown[name] = first_line(reason)
            return None

    def whole_period() -> float:
        square = float(period_contraction(topology))
        return square if square > (ROUNDING * topology.n) ** 2 else 0.0

    counted = topology.period if topology.period and topology.period <= LINKS_UP_TO else min(rounds, LINKS_UP_TO)
    several = topology.period is not None and topology.period > 1
    return TopologyStats(
        topology=topology,
        rounds=rounds,
        messages=float(np.mean([topology.links(r) for r in range(counted)])),
        rho=covered("ρ", lambda: contraction(topology)),
        gap=covered("spectral gap", lambda: float(spectral_gap(topology))),
        period_rho=covered("ρ of a period", whole_period) if several else None,
        eigenvalues=covered("eigenvalues", lambda: _eigenvalues(topology)) or {},
        distances=covered("distance to agreement", lambda: _distances(topology, rounds)),
        drawing=covered("picture of the links", lambda: layout(topology, range(min(rounds, MOST)), **DRAWN)),
        unknown=unknown,
    )


def _eigenvalues(topology: Topology) -> dict[str, np.ndarray]:
    """The eigenvalues of W; or of the product over a period and of its first factor; or of E[W]."""
    match topology.structure:
        case Average(n):
            return {"W": np.eye(1, n)[0]}
        case Rolls(n, hops, weights):
            row = np.zeros(n)
            np.add.at(row, np.array(hops) % n, weights)
            found = np.fft.fft(row)
            return {"W": found.real if topology.symmetric else found}
    check_repeats(topology)
    if topology.n > EIGENVALUES_UP_TO:
        raise NotCovered(
            f"they need a dense matrix, for which {topology.n:,} nodes are more than {EIGENVALUES_UP_TO:,}"
        )
    if topology.period is None:
        law = topology.moments(0)
        if not law.exact or topology.structure.phases > 1:
            raise NotCovered("it is random, and E[W] is not known in closed form for all rounds together")
        return {"E[W]": _spectrum(law.mean, topology.symmetric)}
    matrices = [topology.matrix(r) for r in range(topology.period)]
    if len(matrices) == 1:
        return {"W": _spectrum(matrices[0], topology.symmetric)}
    product = matrices[0]
    for W in matrices[1:]:
        product = W @ product
    return {"W of round 0": _spectrum(matrices[0], topology.symmetric), "a period's product": _spectrum(product, False)}


def _spectrum(W: np.ndarray, symmetric: bool) -> np.ndarray:
    if symmetric:
        return np.linalg.eigvalsh(W)
    found = np.linalg.eigvals(W)
    return found.real if np.abs(found.imag).max(initial=0.0) < 1e-9 else found


def _distances(topology: Topology, rounds: int) -> np.ndarray:
    n = topology.n
    if isinstance(topology.structure, Average | Rolls) or (topology.period == 1 and topology.symmetric):
        return float(norms(topology, 1)[0]) ** np.arange(rounds + 1)  # W is normal
    if n > DENSE_UP_TO:
        raise NotCovered(f"dense matrices of {n:,} nodes would have to be multiplied, more than {DENSE_UP_TO}")
    product = np.eye(n)
    found = [1.0 if n > 1 else 0.0]
    for r in range(rounds):
        product = topology.matrix(r) @ product
        apart = float(np.linalg.norm(product - product.mean(axis=0), 2))  # W 1 = 1; J W = J if columns sum to 1
        found.append(apart if apart > ROUNDING * n else 0.0)
    return np.array(found)


def messages(found: TopologyStats) -> str:
    """The messages per round, as a whole number or with one decimal."""
    return f"{found.messages:,.0f}" if found.messages == round(found.messages) else f"{found.messages:,.1f}"


def near_one(value: float) -> str:
    """The value with four digits; close to 1, as 1 minus the difference."""
    return f"1 − {1 - value:.3g}" if ROUNDING < 1 - value < 1e-4 else f"{value:.4g}"
