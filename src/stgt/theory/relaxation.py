"""The relaxation β of corrections: the largest stable β of LED on a graph, and the noise that β leaves in c.

At small stepsizes LED's models and corrections depend on W_r alone. With c̃ = γτc and u = c̃ + βx a round is

    u ← (1 − β)u + β²x,    x ← W_r((1 + β)x − u)

in the deviations from the means, for any problem; docs/led.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import linalg

from stgt._internal.checks import NotCovered, check_number
from stgt.algorithms import LED, STGT, Algorithm
from stgt.theory.network import STABLE_BELOW
from stgt.theory.solvers import Tries, by_arnoldi
from stgt.topology import Moments, Topology, from_matrix
from stgt.topology.base import check_repeats
from stgt.topology.spectra import contraction, period_contraction

MOST = 2.0  # the largest β that LED allows
LEAST = 1e-4  # the smallest β tried if there is no closed form
COARSE, FINE = 1.25, 1.05  # factors between the β tried, below and above 0.05
UP_TO = 256  # the most nodes for the matrix of a period; RANDOM_UP_TO the most for second moments
RANDOM_UP_TO = 64
TRIES: Tries = ((20, 8, 1e-7), (60, 20, 1e-7))  # vectors, restarts and precision of Arnoldi's method


def largest_beta(topology: Topology) -> float:
    """The end of the interval of β, from 0, in which LED is stable at small stepsizes on this graph; at most 2.

    A fixed W with eigenvalues w allows β < 2(1 − |w|²)|1 − w|²/|1 − 2w + |w|²|² for every w except that of the mean;
    for a real w this is 2(1 + w)/(1 − w). For a schedule the spectral radius over a period is computed for increasing
    β from 1e-4 on, in steps of 5 % if β > 0.05. For random rounds it is the mean-square radius, in steps of 25 %. The
    end is found to 0.1 %.

    Args:
        topology: doubly stochastic, connected over a period, all nodes work; up to 256 nodes if it has a period, 64 if
            it is random.

    Returns:
        β must be below it; 0 if β = 1e-4 is unstable.

    Example:
        >>> import stgt
        >>> round(stgt.theory.largest_beta(stgt.topology.hypercuboid(16)), 4)  # 2/log2(16)
        0.5
    """
    _check(topology)
    if topology.n == 1:
        return MOST
    if topology.period == 1:
        return min(MOST, float(_allowed(_apart(topology.matrix(0))).min()))
    radius, below, beta = _radius_of(topology), 0.0, LEAST
    fine, precision = (FINE, 1e-6) if not topology.random else (COARSE, 1e-3)
    if topology.random:  # smaller β are proven to be stable
        root = float(contraction(topology)) ** 0.5
        beta = min(1.0, max(LEAST, 0.99 * (1 - root) / (2 * root))) if root else 1.0
    while radius(beta) < STABLE_BELOW:
        if beta >= MOST:
            return MOST
        below, beta = beta, min(MOST, beta * (COARSE if beta < 0.05 else fine))
    while below and beta - below > precision * beta:
        middle = (below + beta) / 2
        below, beta = (middle, beta) if radius(middle) < STABLE_BELOW else (below, middle)
    return below


def small_step_radius(topology: Topology, beta: float) -> float:
    """The factor per round by which LED's disagreement shrinks as γ → 0. Below 1, LED is stable for all small γ.

    It is the spectral radius of the rounds above over a period, or of their second moments if they are random. It holds
    for any quadratics whose mean is strictly convex.
    """
    _check(topology)
    beta = check_number(beta, "beta", above=0, most=MOST)
    return abs(1 - beta) if topology.n == 1 else _radius_of(topology)(beta)


def _radius_of(topology: Topology) -> Callable[[float], float]:
    """`small_step_radius` as a function of β; everything that does not depend on β is computed once."""
    if topology.random:
        laws = [topology.moments(phase) for phase in range(topology.structure.phases)]
        return partial(_mean_square, laws, [law.mean for law in laws])
    return partial(_over_period, [_apart(topology.matrix(r)) for r in range(topology.period or 1)])


def _over_period(matrices: list[np.ndarray], beta: float) -> float:
    one, product = np.eye(len(matrices[0])), np.eye(2 * len(matrices[0]))
    for W in matrices:
        product = np.block([[(1 - beta) * one, beta**2 * one], [-W, (1 + beta) * W]]) @ product
    return float(np.abs(linalg.eigvals(product)).max() ** (1 / len(matrices)))


def tracker_noise(algorithm: Algorithm, topology: Topology) -> float:
    """The steady-state variance of c at small stepsizes, relative to that of a round's mean gradient; the nodes' mean.

    On a fixed symmetric W it is a mean over W's eigenvalues w, in which that of the mean counts 0, of
    β(1 − w)/(2 − β(1 − w)) for ST-GT, and of β(1 + w)/(2(1 + w) − β(1 − w)) for LED. On W = J both are about β/(2 − β):
    plain ST-GT's c is as noisy as the gradient; with β = ¼ a seventh of the noise is left.

    Args:
        algorithm: STGT or LED.
        topology: fixed and symmetric.

    Returns:
        The ratio; infinite if β is too large for the graph.
    """
    if type(algorithm) not in (STGT, LED):
        raise ValueError(f"{algorithm.label}: the noise in c is known only for STGT and LED.")
    return _noise(isinstance(algorithm, LED), getattr(algorithm, "beta", 1.0), _eigenvalues(topology))


def beta_for_noise(algorithm: Algorithm, topology: Topology, share: float = 1 / 7) -> float:
    """The largest β for which `tracker_noise` is at most `share`; at most 1 for ST-GT and 2 for LED."""
    tracker_noise(algorithm, topology)
    led, w, share = isinstance(algorithm, LED), _eigenvalues(topology), check_number(share, "share", above=0)
    low, high = 0.0, MOST if led else 1.0
    if _noise(led, high, w) <= share:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _noise(led, middle, w) <= share else (low, middle)
    return low


def too_large(algorithm: LED, topology: Topology) -> str | None:
    """A warning if LED's β is too large for this graph at small stepsizes, with the largest β and alternatives."""
    try:
        largest = largest_beta(topology)
    except NotCovered:  # the graph is too large for the computation, or not for LED
        return None
    if algorithm.beta < largest:
        return None
    small = f"is unstable at small stepsizes for any problem: this graph needs beta below {largest:.3g}"
    if topology.symmetric:
        lazy = ", or the lazy weights (I + W)/2, which allow beta up to 1" if topology.period == 1 else ""
        return f"LED with beta={algorithm.beta:g} on {topology.name} {small}{lazy}."
    undirected = "LED on the undirected graph (W + Wᵀ)/2"
    if topology.period == 1:
        W = topology.matrix(0)
        undirected += f", which allows beta below {largest_beta(from_matrix((W + W.T) / 2)):.3g}"
    return (
        f"LED with beta={algorithm.beta:g} on {topology.name} {small}, as it is directed; use such a beta, "
        f"STGT(adjoint=True), or {undirected}."
    )


