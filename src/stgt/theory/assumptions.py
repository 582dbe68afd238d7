"""The constants that the theorems use: those of a problem on a topology, the spectral gap, and the start of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stgt._internal.checks import InputError, NotCovered, check_count, check_number
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem, check_array
from stgt.simulator.instance import check_problem_object, check_topology_object
from stgt.topology import Topology, contraction, period_contraction
from stgt.topology.base import check_repeats
from stgt.topology.circulant import Average, Rolls
from stgt.topology.sampled import Matching, Relayed, Sampled, Unreliable
from stgt.topology.spectra import DENSE_PRODUCT_UP_TO, norms

CONNECTED = 1 - 1e-12  # a ρ from here on is 1 up to rounding


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of the theorems and of Table 1; `constants` computes them for a problem and a topology.

    Attributes:
        L, mu: smoothness and strong convexity of every f_i; mu is None (or not positive) if they are not convex.
        sigma2: σ², the variance E‖g − ∇f_i‖² of a stochastic gradient, over all coordinates.
        n, tau: number of nodes, local steps per round.
        rho: the largest ‖E[W_rᵀW_r] − J‖₂ of any round; 1 if W_r is not doubly stochastic.
        sampled: s, the number of workers that a server samples per round, if there is one.
        samples: m, the number of samples at a node, if f_i is a mean over samples.
        topology: its name, for messages.
        doubly_stochastic: is every W_r doubly stochastic?
        everybody: do all nodes work in every round?
        period_rho: the share of the disagreement that a whole period leaves, for messages if ρ = 1; None if not known.
    """

    L: float
    n: int
    tau: int
    rho: float
    mu: float | None = None
    sigma2: float = 0.0
    sampled: int | None = None
    samples: int | None = None
    topology: str = "the topology"
    doubly_stochastic: bool = True
    everybody: bool = True
    period_rho: float | None = None

    def __post_init__(self) -> None:
        mu = None if self.mu is None else check_number(self.mu, "mu")
        L = check_number(self.L, "L", above=0)
        if mu is not None and mu > L * (1 + 1e-9):
            raise InputError("mu", mu, f" is above L={L:g}, which is impossible: give a smaller mu or a larger L.")
        checked = {
            "L": L,
            "n": check_count(self.n, "n"),
            "tau": check_count(self.tau, "tau"),
            "rho": check_number(self.rho, "rho", least=0),
            "mu": mu if mu is not None and mu > 0 else None,
            "sigma2": check_number(self.sigma2, "sigma2", least=0),
            "sampled": None if self.sampled is None else check_count(self.sampled, "sampled"),
            "samples": None if self.samples is None else check_count(self.samples, "samples"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def connected(self) -> float:
        """ρ, if Assumption 1 holds; otherwise a ValueError."""
        if not self.doubly_stochastic:
            raise ValueError(
                f"{self.topology} is not doubly stochastic, so Assumption 1 does not cover it: use spectral_radius "
                "instead, or choose another topology."
            )
        if not self.everybody:
            raise ValueError(
                f"{self.topology} lets workers skip rounds, but the theorems need all nodes to work in every round: "
                "choose a topology without a server."
            )
        if self.rho >= CONNECTED:
            left = "" if self.period_rho is None else f" (a whole period leaves {self.period_rho:.3g})"
            raise ValueError(
                f"{self.topology} has ρ = {self.rho:.6g}, but Assumption 1 needs ρ < 1 in every round{left}: use "
                "spectral_radius or period_contraction instead, or choose another topology."
            )
        return self.rho

    def convex(self) -> float:
        """μ, if it is known; otherwise a ValueError."""
        if self.mu is None:
            raise InputError("mu", hint=" is not known: give mu=…, or use a statement without convexity.")
        return self.mu


def constants(
    problem: Problem,
    topology: Topology,
    tau: int,
    *,
    L: float | None = None,
    mu: float | None = None,
    sigma2: float | None = None,
    rho: float | None = None,
) -> Constants:
    """The constants of a problem on a topology; arguments that you give replace the problem's own.

    Args:
        problem, topology: with the same number of nodes.
        tau: local steps per round.
        L, mu, sigma2: see `Constants`; sigma2 is problem.sigma2 by default, and is required for minibatches.
        rho: `rho(topology).worst` by default.
    """
    if isinstance(problem, Algorithm):
        raise InputError(
            "problem", hint=f" is the algorithm {problem.label}: constants takes (problem, topology, tau) only."
        )
    check_problem_object(problem)
    check_topology_object(topology)
    if problem.n != topology.n:
        raise ValueError(f"{problem} has {problem.n} nodes and {topology} has {topology.n}: make them equal.")
    if (L := problem.L if L is None else L) is None:
        raise ValueError(f"the smoothness of {problem} is not known: give L=….")
    if sigma2 is None:
        if problem.batch is not None:
            raise ValueError(f"{problem} draws minibatches, whose variance is not known: give sigma2=….")
        sigma2 = problem.sigma2
    period_rho = None
    if rho is None:
        rho = contraction(topology).worst if topology.doubly_stochastic else 1.0
        if rho >= CONNECTED and topology.doubly_stochastic:
            period_rho = _of_a_period(topology)
    return Constants(
        L=L,
        mu=problem.mu if mu is None else mu,
        sigma2=sigma2,
        n=problem.n,
        tau=tau,
        rho=rho,
        sampled=topology.sampled,
        samples=None if problem.counts is None else int(problem.counts.max()),
        topology=topology.name,
        doubly_stochastic=topology.doubly_stochastic,
        everybody=topology.sampled == topology.n,
        period_rho=period_rho,
    )


def _of_a_period(topology: Topology) -> float | None:
    try:
        return float(period_contraction(topology))
    except NotCovered:  # too many nodes, or a law known only from draws
        return None


@dataclass(frozen=True)
class Start:
    """The start of a run of a tracker with c = 0.

    Attributes:
        residual: ‖x̄ − x*‖²; None if x* is not known.
        gap: f(x̄) − f*; None if f* is not known.
        consensus: ‖X − 1x̄‖².
        tracking: ‖Υ‖² = Σ_i ‖∇f_i(x̄) − ∇f(x̄)‖².
    """

    residual: float | None
    gap: float | None
    consensus: float
    tracking: float


def start(problem: Problem, x0: ArrayLike | None = None, lowest: float | None = None) -> Start:
    """The start of a run at x0, (p,) or (n, p); 0 by default. `lowest` is f*, or a lower bound if f* is not known."""
    n, p = problem.n, problem.p
    meaning = f"(p,) = ({p},), or (n, p) = ({n}, {p}) with one model per node"
    given = np.zeros(p) if x0 is None else x0
    x = np.broadcast_to(check_array(given, "x0", (n, p) if np.ndim(given) == 2 else (p,), meaning), (n, p))
    mean = x.mean(axis=0)
    lowest = problem.minimum if lowest is None else check_number(lowest, "lowest")
    gradients = problem.gradients(mean)
    return Start(
        residual=None if problem.optimum is None else float(((mean - problem.optimum) ** 2).sum()),
        gap=None if lowest is None else problem.value(mean) - lowest,
        consensus=float(((x - mean) ** 2).sum()),
        tracking=float(((gradients - gradients.mean(axis=0)) ** 2).sum()),
    )


def spectral_gap(topology: Topology) -> float:
    """1 − |λ₂|, the share of the disagreement that a round removes asymptotically; λ₂ is the second largest eigenvalue.

    For a static graph the eigenvalue is that of W, for a random one that of E[W_r]. For a schedule of period T the gap
    is 1 − |λ₂(W_{T−1} ⋯ W_0)|^{1/T}. It is 1 for J, and for the graphs with finite-time consensus, whose ρ is 1.

    For `server(n, sampled=s)` it is (s − 1)/(n − 1): E[W_r] has 1 − (s − 1)/n on its diagonal and (s − 1)/(n(n − 1))
    elsewhere. For `relay(n, s)` it is s/n: E[W_r] = (s/n) J + (1 − s/n) I. The paper calls 1 − s/n that graph's
    spectral gap (erratum 3); it is the second eigenvalue.

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
        case Average() | Rolls():  # normal, as symmetric matrices are, so |λ₂| is the norm
            return 1.0 - float(norms(topology, 1)[0])
    if topology.period == 1 and topology.symmetric:
        return max(0.0, 1.0 - float(norms(topology, 1)[0]))
    expected = _expected(topology)
    product = expected[0]
    for W in expected[1:]:
        product = W @ product
    # As W 1 = 1, W − J has W's eigenvalues with 0 instead of that 1 (Brauer), also if W is not doubly stochastic.
    return max(0.0, 1.0 - _spectral_radius(product - 1.0 / topology.n) ** (1 / len(expected)))


def _matching_gap(n: int) -> float:
    """E[W_r] = (I + E[P])/2: partners are uniform, and with odd n a node has no partner once in n rounds."""
    if n == 1:
        return 1.0
    return 0.5 if n % 2 else n / (2 * (n - 1))


def _expected(topology: Topology) -> list[np.ndarray]:
    """E[W_r] for each round of the period, or for each of the rounds that differ in law."""
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise NotCovered(f"{topology}: its eigenvalues need a dense matrix; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    laws = [topology.moments(phase) for phase in range(topology.period or topology.structure.phases)]
    if not all(law.exact for law in laws):
        raise NotCovered(f"{topology} is random, and E[W_r] is not known in closed form: use rho(topology).")
    return [law.mean for law in laws]


def _spectral_radius(B: np.ndarray) -> float:
    """The largest |λ| of B, exactly 0 if a power of B vanishes.

    Rounding would change the eigenvalues of a nilpotent B to ε^{1/k}. So B is tested for it: one of its powers is zero
    up to rounding.
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
