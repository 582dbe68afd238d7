"""How fast a topology mixes."""

from __future__ import annotations

import numpy as np

from stgt.checks import check_count
from stgt.topology.base import Topology, check_repeats
from stgt.topology.structure.norms import dense_norm

DENSE_PRODUCT_UP_TO = 2000


def contraction(topology: Topology, draws: int = 200) -> float:
    """ρ = E‖W_r − J‖₂², how much of the disagreement a round leaves at worst; smaller is better connected.

    Exact for a finite schedule, as the mean over its period; for a random one an estimate, the mean over the first
    `draws` rounds of run 0. A round in which the graph is not connected has ‖W_r − J‖ = 1 whatever its neighbours do
    with it: see `period_contraction`.

    Args:
        topology: any that has a period or is random.
        draws: how many rounds of a random schedule to look at.

    Returns:
        ρ; 0 for J, at most 1 where W_r is doubly stochastic.

    Reference: Assumption 1 of the ST-GT paper, 2512.01732.
    """
    draws = check_count(draws, "draws")
    check_repeats(topology)
    return float(np.mean(norms(topology, draws if topology.period is None else topology.period) ** 2))


def norms(topology: Topology, rounds: int) -> np.ndarray:
    """‖W_r − J‖₂ of the first rounds of run 0, (rounds,)."""
    return np.array([topology.structure.norm(r, topology.seed) for r in range(check_count(rounds, "rounds"))])


def period_contraction(topology: Topology) -> float:
    """‖W_{T−1} ⋯ W_0 − J‖₂², how much of the disagreement a whole period T leaves at worst.

    0 for the graphs of finite-time consensus (hypercuboid, base_graph, one_peer_exponential of 2^t nodes).

    Args:
        topology: one with a period; up to 2000 nodes unless it is static.

    Returns:
        The squared norm.
    """
    check_repeats(topology)
    if topology.period is None:
        raise ValueError(f"{topology} is random and has no period: use contraction(topology).")
    if topology.period == 1:
        return contraction(topology)
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise ValueError(f"{topology}: the product of a period is dense; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    product = topology.matrix(0)
    for r in range(1, topology.period):
        product = topology.matrix(r) @ product
    return dense_norm(product) ** 2
