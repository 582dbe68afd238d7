"""How one round changes the first and second moments of the network's state, in three cases.

`KnownMixing`: W_r is known, and only minibatch noise is random. `RandomMixing`: W_r is random, or a coin decides
whether the nodes communicate. `Sampling`: a server samples workers, and each worker's own state changes only by its own
work, as in FedAvg and Scaffold. Then the server's variables need not be stored for every node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from stgt.theory.laws import Law, ServerLaw, left, right
from stgt.theory.network import NetworkRounds
from stgt.theory.node_round import NodeRound
from stgt.theory.sample_noise import bordered, both_ways, with_one

Array = np.ndarray
NO_NOISE = 1e-12  # a singular value this small, relative to the largest, is rounding
NO_COVARIANCE = 1e-13  # a covariance this small, relative to the squares whose difference it is, is rounding


def unless_rounding(found: Array, difference_of: Array) -> Array:
    """A covariance, or 0 if it is below the rounding error of the terms whose difference it is."""
    least = NO_COVARIANCE * max(1.0, float(np.abs(difference_of).max()))
    return found if np.abs(found).max() > least else np.zeros_like(found)


class KnownMixing:
    """Round r of a period with known W_r, under minibatches: means (D, b) and second moments (D, D) of v."""

    exact = True

    def __init__(self, rounds: NetworkRounds, r: int) -> None:
        self.rounds, self.r, self.round = rounds, r, rounds.node_rounds[r]
        n, size = rounds.shape
        self.places = np.arange(n * size).reshape(n, size)
        # A node's noises enter v together as U_i = V_i R_i. The number of columns is the rank of U_i, mostly p.
        U = rounds.columns_of_noise(r).reshape(n * size, n, -1).transpose(1, 0, 2)
        left, values, right = np.linalg.svd(U, full_matrices=False)
        ways = max(1, int((values > NO_NOISE * values.max()).sum(axis=1).max()))
        self.V = left[:, :, :ways].transpose(1, 0, 2).reshape(n * size, -1)
        self.R = values[:, :ways, None] * right[:, :ways]

    def mean(self, columns: Array, constant: float) -> Array:
        """M v for each column v, with b added `constant` times."""
        moved = self.rounds.push(self.r, columns)
        return moved + constant * self.rounds.advance(self.r, np.zeros_like(self.rounds.start))[:, None]

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] of a symmetric Σ."""
        moved = self.rounds.push(self.r, self.rounds.push(self.r, moment).T)
        return (moved + moved.T) / 2 + self.random_part(moment)

    def random_part(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] − E[T] Σ E[T]ᵀ."""
        return self._noise(bordered(moment[self.places[:, :, None], self.places[:, None, :]]))

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ]."""
        known = with_one(v[self.places], 1.0)
        return self._noise(known[:, :, None] * known[:, None])

    def across(self, v: Array, mean: Array) -> Array:
        """The part of E[B Bᵀ] that a deviation with this mean adds, in addition to that of its second moment."""
        return self._noise(both_ways(v[self.places], mean[self.places]))

    def change(self, number: int | None, rows: Array) -> Array:
        """The change of the sums with rows u (k, D) in the round, (·, k): u M − u, u b, and noise coefficients."""
        return self.rounds.change(self.r, rows)

    def _noise(self, M: Array) -> Array:
        """E[B Bᵀ], for noises whose covariances follow from the second moments M of every node's (state, 1)."""
        n = len(M)
        spread = self.R @ self.round.spread(M) @ self.R.transpose(0, 2, 1)
        columns = self.V.reshape(len(self.V), n, -1).transpose(1, 0, 2) @ spread
        return columns.transpose(1, 0, 2).reshape(self.V.shape) @ self.V.T


