"""The rounds of a small state as dense matrices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg
from threadpoolctl import threadpool_limits

from stgt._internal.hyper import ShortRepr
from stgt.theory.network import NetworkRounds

Array = np.ndarray
VANISHES = 1e-9  # a power of M this small is 0: what it adds to a second moment is its square
MOST_DOUBLINGS = 48  # 2^48 rounds: what has not vanished by then has a spectral radius of 1, to rounding
FULL, SMALL = 5, 64  # powers, and rows of M, from which on a low rank is looked for
LOW_RANK = 1e-14  # what is left of a power beside its slow modes, relative to its largest entry
MANY = 800  # rows from which on products are worth more than one thread


@dataclass(frozen=True, eq=False)
class AffineRound(ShortRepr):
    """v ← M v + b + B ξ, with v the nodes' states (D,) one after the other; Q = B Bᵀ is the covariance of its noise."""

    M: Array  # (D, D)
    b: Array  # (D,)
    Q: Array  # (D, D)


@dataclass(frozen=True, eq=False)
class StateMaps(ShortRepr):
    """Linear maps out of v, and v before round 0."""

    start: Array  # (D,)
    start_noise: Array  # (D, D): the covariance of v before round 0, of gradients that an initialisation takes
    mean: Array  # (p, D): x̄
    models: Array  # (n p, D): all x_i
    conserved: Array  # (q, D): what stays 0, or (0, D)


class RoundMap(ShortRepr):
    """The affine maps of a period's rounds, in coordinates in which what is conserved stays 0.

    Attributes:
        optimum: x*.
        instance: whose rounds they are.
        period: how many rounds there are.
        noisy: is there any noise?
    """

    def __init__(self, rounds: NetworkRounds) -> None:
        self._rounds, self.instance, self.period = rounds, rounds.instance, rounds.period
        self.optimum, self.noisy = rounds.optimum, rounds.noisy

    @cached_property
    def rounds(self) -> tuple[AffineRound, ...]:
        """M, b and Q of each round of the period."""
        one, zero, found = np.eye(len(self._rounds.start)), np.zeros_like(self._rounds.start), []
        for r in range(self.period):
            B = self._rounds.noise_columns(r)
            found.append(AffineRound(self._rounds.push(r, one), self._rounds.advance(r, zero), B @ B.T))
        return tuple(found)

    @cached_property
    def layout(self) -> StateMaps:
        """Linear maps from v to the models, their mean and the conserved sums; and v before round 0."""
        rounds, one = self._rounds, np.eye(len(self._rounds.start))
        models = one[rounds.models].reshape(-1, len(one))
        return StateMaps(rounds.start, rounds.start_spread(one), rounds.mean, models, rounds.conserved)

    @cached_property
    def basis(self) -> Array:
        """Orthonormal columns (D, d) that span the states with nothing conserved: the mean of c is left out."""
        if len(self._rounds.conserved) == 0:
            return np.eye(len(self._rounds.start))
        return linalg.null_space(self._rounds.conserved)

    @cached_property
    def matrices(self) -> list[Array]:
        """M of each round, in the coordinates of `basis`."""
        Z = self.basis
        return [Z.T @ self._rounds.push(r, Z) for r in range(self.period)]

    @cached_property
    def steps(self) -> list[tuple[Array, Array, Array]]:
        """(M, b, Q) of each round, in the coordinates of `basis`."""
        Z = self.basis
        zero, found = np.zeros_like(self._rounds.start), []
        for r, M in enumerate(self.matrices):
            B = Z.T @ self._rounds.noise_columns(r)
            found.append((M, Z.T @ self._rounds.advance(r, zero), B @ B.T))
        return found

    @cached_property
    def period_matrix(self) -> Array:
        """M of a whole period."""
        product = self.matrices[0]
        for M in self.matrices[1:]:
            product = M @ product
        return product

    @cached_property
    def mean(self) -> Array:
        """From the coordinates of `basis` to x̄, (p, d)."""
        return self._rounds.mean @ self.basis

    @cached_property
    def disagreement(self) -> Array:
        """From the coordinates of `basis` to all x_i − x̄, (n p, d)."""
        n, p = self._rounds.models.shape
        return self.basis[self._rounds.models.ravel()] - np.tile(self.mean, (n, 1)).reshape(n * p, -1)

    @cached_property
    def spectral_radius(self) -> float:
        """The modulus by which the slowest mode shrinks in a round; above 1 the run diverges."""
        return float(np.abs(linalg.eigvals(self.period_matrix)).max(initial=0.0) ** (1 / self.period))

    @cached_property
    def start(self) -> Array:
        """The state before round 0, in the coordinates of `basis`."""
        return self.basis.T @ self._rounds.start

    def advance(self, r: int, v: Array) -> Array:
        """M v + b, in round r of the period."""
        M, b, _ = self.steps[r]
        return M @ v + b

    def pull(self, r: int, rows: Array) -> tuple[Array, Array]:
        """u M and u Q for each row u, in round r of the period."""
        M, _, Q = self.steps[r]
        return rows @ M, rows @ Q

    def start_spread(self, rows: Array) -> Array:
        """u Q for each row u, with Q the covariance of the state before round 0."""
        if not self._rounds.noisy_start:
            return np.zeros_like(rows)
        return self._rounds.start_spread(rows @ self.basis.T) @ self.basis

    def steady_state(self) -> tuple[float, float, float, float]:
        """The fields of `SteadyState`; needs a spectral radius below 1."""
        M, size = self.period_matrix, self.basis.shape[1]
        mean, P = np.zeros(size), np.zeros((size, size))
        for r in range(self.period):
            mean, P = self._push(r, mean, P)
        mean = np.linalg.solve(np.eye(size) - M, mean)
        found: Any = lyapunov(M, P)
        assert found is not None
        P, seen = found, []
        for r in range(self.period):
            bias = float(((self.mean @ mean - self.optimum) ** 2).sum())
            apart = float(((self.disagreement @ mean) ** 2).sum())
            spreads = (float(np.vdot(A @ P, A)) for A in (self.mean, self.disagreement))
            seen.append((bias + next(spreads), apart + next(spreads), bias, 0.0))
            mean, P = self._push(r, mean, P)
        residual, consensus, bias, error = np.mean(seen, axis=0).tolist()
        return residual, consensus, bias, error

    def _push(self, r: int, mean: Array, P: Array) -> tuple[Array, Array]:
        """A mean and a covariance after round r of the period."""
        M, b, Q = self.steps[r]
        return M @ mean + b, M @ P @ M.T + Q


class Powers:
    """M, M², M⁴, … until they vanish.

    Only the slowest modes are left in high powers, so that these have a low rank. A power that is A B, with few columns
    A, is the last one: those after it are A (B A)^k B, with powers of the small matrix B A.

    Attributes:
        vanish: do they, as the spectral radius of M is below 1?
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
                if len(M) >= SMALL and len(self._full) >= FULL:
                    A = np.linalg.qr(M @ np.random.default_rng(0).standard_normal((len(M), len(M) // 3)))[0]
                    B = A.T @ M
                    if np.abs(M - A @ B).max() <= LOW_RANK * np.abs(M).max():
                        self._rest = A, B, Powers(B @ A)
                        self.vanish = self._rest[2].vanish
                        return
                self._full.append(M)
                M = M @ M

    def summed(self, Q: Array) -> Array:
        """P = M P Mᵀ + Q, which is Σ_k M^k Q (Mᵀ)^k, for a symmetric Q; the powers have to vanish."""
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
