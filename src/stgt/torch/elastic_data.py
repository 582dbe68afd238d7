"""One data set that all nodes have, divided among the current members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Sampler

from stgt._internal.checks import InputError, check_count, check_seed
from stgt._internal.randomness import STREAM_SHUFFLE, queue


class _Members(Protocol):
    """The part of the optimiser that is used here."""

    @property
    def members(self) -> Sequence[Any]: ...

    @property
    def rank(self) -> int: ...


class ElasticSampler(Sampler[int]):
    """This node's share of a data set that all nodes have. Each pass divides it among the current members.

    Each `iter` is one pass: all samples in an order that depends on (seed, pass) only. The member with rank i of n
    takes every n-th sample, from the i-th on. So nodes that begin a pass with the same members take each sample once.
    If members change during a pass, each node ends its share of it. Samples that a lost node had not used are first
    used in the next pass.

    Args:
        samples: the number of samples, or the data set.
        opt: the `DistributedOptimizer`.
        seed: of the orders; the same at all nodes.

    Attributes:
        passes: the number of passes begun. A newcomer, and a run that continues from a checkpoint, must set it to the
            others' number: save it as `extra`, and read it from the result of `opt.load`.
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
        """The number of samples that this node takes in a pass that begins now."""
        return len(range(self._opt.rank, self.samples, len(self._opt.members)))
