"""A node sends only finite values: the checks before sending, and undoing a round."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stgt.torch.buckets import Bucket
from stgt.torch.buffers import Buffers
from stgt.torch.local_steps import LocalSteps

_log = logging.getLogger("stgt")
POLICIES = ("stop", "skip")
PATIENCE = 10  # consecutive rounds that a node may undo


class NonFiniteError(ArithmeticError):
    """A node's weights, gradients or buffers are not finite."""


def is_finite(value: Tensor) -> bool:
    """Are all numbers finite? Their sum is checked first: it is finite too unless it overflows."""
    kind = torch.float32 if value.element_size() < 4 else value.dtype
    return bool(value.sum(dtype=kind).isfinite()) or bool(value.isfinite().all())


def first_nonfinite(named: Iterable[tuple[str, Tensor]]) -> str:
    """Describes the first tensor that is not finite; "" if all are."""
    for name, value in named:
        if value.is_floating_point() and not is_finite(value):
            return f"{name} is not finite ({'NaN' if value.isnan().any() else 'infinite'})"
    return ""


def in_buckets(buckets: Iterable[Bucket], fields: Iterable[str]) -> str:
    """The same for these tensors of the buckets, such as "x". It names the parameter."""
    for bucket in buckets:
        for field, buffer in bucket.tensors.items():
            if field in fields and not is_finite(buffer):
                return first_nonfinite((slot.name, slot.of(buffer)) for slot in bucket.slots)
    return ""


class Guard:
    """Checks a round before any of it is sent.

    Args:
        steps: the local steps.
        buffers: of the model.
        base: the wrapped optimiser.
        skips: is a round that is not finite undone, as if the node had not moved in it? For this it keeps a copy of
            each round's start: weights, the wrapped optimiser's state, the model's buffers.
    """

    def __init__(self, steps: LocalSteps, buffers: Buffers, base: torch.optim.Optimizer, skips: bool):
        self.steps, self.buffers, self.base, self.skips = steps, buffers, base, skips
        self._in_a_row = 0  # consecutive rounds undone
        self._weights: list[Tensor | None] = []  # None if the steps keep the round's start
        self._base: dict[Any, dict[str, Any]] = {}
        self._buffers: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Copies the state at the start of a round."""
        if not self.skips:
            return
        starts = [bucket.x if bucket.state["x"] is bucket.x else None for bucket in self.steps.buckets]
        if not self._weights:
            self._weights = [None if x is None else torch.empty_like(x) for x in starts]
        for x, kept in zip(starts, self._weights, strict=True):
            if x is not None and kept is not None:
                kept.copy_(x)
        self._base = {one: _copied(entries) for one, entries in self.base.state.items()}
        self._buffers = {name: buffer.clone() for name, buffer in self.buffers.all.items()}

    def find(self) -> str:
        """Describes what is not finite among the inputs of a round's message; "" if all are finite."""
        buckets = self.steps.buckets
        found = in_buckets(buckets, ("x", "first", "total"))
        if not found and "last" in self.steps.reads:
            gradients = ((slot.name, slot.gradient()) for bucket in buckets for slot in bucket.slots)
            found = first_nonfinite((f"the gradient of {name}", g) for name, g in gradients if g is not None)
        if not found and self.buffers.mixes:
            found = first_nonfinite(self.buffers.mixed.items())
        return found

    def undoes(self, place: str) -> bool:
        """Was a value not finite, and the round undone? If it cannot be undone: a NonFiniteError with the place."""
        found = self.find()
        if not found:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if not self.skips:
            advice = "; nothing of it was sent: use a smaller lr, or on_nonfinite='skip' to leave such rounds out."
            raise NonFiniteError(f"{place}: {found}{advice}")
        if self._in_a_row > PATIENCE:
            raise NonFiniteError(f"{place}: {found}, for {self._in_a_row} rounds in a row: use a smaller lr.")
        _log.warning("%s: %s; the node undoes this round and does not move in it", place, found)
        self._restore()
        return True

    def _restore(self) -> None:
        """Undoes the round: it counts as one whose gradients were all minus the correction, so that nothing moved.

        So it conserves the method's sums over all nodes like any other round.
        """
        for bucket, kept in zip(self.steps.buckets, self._weights, strict=True):
            bucket.x.copy_(bucket.state["x"] if kept is None else kept)
        for one in list(self.base.state):
            if one in self._base:
                self.base.state[one] = _copied(self._base[one])
            else:
                del self.base.state[one]
        for name, buffer in self.buffers.all.items():
            if not buffer.equal(self._buffers[name]):
                buffer.copy_(self._buffers[name])
        self.steps.stand_still()


def _copied(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in entries.items()}
