"""Moments of a random round: of nodes that mix by a random W_r, and of workers that a server samples.

A node computes y_i, which is affine in its state and noise. The new state v is linear in all y, with random weights
that are independent of y. So E[v vᵀ] is linear in E[y yᵀ], and the moments of the weights give the coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.algorithms import Algorithm
from stgt.theory.node_round import NodeRound
from stgt.topology import Topology
from stgt.topology.moments import Moments
from stgt.topology.sampled import Sampled

Array = np.ndarray
DRAWS = 100  # rounds to draw if the moments of W_r are not known in closed form


class Law(ABC):
    """A round with random weights.

    Attributes:
        rows: (n, q, inputs): y_i as a map of node i's inputs, its state and its noise.
        constant: (n, q).
        exact: are its moments exact, and not estimates?
    """

    rows: Array
    constant: Array
    exact: bool = True

    @abstractmethod
    def mean(self, y: Array) -> Array:
        """E v, (n, k p, b), from y (n, q, b)."""

    @abstractmethod
    def second(self, Y: Array) -> Array:
        """E[v vᵀ], (n, k p, n, k p), from E[y yᵀ] (n, q, n, q)."""

    @abstractmethod
    def drawn(self, number: int, y: Array) -> Array:
        """v, (n, k p, b), from y (n, q, b) in one drawn round."""


class NoExchange(Law):
    """A round that ends without communication: v = y."""

    def __init__(self, round: NodeRound) -> None:
        self.rows, self.constant = round.G, round.constant

    def mean(self, y: Array) -> Array:
        return y

    def second(self, Y: Array) -> Array:
        return Y

    def drawn(self, number: int, y: Array) -> Array:
        return y


class PeerLaw(Law):
    """v_i = k_i + E_i Σ_j w_ij m_j, y_i = (k_i, m_i): every node works, and receives its neighbours' messages."""

    def __init__(self, round: NodeRound, topology: Topology, moments: Moments, phase: int) -> None:
        (exchange,) = round.messages
        self.topology, self.moments, self.phase, self.size = topology, moments, phase, round.size
        self.exact = moments.exact
        self.back, self.width = exchange.transposed, exchange.F.shape[1] // len(exchange.transposed)
        self.rows = np.concatenate([round.G[:, :, : round.inputs], exchange.F], axis=1)
        self.constant = np.concatenate([round.constant, exchange.constant], axis=1)
        self.E = round.G[:, :, round.inputs :]

    def mean(self, y: Array) -> Array:
        return self._mixed(self.moments.mean, y)

    def drawn(self, number: int, y: Array) -> Array:
        return self._mixed(self.topology.matrix(self.phase + number * self.topology.structure.phases), y)

    def second(self, Y: Array) -> Array:
        size, E = self.size, self.E
        kept, message = slice(0, size), slice(size, None)
        mean = self.moments.mean
        # With h_i = Σ_j w_ij m_j: E[k_i h_jᵀ], and E[h_i h_jᵀ] field by field, as each may be mixed by W or Wᵀ.
        across = np.concatenate(
            [
                np.einsum("jl,ialb->iajb", mean.T if back else mean, Y[:, kept, :, self._field(f)], optimize=True)
                for f, back in enumerate(self.back)
            ],
            axis=3,
        )
        received = np.empty_like(Y[:, message, :, message])
        for f, back in enumerate(self.back):
            for g, back_too in enumerate(self.back):
                block = Y[:, self._field(f), :, self._field(g)].transpose(0, 2, 1, 3)
                mixed = self.moments.second(block, (back, back_too)).transpose(0, 2, 1, 3)
                received[:, self._field(f, 0), :, self._field(g, 0)] = mixed
        mixed_in = right(across, E)
        return Y[:, kept, :, kept] + mixed_in + flipped(mixed_in) + right(left(E, received), E)

    def _field(self, number: int, first: int | None = None) -> slice:
        begin = (self.size if first is None else first) + number * self.width
        return slice(begin, begin + self.width)

    def _mixed(self, W: Array, y: Array) -> Array:
        received = [
            np.einsum("ij,jab->iab", W.T if back else W, y[:, self._field(f)]) for f, back in enumerate(self.back)
        ]
        return y[:, : self.size] + self.E @ np.concatenate(received, axis=1)


