"""Trainings whose checkpoint goes on with another number of nodes."""

import logging
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from scenarios_use import _all_of, _started, gather, loss_of

import stgt
from stgt.torch import DistributedOptimizer


def part(
    folder: str,
    base: str = "sgd",
    steps: int = 0,
    hosts: list[str] | None = None,
    load: bool = True,
    save: bool = False,
    anew: bool = False,
    lr: float | None = None,
    **options,
):
    """One part of a training: loads, makes steps, saves; hosts[rank] is the node's own folder inside, if given."""
    rank = dist.get_rank()
    where = Path(folder) / (hosts[rank] if hosts else "")
    made, opt = _started(base, **options)
    torch.manual_seed(1000 + rank)
    with listening() as log:
        told = opt.load(where, start_anew=anew) if load else None
    begun = _all_of(opt) | {
        "start": opt.buckets[0].state["x"].tolist(),
        "total": None if opt.buckets[0].total is None else opt.buckets[0].total.abs().max().item(),
        "lr": opt.param_groups[0]["lr"],
        "lr_sum": opt.buckets[0].lr_sum,
        "drawn": torch.rand(1, dtype=torch.float64).item(),
    }
    if lr is not None:
        opt.param_groups[0]["lr"] = lr
    for _ in range(steps):
        opt.zero_grad()
        loss_of(made, rank).backward()
        opt.step()
    with opt.averaged():
        averaged = gather(opt, "x")
    if save:
        opt.save(where, extra={"by": rank}, keep=2)
    return {"told": told, "log": log, "begun": begun, "x": gather(opt, "x"), "averaged": averaged}


@contextmanager
def listening():
    """What goes to the log, as [level, words]."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append([record.levelname, record.getMessage()])
    logger = logging.getLogger("stgt")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def statistics(folder: str, policy: str, save: bool):
    """Rounds of a BatchNorm with a constant input at each node; or what its buffers are after a load."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, dtype=torch.float64), torch.nn.Linear(2, 1).double())
    model.register_buffer("grid", torch.zeros(3, 2).t())  # of another layout than its shape's
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    opt = DistributedOptimizer(sgd, stgt.STGT(tau=2), stgt.topology.ring(nodes), model=model, buffers=policy)
    if not save:
        opt.load(folder)
    while save and opt.steps_taken < 5:
        opt.zero_grad()
        for _ in range(1 + rank):  # counted by num_batches_tracked
            loss = model(torch.full((4, 2), 10.0 * rank, dtype=torch.float64)).square().mean()
        loss.backward()
        model.grid += (1.0 + rank) * torch.arange(6.0).view(2, 3)
        opt.step()
    if save:
        opt.save(folder)
    return {name: buffer.flatten().tolist() for name, buffer in model.named_buffers()}
