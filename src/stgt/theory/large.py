"""Stability and steady state of states too large for dense maps: the round is applied to vectors.

The spectral radius comes from Arnoldi's method. For the steady state, P = M P Mᵀ + σ² B Bᵀ is projected on the space
spanned by the rows C, C M, C M², …, with C the rows whose variance is wanted. That is a small equation, and its
solution converges long before the space is full.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, gcrotmk

from stgt._internal.checks import NotCovered
from stgt.theory.dense import lyapunov
from stgt.theory.network import NetworkRounds

RANDOM_ROWS = 32  # random rows that estimate the consensus error
MOST_VECTORS = 2000  # of a projection
ROOM = 2**28  # numbers that the vectors of a projection may have: 2 GB
TRIES: Any = ((100, 30, 1e-9), (250, 40, 1e-7))  # vectors, restarts and precision of Arnoldi's method
LONGER = 1.3  # the factor by which a projection grows between two solutions of its equation


class LargeMap:
    """The rounds of a period as operators, and what follows from them."""

    def __init__(self, rounds: NetworkRounds) -> None:
        self.rounds, self.instance, self.period = rounds, rounds.instance, rounds.period
        self.optimum, self.noisy = rounds.optimum, rounds.noisy
        self.start, self.mean, self._conserved = rounds.start, rounds.mean, rounds.conserved
        self.advance, self.pull, self.start_spread = rounds.advance, rounds.pull, rounds.start_spread

    @cached_property
    def spectral_radius(self) -> float:
        """The modulus by which the slowest mode shrinks in a round; above 1 the run diverges."""
        found = by_arnoldi(self._forward, len(self.start), self._free(_random_rows(len(self.start)))[0])
        if found is None:
            raise NotCovered(
                f"the spectral radius of {self._name} did not settle: give a topology with a larger spectral gap."
            )
        return found ** (1 / self.period)

    def steady_state(self) -> tuple[float, float, float, float]:
        """E‖x̄ − x*‖², E‖X − 1x̄‖², ‖E x̄ − x*‖² over a period, and the standard error of the second."""
        bias, apart = self._means()
        if not self.noisy:
            return bias, apart, bias, 0.0
        n, p = self.rounds.models.shape
        if self.period * p > self._most:
            raise self._unsettled()

        def means(r: int) -> np.ndarray:  # x̄ at the start of round r, in rows of its own
            rows = np.zeros((self.period * p, len(self.start)))
            rows[r * p : (r + 1) * p] = self.mean
            return rows

        def random_rows(r: int) -> np.ndarray:
            signs = np.random.default_rng(r).choice((-1.0, 1.0), size=(RANDOM_ROWS, n, p))
            return self.rounds.weighing(signs - signs.mean(axis=1, keepdims=True))

        spread, seen = self._variances(means, 1e-8), self._variances(random_rows, 3e-4)
        error = float(seen.std(ddof=1)) / RANDOM_ROWS**0.5
        return bias + float(spread.sum()), apart + float(seen.mean()), bias, error

    def _means(self) -> tuple[float, float]:
        """‖E x̄ − x*‖² and ‖E(X − 1x̄)‖² in the long run, their means over a period."""
        v, size = self.start, len(self.start)
        off = self._over_period(v) - v
        slow = operator(lambda row: row - self._forward(row), size)
        kept = min(60, ROOM // (3 * size))
        step, _ = gcrotmk(slow, off, rtol=1e-13, atol=0.0, m=kept, k=kept, maxiter=100)
        left = np.linalg.norm(slow @ step - off)
        if left > 1e-6 * (1 - self.spectral_radius) * max(np.linalg.norm(off), np.linalg.norm(v)):
            raise NotCovered(
                f"the mean of {self._name} did not settle: give a larger gamma or a topology with a larger "
                "spectral gap."
            )
        v = v + step
        seen = []
        for r in range(self.period):
            x = v[self.rounds.models]
            mean = x.mean(axis=0)
            seen.append((((mean - self.optimum) ** 2).sum(), ((x - mean) ** 2).sum()))
            v = self.advance(r, v)
        bias, apart = np.mean(seen, axis=0)
        return float(bias), float(apart)

    def _variances(self, rows: Callable[[int], np.ndarray], tolerance: float) -> np.ndarray:
        """The variance of each row's sum over a period of what it sees, rows(r) (k, D) at the start of round r, divided
        by the period."""
        seen = rows(self.period - 1)
        own = np.zeros(len(seen))
        for r in reversed(range(self.period - 1)):
            moved, spread = self.pull(r, seen)
            own += (seen * spread).sum(axis=1)
            seen = moved + rows(r)
        return (own + self._long_run(self._free(seen), tolerance)) / self.period

    def _long_run(self, C: np.ndarray, tolerance: float) -> np.ndarray:
        """c P cᵀ for each row c of C, with P = M P Mᵀ + B Bᵀ of a period.

        With V the orthonormal rows of the space and A = V M Vᵀ, X = A X Aᵀ + V B Bᵀ Vᵀ is solved in place of P.
        """
        most, full = self._most, len(self.start) - len(self._conserved)
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
            block = block - (block @ V[:have].T) @ V[:have]  # again, for the sake of rounding
            block /= np.linalg.norm(block, axis=1, keepdims=True)
        raise self._unsettled()

    @property
    def _most(self) -> int:
        """How many vectors a projection may have."""
        return min(len(self.start) - len(self._conserved), MOST_VECTORS, ROOM // len(self.start))

    def _unsettled(self) -> NotCovered:
        return NotCovered(
            f"the steady state of {self._name} does not settle with {self._most} vectors: give a problem with a "
            "smaller p, or a topology with a larger spectral gap or a shorter period."
        )

    def _pull_period(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u M and u B Bᵀ of a whole period for each row u."""
        spreads = []
        for r in reversed(range(self.period)):
            rows, spread = self.pull(r, rows)
            spreads.append(spread)
        total = spreads.pop()
        for r in range(1, self.period):
            total = self.rounds.push(r, total.T).T + spreads.pop()
        return self._free(rows), total

    def _forward(self, v: np.ndarray) -> np.ndarray:
        """M v of a whole period, without what is conserved."""
        return self._free(self.rounds.over_period(v[:, None], self._conserved).T)[0]

    def _over_period(self, v: np.ndarray) -> np.ndarray:
        for r in range(self.period):
            v = self.advance(r, v)
        return v

    def _free(self, rows: np.ndarray) -> np.ndarray:
        """The rows without their parts along what is conserved."""
        return rows - (rows @ self._conserved.T) @ self._conserved

    @property
    def _name(self) -> str:
        algorithm = self.instance.algorithm
        return f"{algorithm.label} with gamma={algorithm.gamma} on {self.instance.topology.name}"