def _noise(led: bool, beta: float, w: np.ndarray) -> float:
    above, below = (beta * (1 + w), 2 * (1 + w) - beta * (1 - w)) if led else (beta * (1 - w), 2 - beta * (1 - w))
    return float((above / below).sum() / (len(w) + 1)) if (below > 0).all() else np.inf


def _eigenvalues(topology: Topology) -> np.ndarray:
    """The eigenvalues of a fixed symmetric W, without the mean's."""
    if topology.period != 1 or not topology.symmetric or not topology.doubly_stochastic:
        raise ValueError(f"{topology.name}: the noise in c is known in closed form only for a fixed symmetric W.")
    _check(topology)
    return np.linalg.eigvalsh(_apart(topology.matrix(0)))


def _allowed(W: np.ndarray) -> np.ndarray:
    """The largest β for each eigenvalue of W: |β N − D| < D with D = 1 − |w|², N = 1 − 2w + |w|² (Schur and Cohn)."""
    w = np.linalg.eigvals(W)
    return 2 * (1 - abs(w) ** 2) * abs(1 - w) ** 2 / abs(1 - 2 * w + abs(w) ** 2) ** 2


def _apart(W: np.ndarray) -> np.ndarray:
    """W restricted to vectors of mean 0, (n − 1, n − 1): in the basis of a Householder reflection of 1."""
    n = len(W)
    v = np.full(n, 1 / n**0.5)
    v[0] += 1
    basis = (np.eye(n) - 2 * np.outer(v, v) / (v @ v))[:, 1:]
    return basis.T @ W @ basis


