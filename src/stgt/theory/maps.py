"""The rounds of a period as dense matrices or, for a large state, as products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import gcrotmk

from stgt._internal.checks import NotCovered
from stgt._internal.hyper import ShortRepr
from stgt.theory.network import NetworkRounds
from stgt.theory.solvers import ROOM, by_arnoldi, lyapunov, operator

Array = np.ndarray
RANDOM_ROWS = 32  # random rows that estimate the consensus error
MOST_VECTORS = 2000  # the most vectors of a projection
LONGER = 1.3  # the factor by which a projection grows between two solutions of its equation


@dataclass(frozen=True, eq=False)
class AffineRound(ShortRepr):
    """v ← M v + b + B ξ, where v (D,) has the nodes' states, one after the other; Q = B Bᵀ is the noise covariance."""

    M: Array  # (D, D)
    b: Array  # (D,)
    Q: Array  # (D, D)


@dataclass(frozen=True, eq=False)
class StateMaps(ShortRepr):
    """Linear maps of v, and v before round 0."""

    start: Array  # (D,)
    start_noise: Array  # (D, D): the covariance of v before round 0, by the gradients of an initialisation
    mean: Array  # (p, D): x̄
    models: Array  # (n p, D): all x_i
    conserved: Array  # (q, D): the sums that stay 0, or (0, D)


class RoundMap(NetworkRounds, ShortRepr):
    """The affine maps of a period's rounds, for a state that is small enough for dense matrices.

    Attributes:
        instance, period: the instance, and its number of rounds per period.
        optimum: x*.
        noisy: is there any noise?
    """

    @cached_property
    def rounds(self) -> tuple[AffineRound, ...]:
        """M, b and Q of each round of the period."""
        one = np.eye(len(self.start))
        return tuple(AffineRound(self.push(r, one), *self._added(r, one)) for r in range(self.period))

    @cached_property
    def layout(self) -> StateMaps:
        """Linear maps from v to the models, their mean and the conserved sums; and v before round 0."""
        one = np.eye(len(self.start))
        models = one[self.models].reshape(-1, len(one))
        return StateMaps(self.start, self.start_spread(one), self.mean, models, self.conserved)

    @cached_property
    def basis(self) -> Array:
        """Orthonormal columns (D, d) that span the states without conserved parts: the mean of c is left out."""
        return linalg.null_space(self.conserved) if len(self.conserved) else np.eye(len(self.start))

    @cached_property
    def matrices(self) -> list[Array]:
        """M of each round, in the coordinates of `basis`."""
        return [self.basis.T @ self.push(r, self.basis) for r in range(self.period)]

    @cached_property
    def period_matrix(self) -> Array:
        """M of a whole period, in the coordinates of `basis`."""
        return reduce(lambda product, M: M @ product, self.matrices)

    @cached_property
    def spectral_radius(self) -> float:
        return float(np.abs(linalg.eigvals(self.period_matrix)).max(initial=0.0) ** (1 / self.period))

    def long_run(self) -> tuple[float, ...]:
        Z, (n, p) = self.basis, self.models.shape
        to_mean = self.mean @ Z
        apart = Z[self.models.ravel()] - np.tile(to_mean, (n, 1)).reshape(n * p, -1)
        rounds = [(M, *self._added(r, Z)) for r, M in enumerate(self.matrices)]
        size = Z.shape[1]

        def push(r: int, mean: Array, P: Array) -> tuple[Array, Array]:
            """A mean and a covariance after round r of the period."""
            M, b, Q = rounds[r]
            return M @ mean + b, M @ P @ M.T + Q

        mean, P = np.zeros(size), np.zeros((size, size))
        for r in range(self.period):
            mean, P = push(r, mean, P)
        mean, covariance = np.linalg.solve(np.eye(size) - self.period_matrix, mean), lyapunov(self.period_matrix, P)
        assert covariance is not None
        P, seen = covariance, []
        for r in range(self.period):
            bias, off = float(((to_mean @ mean - self.optimum) ** 2).sum()), float(((apart @ mean) ** 2).sum())
            spread, spread_apart = (float(np.vdot(A @ P, A)) for A in (to_mean, apart))
            seen.append((bias + spread, off + spread_apart, bias))
            mean, P = push(r, mean, P)
        return tuple(np.mean(seen, axis=0).tolist())

    def _added(self, r: int, Z: Array) -> tuple[Array, Array]:
        """b and Q of a round, in the coordinates of orthonormal columns Z."""
        B = Z.T @ self.noise_columns(r)
        return Z.T @ self.advance(r, np.zeros_like(self.start)), B @ B.T


