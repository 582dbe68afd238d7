"""Evaluation over all nodes: the averaged model, and the metrics of how far the nodes are apart.

These use global collectives, and every node must call them at the same point of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stgt.algorithms.calls import whole
from stgt.torch.buckets import Bucket, slices_of, wide
from stgt.torch.finite import NonFiniteError, first_nonfinite, in_buckets

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer


@contextmanager
def averaged(opt: DistributedOptimizer, call: str = "averaged()") -> Iterator[None]:
    """Replaces this node's model by the average of all nodes', and restores it at the end."""
    mixed, weight = opt.buffers.mixed, _weight(opt)
    refuse_nonfinite(opt._group.barrier(call, in_buckets(opt, ("x",)) or first_nonfinite(mixed.items())))
    with torch.no_grad():
        own = [bucket.x.clone() for bucket in opt.buckets]
        statistics = opt.buffers.flat(mixed) if mixed else None
    try:
        with torch.no_grad(), opt._group.collective(call):
            for bucket in opt.buckets:
                share = wide(bucket.x)
                share.mul_(weight) if weight else share.zero_()
                bucket.x.copy_(opt._group.sum(share))
            if statistics is not None:
                opt.buffers.put(mixed, opt._group.sum(statistics * weight))
        yield
    finally:
        with torch.no_grad():
            for bucket, kept in zip(opt.buckets, own, strict=True):
                bucket.x.copy_(kept)
            if statistics is not None:
                opt.buffers.put(mixed, statistics)


def refuse_nonfinite(troubles: list[str]) -> None:
    """A NonFiniteError on all nodes if one of them, by rank, has found a value that is not finite."""
    for rank, trouble in enumerate(troubles):
        if trouble:
            raise NonFiniteError(f"rank {rank}: {trouble}; there is no average of the models: take a smaller lr.")


def _weight(opt: DistributedOptimizer) -> float:
    """This node's weight in the averaged model: where a server holds it, only the workers that have it now count."""
    if not (opt.topology.has_server and "x" in opt.algorithm.server_fields):
        return 1.0 / opt.nodes
    r = opt.round if opt.taken or opt.round == 0 else opt.round - 1
    return float(opt._schedule.active(r)[opt.rank]) / opt.topology.sampled


def evaluate(opt: DistributedOptimizer, function: Callable[[], float]) -> dict[str, Any]:
    """`function()` of each node's own model, and of the averaged one as the mean over the nodes."""
    device = opt.buckets[0].x.device
    own = torch.tensor([float(function())], dtype=torch.float64, device=device)
    with averaged(opt, "evaluate()"):
        mean = torch.tensor([float(function())], dtype=torch.float64, device=device)
    with opt._group.collective("evaluate()"):
        each = opt._group.gather(own)
        opt._group.sum(mean)
    return {"averaged": mean.item() / opt.nodes, "own": [value.item() for value in each]}


def metrics(opt: DistributedOptimizer) -> dict[str, float]:
    """The metrics by name, which the optimiser's logger receives as well.

    The tracking error is among them only if all nodes that have made the last step still have its gradients.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    drift = 0.0
    tracks, weight = opt.algorithm.tracks, _weight(opt)
    counts = not weight or opt._steps.has_gradients
    trouble = in_buckets(opt, ("x",))
    answers = opt._group.barrier("metrics()", [counts, trouble])
    refuse_nonfinite([found for _, found in answers])
    compares = tracks and all(there for there, _ in answers)
    with torch.no_grad(), opt._group.collective("metrics()"):
        for bucket in opt.buckets:
            for part in slices_of(bucket.size, opt._chunk):
                sums[0] += _spread(opt, wide(bucket.x[part]), weight)
                if not tracks:
                    continue
                state = _state(opt, bucket, part, weight)
                drift += _norm(_sum(opt, opt.algorithm.conserved(state, opt.topology.participation)))
                if compares:
                    sums[1] += _spread(opt, opt._steps.last(bucket, part) + opt.algorithm.tracker(state), weight)
        total = opt._group.sum(sums.to(opt.buckets[0].x.device))
    exchange = opt._exchange
    found = {
        "round": float(opt.round),
        "rounds_skipped": float(opt.rounds_skipped),
        "consensus_error": total[0].item(),
        "bytes_sent": float(exchange.bytes_sent),
        "seconds_computing": opt.seconds_computing,
        "seconds_exchanging": exchange.seconds,
        "seconds_waiting": exchange.seconds_waiting,
    }
    if tracks:
        found["sum_of_corrections"] = drift**0.5
    if compares:
        found["tracking_error"] = total[1].item()
    if opt.logger is not None:
        opt.logger.log({f"stgt/{name}": value for name, value in found.items()}, opt.round)
    return found


def _state(opt: DistributedOptimizer, bucket: Bucket, part: slice, weight: float) -> dict[str, Tensor]:
    """The state in a part of a bucket; of what a server holds, the server's, as an idle node may not have it."""
    held = opt.algorithm.server_fields if opt.topology.has_server else ()
    state = {name: wide(value[part]) for name, value in bucket.state.items()}
    state = {name: _sum(opt, value * weight) if name in held else value for name, value in state.items()}
    return whole(opt.algorithm, state)


def _spread(opt: DistributedOptimizer, value: Tensor, weight: float) -> float:
    """‖v − v̄‖² of this node; 0 if its weight is 0."""
    mean = _sum(opt, value * weight)
    return _norm(value - mean) if weight else 0.0


def _sum(opt: DistributedOptimizer, value: Tensor) -> Tensor:
    return opt._group.sum(value.clone())


def _norm(value: Tensor) -> float:
    return value.to(torch.float64).square().sum().item()