def operator(function: Callable[[np.ndarray], np.ndarray], size: int) -> Any:
    """A linear function of vectors, as SciPy takes it."""
    made: Any = LinearOperator  # the stub has the arguments of its subclasses only
    return made((size, size), matvec=lambda x: function(x.ravel()), dtype=np.dtype(np.float64))


def by_arnoldi(
    forward: Callable[[np.ndarray], np.ndarray], size: int, start: np.ndarray, tries: Any = TRIES
) -> float | None:
    """The largest |λ| of a linear function of vectors, None where it does not settle; the pair found is checked."""
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


def by_ritz_values(forward: Callable[[np.ndarray], np.ndarray], start: np.ndarray, vectors: int) -> float:
    """The largest |λ| of a linear function, estimated from the space of a start and its images under the function."""
    V, H = np.zeros((vectors + 1, len(start))), np.zeros((vectors + 1, vectors))
    V[0] = start / np.linalg.norm(start)
    for k in range(vectors):
        image = forward(V[k])
        for _ in range(2):  # twice, for the sake of rounding
            along = V[: k + 1] @ image
            image = image - along @ V[: k + 1]
            H[: k + 1, k] += along
        H[k + 1, k] = np.linalg.norm(image)
        if not H[k + 1, k] > 1e-12 * np.abs(H[: k + 1, k]).max():
            vectors = k + 1
            break
        V[k + 1] = image / H[k + 1, k]
    return float(np.abs(np.linalg.eigvals(H[:vectors, :vectors])).max())


def _random_rows(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, size))


def _near(now: np.ndarray, before: np.ndarray | None, tolerance: float) -> bool:
    return before is not None and bool(abs(now.sum() - before.sum()) <= tolerance * now.sum())


def _orthonormal(rows: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and orthonormal rows whose product is `rows`, but for parts smaller than `least`."""
    u, s, v = np.linalg.svd(rows, full_matrices=False)
    kept = s > max(least, 1e-12 * s.max(initial=0.0))
    return u[:, kept] * s[kept], v[kept]
