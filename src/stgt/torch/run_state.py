"""The state of a run: what checkpoints and `state_dict` contain of a node, and whether it fits another node."""

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
OF_NODES = ("topology", "weights")  # the entries of the signature that depend on the number of nodes


class Trained(NamedTuple):
    """A node's tensors: those of the wrapped optimiser and the algorithm, and the model's buffers."""

    base: torch.optim.Optimizer
    buckets: list[Bucket]
    buffers: Buffers
    method: Checked


def raise_first(problems: Iterable[str | None]) -> None:
    """Stops all nodes with the first node's problem, if there is one."""
    for problem in problems:
        if problem is not None:
            raise ValueError(problem)


def other_run(state: dict[str, Any], saved: dict[str, Any], what: str, otherwise: str) -> str | None:
    """An error message if the saved state has another signature, else None.

    Args:
        state: of this node: the number of all nodes, and the signature.
        saved: the same from a file; another number of nodes may have had another topology.
        what: its name for the message.
        otherwise: what else the user can do.
    """
    apart = OF_NODES if saved["nodes"] != state["nodes"] else ()
    for name, value in state["signature"].items():
        if name not in apart and value != saved["signature"][name]:
            return f"{what} was written with another {name}: give the same, or {otherwise}."
    return None


def mismatch(state: dict[str, Any], saved: dict[str, Any], what: str, otherwise: str) -> str | None:
    """An error message if the saved state is not this node's of this run, else None; the arguments of `other_run`."""
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

    The tensors are not copies, as in torch. The model's parameters are not included: the model's state_dict has them.
    Either may be loaded first.
    """
    buffers = [{name: value for name, value in bucket.tensors.items() if name != "x"} for bucket in trained.buckets]
    return {**trained.base.state_dict(), KEY: {"format": FORMAT, **state, "buffers": buffers}}


def load_state_dict(trained: Trained, state: dict[str, Any], given: dict[str, Any]) -> dict[str, Any] | None:
    """Loads the result of `state_dict` and returns its counters; a ValueError if that is impossible.

    Before the first step it also loads a plain optimiser's state, and returns None.
    """
    saved = given.get(KEY)
    if saved is None:
        if state["steps_taken"]:
            raise ValueError(
                f"the state_dict has no {KEY!r} entry, like that of a plain torch optimiser, but "
                f"{state['steps_taken']} steps are done: load it before the first step, or give what opt.state_dict() "
                "returned."
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
    """A value of an optimiser's state as JSON; its tensors are added to `tensors` by name."""
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
        "numbers, strings, None, and lists, tuples and dicts of these, which a checkpoint can contain."
    )


def unpack(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The inverse of `pack`; `tensor` returns a tensor by its name."""
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
