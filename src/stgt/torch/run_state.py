"""The state of a run: what checkpoints and `state_dict` hold of a node, and whether that fits another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stgt.algorithms.calls import Checked
from stgt.torch.buckets import Bucket
from stgt.torch.buffers import Buffers

KEY, FORMAT = "stgt", 1
COUNTERS = ("round", "taken", "steps_taken", "rounds_skipped", "seconds_computing")
EXCHANGE_COUNTERS = ("bytes_sent", "seconds_exchanging", "seconds_waiting")
OF_NODES = ("topology", "weights")  # what of the signature belongs to a number of nodes


class Trained(NamedTuple):
    """The tensors of a node: those of the wrapped optimiser, of the algorithm, and the model's buffers."""

    base: torch.optim.Optimizer
    buckets: list[Bucket]
    buffers: Buffers
    method: Checked


def raise_first(problems: Iterable[str | None]) -> None:
    """All nodes stop with the first node's problem, if there is one."""
    for problem in problems:
        if problem is not None:
            raise ValueError(problem)


def other_run(state: dict[str, Any], saved: dict[str, Any], what: str, otherwise: str) -> str | None:
    """A sentence if the saved state has another signature, else None.

    Args:
        state: of this node: the number of all nodes, and the signature.
        saved: the same of a file; another number of nodes may have had another topology.
        what: its name for the message.
        otherwise: what else the user can do.
    """
    apart = OF_NODES if saved["nodes"] != state["nodes"] else ()
    for name, value in state["signature"].items():
        if name not in apart and value != saved["signature"][name]:
            return f"{what} was written with another {name}: give the same, or {otherwise}."
    return None


def mismatch(state: dict[str, Any], saved: dict[str, Any], what: str, otherwise: str) -> str | None:
    """A sentence if the saved state is not this node's of this run, else None; the arguments are `other_run`'s."""
    if saved["nodes"] != state["nodes"]:
        return (
            f"{what} was written by {saved['nodes']} nodes, but {state['nodes']} run: start as many, or use opt.save "
            "and opt.load, which takes a checkpoint of any number."
        )
    problem = other_run(state, saved, what, otherwise)
    if problem is not None:
        return problem
    if saved["node"] != state["node"]:
        return f"{what} was written by rank {saved['node']}, and this is rank {state['node']}: give each node its own."
    return None


def state_dict(trained: Trained, state: dict[str, Any]) -> dict[str, Any]:
    """The wrapped optimiser's state under its own keys, and this node's share of the algorithm's under "stgt".

    The tensors are the living ones, as torch's own are. The model's parameters are not among them, but in the model's
    state_dict: either may be loaded first.
    """
    buffers = [{name: value for name, value in bucket.tensors.items() if name != "x"} for bucket in trained.buckets]
    return {**trained.base.state_dict(), KEY: {"format": FORMAT, **state, "buffers": buffers}}


def load_state_dict(trained: Trained, state: dict[str, Any], given: dict[str, Any]) -> dict[str, Any] | None:
    """Takes over what `state_dict` gave, and returns its numbers; else a ValueError.

    None before the first step for a plain optimiser's state, which is taken over as well.
    """
    saved = given.get(KEY)
    if saved is None:
        if state["steps_taken"]:
            raise ValueError(
                f"the state_dict has no {KEY!r} entry, as that of a plain torch optimiser, and {state['steps_taken']} "
                "steps are made: load it before the first step, or give what opt.state_dict() returned."
            )
        trained.base.load_state_dict(given)
        return None
    if saved["format"] != FORMAT:
        raise ValueError(
            f"the state_dict has format {saved['format']}, and this stgt reads {FORMAT}: use the stgt that wrote it."
        )
    problem = mismatch(state, saved, "the state_dict", "start a new run")
    if problem is not None:
        raise ValueError(problem)
    places = [
        (buffer, kept.get(name))
        for bucket, kept in zip(trained.buckets, saved["buffers"], strict=True)
        for name, buffer in bucket.tensors.items()
        if name != "x"
    ]
    if any(not isinstance(value, Tensor) or value.shape != buffer.shape for buffer, value in places):
        raise ValueError("the state_dict lacks some of the algorithm's buffers: give what opt.state_dict() returned.")
    trained.base.load_state_dict({name: value for name, value in given.items() if name != KEY})
    with torch.no_grad():
        for buffer, value in places:
            buffer.copy_(value)
    return saved


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold of a value in an optimiser's state; its tensors go to `tensors` by name."""
    if isinstance(value, Tensor):
        while name in tensors:  # keys may have dots
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[pack(key, name, {}), pack(one, f"{name}.{key}", tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        packed = [pack(one, f"{name}.{number}", tensors) for number, one in enumerate(value)]
        return packed if isinstance(value, list) else {"tuple": packed}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{name.removeprefix('base.')} of the optimiser's state is of type {type(value).__name__}: use tensors, "
        "numbers, words, None, and lists, tuples and dicts of these, which a checkpoint can hold."
    )


def unpack(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The value that `pack` was given; `tensor` finds a tensor by its name."""
    if isinstance(value, list):
        return [unpack(one, tensor) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensor(held)
    if kind == "dict":
        return {unpack(key, tensor): unpack(one, tensor) for key, one in held}
    return tuple(unpack(one, tensor) for one in held)
