"""How fast a topology mixes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import LinearOperator, svds

from stgt.checks import check_count
from stgt.topology.base import Topology
from stgt.topology.structure import Average, Dense, Relayed, Rolls, Sampled

DENSE_NORM_UP_TO = 400  # nodes; beyond, the norm is found by iteration
DENSE_PRODUCT_UP_TO = 2000


def contraction(topology: Topology, draws: int = 200) -> float:
    """ρ = E‖W_r − J‖₂², how much of the disagreement a round leaves at worst; smaller is better connected.

    Exact for a finite schedule, as the mean over its period; for a random one an estimate, the mean over the first
    `draws` rounds of run 0. A round in which the graph is not connected has ‖W_r − J‖ = 1 whatever its neighbours do
    with it: see `period_contraction`.

    Args:
        topology: any.
        draws: how many rounds of a random schedule to look at.

    Returns:
        ρ; 0 for J, at most 1 where W_r is doubly stochastic.

    Reference: Assumption 1 of the ST-GT paper, 2512.01732.
    """
    draws = check_count(draws, "draws")
    return float(np.mean(norms(topology, draws if topology.period is None else topology.period) ** 2))


def norms(topology: Topology, rounds: int) -> np.ndarray:
    """‖W_r − J‖₂ of the first rounds of run 0, (rounds,)."""
    return np.array([_norm(topology, r) for r in range(check_count(rounds, "rounds"))])


def period_contraction(topology: Topology) -> float:
    """‖W_{T−1} ⋯ W_0 − J‖₂², how much of the disagreement a whole period T leaves at worst.

    0 for the graphs of finite-time consensus (hypercuboid, base_graph, one_peer_exponential of 2^t nodes).

    Args:
        topology: one with a period; up to 2000 nodes unless it is static.

    Returns:
        The squared norm.
    """
    if topology.period is None:
        raise ValueError(f"{topology} is random and has no period: use contraction(topology).")
    if topology.period == 1:
        return contraction(topology)
    if topology.n > DENSE_PRODUCT_UP_TO:
        raise ValueError(f"{topology}: the product of a period is dense; give at most {DENSE_PRODUCT_UP_TO} nodes.")
    product = topology.matrix(0)
    for r in range(1, topology.period):
        product = topology.matrix(r) @ product
    return _dense_norm(product) ** 2


def _norm(topology: Topology, r: int) -> float:
    """‖W_r − J‖₂ in run 0."""
    match topology.structure:
        case Average():
            return 0.0
        case Rolls(n, hops, weights):
            return _circulant_norm(n, np.array(hops), np.array(weights))
        case Dense():
            return _dense_norm(topology.matrix(r))
        case Sampled(n, size):
            return float(size < n)  # W_r and J are projections, and W_r J = J
        case Relayed(n, size):
            return relayed_norm(n, size, int((topology.active(r) & topology.active(r + 1)).sum()))
        case lists:
            return _lists_norm(*lists.lists(np, topology.seed, r), topology.doubly_stochastic)


def _dense_norm(W: np.ndarray) -> float:
    return float(np.linalg.norm(W - 1.0 / len(W), 2))


def _circulant_norm(n: int, hops: np.ndarray, weights: np.ndarray) -> float:
    """A circulant matrix is normal, and its eigenvalues are the transform of its first row; J holds the first."""
    row = np.zeros(n)
    np.add.at(row, hops % n, weights)
    return float(np.abs(np.fft.rfft(row)[1:]).max(initial=0.0))


def relayed_norm(n: int, size: int, both: int) -> float:
    """‖W_r − J‖₂ of `relay(n, size)` in a round of which `both` workers also work in the next.

    Exact, from the four groups of nodes that work now or not, and next or not. W_r − J maps vectors constant on groups
    to such, a 4 × 4 matrix. Orthogonal to them it is the identity on groups that do not work next, and 0 on the others.
    """
    groups = [(1, 1, both), (1, 0, size - both), (0, 1, size - both), (0, 0, n - 2 * size + both)]
    groups = [group for group in groups if group[2]]
    works, hears, count = (np.array(column, dtype=float) for column in zip(*groups, strict=True))
    block = np.outer(hears, works) / size - 1.0 / n
    block = np.sqrt(np.outer(count, count)) * block + np.diag(1.0 - hears)
    idle_pair = any(count > 1 and not hears for _, hears, count in groups)
    return max(float(np.linalg.norm(block, 2)), float(idle_pair))


def _lists_norm(index: np.ndarray, weight: np.ndarray, doubly_stochastic: bool) -> float:
    n, width = index.shape
    rows = np.arange(n)[:, None]
    hops = (index - rows) % n
    if (hops == hops[0]).all() and (weight == weight[0]).all():
        return _circulant_norm(n, hops[0], weight[0])
    entries = (weight.ravel(), (np.repeat(rows, width), index.ravel()))
    W = sparse.csr_array(entries, shape=(n, n))
    W.eliminate_zeros()
    # The singular value 1 of a doubly stochastic W is as manifold as the graph of rows against columns has components.
    both = sparse.block_array([[None, W], [W.T, None]])
    if doubly_stochastic and csgraph.connected_components(both, directed=False, return_labels=False) > 1:
        return 1.0
    if n <= DENSE_NORM_UP_TO:
        return _dense_norm(W.toarray())
    start = np.random.default_rng(0).standard_normal(n)
    tolerance: Any = 1e-6  # of the singular vector; the value's error is of the order of its square
    largest: Any = svds(_Deviation(W), k=1, tol=tolerance, v0=start, return_singular_vectors=False)
    return float(largest[0])


class _Deviation(LinearOperator):
    """W − J for a sparse W."""

    def __init__(self, W: Any) -> None:
        super().__init__(np.dtype(np.float64), W.shape)
        self.W, self.transposed = W, W.T.tocsr()

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.W @ x - x.mean()

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self.transposed @ x - x.mean()
