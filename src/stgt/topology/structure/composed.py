"""Structures made of others: a cycle of them, a pair of row- and column-stochastic ones; and computed matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stgt._internal.ops import Ops
from stgt.topology.structure.base import Array, Structure
from stgt.topology.structure.lists import NeighbourLists
from stgt.topology.structure.moments import DRAWS, Moments


@dataclass(frozen=True, eq=False)
class Cyclic(Structure):
    """Item r mod T in round r; `seeds` (T,) are those of the items, `cycles` their `phases`.

    In round r the item uses its own round r·c + (r div T) mod c, with c its number of phases. So it advances by one
    phase each time, whatever T is, and never draws twice for the same round number.
    """

    arrays = ("items", "seeds")

    items: tuple[Structure, ...]
    seeds: Array
    cycles: tuple[int, ...]

    @property
    def phases(self) -> int:
        return len(self.items) * math.lcm(*self.cycles)

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self._now(r).matrix(*self._numbers(r, seed))

    def norm(self, r: int, seed: int) -> float:
        return self._now(r).norm(*self._numbers(r, seed))

    def moments(self, n: int, phase: int = 0, seed: int = 0, draws: int = DRAWS) -> Moments:
        r, own_seed = self._numbers(phase, seed)
        return self._now(phase).moments(n, r % self.cycles[phase % len(self.items)], own_seed, draws)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        def turn(k: int, v: Array) -> Array:
            return self.items[k].product(ops, self._seed(ops.xp, k, seed), self._round(k, r), v, back).astype(v.dtype)

        return self._switch(ops, r, turn, v)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        def turn(k: int) -> Array:
            links = self.items[k].links(ops, self._seed(ops.xp, k, seed), self._round(k, r))
            return ops.xp.asarray(links, float)

        return self._switch(ops, r, turn)

    def pairs(self) -> tuple[np.ndarray, np.ndarray] | None:
        found = [item.pairs() for item in self.items]
        known = [pairs for pairs in found if pairs is not None]
        if len(known) < len(found):
            return None
        receivers, senders = (np.concatenate(side) for side in zip(*known, strict=True))
        return receivers, senders

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(
            f"{name} cannot be written as one cycle of neighbour lists: make its items unreliable instead, as in "
            "sequence([unreliable(ring(8), link=0.1), random_matching(8)])."
        )

    def _switch(self, ops: Ops, r: Array, turn: Callable[..., Array], *operands: Array) -> Array:
        return ops.switch(r % len(self.items), [partial(turn, k) for k in range(len(self.items))], *operands)

    def _now(self, r: int) -> Structure:
        return self.items[r % len(self.items)]

    def _numbers(self, r: int, seed: int) -> tuple[int, int]:
        k = r % len(self.items)
        return self._round(k, r), (int(self.seeds[k]) + seed) % 2**32

    def _round(self, k: int, r: Array) -> Array:
        return r * self.cycles[k] + r // len(self.items) % self.cycles[k]

    def _seed(self, xp: Any, k: int, seed: Array) -> Array:
        # As arrays: a sum of two NumPy scalars warns where it wraps at 2**32, which is intended.
        return (xp.asarray(self.seeds)[k : k + 1] + xp.asarray(seed, np.uint32))[0]


@dataclass(frozen=True, eq=False)
class TwoMatrices(Structure):
    """A row-stochastic W_r, `pull`, and a column-stochastic one, `push`, for what is `MessageVar(…, pushed=True)`."""

    arrays = ("pull", "push")
    random = False

    pull: Structure
    push: Structure

    @property
    def pushing(self) -> Structure:
        return self.push

    @property
    def phases(self) -> int:
        return int(np.lcm(self.pull.phases, self.push.phases))

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.pull.matrix(r, seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return self.pull.product(ops, seed, r, v, back)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return self.pull.links(ops, seed, r)

    def norm(self, r: int, seed: int) -> float:
        return self.pull.norm(r, seed)


@dataclass(frozen=True, eq=False)
class Computed(Structure):
    """W_r = function(r, seed), computed by Python and NumPy whenever it is needed. It need not be periodic."""

    random = False

    name: str
    function: Callable[[int, int], np.ndarray]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.function(r, seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        if ops.xp is not np:
            raise ValueError(never_repeats(self.name))
        W = self.matrix(r, seed).astype(v.dtype)
        return (W.T if back else W) @ v

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        W = self.matrix(r, seed)
        return ops.xp.asarray(np.count_nonzero(W) - np.count_nonzero(np.diag(W)), float)

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(
            f"{name} has no period: give period=… to topology.schedule, or lose the links in its function."
        )


def never_repeats(name: str) -> str:
    """The error text for a topology that is neither periodic nor random."""
    return (
        f"{name} has no period, so that nothing can be compiled or predicted for all its rounds: give period=… to "
        'topology.schedule, or run it with engine="numpy".'
    )
