"""Second moments by splitting a round into its mean and what is random about it.

Σ ← E[T Σ Tᵀ] is L + N with L(Σ) = M Σ Mᵀ of the mean M = E[T], and N the rest. Both take positive semidefinite matrices
to such. So the sum has a spectral radius below 1 exactly if M has, and (I − L)⁻¹ N has. The latter has few large
eigenvalues even where many modes of M are slow, so that a handful of steps finds its radius, and solves with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg

from stgt._internal.checks import NotCovered

Array = np.ndarray
VANISHES = 1e-9  # a power of M this small is 0: what it adds to a second moment is its square
MOST_DOUBLINGS = 44  # 2^44 rounds: what has not vanished by then has a spectral radius of 1, to rounding
MOST_STEPS = 60  # products for a growth
ROUNDING = 1e-14
OTHERS = 0.01  # the share of other modes where the slowest is looked for
NEAR = 1e-3  # the relative precision of a growth next to 1
FAR = 0.1  # and of others, as a share of their distance to 1, of those beyond 2 as it stands
SMALL = 0.1  # a growth below which it is enough to know that it is


class Splitting:
    """The second moments of a period, of deviations in which what is conserved is 0, as every round leaves it.

    Args:
        M: (D, D), the mean map of the period.
        second: Σ ← E[T Σ Tᵀ] of the period, for symmetric Σ (D, D).
        conserved: orthonormal rows (q, D) of what stays 0.
    """

    def __init__(self, M: Array, second: Callable[[Array], Array], conserved: Array) -> None:
        self.free = np.eye(len(M)) - conserved.T @ conserved  # the projection onto what rounds may change
        self.M, self._second = self.free @ M @ self.free, second

    @property
    def likely(self) -> Array:
        """A second moment (D, D) to begin with where the slowest one is looked for: that of M's slowest mode.

        A little of all others is added. Without it, what has nothing to do with that mode would not be seen.
        """
        found: Any = linalg.eig(self.M)
        values, vectors = found
        mode = vectors[:, np.abs(values).argmax()]
        return np.real(np.outer(mode, mode.conj())) + OTHERS / len(mode) * self.free

    @cached_property
    def _powers(self) -> list[Array] | None:
        """M, M², M⁴, … until they vanish; None if they do not, as the spectral radius of M is not below 1."""
        powers, power = [], self.M
        for _ in range(MOST_DOUBLINGS):
            if np.abs(power).max(initial=0.0) <= VANISHES:
                return powers
            powers.append(power)
            with np.errstate(over="ignore", invalid="ignore"):
                power = power @ power
            if not np.isfinite(power).all():
                return None
        return None

    def summed(self, Q: Array) -> Array:
        """(I − L)⁻¹ Q = Σ_k M^k Q (Mᵀ)^k, by doubling the number of rounds again and again."""
        assert self._powers is not None
        for power in self._powers:
            Q = Q + power @ Q @ power.T
        return (Q + Q.T) / 2

    def random_part(self, S: Array) -> Array:
        """N(S)."""
        return self._second(S) - self.M @ S @ self.M.T

    @cached_property
    def growth(self) -> float:
        """The spectral radius of (I − L)⁻¹ N: below 1 second moments stay bounded, above they grow; infinite where the
        mean does already."""
        if self._powers is None:
            return np.inf
        shape, found = self.M.shape, 0.0
        vectors, H = [(self.free / np.linalg.norm(self.free)).ravel()], np.zeros((MOST_STEPS + 1, MOST_STEPS))
        for step in range(MOST_STEPS):  # Arnoldi's method, until the error of the largest eigenvalue is small
            image = self.summed(self.random_part(vectors[-1].reshape(shape))).ravel()
            for _ in range(2):  # twice, for the sake of rounding
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
        raise NotCovered("second moments did not settle: give a topology with a larger spectral gap.")