class RandomMixing:
    """A round with a random W_r or a coin: means (D, b) and second moments (D, D) of v.

    `one_for_all` are the server's variables among the entries of a node's state. All nodes have the same values, and a
    round reads their mean.
    """

    def __init__(self, laws: list[tuple[float, Law, NodeRound]], shape: tuple[int, int], one_for_all: Array) -> None:
        self.laws, self.shape, self.one_for_all = laws, shape, np.flatnonzero(one_for_all)
        self.exact = all(law.exact for _, law, _ in laws)

    def mean(self, columns: Array, constant: float) -> Array:
        """E[T] v for each column v, with E[b] added `constant` times."""
        return self._mean_over(lambda law, _: law.mean(self._y(law, columns, constant)))

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] of a symmetric Σ. The result is made symmetric, as an asymmetry by rounding would grow."""
        n, size = self.shape
        moment = (moment + moment.T) / 2
        blocks = self._levelled(self._levelled(moment).reshape(n * size, -1).T).reshape(n, size, n, size)

        own = bordered(blocks[np.arange(n), :, np.arange(n)])

        def of_one(law: Law, round: NodeRound) -> Array:
            rows = law.rows[:, :, :size]
            Y = right(left(rows, blocks), rows)
            return law.second(self._with_noise(Y, law, round, own) if round.sampled else Y)

        return self._mean_over(of_one)

    @cached_property
    def average(self) -> Array:
        """E[T], (D, D)."""
        return self.mean(np.eye(self.shape[0] * self.shape[1]), 0.0)

    def random_part(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] − E[T] Σ E[T]ᵀ."""
        return self.second(moment) - self.average @ moment @ self.average.T

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ], and the covariance of T v + b."""
        known = with_one(self._levelled(v[:, None])[:, :, 0], 1.0)
        return self._noise(known[:, :, None] * known[:, None]) + self.across(v, None)

    def _noise(self, M: Array) -> Array:
        """E[B Bᵀ], for noises whose covariances follow from the second moments M of every node's (state, 1)."""

        def of_noise(law: Law, round: NodeRound) -> Array:
            n, q = law.rows.shape[:2]
            return law.second(self._with_noise(np.zeros((n, q, n, q)), law, round, M))

        return self._mean_over(of_noise)

    def _with_noise(self, Y: Array, law: Law, round: NodeRound, M: Array) -> Array:
        """Y = E[y yᵀ], with these noises added in place."""
        diagonal, rows = np.arange(len(M)), law.rows[:, :, self.shape[1] :]
        Y[diagonal, :, diagonal] += rows @ round.spread(M) @ rows.transpose(0, 2, 1)
        return Y

    def across(self, v: Array, mean: Array | None) -> Array:
        """The covariance of T v + b. With `mean`: its covariance with T times a deviation of this mean, plus the
        transpose."""
        to = self.mean(v[:, None], 1.0)
        with_it = to if mean is None else self.mean(mean[:, None], 0.0)

        def of_one(law: Law, _: NodeRound) -> Array:
            y = self._y(law, v[:, None], 1.0)[:, :, 0]
            other = y if mean is None else self._y(law, mean[:, None], 0.0)[:, :, 0]
            Y = y[:, :, None, None] * other[None, None]
            return law.second(Y if mean is None else Y + Y.transpose(2, 3, 0, 1))

        expected = to @ with_it.T
        found = self._mean_over(of_one) - (expected if mean is None else expected + expected.T)
        found = unless_rounding(found, expected)
        if mean is None or not any(round.sampled for _, _, round in self.laws):
            return found
        deviations = (self._levelled(one[:, None])[:, :, 0] for one in (v, mean))
        return found + self._noise(both_ways(*deviations))

    def change(self, number: int | None, rows: Array) -> Array:
        """The change of the sums with rows u (k, D) in a drawn round (None: the mean of all), (·, k): u T − u, u b, and
        the coefficients of noise."""
        (n, size), one = self.shape, np.eye(rows.shape[1])
        found = []
        for _, law, round in self.laws:
            width = round.inputs - size
            noise = np.zeros((n, width, n, width))
            noise[np.arange(n), :, np.arange(n)] = np.eye(width)
            given = (
                self._y(law, one, 0.0),
                law.rows[:, :, size:] @ noise.reshape(n, width, -1),
                self._y(law, 0 * one[:1].T, 1.0),
            )
            moved, entering, drift = (
                (law.mean(y) if number is None else law.drawn(number, y)).reshape(n * size, -1) for y in given
            )
            found += [rows @ (moved - one), rows @ entering, rows @ drift]
        return np.concatenate(found, axis=1).T

    def _y(self, law: Law, columns: Array, constant: float) -> Array:
        size = self.shape[1]
        return law.rows[:, :, :size] @ self._levelled(columns) + constant * law.constant[:, :, None]

    def _levelled(self, columns: Array) -> Array:
        """Columns (D, b) as (n, k p, b), with the server's variables equal at all nodes."""
        n, size = self.shape
        blocks = columns.reshape(n, size, -1)
        if len(self.one_for_all):
            blocks = blocks.copy()
            blocks[:, self.one_for_all] = blocks[:, self.one_for_all].mean(axis=0)
        return blocks

    def _mean_over(self, of_one: Callable[[Law, NodeRound], Array]) -> Array:
        first, *others = [(chance, of_one(law, round)) for chance, law, round in self.laws]
        total = first[0] * first[1] if others else first[1]
        for chance, found in others:
            total = total + chance * found
        return total.reshape(self.shape[0] * self.shape[1], -1)


