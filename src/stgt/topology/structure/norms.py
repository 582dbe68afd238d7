"""‖W − J‖₂ of one matrix, by the fastest algorithm for its structure."""

from __future__ import annotations

from typing import Any

import numpy as np

DENSE_UP_TO = 400  # nodes; beyond, the norm of a sparse matrix is found by iteration
DOUBLY_STOCHASTIC = 1e-10  # how far a column sum may be from one


def dense_norm(W: np.ndarray) -> float:
    """‖W − J‖₂ of a matrix."""
    return float(np.linalg.norm(W - 1.0 / len(W), 2))


def circulant_norm(n: int, hops: np.ndarray, weights: np.ndarray) -> float:
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
    works, receives, count = (np.array(column, dtype=float) for column in zip(*groups, strict=True))
    block = np.outer(receives, works) / size - 1.0 / n
    block = np.sqrt(np.outer(count, count)) * block + np.diag(1.0 - receives)
    idle_pair = any(count > 1 and not receives for _, receives, count in groups)
    return max(float(np.linalg.norm(block, 2)), float(idle_pair))


def lists_norm(index: np.ndarray, weight: np.ndarray) -> float:
    """‖W − J‖₂ of neighbour lists (n, d)."""
    n, width = index.shape
    rows = np.arange(n)[:, None]
    hops = (index - rows) % n
    if (hops == hops[0]).all() and (weight == weight[0]).all():
        return circulant_norm(n, hops[0], weight[0])

    from scipy import sparse
    from scipy.sparse import csgraph
    from scipy.sparse.linalg import LinearOperator, svds

    entries = (weight.ravel(), (np.repeat(rows, width), index.ravel()))
    W: Any = sparse.csr_array(entries, shape=(n, n))
    W.eliminate_zeros()
    # The singular value 1 of a doubly stochastic W is as manifold as the graph of rows against columns has components.
    both = sparse.block_array([[None, W], [W.T, None]])
    doubly_stochastic = np.abs(W.sum(axis=0) - 1.0).max() <= DOUBLY_STOCHASTIC
    if doubly_stochastic and csgraph.connected_components(both, directed=False, return_labels=False) > 1:
        return 1.0
    if n <= DENSE_UP_TO:
        return dense_norm(W.toarray())
    transposed = W.T.tocsr()
    operator: Any = LinearOperator  # the stub has the arguments of its subclasses only
    deviation = operator(
        W.shape,
        matvec=lambda x: W @ x - x.mean(),
        rmatvec=lambda x: transposed @ x - x.mean(),
        dtype=np.dtype(np.float64),
    )
    start = np.random.default_rng(0).standard_normal(n)
    tolerance: Any = 1e-6  # of the singular vector; the value's error is of the order of its square
    largest: Any = svds(deviation, k=1, tol=tolerance, v0=start, return_singular_vectors=False)
    return float(largest[0])
