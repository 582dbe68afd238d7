"""Eigenvalues, powers and sums of linear maps. Some maps are known only by their products with vectors."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs
from threadpoolctl import threadpool_limits

from stgt._internal.checks import NotCovered

Array = np.ndarray
Tries = tuple[tuple[int, int, Any], ...]  # vectors, restarts and precision (the stubs have an int) of Arnoldi's method
ROOM = 2**28  # the most numbers in the vectors of a space: 2 GB
TRIES: Tries = ((100, 30, 1e-9), (250, 40, 1e-7))
MANY = 800  # from this many rows on, products use more than one thread
VANISHES = 1e-9  # a power of M this small counts as 0: a second moment contains its square
MOST_DOUBLINGS = 48  # 2^48 rounds: what has not vanished by then has a spectral radius of 1, up to rounding
FULL, FEW = 5, 64  # from this many powers, and rows of M, on, powers are tested for a low rank
LOW_RANK = 1e-14  # the largest entry of what a low rank omits from a power, relative to the power's largest
NEXT_TO_ONE = 1 + 1e-9  # a shift at which the rest of a conserved sum does not make a matrix singular
SLOWEST = 12  # the number of eigenvalues near 1 to compute, if many are almost as slow as the slowest
MOST_STEPS = 60  # the most products for a growth
ROUNDING = 1e-14
OTHERS = 0.01  # the share of other modes in the start of the search for the slowest
NEAR = 1e-3  # the relative precision of a growth close to 1
FAR = 0.1  # the precision of another growth, as a share of its distance to 1; beyond 2, relative
SMALL = 0.1  # below this, the value of a growth does not matter


class Powers:
    """M, M², M⁴, … until they vanish.

    High powers contain only the slowest modes, so they have a low rank. A power A B, where A has few columns, is the
    last one that is stored: later ones are A (B A)^k B, with powers of the small matrix B A.

    Attributes:
        vanish: do they vanish? They do if the spectral radius of M is below 1.
    """

    def __init__(self, M: Array) -> None:
        self._full: list[Array] = []
        self._rest: tuple[Array, Array, Powers] | None = None
        self.vanish = False
        with np.errstate(over="ignore", invalid="ignore"):
            while np.isfinite(M).all() and len(self._full) < MOST_DOUBLINGS:
                if np.abs(M).max(initial=0.0) <= VANISHES:
                    self.vanish = True
                    return
                if len(M) >= FEW and len(self._full) >= FULL:
                    A = np.linalg.qr(M @ np.random.default_rng(0).standard_normal((len(M), len(M) // 3)))[0]
                    B = A.T @ M
                    if np.abs(M - A @ B).max() <= LOW_RANK * np.abs(M).max():
                        self._rest = A, B, Powers(B @ A)
                        self.vanish = self._rest[2].vanish
                        return
                self._full.append(M)
                M = M @ M

    def summed(self, Q: Array) -> Array:
        """P = M P Mᵀ + Q, which is Σ_k M^k Q (Mᵀ)^k, for a symmetric Q. The powers must vanish."""
        for power in self._full:
            Q = Q + power @ Q @ power.T
        if self._rest is not None:
            A, B, rest = self._rest
            Q = Q + A @ rest.summed(B @ Q @ B.T) @ A.T
        return (Q + Q.T) / 2


def lyapunov(M: Array, Q: Array) -> Array | None:
    """P = M P Mᵀ + Q; None if M is not stable."""
    with threadpool_limits(os.cpu_count() if len(M) > MANY else None, "blas"):
        powers = Powers(M)
        return powers.summed(Q) if powers.vanish else None


def operator(function: Callable[[Array], Array], size: int) -> Any:
    """A linear function of vectors, as SciPy's LinearOperator."""
    made: Any = LinearOperator  # the type stub has only the arguments of its subclasses
    return made((size, size), matvec=lambda x: function(x.ravel()), dtype=np.dtype(np.float64))