class ServerLaw(Law):
    """A server samples s of n workers, with a_i = 1: v_i = α_i + a_i δ_i + (a_i E_i + H_i) m̂, m̂ = (1/s) Σ_j a_j m_j.

    α is the state that a worker keeps if it is not sampled, and the server's function of its own state (outer
    momentum). δ is the change of a worker's state by its work. H m̂ is the server's function of what it receives.
    y_i = (α_i, δ_i, m_i). π_k = s(s−1)⋯(s−k+1)/(n(n−1)⋯(n−k+1)) is the probability that k given workers are all
    sampled: E[a_i] = π_1, E[a_i a_j] = π_2 and so on, up to the four factors of E[a_i a_k m̂ m̂ᵀ].
    """

    def __init__(self, round: NodeRound, algorithm: Algorithm, topology: Topology) -> None:
        (exchange,) = round.messages
        self.topology, self.n, self.s = topology, topology.n, topology.sampled
        self.size, self.width = round.size, exchange.F.shape[1]
        p = round.size // len(round.fields)
        held = np.repeat([name in algorithm.spec().server_fields for name in round.fields], p)
        kept = round.G[:, :, : round.inputs].copy()
        of_its_own = np.zeros(round.inputs, dtype=bool)
        of_its_own[: self.size] = held
        if kept[:, held][:, :, ~of_its_own].any():
            raise NotCovered(
                f"{algorithm.label} computes the server's variables from more than these and what it receives: its "
                "random rounds have no exact theory; simulate it."
            )
        before = np.zeros_like(kept)
        before[:, np.arange(self.size), np.arange(self.size)] = ~held
        before[:, held] = kept[:, held]
        start = np.where(held, round.constant, 0.0)
        self.own = np.flatnonzero(~held)  # the rows of δ; those of the server's variables are 0
        self.rows = np.concatenate([before, (kept - before)[:, self.own], exchange.F], axis=1)
        self.constant = np.concatenate([start, (round.constant - start)[:, self.own], exchange.constant], axis=1)
        received = round.G[:, :, round.inputs :]
        self.E, self.H = received[:, self.own], np.where(held[:, None], received, 0.0)

    def chance(self, k: int) -> float:
        """π_k."""
        steps = np.arange(min(k, self.n))
        return float(np.prod((self.s - steps) / (self.n - steps))) if k <= self.n else 0.0

    def mean(self, y: Array) -> Array:
        alpha, delta, m = self._parts(y)
        total = m.sum(axis=0)
        one, two = self.chance(1), self.chance(2)
        v = alpha + self.H @ (total / self.n)
        v[:, self.own] += one * delta + self.E @ (((one - two) * m + two * total) / self.s)
        return v

    def drawn(self, number: int, y: Array) -> Array:
        return self.called(self.topology.active(number), y)

    def called(self, active: Array, y: Array) -> Array:
        """v in a round that samples the workers `active`, (n,) booleans."""
        alpha, delta, m = self._parts(y)
        received = m[active].mean(axis=0)
        v = alpha + self.H @ received
        v[:, self.own] += active[:, None, None] * (delta + self.E @ received)
        return v

    def second(self, Y: Array) -> Array:
        a, d = slice(0, self.size), slice(self.size, self.size + len(self.own))
        m, own, diagonal = slice(d.stop, None), self.own, np.arange(self.n)
        s, (one, two, three, _) = self.s, (self.chance(k) for k in range(1, 5))

        # Without the received message: E[(α_i + a_i δ_i)(α_k + a_k δ_k)ᵀ].
        v = Y[:, a, :, a].copy()
        works = one * Y[:, d, :, a]
        v[:, own] += works
        v[:, :, :, own] += flipped(works)
        both = two * Y[:, d, :, d]
        both[diagonal, :, diagonal] += (one - two) * Y[diagonal, d, diagonal, d]
        v[np.ix_(diagonal, own, diagonal, own)] += both

        # E[m̂ αᵀ], E[a_i m̂ α_kᵀ], and the same with a_k δ_k instead of α_k.
        to_alpha, to_delta = Y[:, m, :, a], Y[:, m, :, d]
        sums, changes = to_alpha.sum(axis=0), to_delta.sum(axis=0)
        itself = to_delta[diagonal, :, diagonal].transpose(1, 0, 2)  # E[m_k δ_kᵀ], (m, k, d)
        at_worker = ((one - two) * to_alpha + two * sums) / s
        at_server = np.broadcast_to(sums / self.n, to_alpha.shape).copy()
        at_worker[:, :, :, own] += ((two - three) * (to_delta + itself) + three * changes) / s
        again = at_worker[:, :, :, own]
        again[diagonal, :, diagonal] += (
            ((one - two) - 2 * (two - three)) * itself + (two - three) * changes
        ).transpose(1, 0, 2) / s
        at_worker[:, :, :, own] = again
        at_server[:, :, :, own] += ((one - two) * itself + two * changes) / s
        cross = left(self.H, at_server)
        cross[:, own] += left(self.E, at_worker)
        v += cross + flipped(cross)

        # E[a_i a_k m̂ m̂ᵀ], E[a_i m̂ m̂ᵀ] and E[m̂ m̂ᵀ].
        pairs, single, none = self._mean_squares(Y[:, m, :, m])
        v[np.ix_(diagonal, own, diagonal, own)] += right(left(self.E, pairs), self.E)
        mixed = right(left(self.E, np.broadcast_to(single[:, :, None], pairs.shape)), self.H)
        v[:, own] += mixed
        v[:, :, :, own] += flipped(mixed)
        return v + right(left(self.H, np.broadcast_to(none[None, :, None], pairs.shape)), self.H)

    def _mean_squares(self, A: Array) -> tuple[Array, Array, Array]:
        """E[a_i a_k m̂ m̂ᵀ] (n, m, n, m), E[a_i m̂ m̂ᵀ] (n, m, m) and E[m̂ m̂ᵀ] (m, m) from A = E[m_j m_lᵀ]."""
        n, s, (one, two, three, four) = self.n, self.s, (self.chance(k) for k in range(1, 5))
        diagonal = np.arange(n)
        itself = A[diagonal, :, diagonal]  # (n, m, m)
        row, column = A.sum(axis=2), A.sum(axis=0).transpose(1, 0, 2)  # Σ_l A_il and Σ_j A_ji, (n, m, m)
        alone, total = itself.sum(axis=0), row.sum(axis=0)
        none = (one - two) * alone + two * total
        edges = row + column
        outside = total - edges + 2 * itself - alone  # over j ≠ l, both different from i
        single = one * itself + two * (edges - 2 * itself) + two * (alone - itself) + three * outside
        own = (itself[:, None] + itself[None]).transpose(0, 2, 1, 3)  # A_ii + A_kk
        inside = own + A + A.transpose(2, 1, 0, 3)
        rims = (edges[:, None] + edges[None]).transpose(0, 2, 1, 3)
        lone = alone[None, :, None] - own
        pairs = two * inside + three * (rims - 2 * inside + lone)
        pairs += four * (total[None, :, None] - rims + inside - lone)
        pairs[diagonal, :, diagonal] = single
        return pairs / s**2, single / s**2, none / s**2

    def _parts(self, y: Array) -> tuple[Array, Array, Array]:
        middle = self.size + len(self.own)
        return y[:, : self.size], y[:, self.size : middle], y[:, middle:]


