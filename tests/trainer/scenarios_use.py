"""What a user of the trainer does in other ways than `scenarios.train`: all on one small quadratic problem."""

import itertools
import math
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from scenarios import topology

import stgt
from stgt.torch import DistributedOptimizer
from stgt.torch.membership import RECEIVE, SEND, Membership

P = 6


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """a, b of node `rank`, whose loss is Σ (a x²/2 − b x): its gradient is a x − b."""
    rng = np.random.default_rng(rank)
    return torch.tensor(rng.uniform(0.5, 2.0, P)), torch.tensor(rng.normal(size=P))


class Quadratic(torch.nn.Module):
    """Six numbers in two parameters."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.u = torch.nn.Parameter(torch.zeros(2, 2, dtype=dtype))
        self.v = torch.nn.Parameter(torch.zeros(2, dtype=dtype))

    def forward(self):
        return torch.cat([self.u.reshape(-1), self.v])


def loss_of(model, rank: int) -> torch.Tensor:
    x = model()
    a, b = (one[: len(x)] for one in data(rank))
    return (a.to(x) * x.square() / 2 - b.to(x) * x).sum()


def base_of(kind: str, parameters, lr: float) -> torch.optim.Optimizer:
    """Also called by the tests' own simulation of the nodes."""
    return {
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr),
        "decay": lambda: torch.optim.SGD(parameters, lr=lr, weight_decay=0.3),
        "momentum": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        "dampened": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.5, dampening=0.2),
        "nesterov-decay": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.5, nesterov=True, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=lr),
        "adamw-foreach": lambda: torch.optim.AdamW(parameters, lr=lr, foreach=True),
        "adamw-fused": lambda: torch.optim.AdamW(parameters, lr=lr, fused=True),
    }[kind]()


def method(name: str, tau: int) -> stgt.Algorithm:
    make = {
        "DPSGD-atc": lambda tau: stgt.DPSGD(tau=tau, atc=True),
        "DIGing": lambda tau: stgt.DIGing(),
        "FlexGT-last": lambda tau: stgt.FlexGT(tau=tau, snapshot="last"),
        "Outer-STGT": lambda tau: stgt.Outer(stgt.STGT(tau=tau, beta=0.25)),
        "Outer-LED": lambda tau: stgt.Outer(stgt.LED(tau=tau)),
    }
    return make.get(name, lambda tau: getattr(stgt, name)(tau=tau))(tau)


def gather(opt: DistributedOptimizer, field: str) -> list[float]:
    """A field of the state without the gaps between the parameters."""
    found = []
    for bucket in opt.buckets:
        for slot in bucket.slots:
            value = bucket.x if field == "x" else bucket.state[field]
            found += torch.as_strided(value, slot.shape, slot.strides, slot.offset).reshape(-1).tolist()
    return found


def outcome(opt: DistributedOptimizer) -> dict:
    return {name: gather(opt, name) for name in opt.buckets[0].state}


def quadratic(
    name: str = "STGT",
    graph: str = "static",
    base: str = "sgd",
    tau: int | list[int] = 3,
    rounds: int = 8,
    lr: float = 0.1,
    rates: list[float] | None = None,
    scheduler: str = "",
    clip: float = 0.0,
    parts: int = 1,
    skipped: list[int] | None = None,
    zero: str = "opt",
    dtype: str = "float64",
    absent: int = -1,
    **options,
):
    """Trains the quadratic with one feature of a training loop; returns this node's state."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    tau = tau if isinstance(tau, int) else tau[rank]
    model = Quadratic(getattr(torch, dtype))
    parameters = model.parameters()
    if rates is not None:
        parameters = [{"params": [model.u], "lr": rates[0]}, {"params": [model.v], "lr": rates[1]}]
    inner = base_of(base, parameters, lr)
    opt = DistributedOptimizer(inner, method(name, tau), topology(graph, nodes), model=model, chunk=4, **options)
    decays = None
    if scheduler:
        decays = torch.optim.lr_scheduler.ExponentialLR({"wrapper": opt, "base": inner}[scheduler], 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=skipped is not None)
    for attempt in itertools.count():
        if opt.round == rounds:
            break
        if zero == "opt":
            opt.zero_grad()
        else:
            model.zero_grad(set_to_none=zero == "none")
        for _ in range(parts):
            loss = loss_of(model, rank) if rank != absent else loss_of(lambda: model.u.reshape(-1), rank)
            scaler.scale(loss / parts).backward()
        if skipped is not None and rank == skipped[0] and attempt in skipped[1:]:
            model.v.grad[0] = math.inf
        if clip:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(opt)
        scaler.update()
        if decays is not None:
            decays.step()
    return outcome(opt) | {"steps": opt.steps_taken}


METHODS = {
    "STGT": stgt.STGT(tau=3),
    "LED": stgt.LED(tau=3),
    "Scaffold": stgt.Scaffold(tau=3),
    "Outer": stgt.Outer(stgt.STGT(tau=3, beta=0.25)),
}


def wide_data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """a, b of a longer quadratic: torch's kernels take another way in vectors of 32 numbers than in short ones."""
    rng = np.random.default_rng(rank)
    return rng.uniform(0.5, 1.0, 70), rng.uniform(1.0, 2.0, 70)


