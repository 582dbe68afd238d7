"""How fast a topology mixes: ρ of a round, and the contraction of a whole period."""

from __future__ import annotations

from typing import Any

import numpy as np

from stgt._internal.checks import InputError, NotCovered, check_count, check_number
from stgt._internal.statistics import mean_interval
from stgt.topology.base import Topology, check_repeats
from stgt.topology.moments import DRAWS, MeanOverRounds, Moments
from stgt.topology.structure import DENSE_NORM_UP_TO, dense_norm

DENSE_PRODUCT_UP_TO = 2000


class Rho(float):
    """ρ = ‖E[W_rᵀW_r] − J‖₂: a number to compute with, and its accuracy.

    Attributes:
        low, high: the confidence interval; both are the value itself if it is exact.
        exact: is it exact, and not an estimate?
        draws: rounds drawn for an estimate, 0 if it is exact.
        worst: the largest ρ of any round of a schedule, at the upper end of its interval. Assumption 1 requires every
            round to be connected, so this is the ρ of the theorems. If all rounds are alike and exact, it is the value.
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


def contraction(topology: Topology, draws: int = DRAWS, confidence: float = 0.95) -> Rho:
    """ρ = ‖E[W_rᵀW_r] − J‖₂: the largest share of the disagreement that a round leaves. Smaller means better connected.

    E‖W_r v − Jv‖² ≤ ρ‖v − Jv‖² for every v that does not depend on W_r. For a fixed W_r it is ‖W_r − J‖₂², for a
    schedule the mean over its rounds (`.worst` is the largest). If W_r may be directed, it is the larger of this and
    ‖E[W_rW_rᵀ] − J‖₂, so that it holds for messages mixed by W_rᵀ too. It is exact wherever `Topology.moments` is;
    otherwise it is an estimate with an interval.

    A fixed graph that is not connected has ρ = 1. For schedules of such graphs see `period_contraction`.

    Args:
        topology: any that has a period or is random; not a relay, whose rounds are dependent.
        draws: rounds to draw for an estimate.
        confidence: of its interval.

    Returns:
        A number, with `.low`, `.high`, `.exact`, `.draws` and `.worst`. 0 for J, at most 1 if W_r is doubly
        stochastic.

    Reference: Assumption 1 of the ST-GT paper, 2512.01732, and erratum 6 in docs/theorems.md.
    """
    draws = check_count(draws, "draws", 4)
    if not 0 < check_number(confidence, "confidence") < 1:
        raise InputError("confidence", confidence, "give a number between 0 and 1, such as 0.95.")
    check_repeats(topology)
    if topology.period is not None:
        squares = norms(topology, topology.period) ** 2
        return Rho(squares.mean(), worst=squares.max())
    laws = [topology.moments(phase, draws) for phase in range(topology.structure.phases)]
    found = np.array([_of_a_round(law, topology, confidence) for law in laws])
    mean, low, high = found.mean(axis=0)
    if all(law.exact for law in laws):
        return Rho(mean, worst=found[:, 0].max())
    return Rho(mean, low, high, max(law.draws for law in laws), found[:, 2].max())


def norms(topology: Topology, rounds: int) -> np.ndarray:
    """‖W_r − J‖₂ of the first rounds of run 0, (rounds,)."""
    return np.array([topology.structure.norm(r, topology.seed) for r in range(check_count(rounds, "rounds"))])


def period_contraction(topology: Topology) -> float:
    """‖E[PᵀP] − J‖₂ for P = W_{T−1} ⋯ W_0: the largest share of the disagreement that a whole period T leaves.

    For a fixed schedule it is ‖P − J‖₂²: 0 for the graphs with finite-time consensus (hypercuboid, base_graph,
    one_peer_exponential of 2^t nodes). For a random schedule T is the number of rounds that differ in law
    (`structure.phases`); for T = 1 it is `contraction`.

    Args:
        topology: one with a period, or random with moments in closed form; up to 2000 nodes unless T = 1.

    Returns:
        The squared norm.
    """
    check_repeats(topology)
    length = topology.period or topology.structure.phases
    if length == 1:
        return contraction(topology)
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise NotCovered(f"{topology}: the product of a period is dense; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    if topology.period is not None:
        product = topology.matrix(0)
        for r in range(1, length):
            product = topology.matrix(r) @ product
        return dense_norm(product) ** 2
    square = np.eye(topology.n)
    for phase in reversed(range(length)):
        law = topology.moments(phase)
        if not law.exact:
            raise NotCovered(
                f"{topology}: the moments of round {phase} are not known in closed form; use contraction(topology)."
            )
        square = law.second(square, (True, True))
    return dense_norm(square)


def _of_a_round(law: Moments, topology: Topology, confidence: float) -> tuple[float, float, float]:
    """ρ of one round and its interval; if W_r may be directed, the larger of W_r's and W_rᵀ's."""
    if isinstance(law, MeanOverRounds) and len(law.rounds) == 1:
        square = law.structure.norm(*law.rounds[0]) ** 2
        return square, square, square
    sides = (False,) if topology.symmetric else (False, True)
    most = 1.0 if topology.doubly_stochastic else np.inf
    found = []
    for back in sides:
        if isinstance(law, MeanOverRounds) and not law.exact:
            found.append(_estimated(law, back, confidence, most))
        else:
            found.append((_largest(law, back)[0],) * 3)
    value, low, high = (max(column) for column in zip(*found, strict=True))
    return value, low, high


def _estimated(law: MeanOverRounds, back: bool, confidence: float, most: float) -> tuple[float, float, float]:
    """An estimate of the largest eigenvalue. The one of the mean over the draws is too large on average, so the upper
    end of the interval is safe.

    The lower end is that of ‖(W − J)v‖² over one half of the draws, with v the worst vector of the other half.
    """
    value, worst = _largest(law, back)
    mean, _, upper = mean_interval(law.squares(worst, back), confidence)
    above = float(upper - mean)
    fitted, apart = (MeanOverRounds(law.structure, law.n, law.rounds[k::2], exact=False) for k in (0, 1))
    _, lower, _ = mean_interval(apart.squares(_largest(fitted, back)[1], back), confidence)
    return value, min(max(float(lower), 0.0), value), min(value + above, max(most, value))


def _largest(law: Moments, back: bool) -> tuple[float, np.ndarray]:
    """The largest eigenvalue of E[(W − J)ᵀ(W − J)], and its eigenvector."""
    n = law.n
    if law.circulant:
        first = law.remainder(np.eye(n, 1), back)[:, 0]
        waves = np.fft.rfft(first).real
        k = int(waves.argmax())
        return float(waves[k]), np.cos(2 * np.pi * k / n * np.arange(n)) * (2 / n) ** 0.5
    if n <= DENSE_NORM_UP_TO:
        values, vectors = np.linalg.eigh(law.remainder(np.eye(n), back))
        return max(float(values[-1]), 0.0), vectors[:, -1]

    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator: Any = LinearOperator  # the type stub has only the arguments of its subclasses
    remainder = operator((n, n), matvec=lambda v: law.remainder(v.reshape(n, 1), back)[:, 0], dtype=np.dtype(float))
    start, tolerance = np.random.default_rng(0).standard_normal(n), 1e-9
    options: Any = {"k": 1, "which": "LA", "v0": start, "tol": tolerance}
    try:
        values, vectors = eigsh(remainder, **options)
    except ArpackNoConvergence:
        raise NotCovered(f"ρ of {n} nodes did not converge: give a topology with fewer nodes or more links.") from None
    return float(values[0]), vectors[:, 0]