def law_of(round: NodeRound, algorithm: Algorithm, topology: Topology, phase: int) -> Law:
    """The law of the random rounds of a phase; NotCovered if their moments are not known."""
    if len(round.messages) * algorithm.spec().mixing_steps > 1:
        raise NotCovered(
            f"{algorithm.label} mixes more than once by the same W_r, which needs fourth moments of "
            f"{topology.name}: use a topology with a period, or simulate it."
        )
    if any(any(exchange.pushed) for exchange in round.messages):
        raise NotCovered(
            f"{algorithm.label} communicates at random, and {topology.name} mixes by two matrices: such rounds have "
            "no exact theory; simulate it."
        )
    if not topology.has_server or topology.sampled == topology.n:
        return PeerLaw(round, topology, topology.moments(phase, DRAWS), phase)
    if not isinstance(topology.structure, Sampled):
        raise NotCovered(
            f"the rounds of {topology.name} are not independent, as the workers of one round belong to the next too: "
            "use server(n, sampled=s), whose mean model has the same recursion."
        )
    return ServerLaw(round, algorithm, topology)


def left(maps: Array, A: Array) -> Array:
    """maps_i A_ik, (n, r, n, b), for maps (n, r, q) and A (n, q, n, b)."""
    n, q = A.shape[:2]
    return (maps @ A.reshape(n, q, -1)).reshape(n, maps.shape[1], *A.shape[2:])


def right(A: Array, maps: Array) -> Array:
    """A_ik maps_kᵀ, (n, b, n, r)."""
    return flipped(left(maps, flipped(A)))


def flipped(A: Array) -> Array:
    """The transpose of a matrix of blocks (n, a, m, b)."""
    return A.transpose(2, 3, 0, 1)
