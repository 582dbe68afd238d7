"""Table 1: the number of rounds that each method needs for an accuracy, up to constants and logarithms."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from numpy.typing import ArrayLike

from stgt._internal.checks import InputError, check_flag, check_number
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator.instance import check_fit
from stgt.theory.assumptions import Constants, Start
from stgt.theory.assumptions import constants as constants_of
from stgt.theory.assumptions import start as start_of
from stgt.topology import Topology

TOPOLOGY, CENTRAL, NETWORK = "topology", "noise, centralised", "noise, topology"
CONDITION, SAMPLING, SAMPLES, FIRST = "conditioning", "sampling", "samples", "start"
Terms = dict[str, float]


@dataclass(frozen=True)
class Complexity:
    """The rounds to an accuracy as in Table 1. Constants and logarithms are omitted, so use it only to compare.

    Attributes:
        algorithm, convex, epsilon: as they were given.
        terms: its parts, by name.
        total: their sum; their maximum for GT-SAGA and GT-SVRG.
        dominant: the name of the largest.
        words: a sentence on what dominates, and what would make it smaller.
    """

    algorithm: str
    convex: bool
    epsilon: float
    terms: Terms
    total: float
    dominant: str
    words: str


def rounds(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    epsilon: float,
    *,
    convex: bool = True,
    x0: ArrayLike | None = None,
    lowest: float | None = None,
    L: float | None = None,
    mu: float | None = None,
    sigma2: float | None = None,
    rho: float | None = None,
    as_printed: bool = False,
) -> Complexity:
    """The rounds of Table 1 to E‖x̄ − x*‖² ≤ epsilon, or to a mean E‖∇f(x̄)‖² ≤ epsilon with convex=False.

    Constants and logarithms are omitted, as in Õ(·): use it to compare methods and to see what dominates.
    `promised_rounds` gives a proven number. The table does not consider a method's options: only tau counts, and you
    may omit gamma.

    Args:
        algorithm: an STGT, FlexGT, KGT, GTSAGA, GTSVRG or Scaffold.
        problem, topology: the parts of the run. GT-SAGA and GT-SVRG need a problem with samples.
        epsilon: the accuracy.
        convex: True for strongly convex f_i, False for f_i without convexity.
        x0, lowest: the start of the run, and f* or a lower bound, as in `start`; used with convex=False.
        L, mu, sigma2, rho: replace the problem's and the topology's own, as in `constants`.
        as_printed: see `table1_rounds`.
    """
    if not isinstance(algorithm, Algorithm):
        raise InputError("algorithm", algorithm, "give an instance, such as stgt.STGT(tau=10).")
    check_fit(algorithm, topology)
    if sigma2 is None and algorithm.spec().oracle is not None:
        sigma2 = 0.0  # the rounds of the variance-reduced methods do not depend on noise
    k = constants_of(problem, topology, algorithm.tau, L=L, mu=mu, sigma2=sigma2, rho=rho)
    first = None if check_flag(convex, "convex") else start_of(problem, x0, lowest)
    return table1_rounds(epsilon, k, type(algorithm).__name__, convex, start=first, as_printed=as_printed)


def table1_rounds(
    epsilon: float,
    constants: Constants,
    algorithm: str = "STGT",
    convex: bool = True,
    *,
    start: Start | None = None,
    as_printed: bool = False,
) -> Complexity:
    """`rounds` from constants instead of objects: Table 1's formulas.

    Args:
        epsilon: the accuracy.
        constants: from `constants(problem, topology, tau)`. Scaffold needs `sampled`, GT-SAGA and GT-SVRG `samples`.
        algorithm: "STGT", "FlexGT", "KGT", "GTSAGA", "GTSVRG" or "Scaffold".
        convex: True for strongly convex f_i, False for f_i without convexity.
        start: from `start(problem)`, needed with convex=False for f(x̄_0) − f* and C_0.
        as_printed: the table as the paper prints it. Otherwise GT-SAGA and GT-SVRG have (L/μ)² as in their own paper.
            Without convexity, f(x̄_0) − f* then multiplies all terms, and L those of Scaffold; the table omits both.

    Returns:
        A `Complexity`, with named `.terms`, `.total`, `.dominant` and `.words`.

    Reference: Table 1 of the ST-GT paper, 2512.01732; GT-SAGA and GT-SVRG, 1912.04230; erratum 8 in docs/theorems.md.
    """
    epsilon = check_number(epsilon, "epsilon", above=0)
    kind = "strongly convex" if check_flag(convex, "convex") else "nonconvex"
    if (algorithm, convex) not in TABLE:
        there = ", ".join(f"{name} {'strongly convex' if flag else 'nonconvex'}" for name, flag in TABLE)
        raise ValueError(f"Table 1 has no {algorithm} {kind}: it has {there}; change algorithm or convex.")
    if convex:
        constants.convex()
    elif start is None or start.gap is None or start.gap <= 0:
        raise InputError(
            "convex", False, " needs f(x̄_0) − f* above 0: start away from the minimum, or give lowest=…, below f*."
        )
    shrink = TABLE[algorithm, convex]
    terms = _terms(algorithm, constants, epsilon, None if convex else start, check_flag(as_printed, "as_printed"))
    dominant = max(terms, key=terms.__getitem__)
    share = terms[dominant] / sum(terms.values())
    words = (
        f"{algorithm}, {kind}: {dominant} dominates, {share:.0%} of the terms' sum; it shrinks with {shrink[dominant]}."
    )
    total = max(terms.values()) if SAMPLES in terms else sum(terms.values())
    return Complexity(algorithm, convex, epsilon, terms, total, dominant, words)


def _terms(algorithm: str, k: Constants, epsilon: float, start: Start | None, printed: bool) -> Terms:
    """A row of the table; strongly convex if there is no start."""
    mu = 1.0 if start else k.convex()
    gap = 1.0 if printed or start is None or start.gap is None else start.gap
    if algorithm == "Scaffold":
        if k.sampled is None or k.sampled > k.n:
            hint = f"Scaffold needs s, the number of the n={k.n} workers that a server samples; give sampled=…."
            raise InputError("sampled", k.sampled, hint)
        s, scale = k.sampled, gap * (1.0 if printed else k.L)
        if start is not None:
            return {
                CENTRAL: scale * k.sigma2 / (k.tau * epsilon**2 * k.n) * k.n / s,
                SAMPLING: scale / epsilon * (k.n / s) ** (2 / 3),
            }
        noise = k.sigma2 / (mu**2 * k.tau * k.n * epsilon) * k.n / s
        return {CONDITION: k.L / mu, SAMPLING: k.n / s, CENTRAL: noise}
    h = 1 - k.connected()
    if algorithm in ("GTSAGA", "GTSVRG"):
        if k.samples is None:
            raise InputError(
                "samples",
                hint=" is not known: GT-SAGA and GT-SVRG need m, the samples at a node; give samples=… or a problem "
                "with samples.",
            )
        return {SAMPLES: float(k.samples), TOPOLOGY: (k.L / mu) ** (1 if printed else 2) / h**2}
    if start is None:
        network = sqrt(k.L * k.sigma2 / (mu**3 * h**3 * epsilon))
        return {
            TOPOLOGY: k.L / (h**2 * mu),
            CENTRAL: k.sigma2 / (mu**2 * k.n * k.tau * epsilon),
            NETWORK: network if algorithm == "FlexGT" else network / sqrt(k.tau),
        }
    network = gap * k.L * sqrt(k.sigma2 / (k.tau * epsilon**3)) / h**2
    terms = {TOPOLOGY: gap * k.L / (h**2 * epsilon), CENTRAL: gap * k.L * k.sigma2 / (k.tau * k.n * epsilon**2)}
    if algorithm == "KGT":
        return {**terms, NETWORK: network}
    c0 = start.tracking / (k.n * (start.gap or 1.0))
    return {**terms, NETWORK: network * sqrt(1 - k.rho), FIRST: gap * c0 / epsilon}


_NOISE = "more nodes, more local steps (as 1/tau) or less noise"
_GRAPH = "a better connected graph"
_DISTRIBUTED = {
    TOPOLOGY: f"{_GRAPH} or a better conditioned problem, not with local steps",
    CENTRAL: _NOISE,
    NETWORK: f"{_GRAPH}, more local steps (as 1/√tau) or less noise",
    FIRST: "a tracker that starts closer to c_i = ∇f(x̄_0) − ∇f_i(x̄_0), as K-GT's warm start",
}
_SERVER = {
    CONDITION: "a better conditioned problem, not with local steps or more workers",
    SAMPLING: "more workers sampled per round",
    CENTRAL: "more workers sampled per round, more local steps (as 1/tau) or less noise",
}
_FLEXGT = {**_DISTRIBUTED, NETWORK: f"{_GRAPH} or less noise, not with local steps"}
_REDUCED = {SAMPLES: "fewer samples per node", TOPOLOGY: f"{_GRAPH} or a better conditioned problem"}

TABLE: dict[tuple[str, bool], dict[str, str]] = {  # by (method, strongly convex): what makes each term smaller
    ("STGT", True): _DISTRIBUTED,
    ("STGT", False): _DISTRIBUTED,
    ("FlexGT", True): _FLEXGT,
    ("KGT", False): _DISTRIBUTED,
    ("GTSAGA", True): _REDUCED,
    ("GTSVRG", True): _REDUCED,
    ("Scaffold", True): _SERVER,
    ("Scaffold", False): _SERVER,
}
