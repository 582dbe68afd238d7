"""Each node's share of a data set, and the batches that it draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler, Subset

from stgt._internal.checks import InputError, check_choice, check_count, check_seed
from stgt._internal.ops import NUMPY
from stgt._internal.randomness import STREAM_LOCAL, Clock
from stgt.problems import partition
from stgt.torch.membership import Membership, this_node

NO_BATCHES = "the loader of rank {rank} has no batches: give every node some data."


def node_split(
    dataset: Dataset[Any],
    how: str = "iid",
    *,
    labels: Any = None,
    classes: int = 1,
    alpha: float = 0.5,
    concentration: float | None = None,
    seed: int = 0,
) -> Subset[Any]:
    """This node's share of a data set that every node has.

    Args:
        dataset: the whole data set.
        how: "iid", "label" (each node has `classes` labels) or "dirichlet" (with `alpha`).
        labels: one for each sample; by default `dataset.targets` or `dataset.tensors[-1]`.
        classes, alpha, concentration, seed: arguments of `stgt.problems.partition`.
    """
    check_choice(how, "how", ("iid", "label", "dirichlet"))
    if labels is None:
        labels = getattr(dataset, "targets", None)
    if labels is None and hasattr(dataset, "tensors"):
        labels = dataset.tensors[-1]  # pyright: ignore[reportAttributeAccessIssue]
    if labels is None:
        if how != "iid":
            raise InputError("how", how, " needs labels, and the dataset has no targets: give labels.")
        labels = np.zeros(len(dataset))  # pyright: ignore[reportArgumentType]
    rank, nodes = this_node()
    parts = partition(
        np.asarray(labels), nodes, how, classes=classes, alpha=alpha, concentration=concentration, seed=seed
    )
    return Subset(dataset, parts[rank].tolist())


def sample_indices(seed: int, node: int, step: int, count: int, below: int, stream: int = STREAM_LOCAL) -> np.ndarray:
    """Integers in [0, below), a function of (seed, node, step) only. They are equal to the simulator's samples."""
    clock = Clock(NUMPY, np.float32, seed, np.array([node]), step, stream)
    return clock.integers(count, np.array([below]))[0]


class ClockSampler(Sampler[list[int]]):
    """An endless batch sampler: the samples of node i at step k depend on (seed, i, k) only.

    It draws with replacement, the same samples as the simulator. Give `start=opt.steps_taken` after loading a
    checkpoint, and the training continues as if it had not stopped.

    Args:
        samples: the number of this node's samples.
        batch: the number of samples in a batch.
        seed: of the choice.
        start: the step of the first batch.
        node: i, this node's number; by default its rank. In an elastic training ranks change: give a number that the
            node keeps, such as its site's.
    """

    def __init__(self, samples: int, batch: int, *, seed: int = 0, start: int = 0, node: int | None = None):
        self.samples, self.batch = check_count(samples, "samples"), check_count(batch, "batch")
        self.seed, self.start = check_seed(seed), check_count(start, "start", 0)
        self.node = None if node is None else check_count(node, "node", 0)

    def at(self, step: int) -> list[int]:
        """The batch of a step."""
        node = this_node()[0] if self.node is None else self.node
        return sample_indices(self.seed, node, step, self.batch, self.samples).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while True:
            yield self.at(step)
            step += 1


def end_of_epoch(membership: Membership, loader: Any, taken: int, tau: int) -> tuple[int, int]:
    """The round, and the step in it, after as many steps as the longest loader of all nodes has batches.

    If nodes differ in tau, or in their number of steps in this round, it is the end of a round.
    """
    try:
        length = len(loader)
    except TypeError:
        length = None
    answers = membership.barrier("batches(loader)", [length, taken, tau])
    for rank, (batches, _, _) in enumerate(answers):
        if batches is None:
            raise ValueError(f"the loader of rank {rank} has no length: give opt.batches(loader, rounds=…).")
        if not batches:
            raise ValueError(NO_BATCHES.format(rank=rank))
    longest = max(batches for batches, _, _ in answers)
    ends = {divmod(taken + longest, tau) for _, taken, tau in answers}
    rounds, steps = ends.pop() if len(ends) == 1 else (max(r + (steps > 0) for r, steps in ends), 0)
    return membership.round + rounds, steps
