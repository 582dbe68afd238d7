"""Looking at a training from all nodes at once: the averaged model, and how far the nodes are apart.

These use global collectives, and every node must call them at the same point of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from stgt.algorithms.calls import whole
from stgt.torch.flat import Block, parts_of

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer


@contextmanager
def averaged(opt: DistributedOptimizer) -> Iterator[None]:
    """Puts the average of all nodes' models in the place of this node's own, and takes it back."""
    own = [block.x.clone() for block in opt.blocks]
    buffers = opt.buffers
    mixes = bool(buffers.floating) and buffers.policy != "none"
    statistics = buffers.flat() if mixes else None
    weight = _weight(opt)
    with torch.no_grad(), opt._watch.waiting():
        for block in opt.blocks:
            block.x.mul_(weight) if weight else block.x.zero_()
            dist.all_reduce(block.x)
        if statistics is not None:
            mean = statistics * weight
            dist.all_reduce(mean)
            buffers.put(mean)
    try:
        yield
    finally:
        with torch.no_grad():
            for block, kept in zip(opt.blocks, own, strict=True):
                block.x.copy_(kept)
            if statistics is not None:
                buffers.put(statistics)


def _weight(opt: DistributedOptimizer) -> float:
    """This node's share in the averaged model: where a server holds it, the workers that have it now share it."""
    if not (opt.topology.has_server and "x" in opt.algorithm.held):
        return 1.0 / opt.nodes
    r = opt.round if opt.taken or opt.round == 0 else opt.round - 1
    return float(opt._schedule.active(r)[opt.rank]) / opt.topology.sampled


def evaluate(opt: DistributedOptimizer, function: Callable[[], float]) -> dict[str, Any]:
    """What `function` finds for each node's own model, and for the averaged one as the mean over the nodes."""
    device = opt.blocks[0].x.device
    own = torch.tensor([float(function())], dtype=torch.float64, device=device)
    with averaged(opt):
        mean = torch.tensor([float(function())], dtype=torch.float64, device=device)
    each = [torch.empty_like(own) for _ in range(opt.nodes)]
    with opt._watch.waiting():
        dist.all_gather(each, own)
        dist.all_reduce(mean)
    return {"averaged": mean.item() / opt.nodes, "own": [value.item() for value in each]}


def metrics(opt: DistributedOptimizer) -> dict[str, float]:
    """The measurements; they go to the optimiser's logger as well, if it has one."""
    sums = torch.zeros(2, dtype=torch.float64)
    drift = 0.0
    tracks, weight = opt.algorithm.tracks, _weight(opt)
    with torch.no_grad(), opt._watch.waiting():
        for block in opt.blocks:
            for part in parts_of(block.size, opt._chunk):
                sums[0] += _spread(block.x[part], weight)
                if tracks:
                    state = _state(opt, block, part, weight)
                    sums[1] += _spread(opt._steps.last(block, part) + opt.algorithm.tracker(state), weight)
                    drift += _norm(_sum(opt.algorithm.conserved(state, opt.topology.participation)))
        total = sums.to(opt.blocks[0].x.device)
        dist.all_reduce(total)
    exchange = opt._exchange
    found = {
        "round": float(opt.round),
        "consensus_error": total[0].item(),
        "bytes_sent": float(exchange.bytes_sent),
        "seconds_computing": opt.seconds_computing,
        "seconds_exchanging": exchange.seconds,
        "seconds_waiting": exchange.seconds_waiting,
    }
    if tracks:
        found |= {"tracking_error": total[1].item(), "sum_of_corrections": drift**0.5}
    if opt.logger is not None:
        opt.logger.log({f"stgt/{name}": value for name, value in found.items()}, opt.round)
    return found


def _state(opt: DistributedOptimizer, block: Block, part: slice, weight: float) -> dict[str, Tensor]:
    """The state in a part of a block; of what a server holds, the server's, which an idle node may not have heard."""
    held = opt.algorithm.held if opt.topology.has_server else ()
    state = {name: value[part] for name, value in block.state.items()}
    state = {name: _sum(value * weight) if name in held else value for name, value in state.items()}
    return whole(opt.algorithm, state)


def _spread(value: Tensor, weight: float) -> float:
    """‖v − v̄‖² of this node; 0 of one that does not count."""
    mean = _sum(value * weight)
    return _norm(value - mean) if weight else 0.0


def _sum(value: Tensor) -> Tensor:
    total = value.clone()
    dist.all_reduce(total)
    return total


def _norm(value: Tensor) -> float:
    return value.to(torch.float64).square().sum().item()