class LargeMap(NetworkRounds):
    """The rounds of a period for a state too large for dense maps: the round is applied to vectors.

    The spectral radius is computed by Arnoldi's method. For the steady state, P = M P Mᵀ + σ² B Bᵀ is projected onto
    the space of the rows C, C M, C M², …, where C are the rows whose variance is wanted. That is a small equation. Its
    solution converges long before the space is complete.
    """

    @cached_property
    def spectral_radius(self) -> float:
        start = np.random.default_rng(0).standard_normal((1, len(self.start)))
        found = by_arnoldi(self._forward, len(self.start), self._free(start)[0])
        if found is None:
            raise NotCovered(
                f"the spectral radius of {self} did not converge: give a topology with a larger spectral gap."
            )
        return found ** (1 / self.period)

    def long_run(self) -> tuple[float, ...]:
        bias, apart = self._means()
        if not self.noisy:
            return bias, apart, bias, 0.0
        n, p = self.models.shape
        if self.period * p > self._most:
            raise self._unsettled()

        def means(r: int) -> Array:  # x̄ at the start of round r, in separate rows
            rows = np.zeros((self.period * p, len(self.start)))
            rows[r * p : (r + 1) * p] = self.mean
            return rows

        def random_rows(r: int) -> Array:
            signs = np.random.default_rng(r).choice((-1.0, 1.0), size=(RANDOM_ROWS, n, p))
            return self.weighing(signs - signs.mean(axis=1, keepdims=True))

        spread, seen = self._variances(means, 1e-8), self._variances(random_rows, 3e-4)
        error = float(seen.std(ddof=1)) / RANDOM_ROWS**0.5
        return bias + float(spread.sum()), apart + float(seen.mean()), bias, error

    def _means(self) -> tuple[float, float]:
        """‖E x̄ − x*‖² and ‖E(X − 1x̄)‖² at the steady state, their means over a period."""
        v, size = self.start, len(self.start)
        off = self._over_period(v) - v
        slow = operator(lambda row: row - self._forward(row), size)
        kept = min(60, ROOM // (3 * size))
        step, _ = gcrotmk(slow, off, rtol=1e-13, atol=0.0, m=kept, k=kept, maxiter=100)
        left = np.linalg.norm(slow @ step - off)
        if left > 1e-6 * (1 - self.spectral_radius) * max(np.linalg.norm(off), np.linalg.norm(v)):
            raise NotCovered(
                f"the mean of {self} did not converge: give a larger gamma or a topology with a larger spectral gap."
            )
        v = v + step
        seen = []
        for r in range(self.period):
            x = v[self.models]
            mean = x.mean(axis=0)
            seen.append((((mean - self.optimum) ** 2).sum(), ((x - mean) ** 2).sum()))
            v = self.advance(r, v)
        bias, apart = np.mean(seen, axis=0)
        return float(bias), float(apart)

    def _variances(self, rows: Callable[[int], Array], tolerance: float) -> Array:
        """For each row of rows(r) (k, D), the variance of its product with v at the start of round r, summed over a
        period and divided by the period."""
        seen = rows(self.period - 1)
        own = np.zeros(len(seen))
        for r in reversed(range(self.period - 1)):
            moved, spread = self.pull(r, seen)
            own += (seen * spread).sum(axis=1)
            seen = moved + rows(r)
        return (own + self._projected(self._free(seen), tolerance)) / self.period

    def _projected(self, C: Array, tolerance: float) -> Array:
        """c P cᵀ for each row c of C, with P = M P Mᵀ + B Bᵀ of a period.

        Let V be the orthonormal rows of the space and A = V M Vᵀ. Solves X = A X Aᵀ + V B Bᵀ Vᵀ instead of P.
        """
        most, full = self._most, len(self.start) - len(self.conserved)
        V, A, Q = np.zeros((most, len(self.start))), np.zeros((most, most)), np.zeros((most, most))
        coordinates, block = _orthonormal(C)
        width = len(block)
        have, look, before = 0, 0.0, None
        if width == 0:
            return np.zeros(len(C))
        while have + len(block) <= most:
            new, have = slice(have, have + len(block)), have + len(block)
            V[new] = block
            moved, spread = self._pull_period(block)
            Q[new, :have] = spread @ V[:have].T
            Q[:have, new] = Q[new, :have].T
            A[new, :have] = moved @ V[:have].T
            along, block = _orthonormal(moved - A[new, :have] @ V[:have], 1e-10 * float(np.linalg.norm(moved)))
            closed = len(block) == 0 or have == full
            if have >= look or closed:
                X = lyapunov(A[:have, :have], Q[:have, :have])
                now = None if X is None else ((coordinates @ X[:width, :width]) * coordinates).sum(axis=1)
                if now is not None and (closed or _near(now, before, tolerance)):
                    return now
                if closed:
                    break
                before, look = now, LONGER * have
            A[new, have : have + len(block)] = along[:, : most - have]
            block = block - (block @ V[:have].T) @ V[:have]  # a second time, to reduce rounding errors
            block /= np.linalg.norm(block, axis=1, keepdims=True)
        raise self._unsettled()

    @property
    def _most(self) -> int:
        """The most vectors that a projection may have."""
        return min(len(self.start) - len(self.conserved), MOST_VECTORS, ROOM // len(self.start))

    def _unsettled(self) -> NotCovered:
        return NotCovered(
            f"the steady state of {self} does not converge with {self._most} vectors: give a problem with a "
            "smaller p, or a topology with a larger spectral gap or a shorter period."
        )

    def _pull_period(self, rows: Array) -> tuple[Array, Array]:
        """u M and u B Bᵀ of a whole period for each row u."""
        spreads = []
        for r in reversed(range(self.period)):
            rows, spread = self.pull(r, rows)
            spreads.append(spread)
        total = spreads.pop()
        for r in range(1, self.period):
            total = self.push(r, total.T).T + spreads.pop()
        return self._free(rows), total

    def _forward(self, v: Array) -> Array:
        """M v of a whole period, without conserved parts."""
        return self._free(self.over_period(v[:, None]).T)[0]

    def _over_period(self, v: Array) -> Array:
        for r in range(self.period):
            v = self.advance(r, v)
        return v

    def _free(self, rows: Array) -> Array:
        """The rows without their parts along conserved sums."""
        return rows - (rows @ self.conserved.T) @ self.conserved


def _near(now: Array, before: Array | None, tolerance: float) -> bool:
    return before is not None and bool(abs(now.sum() - before.sum()) <= tolerance * now.sum())


def _orthonormal(rows: Array, least: float = 0.0) -> tuple[Array, Array]:
    """Coordinates and orthonormal rows whose product is `rows`, except for parts smaller than `least`."""
    u, s, v = np.linalg.svd(rows, full_matrices=False)
    kept = s > max(least, 1e-12 * s.max(initial=0.0))
    return u[:, kept] * s[kept], v[kept]