def precisions(dtype: str, bases: list[str], rounds: int, lr: float):
    """x and what is conserved after a few rounds, for each base and method; a ValueError's words."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    a, b = (torch.tensor(one, dtype=getattr(torch, dtype)) for one in wide_data(rank))
    found = {}
    for base, name in itertools.product(bases, METHODS):
        x = torch.nn.Parameter(torch.zeros_like(a))
        try:
            opt = DistributedOptimizer(
                base_of(base, [x], lr), METHODS[name], topology("static", nodes), model=None, chunk=32
            )
        except ValueError as error:
            found[f"{base} {name}"] = str(error)
            continue
        while opt.round < rounds:
            opt.zero_grad()
            (a * x.square() / 2 - b * x).sum().backward()
            opt.step()
        (bucket,) = opt.buckets
        conserved = opt.algorithm.conserved(bucket.state, 1.0)[: len(a)]
        found[f"{base} {name}"] = {"x": x.tolist(), "conserved": conserved.tolist()}
    return found


class Odd(torch.nn.Module):
    """A convolution, a tied weight, a frozen one in the optimiser, one outside, and one that is never used."""

    def __init__(self, memory_format, rank):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 4, 3, dtype=torch.float64)
        self.one = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
        self.two = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
        self.two.weight = self.one.weight
        self.frozen = torch.nn.Parameter(torch.full((3,), 2.0 + rank, dtype=torch.float64), requires_grad=False)
        self.outside = torch.nn.Parameter(torch.full((2,), 5.0 + rank, dtype=torch.float64), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.to(memory_format=memory_format)

    def forward(self, images):
        return self.two(torch.tanh(self.one(self.conv(images).mean(dim=(2, 3)))))


def odd(channels_last: bool, base: str, rounds: int = 4):
    """Trains the odd model; returns its parameters in logical order and what became of their layout."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    memory = torch.channels_last if channels_last else torch.contiguous_format
    model = Odd(memory, rank)
    trained = [parameter for name, parameter in model.named_parameters() if name != "outside"]
    opt = DistributedOptimizer(base_of(base, trained, 0.05), stgt.STGT(tau=2), topology("static", nodes), model=model)
    layouts = [model.conv.weight.is_contiguous(memory_format=memory)]
    images = torch.randn(5, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    while opt.round < rounds:
        opt.zero_grad()
        model(images.to(memory_format=memory)).square().mean().backward()
        opt.step()
    layouts.append(model.conv.weight.is_contiguous(memory_format=memory))
    values = {name: parameter.detach().reshape(-1).tolist() for name, parameter in model.named_parameters()}
    return {"values": values, "layouts": layouts, "tied": model.two.weight is model.one.weight}


def batch_norm(policy: str, graph: str = "static", **options):
    """Rounds of a model with BatchNorm whose inputs are constant at each node: what its buffers become."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, dtype=torch.float64), torch.nn.Linear(2, 1).double())
    opt = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), stgt.STGT(tau=2), topology(graph, nodes), model=model,
        buffers=policy, **options,
    )  # fmt: skip
    inputs = torch.full((4, 2), float(rank) * 100.0, dtype=torch.float64)
    after = []
    while opt.round < 2:
        opt.zero_grad()
        model(inputs).square().mean().backward()
        opt.step()
        if opt.taken == 0:
            after.append(model[0].running_mean.tolist())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with opt.averaged():
        inside = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    restored = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    found = opt.evaluate(lambda: model[1].weight[0, 0].item())
    own = {name: value.flatten().tolist() for name, value in before.items()}
    return {"after": after, "inside": inside, "own": own, "restored": restored, "evaluated": found}


def measured(name: str, graph: str, base: str, rounds: int, tau: int, chunk: int, folder: str = "", **options):
    """Trains, and returns the metrics with what they are computed from."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    writer = None
    if folder:
        from torch.utils.tensorboard import SummaryWriter

        options["logger"] = writer = SummaryWriter(f"{folder}/{rank}")
    opt = DistributedOptimizer(
        base_of(base, model.parameters(), 0.1),
        method(name, tau),
        topology(graph, nodes),
        model=model,
        chunk=chunk,
        **options,
    )
    active, moved = [], []
    while opt.round < rounds:
        worked, before = opt.active, gather(opt, "x")
        opt.zero_grad()
        loss_of(model, rank).backward()
        gradient = torch.cat([one.grad.reshape(-1) for one in model.parameters()]).tolist()
        opt.step()
        if opt.taken:  # inside a round
            active.append(worked)
            moved.append(before != gather(opt, "x"))
    found = opt.metrics()
    if writer is not None:
        writer.close()
    fields = ("x", *(name for name in opt.buckets[0].state if name != "x"))
    return {
        "metrics": found, "state": {field: gather(opt, field) for field in fields}, "gradient": gradient,
        "active": active, "moved": moved, "sizes": [bucket.size for bucket in opt.buckets],
    }  # fmt: skip


def summed(times: int):
    """How many more hold on to a tensor after a sum over all nodes than before, at most."""
    model = Quadratic()
    opt = DistributedOptimizer(base_of("sgd", model.parameters(), 0.1), stgt.STGT(tau=1), "complete", model=model)
    most = 0
    for _ in range(times):
        value = torch.zeros(4)
        before = value._use_count()
        opt.membership.sum(value)
        most = max(most, value._use_count() - before)
    return {"held": most}


def members():
    """What a membership says and does, without an optimiser: each node sends its rank to the next one."""
    mine = Membership("ring")
    everybody = mine.barrier("members()", mine.rank)
    mine.open_group()
    own, got = torch.tensor([float(mine.rank)]), torch.zeros(1)
    before, after = (mine.rank - 1) % mine.nodes, (mine.rank + 1) % mine.nodes
    mine.wait(mine.post([(SEND, own, after, 0), (RECEIVE, got, before, 0)], (before, after)), (before, after))
    return {
        "members": mine.members, "rank": mine.rank, "nodes": mine.nodes, "epoch": mine.epoch, "everybody": everybody,
        "received": got.item(), "sum": mine.sum(own.clone()).item(), "first": mine.broadcast(own + 5.0).item(),
        "gathered": [one.item() for one in mine.gather(own)],
    }  # fmt: skip


def ended_by_hand(counts: list[int], rounds: int):
    """Rounds that each node ends with opt.end_round() after its own number of steps, from loaders that run out."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    sgd, graph = base_of("sgd", model.parameters(), 0.1), topology("static", nodes)
    opt = DistributedOptimizer(sgd, stgt.STGT(tau=100), graph, model=model)
    seen = []
    for batch in opt.batches(list(range(1 + rank % 3)), rounds):
        seen.append(batch)
        opt.zero_grad()
        loss_of(model, rank).backward()
        opt.step()
        if opt.taken == counts[rank]:
            opt.end_round()
    return outcome(opt) | {"seen": seen, "round": opt.round}


def epochs(lengths: list[int], tau: int | list[int], count: int = 2, skipped: int = -1):
    """Epochs of loaders of these lengths, with a call of all nodes after each; node `skipped` skips its second step."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model, tau = Quadratic(), tau if isinstance(tau, int) else tau[rank]
    sgd, graph = base_of("sgd", model.parameters(), 0.1), topology("static", nodes)
    opt = DistributedOptimizer(sgd, stgt.STGT(tau=tau), graph, model=model)
    seen = []
    for _ in range(count):
        for batch in opt.batches(range(lengths[rank])):
            seen.append(batch)
            opt.zero_grad()
            loss_of(model, rank).backward()
            if not (rank == skipped and len(seen) == 2):
                opt.step()
        opt.evaluate(lambda: 1.0)
    return outcome(opt) | {"seen": seen, "stands": [opt.round, opt.taken]}


# -- checkpoints -------------------------------------------------------------------------------------------------


def stopping(
    folder: str, base: str, steps: list[int], load=False, save=False, extra=None, keep=2, anew=False, **options
):
    """Loads if told so, makes steps[rank] steps, saves if told so; returns all that the next step depends on."""
    made, opt = _started(base, **options)
    told = opt.load(folder, start_anew=anew) if load else None
    _walk(made, opt, steps[dist.get_rank()])
    if save:
        opt.save(folder, extra=extra, keep=keep)
    return _all_of(opt) | {"told": told}


def unbroken(folder: str, base: str, steps: list[int], more: list[int], **options):
    """The same steps without a stop; only the generator of the noise starts where the checkpoint left it."""
    rank = dist.get_rank()
    made, opt = _started(base, **options)
    _walk(made, opt, steps[rank])
    (path,) = Path(folder).glob(f"*/node-{rank:04d}.safetensors")
    with safe_open(str(path), framework="pt") as file:
        torch.set_rng_state(file.get_tensor("rng"))
    _walk(made, opt, more[rank])
    return _all_of(opt)


def bad_extra(folder: str):
    _, opt = _started("sgd")
    opt.save(folder, extra={"tensor": torch.zeros(1)})


def _started(base: str, name="STGT", tau: int | list[int] = 3, graph="static", model="quadratic", called="", **options):
    torch.manual_seed(dist.get_rank())
    made = Quadratic() if model == "quadratic" else torch.nn.Linear(2, 3).double()
    tau = tau if isinstance(tau, int) else tau[dist.get_rank()]
    graph = topology(graph, dist.get_world_size())
    inner = base_of(base, made.parameters(), 0.1)
    return made, DistributedOptimizer(inner, method(name, tau), graph, model=made, chunk=16, name=called, **options)


def _walk(made, opt: DistributedOptimizer, steps: int) -> None:
    for _ in range(steps):
        opt.zero_grad()
        noise = torch.randn(())  # the generator's state is a part of the checkpoint
        (loss_of(made, dist.get_rank()) * (1 + 0.1 * noise)).backward()
        opt.step()


def _all_of(opt: DistributedOptimizer) -> dict:
    entries = sorted(opt.base.state_dict()["state"].items())
    state = [
        [name, value.tolist()] for _, entry in entries for name, value in sorted(entry.items()) if value is not None
    ]
    done = {"round": opt.round, "taken": opt.taken, "steps": opt.steps_taken, "bytes": opt._exchange.bytes_sent}
    return {"state": outcome(opt), "base": state, **done}


# -- mistakes ----------------------------------------------------------------------------------------------------


def mistake(kind: str):
    """Does something wrong; a ValueError must say what."""
    rank = dist.get_rank()
    odd_one = rank == 3
    model = Quadratic()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def wrap(base=sgd, algorithm=None, graph="exponential", model=model, **options):
        return DistributedOptimizer(base, algorithm or stgt.STGT(tau=2), graph, model=model, **options)

    def step(opt):
        opt.zero_grad()
        loss_of(model, rank).backward()
        opt.step()

    def embed():
        table = torch.nn.Embedding(4, 3, sparse=True)
        opt = wrap(torch.optim.SGD(table.parameters(), lr=0.1), model=table)
        table(torch.tensor([1])).sum().backward()
        opt.step()

    def lookup(change, algorithm=None, base=sgd):
        opt = wrap(base, algorithm)
        change(opt)
        step(opt)

    W = np.roll(np.eye(8), 1, axis=1) / 2 + np.eye(8) / 2
    {
        "gamma": lambda: wrap(algorithm=stgt.STGT(gamma=0.1, tau=2)),
        "name": lambda: wrap(graph="rign"),
        "more": lambda: wrap(graph="grid"),
        "nodes": lambda: wrap(graph=stgt.topology.ring(5)),
        "LUGT": lambda: wrap(algorithm=stgt.LUGT(tau=2)),
        "AugDGM": lambda: wrap(algorithm=stgt.AugDGM()),
        "GTSAGA": lambda: wrap(algorithm=stgt.GTSAGA()),
        "Scaffold": lambda: wrap(algorithm=stgt.Scaffold(tau=2, option="I")),
        "mixing_steps": lambda: wrap(algorithm=stgt.FlexGT(tau=2, mixing_steps=2)),
        "LED AdamW": lambda: wrap(torch.optim.AdamW(model.parameters()), stgt.LED(tau=2)),
        "ProxSkip AdamW": lambda: wrap(torch.optim.AdamW(model.parameters()), stgt.ProxSkip(tau=2), "ring"),
        "LED momentum 1": lambda: wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=1.0), stgt.LED(tau=2)),
        "GTAdam momentum": lambda: wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), stgt.GTAdam()),
        "Outer LED AdamW": lambda: wrap(torch.optim.AdamW(model.parameters()), stgt.Outer(stgt.LED(tau=2))),
        "DiLoCo sampled": lambda: wrap(algorithm=stgt.DiLoCo(tau=2), graph=stgt.topology.server(8, sampled=4)),
        "Outer sampled": lambda: wrap(
            algorithm=stgt.Outer(stgt.ScaffoldPlus(tau=2)), graph=stgt.topology.server(8, sampled=4)
        ),
        "row": lambda: wrap(graph=stgt.topology.relay(8, 4)),
        "class": lambda: wrap(algorithm=stgt.STGT),
        "LBFGS": lambda: wrap(torch.optim.LBFGS(model.parameters())),
        "maximize": lambda: wrap(torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)),
        "optimizer": lambda: wrap(model),
        "dtype": lambda: wrap(message_dtype="int8"),
        "buffers": lambda: wrap(buffers="mean"),
        "sparse": embed,
        "integers": lambda: wrap(torch.optim.SGD([torch.zeros(3, dtype=torch.complex64)], lr=0.1), model=None),
        "model differs": lambda: wrap(torch.optim.SGD(list(model.parameters())[odd_one:], lr=0.1)),
        "algorithm differs": lambda: wrap(algorithm=stgt.DPSGD(tau=2) if odd_one else None),
        "topology differs": lambda: wrap(graph="ring" if odd_one else "exponential"),
        "weights differ": lambda: wrap(graph=stgt.topology.from_matrix(W.T if odd_one else W)),
        "early differs": lambda: wrap(early=odd_one),
        "optimizer differs": lambda: wrap(torch.optim.Adam(model.parameters()) if odd_one else sgd),
        "seed differs": lambda: wrap(seed=int(odd_one)),
        "tau of ProxSkip": lambda: wrap(algorithm=stgt.ProxSkip(tau=3 if odd_one else 2), graph="ring"),
        "warm missing": lambda: lookup(lambda opt: None, stgt.KGT(tau=2, warm_start=True)),
        "warm extra": lambda: wrap().warm_start(),
        "end first": lambda: wrap().end_round(),
        "rate 0": lambda: step(wrap(base_of("sgd", model.parameters(), 0.0), stgt.ProxSkip(tau=1), "ring")),
        "momentum later": lambda: lookup(lambda opt: sgd.param_groups[0].update(momentum=0.9)),
        "moved": lambda: lookup(lambda opt: model.double().float()),
        "frozen later": lambda: lookup(lambda opt: model.u.requires_grad_(False)),
        "unfrozen later": lambda: (
            model.u.requires_grad_(False),
            lookup(lambda opt: model.u.requires_grad_(True)),
        ),
        "group later": lambda: wrap().add_param_group({"params": [torch.zeros(1)]}),
        "empty loader": lambda: list(wrap().batches([], 1)),
        "one empty loader": lambda: list(wrap().batches([] if odd_one else [1, 2])),
        "endless loader": lambda: list(wrap().batches(itertools.count() if odd_one else [1, 2])),
        "early FlexGT": lambda: wrap(algorithm=stgt.FlexGT(tau=2), early=True),
        "early ATC": lambda: wrap(algorithm=stgt.DPSGD(tau=2, atc=True), early=True),
        "early FedAvg": lambda: wrap(algorithm=stgt.FedAvg(tau=2), graph="server", early=True),
        "early AdamW": lambda: wrap(torch.optim.AdamW(model.parameters()), early=True),
    }[kind]()


def warm(name: str, rounds: int, decay: float):
    """A method that starts from gradients."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    model = Quadratic()
    with torch.no_grad():
        model.v += 1.0  # a start at which weight decay counts
    graph = topology("server" if name == "Scaffold" else "static", nodes)
    base = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    opt = DistributedOptimizer(base, getattr(stgt, name)(tau=2, warm_start=True), graph, model=model)
    loss_of(model, rank).backward()
    opt.warm_start()
    while opt.round < rounds:
        opt.zero_grad()
        loss_of(model, rank).backward()
        opt.step()
    return outcome(opt)
