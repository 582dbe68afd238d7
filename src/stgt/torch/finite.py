"""No value that is not finite leaves a node: the checks before sending, and undoing a round."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stgt.torch.buckets import Bucket

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer

_log = logging.getLogger("stgt")
POLICIES = ("stop", "skip")
PATIENCE = 10  # rounds in a row that a node may undo


class NonFiniteError(ArithmeticError):
    """A node's weights, gradients or buffers are not finite."""


def is_finite(value: Tensor) -> bool:
    """Are all numbers finite? One pass over a sum, which is finite too unless it overflows."""
    kind = torch.float32 if value.element_size() < 4 else value.dtype
    return bool(value.sum(dtype=kind).isfinite()) or bool(value.isfinite().all())


def first_nonfinite(named: Iterable[tuple[str, Tensor]]) -> str:
    """Which tensor is the first that is not finite, and whether by NaN; "" if all are."""
    for name, value in named:
        if value.is_floating_point() and not is_finite(value):
            return f"{name} is not finite ({'NaN' if value.isnan().any() else 'infinite'})"
    return ""


def in_buckets(opt: DistributedOptimizer, fields: Iterable[str]) -> str:
    """The same for these tensors of the buckets, such as "x": names the parameter."""
    for bucket in opt.buckets:
        for field, buffer in bucket.tensors.items():
            if field in fields and not is_finite(buffer):
                return first_nonfinite((name_of(opt, slot.parameter), slot.of(buffer)) for slot in bucket.slots)
    return ""


def before_sending(opt: DistributedOptimizer) -> str:
    """What is not finite of all that a round's message is computed from; "" if all is."""
    found = in_buckets(opt, ("x", "first", "total"))
    if not found and "last" in opt.algorithm.reads:
        gradients = ((slot.parameter, slot.gradient()) for bucket in opt.buckets for slot in bucket.slots)
        found = first_nonfinite((f"the gradient of {name_of(opt, one)}", g) for one, g in gradients if g is not None)
    if not found and opt.buffers.mixes:
        found = first_nonfinite(opt.buffers.mixed.items())
    return found


def guard(opt: DistributedOptimizer) -> None:
    """Before anything is sent: stops the training, or undoes the node's round, if something is not finite."""
    found, rollback = before_sending(opt), opt._rollback
    if not found:
        if rollback is not None:
            rollback.in_a_row = 0
        return None
    place = f"rank {opt.rank}, round {opt.round}: {found}"
    if rollback is not None:
        rollback.in_a_row += 1
        if rollback.in_a_row <= PATIENCE:
            opt.rounds_skipped += 1
            _log.warning("%s; the node undoes this round and does not move in it", place)
            return rollback.restore()
        advice = f", for {rollback.in_a_row} rounds in a row: take a smaller lr."
    else:
        advice = "; nothing of it was sent: take a smaller lr, or on_nonfinite='skip' to leave such rounds out."
    error = NonFiniteError(place + advice)
    opt._detector.fail(error)
    raise error


def name_of(opt: DistributedOptimizer, parameter: Tensor) -> str:
    """The parameter's name in the model; its number in the optimiser if there is no model."""
    named = () if opt.buffers.model is None else opt.buffers.model.named_parameters()
    for name, one in named:
        if one is parameter:
            return name
    everyone = [one for group in opt.param_groups for one in group["params"]]
    return f"parameter {next(i for i, one in enumerate(everyone) if one is parameter)}"


class Rollback:
    """A copy of what a round starts from, to undo it: weights, the wrapped optimiser's state, the model's buffers."""

    def __init__(self, opt: DistributedOptimizer):
        self.opt = opt
        self.in_a_row = 0  # rounds undone
        self._weights = [
            None if _start_of(bucket) is not None else torch.empty_like(bucket.x) for bucket in opt.buckets
        ]
        self._base: dict[Any, dict[str, Any]] = {}
        self._buffers: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Copies the state at a round's start."""
        for bucket, kept in zip(self.opt.buckets, self._weights, strict=True):
            if kept is not None:
                kept.copy_(bucket.x)
        self._base = {one: _copied(entries) for one, entries in self.opt.base.state.items()}
        self._buffers = {name: buffer.clone() for name, buffer in self.opt.buffers.all.items()}

    def restore(self) -> None:
        """Undoes the round: it counts as one whose every gradient was minus the correction, so that nothing moved.

        So the method's sums over all nodes are conserved as in any other round.
        """
        opt = self.opt
        for bucket, kept in zip(opt.buckets, self._weights, strict=True):
            start = _start_of(bucket) if kept is None else kept
            assert start is not None
            bucket.x.copy_(start)
        for one in list(opt.base.state):
            if one in self._base:
                opt.base.state[one] = _copied(self._base[one])
            else:
                del opt.base.state[one]
        for name, buffer in opt.buffers.all.items():
            if not buffer.equal(self._buffers[name]):
                buffer.copy_(self._buffers[name])
        opt._steps.stand_still()


def _start_of(bucket: Bucket) -> Tensor | None:
    return None if bucket.state["x"] is bucket.x else bucket.state["x"]


def _copied(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in entries.items()}
