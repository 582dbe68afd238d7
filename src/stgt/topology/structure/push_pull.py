"""The layout with two matrices a round: a row-stochastic R_r and a column-stochastic C_r."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stgt._internal.ops import Ops
from stgt.topology.structure.base import Array, Structure


@dataclass(frozen=True, eq=False)
class PushPull(Structure):
    """W_r is `pull`'s, row-stochastic; what is `Sent(…, pushed=True)` travels by `push`'s, column-stochastic."""

    arrays = ("pull", "push")
    drawn = False

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
