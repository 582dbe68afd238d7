"""Nothing that is not finite leaves a node: looking for it, and taking a round back."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stgt.torch.flat import Block

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer

_log = logging.getLogger("stgt")
POLICIES = ("stop", "skip")
PATIENCE = 10  # rounds in a row that a node may take back


class NonFiniteError(ArithmeticError):
    """A node's weights, gradients or buffers are not finite."""


def is_finite(value: Tensor) -> bool:
    """Are all numbers finite? One pass: a sum tells, unless it overflows by itself."""
    kind = torch.float32 if value.element_size() < 4 else value.dtype
    return bool(value.sum(dtype=kind).isfinite()) or bool(value.isfinite().all())


def first_nonfinite(named: Iterable[tuple[str, Tensor]]) -> str:
    """The name of the first tensor that is not finite, and what it holds; "" if all are."""
    for name, value in named:
        if value.is_floating_point() and not is_finite(value):
            return f"{name} is not finite ({'NaN' if value.isnan().any() else 'infinite'})"
    return ""


def in_blocks(opt: DistributedOptimizer, fields: Iterable[str]) -> str:
    """The same in the blocks' buffers of these names, such as "x": says the parameter."""
    for block in opt.blocks:
        for field, buffer in block.buffers.items():
            if field in fields and not is_finite(buffer):
                return first_nonfinite((name_of(opt, slot.parameter), slot.of(buffer)) for slot in block.slots)
    return ""


def before_sending(opt: DistributedOptimizer) -> str:
    """What of all that a round's message is made of is not finite; "" if all is."""
    found = in_blocks(opt, ("x", "first", "total"))
    if not found and "last" in opt.algorithm.reads:
        gradients = ((slot.parameter, slot.gradient()) for block in opt.blocks for slot in block.slots)
        found = first_nonfinite((f"the gradient of {name_of(opt, one)}", g) for one, g in gradients if g is not None)
    if not found and opt.buffers.mixes:
        found = first_nonfinite(opt.buffers.mixed.items())
    return found


def guard(opt: DistributedOptimizer) -> None:
    """Before anything is sent: stops the training, or takes the node's round back, if something is not finite."""
    found, rollback = before_sending(opt), opt._rollback
    if not found:
        if rollback is not None:
            rollback.in_a_row = 0
        return None
    words = f"rank {opt.rank}, round {opt.round}: {found}"
    if rollback is not None:
        rollback.in_a_row += 1
        if rollback.in_a_row <= PATIENCE:
            opt.rounds_skipped += 1
            _log.warning("%s; the node takes this round back and stands still in it", words)
            return rollback.restore()
        advice = f", for {rollback.in_a_row} rounds in a row: take a smaller lr."
    else:
        advice = "; nothing of it was sent: take a smaller lr, or on_nonfinite='skip' to leave such rounds out."
    error = NonFiniteError(words + advice)
    opt._watch.fail(error)
    raise error


def name_of(opt: DistributedOptimizer, parameter: Tensor) -> str:
    """The parameter's name in the model; its place in the optimiser where there is none."""
    named = () if opt.buffers.model is None else opt.buffers.model.named_parameters()
    for name, one in named:
        if one is parameter:
            return name
    everyone = [one for group in opt.param_groups for one in group["params"]]
    return f"parameter {next(i for i, one in enumerate(everyone) if one is parameter)}"


class Rollback:
    """What a round starts from, kept to go back to it: weights, the wrapped optimiser's state, the model's buffers."""

    def __init__(self, opt: DistributedOptimizer):
        self.opt = opt
        self.in_a_row = 0  # rounds taken back
        self._weights = [None if _start_of(block) is not None else torch.empty_like(block.x) for block in opt.blocks]
        self._base: dict[Any, dict[str, Any]] = {}
        self._buffers: dict[str, Tensor] = {}

    def keep(self) -> None:
        """A round begins."""
        for block, kept in zip(self.opt.blocks, self._weights, strict=True):
            if kept is not None:
                kept.copy_(block.x)
        self._base = {one: _copied(entries) for one, entries in self.opt.base.state.items()}
        self._buffers = {name: buffer.clone() for name, buffer in self.opt.buffers.all.items()}

    def restore(self) -> None:
        """The round counts as one whose every gradient was minus the correction, so that the node did not move.

        The method's sums over all nodes are thereby what they are in any other round.
        """
        opt = self.opt
        for block, kept in zip(opt.blocks, self._weights, strict=True):
            start = _start_of(block) if kept is None else kept
            assert start is not None
            block.x.copy_(start)
        for one in list(opt.base.state):
            if one in self._base:
                opt.base.state[one] = _copied(self._base[one])
            else:
                del opt.base.state[one]
        for name, buffer in opt.buffers.all.items():
            if not buffer.equal(self._buffers[name]):
                buffer.copy_(self._buffers[name])
        opt._steps.stand_still()


def _start_of(block: Block) -> Tensor | None:
    return None if block.state["x"] is block.x else block.state["x"]


def _copied(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in entries.items()}
