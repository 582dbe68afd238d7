"""What happens to a training's files: damage, loss, full disks, NaNs, two optimisers, torch.save."""

import copy
import logging
import math
import resource
from pathlib import Path

import torch
import torch.distributed as dist
from scenarios_use import _all_of, _started, _walk, base_of, loss_of

import stgt
from stgt.torch import DistributedOptimizer


def spoil(folder: str, node: int, how: str, steps: list[int] | None = None):
    """Does something to a node's files of all steps, or of these."""
    for here in Path(folder).glob("step-*") if dist.get_rank() == node else ():
        if steps is None or int(here.name.split("-")[1]) in steps:
            _spoil(here / f"node-{node:04d}", how)
    dist.barrier()


def _spoil(part: Path, how: str) -> None:
    data, mark = (part.with_suffix(f".{ending}") for ending in ("safetensors", "complete"))
    if how == "missing":
        data.unlink()
    elif how == "gone":
        data.unlink()
        mark.unlink()
    elif how == "truncated":
        data.write_bytes(data.read_bytes()[:-7])
    elif how == "nonsense":
        data.write_text("null")
    elif how == "flipped":
        content = bytearray(data.read_bytes())
        content[-1] ^= 1
        data.write_bytes(content)
    elif (
        how == "killed"
    ):  # as it was before the node was done: a temporary file, and nobody knows that all have written
        mark.unlink()
        data.rename(data.with_name(f".{data.stem}-abcdefgh.safetensors"))
    elif how == "unmarked":
        mark.unlink()


def load_and_listen(folder: str, **arguments):
    """What load says and what goes to the log."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append([record.levelname, record.getMessage()])
    logger = logging.getLogger("stgt")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        _, opt = _started("sgd")
        return {"told": opt.load(folder, **arguments), "log": lines, "round": opt.round}
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def failing_save(folder: str, node: int, how: str, base: str = "adamw"):
    """Saves, makes more steps, and saves again when one node cannot: its disk is full or something is not finite."""
    made, opt = _started(base)
    _walk(made, opt, 4)
    opt.save(folder, extra="first")
    mine = dist.get_rank() == node
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how in ("full", "full at the same step"):
        _walk(made, opt, 0 if how.endswith("step") else 2)
        if mine:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a write beyond it fails
    else:
        _walk(made, opt, 2)
        if mine:
            entries = opt.base.state[made.u]
            where = {"x": opt.buckets[0].x, "c": opt.buckets[0].state.get("c"), "moment": entries.get("exp_avg")}[how]
            where.view(-1)[1] = math.nan if how == "c" else math.inf
    try:
        opt.save(folder, extra="second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def masked(folder: str):
    """A model whose mask of −inf is a buffer: saved and loaded."""
    found = []
    for load in (False, True):
        model = torch.nn.Linear(2, 1).double()
        model.register_buffer("mask", torch.full((2,), 0.0 if load else -math.inf))
        model.register_buffer("counts", torch.tensor([3]))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        opt = DistributedOptimizer(sgd, stgt.STGT(tau=3), "ring", model=model, buffers="local")
        if load:
            opt.load(folder)
        else:
            opt.save(folder)
        found.append(model.mask.tolist())
        del opt
    return found


def two(folder: str, names: list[str]):
    """Two optimisers of one process, the second with half as many steps: saved three times, loaded by two others."""
    pairs = [_started("momentum", called=name) for name in names]
    for _ in range(3):
        for number, (made, opt) in enumerate(pairs):
            _walk(made, opt, 4 - 2 * number)
            opt.save(folder, keep=1)
    before = [_all_of(opt) for _, opt in pairs]
    del made, opt, pairs
    pairs = [_started("momentum", called=name) for name in names]
    told = [opt.load(folder) for _, opt in pairs]
    return {"before": before, "after": [_all_of(opt) for _, opt in pairs], "steps": [one["steps"] for one in told]}


def one_after_another(folder: str):
    """An optimiser whose predecessor is gone, if only the garbage collector knows it, may use its folder."""
    for number in range(3):
        _, opt = _started("sgd")
        assert (opt.load(folder) is None) == (number == 0)
        opt.save(folder)
        opt.myself = opt
    return opt.steps_taken


# -- state_dict ---------------------------------------------------------------------------------------------------


def framework(folder: str, base: str, model_first: bool, steps: int = 10, more: int = 9, **options):
    """Keeps both state_dicts with torch.save, as frameworks do, and goes on twice: here, and in a new optimiser."""
    rank, found = dist.get_rank(), []
    made, opt = _started(base, **options)
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))  # Accelerate does so before anything else
    decays = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
    _walk(made, opt, steps)
    decays.step()
    path = Path(folder) / f"{rank}.pt"
    torch.save({"model": made.state_dict(), "opt": opt.state_dict(), "decays": decays.state_dict()}, path)
    for number in range(2):
        if number:
            made, opt = _started(base, **options)
            decays = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
            state = torch.load(path, weights_only=True)
            for key in ("model", "opt") if model_first else ("opt", "model"):
                {"model": made, "opt": opt}[key].load_state_dict(state[key])
            decays.load_state_dict(state["decays"])
        torch.manual_seed(100 + rank)
        _walk(made, opt, more)
        decays.step()
        _walk(made, opt, 2)
        found.append(_all_of(opt) | {"lr": opt.param_groups[0]["lr"], "active": opt.active})
    return found


def wrong_state(kind: str, folder: str):
    """Loads a state_dict that does not fit."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    made, opt = _started("momentum")
    _walk(made, opt, 4)
    before = _all_of(opt)
    state = copy.deepcopy(opt.state_dict())
    if kind == "rank":
        torch.save(state, Path(folder) / f"{rank}.pt")
        dist.barrier()
        state = torch.load(Path(folder) / f"{(rank + 2) % nodes}.pt", weights_only=True)
    elif kind == "plain":
        del state["stgt"]
    elif kind == "nodes":
        state["stgt"]["nodes"] = 4
    elif kind == "lacking":
        del state["stgt"]["buffers"][0]["state.c"]
    elif kind == "format":
        state["stgt"]["format"] = 7
    else:
        other = {"algorithm": {"name": "DPSGD"}, "topology": {"graph": "one-peer"}, "name": {"called": "d"}}[kind]
        _, opt = _started("momentum", **other)
        before = _all_of(opt)
    try:
        opt.load_state_dict(state)
    finally:
        assert _all_of(opt) == before  # what is refused changes nothing


def plain_state(base: str):
    """A plain optimiser's state is taken over before the first step."""
    made, opt = _started(base)
    alone = copy.deepcopy(made)
    inner = base_of(base, alone.parameters(), 0.02)
    for _ in range(3):
        inner.zero_grad()
        loss_of(alone, 0).backward()
        inner.step()
    opt.load_state_dict(inner.state_dict())
    entries = zip(alone.parameters(), made.parameters(), strict=True)
    same = [torch.equal(inner.state[a][key], opt.state[b][key]) for a, b in entries for key in inner.state[a]]
    return {"same": same, "lr": opt.param_groups[0]["lr"], "round": opt.round}
