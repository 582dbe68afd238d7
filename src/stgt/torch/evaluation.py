"""Looking at a training from all nodes at once: the averaged model, and how far the nodes are apart.

These use global collectives, and every node must call them at the same point of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stgt.algorithms.calls import whole
from stgt.torch.finite import NonFiniteError, first_nonfinite, in_blocks
from stgt.torch.flat import Block, parts_of, wide

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer


@contextmanager
def averaged(opt: DistributedOptimizer, call: str = "averaged()") -> Iterator[None]:
    """Puts the average of all nodes' models in the place of this node's own, and takes it back."""
    mixed, weight = opt.buffers.mixed, _weight(opt)
    refuse_nonfinite(opt._group.meet(call, in_blocks(opt, ("x",)) or first_nonfinite(mixed.items())))
    with torch.no_grad():
        own = [block.x.clone() for block in opt.blocks]
        statistics = opt.buffers.flat(mixed) if mixed else None
    try:
        with torch.no_grad(), opt._group.talking(call):
            for block in opt.blocks:
                share = wide(block.x)
                share.mul_(weight) if weight else share.zero_()
                block.x.copy_(opt._group.sum(share))
            if statistics is not None:
                opt.buffers.put(mixed, opt._group.sum(statistics * weight))
        yield
    finally:
        with torch.no_grad():
            for block, kept in zip(opt.blocks, own, strict=True):
                block.x.copy_(kept)
            if statistics is not None:
                opt.buffers.put(mixed, statistics)


def refuse_nonfinite(troubles: list[str]) -> None:
    """What each node found, by rank: all nodes stop by the first."""
    for rank, trouble in enumerate(troubles):
        if trouble:
            raise NonFiniteError(f"rank {rank}: {trouble}; there is no average of the models: take a smaller lr.")


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
    with averaged(opt, "evaluate()"):
        mean = torch.tensor([float(function())], dtype=torch.float64, device=device)
    with opt._group.talking("evaluate()"):
        each = opt._group.gather(own)
        opt._group.sum(mean)
    return {"averaged": mean.item() / opt.nodes, "own": [value.item() for value in each]}


def metrics(opt: DistributedOptimizer) -> dict[str, float]:
    """The measurements; they go to the optimiser's logger as well, if it has one.

    There is a tracking error where the last step's gradients are still there on all nodes that have made it.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    drift = 0.0
    tracks, weight = opt.algorithm.tracks, _weight(opt)
    counts = not weight or opt._steps.has_gradients
    trouble = in_blocks(opt, ("x",))
    heard = opt._group.meet("metrics()", [counts, trouble])
    refuse_nonfinite([found for _, found in heard])
    compares = tracks and all(there for there, _ in heard)
    with torch.no_grad(), opt._group.talking("metrics()"):
        for block in opt.blocks:
            for part in parts_of(block.size, opt._chunk):
                sums[0] += _spread(opt, wide(block.x[part]), weight)
                if not tracks:
                    continue
                state = _state(opt, block, part, weight)
                drift += _norm(_sum(opt, opt.algorithm.conserved(state, opt.topology.participation)))
                if compares:
                    sums[1] += _spread(opt, opt._steps.last(block, part) + opt.algorithm.tracker(state), weight)
        total = opt._group.sum(sums.to(opt.blocks[0].x.device))
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


def _state(opt: DistributedOptimizer, block: Block, part: slice, weight: float) -> dict[str, Tensor]:
    """The state in a part of a block; of what a server holds, the server's, which an idle node may not have heard."""
    held = opt.algorithm.held if opt.topology.has_server else ()
    state = {name: wide(value[part]) for name, value in block.state.items()}
    state = {name: _sum(opt, value * weight) if name in held else value for name, value in state.items()}
    return whole(opt.algorithm, state)


def _spread(opt: DistributedOptimizer, value: Tensor, weight: float) -> float:
    """‖v − v̄‖² of this node; 0 of one that does not count."""
    mean = _sum(opt, value * weight)
    return _norm(value - mean) if weight else 0.0


def _sum(opt: DistributedOptimizer, value: Tensor) -> Tensor:
    return opt._group.sum(value.clone())


def _norm(value: Tensor) -> float:
    return value.to(torch.float64).square().sum().item()
