"""The interface of a structure: what engines, theory and reports use of a topology's layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from stgt._internal.hyper import ShortRepr
from stgt._internal.ops import Ops
from stgt.topology.structure.moments import DRAWS, MeanOverRounds, Moments
from stgt.topology.structure.norms import dense_norm

if TYPE_CHECKING:
    from stgt.topology.structure.lists import NeighbourLists

Array = Any


class Structure(ShortRepr, ABC):
    """How the matrices W_0, W_1, … of a topology are laid out. A subclass is a frozen dataclass.

    `matrix`, `product` and `links` must be written, and then every engine runs it; the rest has a default. `seed` is
    the run's: a random structure looks its draws up from (seed, r), see `randomness.words`. Methods that are given
    `xp` (numpy or jax.numpy) or `ops` compute with these only, as a compiler may then trace r and seed.
    One with a server is a subclass of `Server`.

    Attributes:
        arrays: the fields that are numbers, arrays of them, or structures. All others are fixed when a program is
            compiled, and must be hashable.
        random: does W_r depend on the seed of the run?
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = True

    @abstractmethod
    def matrix(self, r: int, seed: int) -> np.ndarray:
        """W_r as a dense (n, n) array."""

    @abstractmethod
    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        """W_r v for v (n, p), or W_rᵀ v with `back`."""

    @abstractmethod
    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        """How many directed links carry a message in round r; with a server, uploads and downloads of its workers."""

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        """The matrix that mixes what a server holds; W_r without a server."""
        return self.matrix(r, seed)

    @property
    def pushing(self) -> Structure:
        """The structure that mixes what is `MessageVar(…, pushed=True)`: this one, unless a round has two matrices."""
        return self

    def norm(self, r: int, seed: int) -> float:
        """‖W_r − J‖₂."""
        return dense_norm(self.matrix(r, seed))

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        """E[W] and E[W A Wᵀ] of the n nodes' matrix in rounds r ≡ phase (mod phases).

        Where a random structure has no closed form they are estimated from `draws` rounds of the run `seed`.
        """
        if not self.random:
            return MeanOverRounds(self, n, [(phase, seed)], exact=True)
        return MeanOverRounds(self, n, [(phase + k * self.phases, seed) for k in range(draws)], exact=False)

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The links of all rounds: receivers, and for each a sender. None where the union of all rounds is connected by
        construction, or where the links are not known."""
        return None

    def neighbour_lists(self, name: str) -> NeighbourLists:
        """The same matrices as neighbour lists; a ValueError about the topology called `name` if there are none."""
        raise ValueError(f"{name}: {type(self).__name__} has no neighbour lists; give a topology such as ring(8).")

    def active(self, xp: Any, seed: Array, r: Array) -> Array | None:
        """The nodes that compute in round r, as sorted indices; None if all do."""
        return None

    def listening(self, xp: Any, seed: Array, r: Array) -> Array | None:
        """The nodes that receive what a server holds after round r, as indices; None if all do."""
        return None

    @property
    def sampled(self) -> int | None:
        """How many workers a server calls in a round; None without a server."""
        return None

    @property
    def phases(self) -> int:
        """W_{r+phases} is W_r, or drawn by the same law."""
        return 1