def _mean_square(laws: list[Moments], means: list[np.ndarray], beta: float) -> float:
    n = laws[0].n

    def forward(flat: np.ndarray) -> np.ndarray:
        S = flat.reshape(2, n, 2, n)
        S = S - S.mean(axis=1, keepdims=True)
        S = S - S.mean(axis=3, keepdims=True)
        for law, mean in zip(laws, means, strict=True):
            uu, ux, xx = S[0, :, 0], (S[0, :, 1] + S[1, :, 0].T) / 2, S[1, :, 1]
            onward = (1 - beta) * ux + beta**2 * xx  # E[u⁺ xᵀ]
            still = (1 - beta) * uu + beta**2 * ux.T  # E[u⁺ uᵀ]
            across = ((1 + beta) * onward - still) @ mean.T
            message = (1 + beta) ** 2 * xx - (1 + beta) * (ux + ux.T) + uu
            kept = (1 - beta) * still + beta**2 * onward
            S = np.stack([np.stack([kept, across], 1), np.stack([across.T, law.second((message + message.T) / 2)], 1)])
        return S.ravel()

    start = np.einsum("ab,ij->aibj", np.eye(2), np.eye(n)).ravel()
    if n <= 4:
        found = float(np.abs(linalg.eigvals(np.stack([forward(one) for one in np.eye(4 * n * n)], axis=1))).max())
    else:
        found = by_arnoldi(forward, 4 * n * n, forward(start), TRIES)
    if found is None:
        raise NotCovered(f"the mean-square radius of LED on {n} nodes did not converge: give a smaller graph.")
    return found ** (0.5 / len(laws))


def _check(topology: Topology) -> None:
    """Raises an error if LED's rounds at small stepsizes are not known on this topology."""
    check_repeats(topology)
    if not topology.doubly_stochastic or topology.sampled < topology.n:
        raise NotCovered(f"{topology.name}: the rule for beta needs doubly stochastic W_r, and all nodes must work.")
    most = RANDOM_UP_TO if topology.random else UP_TO
    if topology.n > most:
        raise NotCovered(f"{topology.name}: the rule for beta needs at most {most} nodes here; it has {topology.n}.")
    if topology.random and not all(topology.moments(k).exact for k in range(topology.structure.phases)):
        raise NotCovered(f"{topology.name}: its second moments are not known in closed form; give one with a period.")
    left = contraction(topology) if topology.period == 1 else period_contraction(topology)
    if left >= STABLE_BELOW and not _connected(topology):
        raise ValueError(f"{topology.name} is not connected: some nodes never exchange anything; add links.")


def _connected(topology: Topology) -> bool:
    """Do some periods together contract disagreement? A period's ‖·‖ may be 1 with eigenvalues below 1."""
    product = np.eye(topology.n)
    for phase in range(topology.period or topology.structure.phases):
        product = topology.moments(phase).mean @ product
    return bool(np.abs(linalg.eigvals(_apart(product))).max(initial=0.0) < STABLE_BELOW)
