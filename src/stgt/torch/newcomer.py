"""How a change of the members affects the method: Σ_i c_i = 0 is restored, and a newcomer receives a model.

At a fixed point ∇f_V(x∞) = −(Σ_V c_i)/|V| over the members V. So whatever c was lost with a node, the projection
c_i ← c_i − mean of c leads to the minimiser over the current members. A node that leaves in an orderly way needs
nothing else: to distribute its c in equal shares is the same projection.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stgt._internal.checks import InputError
from stgt.algorithms import RoundSpec
from stgt.torch.buckets import Bucket, slices_of
from stgt.torch.membership import Membership
from stgt.torch.run_state import Trained, pack, unpack
from stgt.torch.transfer import send


def zero_sums(spec: RoundSpec) -> list[str]:
    """The variables whose sum over the members is 0."""
    return [one.name for one in spec.state if one.zero_sum]


@torch.no_grad()
def restore_sums(membership: Membership, buckets: list[Bucket], spec: RoundSpec, chunk: int) -> None:
    """c_i ← c_i − mean of c over the members; all of them must call it."""
    for name in zero_sums(spec):
        for bucket in buckets:
            for part in slices_of(bucket.size, chunk):
                c = bucket.state[name][part]
                c.sub_(membership.sum(c.clone()), alpha=1.0 / membership.nodes)


def send_model(
    membership: Membership,
    trained: Trained,
    frozen: Callable[[], list[Tensor]],
    state: Callable[[], dict[str, Any]],
    extra: Any,
) -> None:
    """Sends this node's state to the newcomers that wait for it."""
    for address, attempt in membership.asked():
        tensors: dict[str, Tensor] = {}
        base = pack(trained.base.state_dict(), "base", tensors)
        kept = _handed_on(trained)
        for number, bucket in enumerate(trained.buckets):
            tensors[f"bucket.{number}.x"] = bucket.x
            tensors |= {f"bucket.{number}.{name}": bucket.state[name] for name in kept}
        tensors |= {f"buffer.{name}": buffer for name, buffer in trained.buffers.all.items()}
        tensors |= {f"frozen.{number}": one for number, one in enumerate(frozen())}
        header = {"base": base, "state": state(), "run": membership.run, "extra": extra() if callable(extra) else extra}
        send(address, attempt, str(membership.rank), header, tensors)


@torch.no_grad()
def receive_model(
    membership: Membership, trained: Trained, frozen: list[Tensor], signature: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Receives a member's state, with c = 0. Returns its counters, and the `extra` of its checkpoints."""
    header, tensors = membership.receive_model()
    for what, value in json.loads(json.dumps(signature)).items():
        if value != header["state"]["signature"].get(what):
            raise InputError(what, hint=" differs from that of the members: give all nodes the same.")
    trained.base.load_state_dict(unpack(header["base"], tensors.__getitem__))
    kept = _handed_on(trained)
    for number, bucket in enumerate(trained.buckets):
        bucket.x.copy_(tensors[f"bucket.{number}.x"])
        for name, value in bucket.state.items():
            if name == "x":
                value.copy_(bucket.x)
            else:
                value.copy_(tensors[f"bucket.{number}.{name}"]) if name in kept else value.zero_()
    for name, buffer in trained.buffers.all.items():
        buffer.copy_(tensors[f"buffer.{name}"])
    for number, one in enumerate(frozen):
        one.copy_(tensors[f"frozen.{number}"])
    membership.ready(header["run"])
    return header["state"], header["extra"]


def _handed_on(trained: Trained) -> list[str]:
    """The variables, other than x, that a newcomer receives. All others are 0 there."""
    spec = trained.method.spec
    return [name for name in spec.state_fields if name != "x" and name not in zero_sums(spec)]
