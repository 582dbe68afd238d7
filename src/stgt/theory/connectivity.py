"""How well a topology connects, in the numbers that theorems ask for: ρ and the spectral gap."""

from __future__ import annotations

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.topology import Rho, Topology, contraction, period_contraction
from stgt.topology.base import check_repeats
from stgt.topology.spectra import DENSE_PRODUCT_UP_TO, norms
from stgt.topology.structure import Average, Matching, Relayed, Rolls, Sampled, Unreliable

__all__ = ["Rho", "period_contraction", "rho", "spectral_gap"]

rho = contraction


def spectral_gap(topology: Topology) -> float:
    """1 − |λ₂|, the share of disagreement that a round removes in the long run, λ₂ the second largest eigenvalue.

    Of W for a static graph; of a schedule of period T it is 1 − |λ₂(W_{T−1} ⋯ W_0)|^{1/T}; of E[W_r] for a random one.
    1 for J and for the graphs of finite-time consensus, whose ρ is 1.

    In closed form (s − 1)/(n − 1) for `server(n, sampled=s)`: E[W_r] has 1 − (s − 1)/n on its diagonal and
    (s − 1)/(n(n − 1)) off it. And s/n for `relay(n, s)`: E[W_r] = (s/n) J + (1 − s/n) I. The paper calls 1 − s/n that
    graph's spectral gap (erratum 3); it is the second eigenvalue.

    Args:
        topology: one with a period or a known E[W_r]; up to 2000 nodes if it is directed, a schedule, or unreliable.

    Returns:
        The gap, in [0, 1].
    """
    check_repeats(topology)
    match topology.structure:
        case Sampled(n, size):
            return (size - 1) / (n - 1) if n > 1 else 1.0
        case Relayed(n, size):
            return size / n
        case Matching(n):
            return _matching_gap(n)
        case Unreliable(Matching(n), link, node):
            return (1 - link) * (1 - node) ** 2 * _matching_gap(n)
        case Average() | Rolls():  # normal, as symmetric matrices are: |λ₂| is the norm
            return 1.0 - float(norms(topology, 1)[0])
    if topology.period == 1 and topology.symmetric:
        return max(0.0, 1.0 - float(norms(topology, 1)[0]))
    expected = _expected(topology)
    product = expected[0]
    for W in expected[1:]:
        product = W @ product
    # W 1 = 1, so W − J has W's eigenvalues with 0 in place of that 1 (Brauer), be W doubly stochastic or not.
    return max(0.0, 1.0 - _spectral_radius(product - 1.0 / topology.n) ** (1 / len(expected)))


def _matching_gap(n: int) -> float:
    """E[W_r] = (I + E[P])/2: partners are uniform, and with odd n a node stays alone once in n rounds."""
    if n == 1:
        return 1.0
    return 0.5 if n % 2 else n / (2 * (n - 1))


def _expected(topology: Topology) -> list[np.ndarray]:
    """E[W_r] for each round of the period, or of as many as differ in law."""
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise NotCovered(f"{topology}: its eigenvalues need a dense matrix; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    laws = [topology.moments(phase) for phase in range(topology.period or topology.structure.phases)]
    if not all(law.exact for law in laws):
        raise NotCovered(f"{topology} is random, and E[W_r] is not known in closed form: use rho(topology).")
    return [law.mean for law in laws]


def _spectral_radius(B: np.ndarray) -> float:
    """The largest |λ| of B, exactly 0 where a power of B vanishes.

    A nilpotent B must be recognised: rounding moves its eigenvalues to ε^{1/k}. Its powers drop to rounding at once.
    """
    rounding = 1e-14 * len(B)
    power, before = B, 1.0
    for _ in range(len(B).bit_length()):
        now = float(np.linalg.norm(power))
        if now < rounding:
            if before > 1e-6:
                return 0.0
            break
        power, before = power @ B, now
    return float(np.abs(np.linalg.eigvals(B)).max())