def by_arnoldi(forward: Callable[[Array], Array], size: int, start: Array, tries: Tries = TRIES) -> float | None:
    """The largest |λ| of a linear function of vectors, checked; None if the method does not converge."""
    for vectors, restarts, precision in tries:
        most = min(vectors, size, ROOM // size)
        if most < 3:
            return None
        try:
            found: Any = eigs(
                operator(forward, size), 1, which="LM", v0=start, ncv=most, maxiter=restarts, tol=precision
            )
        except ArpackError:
            continue
        slowest = int(np.abs(found[0]).argmax())
        value, mode = complex(found[0][slowest]), found[1][:, slowest]
        image = forward(mode.real) + 1j * forward(mode.imag)
        if np.linalg.norm(image - value * mode) <= max(1e-6, 10 * precision) * max(1.0, abs(value)):
            return abs(value)
    return None


def by_ritz_values(forward: Callable[[Array], Array], start: Array, vectors: int) -> float:
    """The largest |λ| of a linear function, estimated from the space of a start and its images under the function."""
    V, H = np.zeros((vectors + 1, len(start))), np.zeros((vectors + 1, vectors))
    V[0] = start / np.linalg.norm(start)
    for k in range(vectors):
        image = forward(V[k])
        for _ in range(2):  # twice, to reduce rounding errors
            along = V[: k + 1] @ image
            image = image - along @ V[: k + 1]
            H[: k + 1, k] += along
        H[k + 1, k] = np.linalg.norm(image)
        if not H[k + 1, k] > 1e-12 * np.abs(H[: k + 1, k]).max():
            vectors = k + 1
            break
        V[k + 1] = image / H[k + 1, k]
    return float(np.abs(np.linalg.eigvals(H[:vectors, :vectors])).max())


def by_all_means(M: Array, estimate: float, start: Array) -> float:
    """The largest |λ| of a matrix for which Arnoldi's method did not converge, as many are almost as large.

    If the eigenvalues next to 1 and the `estimate` agree on which side of 1 it is, it is the larger of both. Otherwise
    all eigenvalues are computed.
    """
    slowest = _next_to_one(M, start)
    if slowest is None or (estimate >= 1 - 1e-12 > slowest):
        return float(np.abs(linalg.eigvals(M)).max())
    return max(slowest, estimate)


def _next_to_one(M: Array, start: Array) -> float | None:
    """The largest |λ| of the eigenvalues next to 1, by shift and invert; None if that does not converge."""
    factors = linalg.lu_factor(M - NEXT_TO_ONE * np.eye(len(M)))
    inverse = operator(lambda v: linalg.lu_solve(factors, v), len(M))
    try:
        found: Any = eigs(inverse, SLOWEST, which="LM", v0=start, ncv=40, maxiter=20, return_eigenvectors=False)
    except ArpackError:
        return None
    return float(np.abs(NEXT_TO_ONE + 1 / found).max())


class Splitting:
    """Σ ← E[T Σ Tᵀ] of a period as L + N, with L(Σ) = M Σ Mᵀ of the mean M = E[T], and N the rest.

    L and N map positive semidefinite matrices to such matrices. So L + N has a spectral radius below 1 if and only if M
    and (I − L)⁻¹ N have one. (I − L)⁻¹ N has few large eigenvalues, even if many modes of M are slow. So a few steps
    find its radius, and solve equations with it. Deviations have no conserved part, as no round changes that part.

    Args:
        M: (D, D), the mean map of the period.
        random_part: N of the period, for symmetric Σ (D, D).
        conserved: orthonormal rows (q, D) of the conserved sums.
    """

    def __init__(self, M: Array, random_part: Callable[[Array], Array], conserved: Array) -> None:
        self.free = np.eye(len(M)) - conserved.T @ conserved  # the projection onto what rounds can change
        self.M, self.random_part = self.free @ M @ self.free, random_part

    @property
    def likely(self) -> Array:
        """A second moment (D, D) from which to search for the slowest one: that of M's slowest mode.

        A small part of all other modes is added. Otherwise modes that are independent of it would not be found.
        """
        found: Any = linalg.eig(self.M)
        values, vectors = found
        mode = vectors[:, np.abs(values).argmax()]
        return np.real(np.outer(mode, mode.conj())) + OTHERS / len(mode) * self.free

    @cached_property
    def powers(self) -> Powers:
        """The powers of M."""
        return Powers(self.M)

    def summed(self, Q: Array) -> Array:
        """(I − L)⁻¹ Q = Σ_k M^k Q (Mᵀ)^k."""
        return self.powers.summed(Q)

    @cached_property
    def growth(self) -> float:
        """The spectral radius of (I − L)⁻¹ N. Below 1 second moments stay bounded, above they grow. It is infinite if
        the mean already grows."""
        if not self.powers.vanish:
            return np.inf
        shape, found = self.M.shape, 0.0
        vectors, H = [(self.free / np.linalg.norm(self.free)).ravel()], np.zeros((MOST_STEPS + 1, MOST_STEPS))
        for step in range(MOST_STEPS):  # Arnoldi's method, until the error of the largest eigenvalue is small
            image = self.summed(self.random_part(vectors[-1].reshape(shape))).ravel()
            for _ in range(2):  # twice, to reduce rounding errors
                for row, vector in enumerate(vectors):
                    along = vector @ image
                    H[row, step] += along
                    image = image - along * vector
            H[step + 1, step] = left = float(np.linalg.norm(image))
            values, modes = np.linalg.eig(H[: step + 1, : step + 1])
            largest = int(np.abs(values).argmax())
            found, error = float(abs(values[largest])), left * float(abs(modes[-1, largest]))
            wanted = max(NEAR, FAR * min(1.0, abs(1 - found))) * max(found, SMALL)
            if error <= wanted or left <= ROUNDING * found:
                return found
            vectors.append(image / left)
        raise NotCovered("second moments did not converge: give a topology with a larger spectral gap.")
