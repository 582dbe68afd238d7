"""The small problem on which the recursions are checked: heterogeneous quadratics, n = 6 nodes, p = 3, m = 4 parts.

f_ij(x) = (x - b_ij)^T A_ij (x - b_ij) / 2, f_i = mean_j f_ij, f = mean_i f_i. Hessians lie in [0.5, 2], so L <= 2.
"""

from functools import cache

import numpy as np

N, P, M = 6, 3, 4
J = np.full((N, N), 1 / N)
EVERYONE = np.arange(N)


def _hessians(rng: np.random.Generator) -> np.ndarray:
    Q = np.linalg.qr(rng.standard_normal((N, M, P, P)))[0]
    return np.einsum("nmij,nmj,nmkj->nmik", Q, rng.uniform(0.5, 2.0, (N, M, P)), Q)


_rng = np.random.default_rng(0)
A_PARTS = _hessians(_rng)
B_PARTS = 2.0 * _rng.standard_normal((N, 1, P)) + _rng.standard_normal((N, M, P))
A = A_PARTS.mean(axis=1)
Ab = np.einsum("nmij,nmj->nmi", A_PARTS, B_PARTS).mean(axis=1)
B = np.linalg.solve(A, Ab[..., None])[..., 0]
# grad f(x) = mean_i A_i x - mean_i (Ab)_i = 0.
X_STAR = np.linalg.solve(A.mean(axis=0), Ab.mean(axis=0))
SAME_START = np.tile(_rng.standard_normal(P), (N, 1))
SPREAD_START = _rng.standard_normal((N, P))


def exact(X, k=0):
    """Rows grad f_i(x_i) = A_i x_i - (Ab)_i, whatever the iteration."""
    return np.einsum("nij,nj->ni", A, X) - Ab


def mean_gradient(x):
    """grad f(x), (p,)."""
    return exact(np.tile(x, (N, 1))).mean(axis=0)


def noisy(X, k):
    """A nonlinear heterogeneous gradient with noise of deviation 0.5 that depends on k alone."""
    return exact(X) + 0.3 * np.sin(3 * X) + 0.5 * _noise(k)


@cache
def _noise(k):
    return np.random.default_rng((1, k)).standard_normal((N, P))


def component(X, J):
    """Rows grad f_{i,J[i]}(x_i)."""
    rows = np.arange(N)
    return np.einsum("nij,nj->ni", A_PARTS[rows, J], X - B_PARTS[rows, J])


def draw(k):
    """One component of each node, uniformly, for iteration k."""
    return np.random.default_rng((2, k)).integers(M, size=N)


@cache
def ring(r=0):
    """Symmetric ring with weights (0.2, 0.6, 0.2): eigenvalues 0.6 + 0.4 cos(pi l / 3) in [0.2, 1], so invertible."""
    shift = np.roll(np.eye(N), 1, axis=1)
    return 0.6 * np.eye(N) + 0.2 * (shift + shift.T)


@cache
def directed(r):
    """Time-varying, directed, doubly stochastic: a random convex combination of I and two random permutations."""
    rng = np.random.default_rng((3, r))
    weights = rng.dirichlet((4.0, 4.0, 4.0))
    permutations = (EVERYONE, rng.permutation(N), rng.permutation(N))
    return sum(w * np.eye(N)[permutation] for w, permutation in zip(weights, permutations, strict=True))


def average(r):
    """W_r = J."""
    return J


def everyone(r):
    """S_r = all nodes."""
    return EVERYONE


def some(s):
    """Uniform sampling of s nodes without replacement."""
    return lambda r: np.sort(np.random.default_rng((4, r)).choice(N, s, replace=False))


def error(X):
    """max |x_i - x*|."""
    return np.abs(X - X_STAR).max()


def distance(one, other):
    """max |X - X'| along two trajectories of the same length."""
    assert len(one) == len(other)
    assert np.isfinite(one).all()
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))
