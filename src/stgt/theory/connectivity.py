"""How well a topology connects, in the numbers that theorems ask for: ρ and the spectral gap."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from stgt.checks import check_count, check_number
from stgt.statistics import mean_interval
from stgt.topology import Topology, period_contraction
from stgt.topology.base import check_repeats
from stgt.topology.spectra import DENSE_PRODUCT_UP_TO, norms
from stgt.topology.structure import Average, Gather, Matching, Relayed, Rolls, Sampled, Unreliable
from stgt.topology.structure.norms import relayed_norm

__all__ = ["Rho", "period_contraction", "rho", "spectral_gap"]


class Rho(float):
    """ρ = E‖W_r − J‖₂²: a number to compute with, and how well it is known.

    Attributes:
        low, high: the confidence interval; both the value itself if it is exact.
        exact: is it no estimate?
        draws: rounds drawn for an estimate, 0 if it is exact.
        worst: the largest over the rounds of a schedule of its E‖W_r − J‖₂². Assumption 1 asks every round to be
            connected, so this is the ρ of the theorems; it is the value itself where all rounds are alike.
    """

    low: float
    high: float
    exact: bool
    draws: int
    worst: float

    def __new__(
        cls, value: float, low: float | None = None, high: float | None = None, draws: int = 0, worst: float = 0.0
    ) -> Rho:
        self = super().__new__(cls, value)
        self.low, self.high = float(value if low is None else low), float(value if high is None else high)
        self.exact, self.draws = low is None, draws
        self.worst = max(float(worst), float(value))
        return self

    def __getnewargs__(self) -> tuple:
        interval = (None, None) if self.exact else (self.low, self.high)
        return float(self), *interval, self.draws, self.worst

    def __repr__(self) -> str:
        known = "exact" if self.exact else f"{self.low:.6g} to {self.high:.6g} from {self.draws} draws"
        return f"Rho({float(self):.6g}, {known})"

    __str__ = float.__repr__


def rho(topology: Topology, draws: int = 400, confidence: float = 0.95) -> Rho:
    """ρ = E‖W_r − J‖₂², how much of the disagreement a round leaves at worst; smaller is better connected.

    Exact for a finite schedule, as the mean over its period, and for matchings, servers and relays; an estimate with
    Student's interval for other random ones. A round in which the graph falls apart has ‖W_r − J‖ = 1, so ρ = 1 for the
    graphs of finite-time consensus: see `period_contraction` and `spectral_gap` for those.

    Args:
        topology: any that has a period or is random.
        draws: rounds to draw for an estimate.
        confidence: of its interval.

    Returns:
        A number, with `.low`, `.high`, `.exact`, `.draws` and `.worst`. 0 for J, at most 1 where W_r is doubly
        stochastic, and above 1 for a relay.

    Reference: Assumption 1 of the ST-GT paper, 2512.01732, and erratum 6 in docs/theorems.md.
    """
    draws = check_count(draws, "draws", 2)
    if not 0 < check_number(confidence, "confidence") < 1:
        raise ValueError(f"confidence={confidence:g}: give a number between 0 and 1, such as 0.95.")
    check_repeats(topology)
    if topology.period is not None:
        squares = norms(topology, topology.period) ** 2
        return Rho(squares.mean(), worst=squares.max())
    match topology.structure:
        case Sampled() | Matching():  # the same for every draw
            return Rho(norms(topology, 1)[0] ** 2)
        case Relayed(n, size):
            return Rho(_relayed(n, size))
    phases = topology.structure.phases
    squares = norms(topology, draws) ** 2
    mean, half = (float(value) for value in mean_interval(squares, confidence))
    worst = max(squares[phase::phases].mean() for phase in range(min(phases, draws)))
    most = 1.0 if topology.doubly_stochastic else np.inf
    return Rho(mean, max(mean - half, 0.0), min(mean + half, most), draws, worst)


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


def _relayed(n: int, size: int) -> float:
    """E‖W_r − J‖² of a relay: the overlap of two samples of s is hypergeometric."""
    both = np.arange(max(0, 2 * size - n), size + 1)

    def log_choose(a: int, b: np.ndarray) -> np.ndarray:
        return gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1)

    log_chance = log_choose(size, both) + log_choose(n - size, size - both) - log_choose(n, np.array(size))
    likely = log_chance > -50
    chance = np.exp(log_chance[likely])
    squares = [relayed_norm(n, size, int(overlap)) ** 2 for overlap in both[likely]]
    return float(chance @ squares / chance.sum())


def _matching_gap(n: int) -> float:
    """E[W_r] = (I + E[P])/2: partners are uniform, and with odd n a node stays alone once in n rounds."""
    if n == 1:
        return 1.0
    return 0.5 if n % 2 else n / (2 * (n - 1))


def _expected(topology: Topology) -> list[np.ndarray]:
    """E[W_r] for each round of the period."""
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise ValueError(f"{topology}: its eigenvalues need a dense matrix; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    if isinstance(topology.structure, Unreliable) and isinstance(topology.structure.base, Gather):
        base, kept = topology.structure.base, (1 - topology.structure.link) * (1 - topology.structure.node) ** 2
        identity = np.eye(topology.n)
        return [identity + kept * (base.matrix(r, 0) - identity) for r in range(len(base.index))]
    if topology.period is None:
        raise ValueError(f"{topology} is random, and E[W_r] is not known in closed form: use rho(topology).")
    return [topology.matrix(r) for r in range(topology.period)]


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
