"""The state of a run: what checkpoints and `state_dict` hold of an optimiser, and whether that fits another one."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer

KEY, FORMAT = "stgt", 1
_log = logging.getLogger("stgt")


def run_state(opt: DistributedOptimizer) -> dict[str, Any]:
    """The counters and the signature of an optimiser: what JSON can hold."""
    return {
        "node": opt.rank,
        "nodes": opt.nodes,
        "signature": json.loads(json.dumps(opt._signature())),  # as a file returns it
        "round": opt.round,
        "taken": opt.taken,
        "steps_taken": opt.steps_taken,
        "lr_sum": [bucket.lr_sum for bucket in opt.buckets],
        "warm": opt._warm,
        "rounds_skipped": opt.rounds_skipped,
        "moving": opt.buffers.agreed,
        "bytes_sent": opt._exchange.bytes_sent,
        "seconds_computing": opt.seconds_computing,
        "seconds_exchanging": opt._exchange.seconds,
        "seconds_waiting": opt._exchange.seconds_waiting,
    }


def restore_run_state(opt: DistributedOptimizer, saved: dict[str, Any]) -> None:
    """Sets the counters to those of `run_state`, and opens the round that they were taken in."""
    opt.round, opt.taken, opt.steps_taken, opt._warm = (
        saved["round"], saved["taken"], saved["steps_taken"], saved["warm"],
    )  # fmt: skip
    for bucket, lr_sum in zip(opt.buckets, saved["lr_sum"], strict=True):
        bucket.lr_sum = lr_sum
    opt.seconds_computing, opt.rounds_skipped = saved["seconds_computing"], saved["rounds_skipped"]
    opt.buffers.restore(saved["moving"])
    exchange = opt._exchange
    exchange.bytes_sent, exchange.seconds = saved["bytes_sent"], saved["seconds_exchanging"]
    exchange.seconds_waiting = saved["seconds_waiting"]
    opt._open_round()


def mismatch(opt: DistributedOptimizer, saved: dict[str, Any], what: str, otherwise: str) -> str | None:
    """A sentence if the saved state is of another run, else None.

    Args:
        saved: what `run_state` returned.
        what: its name for the message.
        otherwise: what else the user can do.
    """
    if saved["nodes"] != opt.nodes:
        return f"{what} was written by {saved['nodes']} nodes, but {opt.nodes} run: start as many."
    mine = run_state(opt)["signature"]
    for name, value in mine.items():
        if value != saved["signature"][name]:
            return f"{what} was written with another {name}: give the same, or {otherwise}."
    if saved["node"] != opt.rank:
        return f"{what} was written by rank {saved['node']}, and this is rank {opt.rank}: give each node its own."
    return None


def state_dict(opt: DistributedOptimizer) -> dict[str, Any]:
    """The wrapped optimiser's state under its own keys, and this node's share of the algorithm's under "stgt".

    The tensors are the living ones, as torch's own are. The model's parameters are not among them, but in the model's
    state_dict: either may be loaded first.
    """
    if opt.nodes > 1 and opt.rank == 0 and not opt._warned_of_state:
        opt._warned_of_state = True
        _log.warning(
            "opt.state_dict() is rank 0's share of the state alone: every node has to save its own and load it again, "
            "or all call opt.save(folder) instead"
        )
    buffers = [{name: value for name, value in bucket.tensors.items() if name != "x"} for bucket in opt.buckets]
    return {**opt.base.state_dict(), KEY: {"format": FORMAT, **run_state(opt), "buffers": buffers}}


def load_state_dict(opt: DistributedOptimizer, given: dict[str, Any]) -> None:
    """Takes over what `state_dict` gave, or before the first step a plain optimiser's state; else a ValueError."""
    saved = given.get(KEY)
    if saved is None:
        if opt.steps_taken:
            raise ValueError(
                f"the state_dict has no {KEY!r} entry, as that of a plain torch optimiser, and {opt.steps_taken} steps "
                "are made: load it before the first step, or give what opt.state_dict() returned."
            )
        opt.base.load_state_dict(given)
        return
    if saved["format"] != FORMAT:
        raise ValueError(
            f"the state_dict has format {saved['format']}, and this stgt reads {FORMAT}: use the stgt that wrote it."
        )
    problem = mismatch(opt, saved, "the state_dict", "start a new run")
    if problem is not None:
        raise ValueError(problem)
    places = [
        (buffer, kept.get(name))
        for bucket, kept in zip(opt.buckets, saved["buffers"], strict=True)
        for name, buffer in bucket.tensors.items()
        if name != "x"
    ]
    if any(not isinstance(value, Tensor) or value.shape != buffer.shape for buffer, value in places):
        raise ValueError("the state_dict lacks some of the algorithm's buffers: give what opt.state_dict() returned.")
    opt.base.load_state_dict({name: value for name, value in given.items() if name != KEY})
    with torch.no_grad():
        for buffer, value in places:
            buffer.copy_(value)
    restore_run_state(opt, saved)


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold of a value in an optimiser's state; its tensors go to `tensors` by name."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[pack(key, name, {}), pack(one, f"{name}.{key}", tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        packed = [pack(one, f"{name}.{number}", tensors) for number, one in enumerate(value)]
        return packed if isinstance(value, list) else {"tuple": packed}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{name.removeprefix('nested.')} of the optimiser's state is of type {type(value).__name__}: use tensors, "
        "numbers, words, None, and lists, tuples and dicts of these, which a checkpoint can hold."
    )


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `pack` was given."""
    if isinstance(value, list):
        return [unpack(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {unpack(key, tensors): unpack(one, tensors) for key, one in held}
    return tuple(unpack(one, tensors) for one in held)
