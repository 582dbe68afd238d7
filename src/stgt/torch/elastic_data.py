"""One data set that all nodes have, divided among those that train together at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Sampler

from stgt._internal.checks import InputError, check_count, check_seed
from stgt._internal.randomness import STREAM_SHUFFLE, queue


class _Members(Protocol):
    """What is asked of the optimiser."""

    @property
    def members(self) -> Sequence[Any]: ...

    @property
    def rank(self) -> int: ...


class ElasticSampler(Sampler[int]):
    """This node's share of a data set that all nodes have, divided anew at each pass among the members of the moment.

    Each `iter` is one pass: all samples in an order that (seed, pass) alone decide, of which the member at place i of n
    takes each n-th from the i-th on. So nodes that begin a pass with the same members take each sample once. Where
    members change during a pass each node ends its share of it; what a lost node had left waits for the next pass.

    Args:
        samples: how many there are, or the data set.
        opt: the `DistributedOptimizer`.
        seed: of the orders; the same at all nodes.

    Attributes:
        passes: that were begun. A newcomer, and a run that goes on from a checkpoint, must set it to the others':
            save it as `extra`, and take it from what `opt.load` returns.
    """

    def __init__(self, samples: int | Sized, opt: _Members, seed: int = 0):
        count = len(samples) if isinstance(samples, Sized) else samples
        self.samples, self.seed, self.passes = check_count(count, "samples"), check_seed(seed), 0
        self._opt = opt

    def __iter__(self) -> Iterator[int]:
        order = queue(np, self.seed, self.passes, self.samples, STREAM_SHUFFLE)
        mine = order[self._opt.rank :: len(self._opt.members)].tolist()
        if not mine:
            nodes = len(self._opt.members)
            raise InputError("samples", self.samples, f" is too few for {nodes} nodes: each needs at least one.")
        self.passes += 1
        return iter(mine)

    def __len__(self) -> int:
        """How many samples this node takes in a pass that begins now."""
        return len(range(self._opt.rank, self.samples, len(self._opt.members)))