class Sampling:
    """A round of a server that samples workers: means (d, b) and second moments (d, d) of w.

    The state is w = (u, o_1, …, o_n): the server's variables, and those of each worker. A sampled worker adds t_i,
    which is affine in (u, o_i). So w ← w_0 + Σ_i a_i t_i with w_0 = (S u, o). Only the moments of a_i are needed:
    E[a_i] = π_1, Cov(a_i, a_j) = π_2 − π_1² for i ≠ j. S is 0, except for the server's function of its own state, such
    as outer momentum.
    """

    exact = True

    def __init__(self, law: ServerLaw, round: NodeRound) -> None:
        self.law, self.round, self.n = law, round, law.n
        size, own = law.size, law.own
        self.held = np.setdiff1d(np.arange(size), own)
        self.server, self.each = len(self.held), len(own)
        # t_i as a map of worker i's inputs: its part in the server's mean, and the change of its own state.
        message, change = law.rows[:, size + len(own) :], law.rows[:, size : size + len(own)]
        H = law.H[0, self.held] / law.s
        self.K = np.concatenate([H @ message, change], axis=1)
        constants = law.constant[:, size + len(own) :, None], law.constant[:, size : size + len(own), None]
        self.k = np.concatenate([H @ constants[0], constants[1]], axis=1)[:, :, 0]
        self.base = np.concatenate([law.constant[0, self.held], np.zeros(self.n * self.each)])
        self.one, self.two = law.chance(1), law.chance(2)
        self.size = self.server + self.n * self.each
        # The positions of (u, o_i) in w, (n, k p) in the order of a worker's state; and the positions of t_i.
        self.places = np.zeros((self.n, size), dtype=int)
        self.places[:, self.held] = np.arange(self.server)
        self.places[:, own] = self.server + np.arange(self.n * self.each).reshape(self.n, -1)
        self.goes = np.concatenate([self.places[:, self.held], self.places[:, own]], axis=1)
        self.total = np.zeros((self.size, self.size))  # Σ_i t_i as a map of w
        for goes, places, K in zip(self.goes, self.places, self.K, strict=True):
            self.total[np.ix_(goes, places)] += K[:, :size]
        self.stays = np.eye(self.size)  # w_0 as a map of w
        self.stays[: self.server, : self.server] = law.rows[0][np.ix_(self.held, self.held)]
        self.average = self.stays + self.one * self.total  # E[T]

    def mean(self, columns: Array, constant: float) -> Array:
        """E[T] v for each column v, with E[b] added `constant` times."""
        shift = self.base + self.one * self._sum(self.k[:, :, None])[:, 0]
        return self.average @ columns + constant * shift[:, None]

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ]."""
        return self.average @ moment @ self.average.T + self.random_part(moment)

    def random_part(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] − E[T] Σ E[T]ᵀ."""
        S = self.total
        blocks = moment[self.places[:, :, None], self.places[:, None, :]]
        K = self.K[:, :, : self.law.size]
        each = self._squares(K @ blocks @ K.transpose(0, 2, 1))
        found = (self.two - self.one**2) * (S @ moment @ S.T) + (self.one - self.two) * each
        return found + self._noise(bordered(blocks)) if self.round.sampled else found

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ], and the covariance of T v + b."""
        known = with_one(v[self.places], 1.0)
        return self._noise(known[:, :, None] * known[:, None]) + self.across(v, None)

    def across(self, v: Array, mean: Array | None) -> Array:
        """The covariance of T v + b. With `mean`: its covariance with T times a deviation of this mean, plus the
        transpose."""
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
        """E[B Bᵀ], for noises whose covariances follow from the second moments M of every worker's (state, 1)."""
        K = self.K[:, :, self.law.size :]
        return self.one * self._squares(K @ self.round.spread(M) @ K.transpose(0, 2, 1))

    def change(self, number: int | None, rows: Array) -> Array:
        """The change of the sums with rows u (k, d) in a drawn round (None: the mean of all), (·, k): u T − u, u b, and
        the coefficients of noise."""
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
