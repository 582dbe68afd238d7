"""Evaluation over all nodes: the averaged model, and metrics of how much the nodes differ.

These use global collectives: every node must call them at the same point of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stgt.topology import Topology
from stgt.torch.buckets import Bucket, slices_of, wide
from stgt.torch.buffers import Buffers
from stgt.torch.finite import NonFiniteError, first_nonfinite, in_buckets
from stgt.torch.local_steps import LocalSteps
from stgt.torch.membership import Membership


class Evaluation:
    """What the nodes compute together about their models. `weight` is this node's weight in the averaged model."""

    def __init__(self, membership: Membership, steps: LocalSteps, buffers: Buffers, topology: Topology, chunk: int):
        self.membership, self.steps, self.buffers, self.topology = membership, steps, buffers, topology
        self.buckets, self.method, self.chunk = steps.buckets, steps.method, chunk

    @contextmanager
    def averaged(self, weight: Callable[[], float], call: str = "averaged()") -> Iterator[None]:
        """Replaces this node's model by the average over all nodes, and restores it at the end."""
        mixed, members = self.buffers.mixed, self.membership
        trouble = in_buckets(self.buckets, ("x",)) or first_nonfinite(mixed.items())
        with torch.no_grad():
            own = [bucket.x.clone() for bucket in self.buckets]
            statistics = self.buffers.flat(mixed) if mixed else None

        def average() -> None:
            refuse_nonfinite(members.barrier(call, trouble))
            share_of = weight()
            with torch.no_grad(), members.collective(call):
                for bucket, kept in zip(self.buckets, own, strict=True):
                    share = wide(kept) * share_of if share_of else torch.zeros_like(wide(kept))
                    bucket.x.copy_(members.sum(share))
                if statistics is not None:
                    self.buffers.put(mixed, members.sum(statistics * share_of))

        try:
            members.together(average)
            yield
        finally:
            with torch.no_grad():
                for bucket, kept in zip(self.buckets, own, strict=True):
                    bucket.x.copy_(kept)
                if statistics is not None:
                    self.buffers.put(mixed, statistics)

    def evaluate(self, weight: Callable[[], float], function: Callable[[], float]) -> dict[str, Any]:
        """`function()` of each node's own model, and of the averaged model as the mean over the nodes."""
        device = self.buckets[0].x.device
        own = torch.tensor([float(function())], dtype=torch.float64, device=device)
        with self.averaged(weight, "evaluate()"):
            mean = torch.tensor([float(function())], dtype=torch.float64, device=device)
        with self.membership.collective("evaluate()"):
            each = self.membership.gather(own)
            self.membership.sum(mean)
        return {"averaged": mean.item() / self.membership.nodes, "own": [value.item() for value in each]}

    def metrics(self, weight: float) -> dict[str, float]:
        """How much the nodes differ.

        This includes the tracking error only if all nodes that took part in the last step still have its gradients.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        drift = 0.0
        tracks, members = self.method.spec.tracks, self.membership
        counts = not weight or self.steps.has_gradients
        answers = members.barrier("metrics()", [counts, in_buckets(self.buckets, ("x",))])
        refuse_nonfinite([found for _, found in answers])
        compares = tracks and all(there for there, _ in answers)
        with torch.no_grad(), members.collective("metrics()"):
            for bucket in self.buckets:
                for part in slices_of(bucket.size, self.chunk):
                    sums[0] += self._spread(wide(bucket.x[part]), weight)
                    if not tracks:
                        continue
                    state = self._state(bucket, part, weight)
                    drift += _norm(self._sum(self.method.conserved(state, self.topology.participation)))
                    if compares:
                        tracker = self.method.tracker(state)
                        sums[1] += self._spread(self.steps.last(bucket, part) + tracker, weight)
            total = members.sum(sums.to(self.buckets[0].x.device))
        found = {"consensus": total[0].item()}
        if tracks:
            found["sum_c"] = drift**0.5
        if compares:
            found["tracker_spread"] = total[1].item()
        return found

    def _state(self, bucket: Bucket, part: slice, weight: float) -> dict[str, Tensor]:
        """The state in a part of a bucket. The server's variables are the server's own: an idle node may lack them."""
        held = self.method.spec.server_fields if self.topology.has_server else ()
        state = {name: wide(value[part]) for name, value in bucket.state.items()}
        state = {name: self._sum(value * weight) if name in held else value for name, value in state.items()}
        return self.method.whole(state)

    def _spread(self, value: Tensor, weight: float) -> float:
        """‖v − v̄‖² of this node; 0 if its weight is 0."""
        mean = self._sum(value * weight)
        return _norm(value - mean) if weight else 0.0

    def _sum(self, value: Tensor) -> Tensor:
        return self.membership.sum(value.clone())


def refuse_nonfinite(troubles: list[str]) -> None:
    """A NonFiniteError at all nodes if one of them has found a value that is not finite."""
    for rank, trouble in enumerate(troubles):
        if trouble:
            raise NonFiniteError(f"rank {rank}: {trouble}; the models have no average: use a smaller lr.")


def _norm(value: Tensor) -> float:
    return value.to(torch.float64).square().sum().item()
