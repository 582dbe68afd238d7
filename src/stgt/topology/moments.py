"""First and second moments of a round's random matrix, E[W] and E[W A Wᵀ]: all that the mean-square theory needs.

`MeanOverRounds` averages over given rounds. The other classes are closed forms for matchings, for a server that samples
workers, and for links and nodes that fail. In these W is symmetric and doubly stochastic. So it does not matter which
side is transposed, and E[(W − J)ᵀ(W − J)] = E[W²] − J.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.ops import NUMPY

if TYPE_CHECKING:
    from stgt.topology.structure import Gather, Structure

DRAWS = 400  # rounds to draw if the moments have no closed form
WRITTEN_OUT = 10**7  # up to this many entries, the matrices of the rounds are stored


class Moments(ABC):
    """The moments of W in one phase of a topology; `Topology.moments` returns them.

    Attributes:
        n: number of nodes.
        exact: are they exact, and not estimates?
        draws: rounds drawn for an estimate, 0 if they are exact.
        circulant: is E[(W − J)ᵀ(W − J)] a circulant matrix?
    """

    n: int
    exact: bool = True
    draws: int = 0
    circulant: bool = False

    @property
    @abstractmethod
    def mean(self) -> np.ndarray:
        """E[W], (n, n)."""

    @abstractmethod
    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        """E[(W − J)ᵀ(W − J)] v for v (n, m), without (n, n) matrices; with Wᵀ instead of W if `back`."""

    @abstractmethod
    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        """`second` for A of shape (n, n, m)."""

    def second(self, A: Any, back: tuple[bool, bool] = (False, False)) -> np.ndarray:
        """E[U A Vᵀ] with U = W, or Wᵀ if back[0], and V = W, or Wᵀ if back[1].

        So E[W A Wᵀ] by default, E[W A W] with (False, True), E[Wᵀ A W] with (True, True).

        Args:
            A: (n, n, …); further axes are blocks, which the nodes' weights multiply as in (W ⊗ I) A (W ⊗ I)ᵀ.
            back: which of the two sides is transposed.

        Returns:
            An array of A's shape.
        """
        A = np.asarray(A, dtype=float)
        if A.shape[:2] != (self.n, self.n):
            raise ValueError(f"A has shape {A.shape}: its first two axes must be the n={self.n} nodes.")
        return self._second(A.reshape(self.n, self.n, -1), back).reshape(A.shape)

    def standard_error(self, functional: Callable[[np.ndarray], float]) -> float:
        """The standard error of the estimate of E[functional(W)], for a function of W (n, n); 0 for exact moments."""
        return 0.0


class MeanOverRounds(Moments):
    """The mean over equally likely rounds (r, seed) of a structure: all that differ, or a sample of them."""

    def __init__(self, structure: Structure, n: int, rounds: list[tuple[int, int]], exact: bool) -> None:
        self.structure, self.n, self.rounds = structure, n, rounds
        self.exact, self.draws = exact, 0 if exact else len(rounds)

    @property
    def mean(self) -> np.ndarray:
        return self._over_rounds(lambda k: self.structure.matrix(*self.rounds[k]))

    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        return self._over_rounds(lambda k: self._deviate(k, self._deviate(k, v, back), not back))

    def squares(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        """‖(W_r − J) v‖² for v (n,), for each of the rounds; with W_rᵀ if `back`."""
        return np.array([(self._deviate(k, v[:, None], back) ** 2).sum() for k in range(len(self.rounds))])

    def standard_error(self, functional: Callable[[np.ndarray], float]) -> float:
        if self.exact:
            return 0.0
        values = [functional(self.structure.matrix(r, seed)) for r, seed in self.rounds]
        return float(np.std(values, ddof=1) / np.sqrt(len(values)))

    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        def of_one(k: int) -> np.ndarray:
            left = self._product(k, A.reshape(self.n, -1), back[0]).reshape(A.shape).swapaxes(0, 1)
            return self._product(k, left.reshape(self.n, -1), back[1]).reshape(A.shape).swapaxes(0, 1)

        return self._over_rounds(of_one)

    @cached_property
    def _matrices(self) -> list[np.ndarray]:
        """The matrices of all rounds; an empty list if they would be too large. Then the kernel is used."""
        few = len(self.rounds) * self.n**2 <= WRITTEN_OUT
        return [self.structure.matrix(r, seed) for r, seed in self.rounds] if few else []

    def _over_rounds(self, of_one: Callable[[int], np.ndarray]) -> np.ndarray:
        total = of_one(0)
        for k in range(1, len(self.rounds)):
            total = total + of_one(k)
        return total / len(self.rounds)

    def _product(self, k: int, v: np.ndarray, back: bool) -> np.ndarray:
        if self._matrices:
            return (self._matrices[k].T if back else self._matrices[k]) @ v
        r, seed = self.rounds[k]
        return self.structure.product(NUMPY, np.uint32(seed), r, v, back)

    def _deviate(self, k: int, v: np.ndarray, back: bool) -> np.ndarray:
        """(W_r − J) v for the k-th round."""
        return self._product(k, v, back) - v.mean(axis=0)


class PairMoments(Moments):
    """The moments of a uniformly random matching: W = (I + P)/2, where P swaps partners. With odd n one node has none.

    A link works with probability `works`. No two links of a matching share a node, so they fail independently.
    """

    circulant = True

    def __init__(self, n: int, works: float = 1.0) -> None:
        self.n, self.works = n, works
        self.paired = 0.0 if n == 1 else 1.0 / (n if n % 2 else n - 1)  # probability that two given nodes are partners

    @property
    def mean(self) -> np.ndarray:
        matched = (np.eye(self.n) + self.partners(np.eye(self.n))) / 2
        return (1 - self.works) * np.eye(self.n) + self.works * matched

    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        # E[W²] = I + works (E[M] − I) for W = I − Σ κ_e (I − M)_e and projections M.
        matched = (v + self.partners(v)) / 2 - v.mean(axis=0)
        return (1 - self.works) * (v - v.mean(axis=0)) + self.works * matched

    def partners(self, A: np.ndarray) -> np.ndarray:
        """E[P] A for A (n, …)."""
        total = A.sum(axis=0)
        return self.paired * (total - A) + (1 - (self.n - 1) * self.paired) * A

    def swapped(self, A: np.ndarray) -> np.ndarray:
        """E[P A P] for A (n, n, m): the mean of A_kl over the partners k of i and l of j."""
        n, paired, apart = self.n, self.paired, _Apart(A)
        own = A[np.arange(n), np.arange(n)]
        found = paired * A.swapaxes(0, 1)
        if n % 2 and n > 1:  # k and l differ from i and j, or one of i and j has no partner
            found = found + paired / (n - 2) * (apart.pairs + apart.of_row + apart.of_column)
        elif n > 3:
            found = found + paired / (n - 3) * apart.pairs
        found[np.arange(n), np.arange(n)] = self.partners(own)
        return found

    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        left, right = self.partners(A), self.partners(A.swapaxes(0, 1)).swapaxes(0, 1)
        matched = (A + left + right + self.swapped(A)) / 4
        if self.works == 1:
            return matched
        left, right = (A - left) / 2, (A - right) / 2
        both = matched - A + left + right
        own = A[np.arange(self.n), np.arange(self.n)]
        by_link = _by_link(self.paired / 4 * (own[:, None] + own[None, :] - A - A.swapaxes(0, 1)))
        return A - self.works * (left + right) + self.works**2 * both + (self.works - self.works**2) * by_link


class CalledMoments(Moments):
    """The moments of W = (1/s) e_S e_Sᵀ + I − diag(e_S), for a uniformly random set S of s of n nodes.

    π_k = s(s − 1) ⋯ (s − k + 1)/(n(n − 1) ⋯ (n − k + 1)) is the probability that k given nodes are all in S.
    """

    circulant = True

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    @property
    def mean(self) -> np.ndarray:
        return self._mean_times(np.eye(self.n))

    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        return self._mean_times(v) - v.mean(axis=0)  # W² = W

    def _mean_times(self, v: np.ndarray) -> np.ndarray:
        both = self._chance(2) / self.size
        return (1 - self.n * both) * v + both * v.sum(axis=0)

    def _chance(self, k: int) -> float:
        return 0.0 if k > self.n else math.prod((self.size - a) / (self.n - a) for a in range(k))

    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        s, one, two, three, four = self.size, *(self._chance(k) for k in (1, 2, 3, 4))
        nodes, apart = np.arange(self.n), _Apart(A)
        own = A[nodes, nodes]
        ends = own[:, None] + own[None, :]
        others = own.sum(axis=0) - ends  # Σ A_kk over k other than i and j
        around = apart.of_row + apart.of_column + (apart.of_row + apart.of_column).swapaxes(0, 1)
        found = (1 - 2 * one + two) * A  # neither i nor j is sampled
        found = found + (2 * (one - two) * A + (two - three) * (apart.of_row + apart.of_column)) / s  # one is
        both = two * (ends + A + A.swapaxes(0, 1)) + three * (others + around) + four * apart.pairs
        found = found + both / s**2
        rows, columns = A.sum(axis=1) - own, A.sum(axis=0) - own
        rest = A.sum(axis=(0, 1)) - own.sum(axis=0) - rows - columns  # Σ A_kl over k ≠ l, both other than i
        in_call = one * own + two * (own.sum(axis=0) - own + rows + columns) + three * rest
        found[nodes, nodes] = (1 - one) * own + in_call / s**2
        return found


class FailingMoments(Moments):
    """The moments of W = I − Σ_e κ_e w_e b_e b_eᵀ over the links e = (i, j) of symmetric lists, with b_e = e_i − e_j.

    κ_e is 1 if the link works and both its nodes are reachable. Let a = 1 − link and u = 1 − node. Then E κ_e = a u²,
    and E κ_e κ_f is a² u³ for two links that share a node, a² u⁴ for two others.
    """

    def __init__(self, base: Gather, phase: int, link: float, node: float) -> None:
        index, weight = base.lists(np, 0, phase)
        self.n = len(index)
        self.works = (1 - link) * (1 - node) ** 2
        self.shared = (1 - link) ** 2 * (1 - node) ** 3 - self.works**2
        self.index = index
        itself = index == np.arange(self.n)[:, None]
        self.weight = np.where(itself, 0.0, weight)
        hops = (index - np.arange(self.n)[:, None]) % self.n
        self.circulant = bool((hops == hops[0]).all() and (self.weight == self.weight[0]).all())
        self.degree = self.weight.sum(axis=1)
        self._one_to_a_link()
        self.squared = (self.weight**2).sum(axis=1)

    @property
    def mean(self) -> np.ndarray:
        return np.eye(self.n) - self.works * self._laplacian(np.eye(self.n))

    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        degree, squared = self.degree[:, None], self.squared[:, None]
        once = self._laplacian(v)
        found = v - 2 * self.works * once + self.works**2 * self._laplacian(once)
        by_link = 2 * (squared * v - self._times(v, self.weight**2))
        found = found + (self.works - self.works**2 - 2 * self.shared) * by_link
        if self.shared:  # Σ over nodes of the squared Laplacian of the node's own links
            stars = (degree**2 + 2 * squared) * v - 2 * self._times(v, self.weight**2)
            stars = stars - degree * self._times(v) - self._times(degree * v) + self._times(self._times(v))
            found = found + self.shared * stars
        return found - v.mean(axis=0)

    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        n, nodes = self.n, np.arange(self.n)
        dense = np.zeros((n, n))
        np.add.at(dense, (nodes[:, None], self.index), self.weight)
        dense = dense[:, :, None]
        own = A[nodes, nodes]
        left, right = self._laplacian(A), self._right(self._laplacian, A)
        both = self._right(self._laplacian, left)
        spread = dense**2 * (own[:, None] + own[None, :] - A - A.swapaxes(0, 1))
        by_link = _by_link(spread)
        found = A - self.works * (left + right) + self.works**2 * both
        found = found + (self.works - self.works**2 - 2 * self.shared) * by_link
        if not self.shared:
            return found
        # Σ_v L_v A L_v, L_v the Laplacian of the links of node v: entries (v, v), (v, j), (j, v) and (j, k) in turn.
        stars = dense * (left - left[nodes, nodes][:, None]) + dense * (right - right[nodes, nodes][None, :])
        stars[nodes, nodes] += both[nodes, nodes]
        weighted = dense * A
        stars = stars + self._right(self._times, dense) * A
        stars = stars - self._right(self._times, weighted) - self._times(weighted)
        return found + self.shared * (stars + self._right(self._times, dense * own[None, :]))

    def _one_to_a_link(self) -> None:
        """If a list names a neighbour twice, moves its whole weight to the first place: a link fails as a whole."""
        order = np.argsort(self.index, axis=1, kind="stable")
        index = np.take_along_axis(self.index, order, axis=1)
        weight = np.take_along_axis(self.weight, order, axis=1)
        for k in range(index.shape[1] - 1, 0, -1):
            again = index[:, k] == index[:, k - 1]
            weight[again, k - 1] += weight[again, k]
            weight[again, k] = 0.0
        self.index, self.weight = index, weight

    def _laplacian(self, v: np.ndarray) -> np.ndarray:
        """(I − W) v without failures, for v (n, …)."""
        return self.degree.reshape(-1, *[1] * (v.ndim - 1)) * v - self._times(v)

    def _times(self, v: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        """The off-diagonal part of W, or the given weights, times v (n, …)."""
        weight = (self.weight if weight is None else weight).reshape(*self.weight.shape, *[1] * (v.ndim - 1))
        return NUMPY.loop(
            self.index.shape[1], lambda k, total: total + weight[:, k] * v[self.index[:, k]], np.zeros_like(v)
        )

    @staticmethod
    def _right(times: Callable[[np.ndarray], np.ndarray], A: np.ndarray) -> np.ndarray:
        """A times a symmetric matrix on the right; `times` multiplies from the left."""
        return times(A.swapaxes(0, 1)).swapaxes(0, 1)


def _by_link(spread: np.ndarray) -> np.ndarray:
    """Σ_e of b_e b_eᵀ times the link's entry of `spread` (n, n, m)."""
    found = -spread
    found[np.arange(len(found)), np.arange(len(found))] += spread.sum(axis=1)
    return found


class _Apart:
    """Sums of the entries of A (n, n, m) over nodes other than i and j, each (n, n, m); not valid for i = j."""

    def __init__(self, A: np.ndarray) -> None:
        nodes = np.arange(len(A))
        own = A[nodes, nodes]
        rows, columns = A.sum(axis=1), A.sum(axis=0)
        self.of_row = (rows - own)[:, None] - A  # Σ_l A_il
        self.of_column = (columns - own)[None, :] - A  # Σ_k A_kj
        ends = rows + columns - own
        square = A.sum(axis=(0, 1)) - ends[:, None] - ends[None, :] + A + A.swapaxes(0, 1)
        self.pairs = square - (own.sum(axis=0) - own[:, None] - own[None, :])  # Σ A_kl over k ≠ l
