"""What the nodes of the test world can be asked to do where something is odd, and taken care of."""

import logging

import torch
import torch.distributed as dist
from scenarios import topology
from scenarios_use import Quadratic, base_of, loss_of, method, outcome

import stgt
from stgt.torch import DistributedOptimizer


def skipping(name: str, graph: str, base: str, rounds: int, skipped: list[list[int]], tau: int = 3, **options):
    """A gradient is not finite at these [node, round]; the state, and how far Σ c is from 0."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    opt = DistributedOptimizer(
        base_of(base, model.parameters(), 0.1), method(name, tau), topology(graph, nodes), model=model,
        chunk=4, on_nonfinite="skip", **options,
    )  # fmt: skip
    while opt.round < rounds:
        opt.zero_grad()
        spoiled = [rank, opt.round] in skipped and opt.taken == min(1, tau - 1)
        (loss_of(model, rank) * (float("inf") if spoiled else 1.0)).backward()
        opt.step()
    return {"state": outcome(opt), "skipped": opt.rounds_skipped, "metrics": opt.metrics()}


class Attention(torch.nn.Module):
    """A mask with −inf, a table, statistics, a buffer that is written to in every round, and one later on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        self.norm = torch.nn.BatchNorm1d(2, dtype=torch.float64)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("table", torch.full((100,), 0.1 + dist.get_rank(), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("late", torch.zeros(2, dtype=torch.float64))


def several_buffers(policy: str, rounds: int = 4):
    """Rounds of a model with all kinds of buffers; what they are after each."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Attention()
    listener, told = _listener()
    opt = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), stgt.STGT(tau=2), topology("static", nodes), model=model,
        buffers=policy,
    )  # fmt: skip
    after = []
    while opt.round < rounds:
        opt.zero_grad()
        model.seen += rank
        if opt.round == 2:
            model.late += rank
        (model.weight.sum() ** 2 + model.norm(torch.full((4, 2), float(rank)).double()).sum()).backward()
        opt.step()
        if opt.taken == 0:
            after.append({name: buffer.double().flatten().tolist() for name, buffer in model.named_buffers()})
    with opt.averaged():
        inside = {name: buffer.double().flatten().tolist() for name, buffer in model.named_buffers()}
    logging.getLogger("stgt").removeHandler(listener)
    size = sum(bucket.size for bucket in opt.buckets)
    return {"after": after, "inside": inside, "told": told, "bytes": opt.metrics()["bytes_sent"], "size": size}


def measured_after(what: str):
    """Metrics after the gradients of the last step were zeroed, on one node."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    sgd, graph = base_of("sgd", model.parameters(), 0.1), topology("static", nodes)
    opt = DistributedOptimizer(sgd, stgt.STGT(tau=2), graph, model=model)
    for _ in range(4):
        opt.zero_grad()
        loss_of(model, rank).backward()
        opt.step()
    if rank == 3:
        if what == "backward":
            loss_of(model, rank).backward()
        else:
            model.zero_grad(set_to_none=what == "none")
    return opt.metrics()


def ended_after_zero_grad():
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    sgd, graph = base_of("sgd", model.parameters(), 0.1), topology("static", nodes)
    opt = DistributedOptimizer(sgd, stgt.FlexGT(tau=9, snapshot="last"), graph, model=model)
    loss_of(model, rank).backward()
    opt.step()
    opt.zero_grad()
    opt.end_round()


def states_in_words():
    """What is logged where a node asks for its state_dict twice."""
    model = Quadratic()
    opt = DistributedOptimizer(base_of("sgd", model.parameters(), 0.1), stgt.STGT(tau=2), "complete", model=model)
    listener, told = _listener()
    for _ in range(2):
        opt.state_dict()
    logging.getLogger("stgt").removeHandler(listener)
    return told


def _listener() -> tuple[logging.Handler, list[str]]:
    listener, told = logging.Handler(), []
    listener.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("stgt").addHandler(listener)
    return listener, told
