"""Rounds whose W_r is known, under minibatches: all that is random is the noise of each node's gradients."""

from __future__ import annotations

import numpy as np

from stgt.theory.rounds import Rounds
from stgt.theory.sample_noise import bordered, both_ways, with_one

Array = np.ndarray
VANISHES = 1e-12  # a singular value this small, relative to the largest, is rounding


class KnownMixing:
    """What round r of a period does to moments: means (D, b) and second moments (D, D) of v."""

    exact = True

    def __init__(self, rounds: Rounds, r: int) -> None:
        self.rounds, self.r, self.round = rounds, r, rounds.rounds[r]
        n, size = rounds.shape
        self.places = np.arange(n * size).reshape(n, size)
        # A node's noises enter v together: U_i = V_i R_i, of as many columns as there are ways in, mostly p.
        U = rounds.columns_of_noise(r).reshape(n * size, n, -1).transpose(1, 0, 2)
        left, values, right = np.linalg.svd(U, full_matrices=False)
        ways = max(1, int((values > VANISHES * values.max()).sum(axis=1).max()))
        self.V = left[:, :, :ways].transpose(1, 0, 2).reshape(n * size, -1)
        self.R = values[:, :ways, None] * right[:, :ways]

    def mean(self, columns: Array, constant: float) -> Array:
        """M v for each column v, with b added `constant` times."""
        moved = self.rounds.push(self.r, columns)
        return moved + constant * self.rounds.advance(self.r, np.zeros_like(self.rounds.start))[:, None]

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] of a symmetric Σ."""
        moved = self.rounds.push(self.r, self.rounds.push(self.r, moment).T)
        own = moment[self.places[:, :, None], self.places[:, None, :]]
        return (moved + moved.T) / 2 + self._noise(bordered(own))

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ]."""
        known = with_one(v[self.places], 1.0)
        return self._noise(known[:, :, None] * known[:, None])

    def across(self, v: Array, mean: Array) -> Array:
        """What a deviation with this mean adds to E[B Bᵀ] beside its second moment."""
        return self._noise(both_ways(v[self.places], mean[self.places]))

    def change(self, number: int | None, rows: Array) -> Array:
        """What the round does to the rows (k, D) of sums, (·, k): u M − u, u b, and how noise would enter."""
        return self.rounds.change(self.r, rows)

    def _noise(self, M: Array) -> Array:
        """E[B Bᵀ], with noises of the covariances that go with the second moments M of every node's (state, 1)."""
        n = len(M)
        spread = self.R @ self.round.spread(M) @ self.R.transpose(0, 2, 1)
        columns = self.V.reshape(len(self.V), n, -1).transpose(1, 0, 2) @ spread
        return columns.transpose(1, 0, 2).reshape(self.V.shape) @ self.V.T
