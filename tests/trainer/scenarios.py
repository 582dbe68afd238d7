"""What the nodes of the test world can be asked to do. Every function is called by all nodes at once."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.functional import softplus

import catalogue
import stgt
from stgt.torch import ClockSampler, DistributedOptimizer

P = 12


def topology(name: str, nodes: int) -> stgt.topology.Topology:
    return {
        "static": lambda: stgt.topology.ring(nodes),
        "directed": lambda: stgt.topology.exponential(nodes),
        "one-peer": lambda: stgt.topology.one_peer_exponential(nodes),
        "schedule": lambda: catalogue.directed_schedule(nodes),
        "hypercuboid": lambda: stgt.topology.hypercuboid(nodes),
        "complete": lambda: stgt.topology.complete(nodes),
        "matching": lambda: stgt.topology.random_matching(nodes),
        "server": lambda: stgt.topology.server(nodes, sampled=4),
        "server-all": lambda: stgt.topology.server(nodes),
        "push-pull": lambda: catalogue.two_matrices(nodes),
        "relay": lambda: stgt.topology.relay(nodes, 4),
    }[name]()


def problem(nodes: int) -> stgt.problems.Problem:
    return catalogue.logistic(nodes, p=P)


def algorithm(name: str, tau: int) -> stgt.Algorithm:
    return replace(catalogue.instances(tau=tau)[name], gamma=None)


class Linear(torch.nn.Module):
    """The logistic problem's model, its vector cut into three parameters, one of them not contiguous."""

    def __init__(self, dtype):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(2, 2, dtype=dtype).t())
        self.b = torch.nn.Parameter(torch.zeros(5, dtype=dtype))
        self.c = torch.nn.Parameter(torch.zeros(1, 3, dtype=dtype))

    def vector(self):
        return torch.cat([self.a.reshape(-1), self.b, self.c.reshape(-1)])


def loss_of(model: Linear, made: stgt.problems.Problem, rank: int, chosen) -> torch.Tensor:
    """The mean loss of the chosen samples of a node, written again with torch's own functions."""
    rows = torch.tensor(made.data["signed"][rank][chosen], dtype=model.b.dtype)  # each times its label, ±1
    x = model.vector()
    return softplus(-(rows @ x)).mean() + 0.05 * x.square().sum()


def train(
    name: str,
    graph: str,
    dtype: str,
    rounds: int,
    tau: int,
    lr: float = 0.05,
    chunk: int = 20,
    base: str = "plain",
    group_rates: bool = False,
    **options,
):
    """Trains on minibatches of the catalogue's logistic problem; returns the state of this node by field."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    made, kind = problem(nodes), getattr(torch, dtype)
    model = Linear(kind)
    groups = list(model.parameters())
    if group_rates:
        groups = [{"params": [model.a]}, {"params": [model.b, model.c], "lr": lr / 2}]
    optimizer = {
        "plain": lambda: torch.optim.SGD(groups, lr=lr),
        "decay": lambda: torch.optim.SGD(groups, lr=lr, weight_decay=0.2),
        "momentum": lambda: torch.optim.SGD(groups, lr=lr, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(groups, lr=lr),
    }[base]()
    method = algorithm(name, tau)
    opt = DistributedOptimizer(optimizer, method, topology(graph, nodes), model=model, chunk=chunk, **options)
    sampler = ClockSampler(int(made.counts[rank]), 2)
    for chosen in opt.batches(sampler, rounds):
        opt.zero_grad()
        loss_of(model, made, rank, chosen).backward()
        opt.step()
    return report(opt, model)


def report(opt: DistributedOptimizer, model: Linear) -> dict:
    """The node's state in the order of the model's parameters."""
    found = {"x": model.vector().tolist()}
    for field in opt.buckets[0].state:
        if field == "x":
            continue
        values = {}
        for bucket in opt.buckets:
            for slot in bucket.slots:
                view = torch.as_strided(bucket.state[field], slot.shape, slot.strides, slot.offset)
                values[id(slot.parameter)] = view.reshape(-1)
        found[field] = torch.cat([values[id(one)] for one in (model.a, model.b, model.c)]).tolist()
    return {"state": found}


def resumable_training(rounds: int) -> list[float]:
    """What resumable.py does, never disturbed; returns this node's model."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    made, model = problem(nodes), Linear(torch.float64)
    opt = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        stgt.STGT(tau=3),
        "exponential",
        model=model,
        chunk=20,
    )
    sampler = ClockSampler(int(made.counts[rank]), 2)
    while opt.round < rounds:
        opt.zero_grad()
        loss_of(model, made, rank, sampler.at(opt.steps_taken)).backward()
        opt.step()
    return model.vector().tolist()
