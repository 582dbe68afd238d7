"""First and second moments of a round's random matrix: E[W] and E[W A Wᵀ], which is all that mean squares need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.ops import NUMPY

if TYPE_CHECKING:
    from stgt.topology.structure.base import Structure

DRAWS = 400  # rounds drawn where a law is not known in closed form
WRITTEN_OUT = 10**7  # entries of the matrices of some rounds, up to which they are kept


class Moments(ABC):
    """Of the law of W in one phase of a topology; `Topology.moments` gives it.

    Attributes:
        n: number of nodes.
        exact: are they no estimates?
        draws: rounds drawn for an estimate, 0 if it is exact.
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
        """E[(W − J)ᵀ(W − J)] v for v (n, m), without (n, n) matrices; with Wᵀ for W if `back`."""

    @abstractmethod
    def _second(self, A: np.ndarray, back: tuple[bool, bool]) -> np.ndarray:
        """`second` for A (n, n, m)."""

    def second(self, A: Any, back: tuple[bool, bool] = (False, False)) -> np.ndarray:
        """E[U A Vᵀ] with U = W, or Wᵀ if back[0], and V = W, or Wᵀ if back[1].

        So E[W A Wᵀ] by default, E[W A W] with (False, True), E[Wᵀ A W] with (True, True).

        Args:
            A: (n, n, …); further axes are blocks that the nodes' weights multiply as a whole, as in (W ⊗ I) A (W ⊗ I)ᵀ.
            back: which of the two sides is transposed.

        Returns:
            An array like A.
        """
        A = np.asarray(A, dtype=float)
        if A.shape[:2] != (self.n, self.n):
            raise ValueError(f"A has shape {A.shape}: its first two axes must be the n={self.n} nodes.")
        return self._second(A.reshape(self.n, self.n, -1), back).reshape(A.shape)

    def standard_error(self, functional: Callable[[np.ndarray], float]) -> float:
        """Of the estimate of E[functional(W)], a number for each matrix (n, n); 0 where the moments are exact."""
        return 0.0


class Rounds(Moments):
    """The mean over rounds (r, seed) of a structure, each equally likely: all there are, or some that were drawn."""

    def __init__(self, structure: Structure, n: int, rounds: list[tuple[int, int]], exact: bool) -> None:
        self.structure, self.n, self.rounds = structure, n, rounds
        self.exact, self.draws = exact, 0 if exact else len(rounds)

    @property
    def mean(self) -> np.ndarray:
        return self._over_rounds(lambda k: self.structure.matrix(*self.rounds[k]))

    def remainder(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        return self._over_rounds(lambda k: self._deviate(k, self._deviate(k, v, back), not back))

    def squares(self, v: np.ndarray, back: bool = False) -> np.ndarray:
        """‖(W_r − J) v‖² for v (n,) of each of the rounds; with W_rᵀ if `back`."""
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
        """Those of all rounds, or none if that would be too many numbers: then the kernel is asked."""
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
        """(W_r − J) v for round number k."""
        return self._product(k, v, back) - v.mean(axis=0)
