"""Rounds in which a server calls some workers and each worker's own state changes by its own work alone: FedAvg,
Scaffold and their kin.

The state is w = (u, o_1, …, o_n), what the server holds and what each worker keeps. A worker that is called adds t_i,
affine in (u, o_i), so that w ← w_0 + Σ_i a_i t_i with w_0 = (S u, o), and first and second moments of a_i are all it
takes: E[a_i] = π_1, Cov(a_i, a_j) = π_2 − π_1² for i ≠ j. S is 0 but for what a server makes of its own state, such as
outer momentum.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from stgt.theory.laws import Server
from stgt.theory.node_round import NodeRound
from stgt.theory.sample_noise import bordered, both_ways, with_one

Array = np.ndarray
VANISHES = 1e-13  # a covariance this small, relative to the squares whose difference it is, is rounding


def unless_rounding(found: Array, difference_of: Array) -> Array:
    """A covariance, or 0 where it is so small that it is what rounding has left of the terms it is a difference of."""
    least = VANISHES * max(1.0, float(np.abs(difference_of).max()))
    return found if np.abs(found).max() > least else np.zeros_like(found)


class Sampling:
    """What such a round does to moments: means (d, b) and second moments (d, d) of w."""

    exact = True

    def __init__(self, law: Server, round: NodeRound) -> None:
        self.law, self.round, self.n = law, round, law.n
        size, own = law.size, law.own
        self.held = np.setdiff1d(np.arange(size), own)
        self.server, self.each = len(self.held), len(own)
        # t_i as a map of what worker i knows: the server's mean of what it says, and the change of its own.
        said, change = law.rows[:, size + len(own) :], law.rows[:, size : size + len(own)]
        H = law.H[0, self.held] / law.s
        self.K = np.concatenate([H @ said, change], axis=1)
        known = law.constant[:, size + len(own) :, None], law.constant[:, size : size + len(own), None]
        self.k = np.concatenate([H @ known[0], known[1]], axis=1)[:, :, 0]
        self.base = np.concatenate([law.constant[0, self.held], np.zeros(self.n * self.each)])
        self.one, self.two = law.chance(1), law.chance(2)

    @cached_property
    def size(self) -> int:
        return self.server + self.n * self.each

    @cached_property
    def places(self) -> Array:
        """Where (u, o_i) is in w, (n, k p) in the order of a worker's state."""
        found = np.zeros((self.n, self.law.size), dtype=int)
        found[:, self.held] = np.arange(self.server)
        found[:, self.law.own] = self.server + np.arange(self.n * self.each).reshape(self.n, -1)
        return found

    @cached_property
    def goes(self) -> Array:
        """Where t_i goes in w, (n, k p)."""
        return np.concatenate([self.places[:, self.held], self.places[:, self.law.own]], axis=1)

    @cached_property
    def total(self) -> Array:
        """Σ_i t_i as a map of w, (d, d)."""
        found = np.zeros((self.size, self.size))
        for goes, places, K in zip(self.goes, self.places, self.K, strict=True):
            found[np.ix_(goes, places)] += K[:, : self.law.size]
        return found

    @cached_property
    def average(self) -> Array:
        """E[T], (d, d)."""
        return self.stays + self.one * self.total

    @cached_property
    def stays(self) -> Array:
        """w_0 as a map of w, (d, d)."""
        found = np.eye(self.size)
        found[: self.server, : self.server] = self.law.rows[0][np.ix_(self.held, self.held)]
        return found

    def mean(self, columns: Array, constant: float) -> Array:
        """E[T] v for each column v, with E[b] added `constant` times."""
        shift = self.base + self.one * self._sum(self.k[:, :, None])[:, 0]
        return self.average @ columns + constant * shift[:, None]

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ]."""
        M, S = self.average, self.total
        blocks = moment[self.places[:, :, None], self.places[:, None, :]]
        K = self.K[:, :, : self.law.size]
        each = self._squares(K @ blocks @ K.transpose(0, 2, 1))
        found = M @ moment @ M.T + (self.two - self.one**2) * (S @ moment @ S.T) + (self.one - self.two) * each
        return found + self._noise(bordered(blocks)) if self.round.sampled else found

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ], and the covariance of T v + b."""
        known = with_one(v[self.places], 1.0)
        return self._noise(known[:, :, None] * known[:, None]) + self.across(v, None)

    def across(self, v: Array, mean: Array | None) -> Array:
        """The covariance of T v + b; with `mean` that of it and T times a deviation with this mean, both ways."""
        t = self._steps(v) + self.k
        other = t if mean is None else self._steps(mean)
        together = np.outer(self._sum(t[:, :, None]), self._sum(other[:, :, None]))
        each = t[:, :, None] * other[:, None]
        if mean is not None:
            together, each = together + together.T, each + each.transpose(0, 2, 1)
        apart = (self.two - self.one**2) * together
        found = unless_rounding(apart + (self.one - self.two) * self._squares(each), apart)
        return found if mean is None else found + self._noise(both_ways(v[self.places], mean[self.places]))

    def _noise(self, M: Array) -> Array:
        """E[B Bᵀ], with noises of the covariances that go with the second moments M of every worker's (state, 1)."""
        K = self.K[:, :, self.law.size :]
        return self.one * self._squares(K @ self.round.spread(M) @ K.transpose(0, 2, 1))

    def change(self, number: int | None, rows: Array) -> Array:
        """What a drawn round (None: the mean of all) does to the rows (k, d) of sums, (·, k): u T − u, u b, and how
        noise would enter."""
        called = self.law.topology.active(number or 0).astype(float)
        chances = np.full(self.n, self.one) if number is None else called
        weights = rows[:, self.goes] * chances[:, None]  # (k, n, k p)
        moved = np.zeros((len(rows), self.size))
        pulled = np.einsum("kia,iab->kib", weights, self.K[:, :, : self.law.size])
        for node, places in enumerate(self.places):
            moved[:, places] += pulled[:, node]
        moved += rows @ self.stays
        entering = np.einsum("kia,iab->kib", weights, self.K[:, :, self.law.size :]).reshape(len(rows), -1)
        drift = rows @ self.base + np.einsum("kia,ia->k", weights, self.k)
        return np.concatenate([moved - rows, entering, drift[:, None]], axis=1).T

    def _steps(self, v: Array) -> Array:
        """t_i without its constant, (n, k p)."""
        return (self.K[:, :, : self.law.size] @ v[self.places][:, :, None])[:, :, 0]

    def _sum(self, steps: Array) -> Array:
        """Σ_i t_i in w, (d, b), from (n, k p, b)."""
        found = np.zeros((self.size, steps.shape[2]))
        np.add.at(found, self.goes, steps)
        return found

    def _squares(self, blocks: Array) -> Array:
        """Σ_i t_i t_iᵀ in w, (d, d), from (n, k p, k p)."""
        found = np.zeros((self.size, self.size))
        np.add.at(found, (self.goes[:, :, None], self.goes[:, None, :]), blocks)
        return found
