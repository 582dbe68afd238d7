"""One node's local steps and the chunks that it exchanges, computed with the algorithm's own four functions."""

# torch.optim itself uses torch._foreach_… and torch._fused_sgd_.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stgt._internal.checks import InputError
from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import Checked
from stgt.torch.buckets import PIECE, RING, Bucket, Slot, is_reduced, wide


def gain(group: dict[str, Any]) -> float:
    """The total distance of SGD with momentum for one gradient, over all later steps, in multiples of lr."""
    return (1.0 - group["dampening"]) / (1.0 - group["momentum"])


class _Segment:
    """A part of a bucket, and views of its parameters. They are made once: a view costs as much as an operation."""

    def __init__(self, method: Checked, bucket: Bucket, part: slice, places: list[slice]):
        self.x, self.state = bucket.x[part], method.readable(_cut(bucket.state, part))
        self._places = [] if places == [slice(0, len(self.x))] else places
        self._views: dict[int, list[Tensor]] = {}
        self._views = {id(value): self.split(value) for value in self.state.values()}
        self.xs = self.split(self.x)
        self.first = None if bucket.first is None else self.split(bucket.first[part])
        self.total = None if bucket.total is None else self.split(bucket.total[part])

    def split(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector of the segment's length, one for each parameter."""
        return self._views.get(id(vector)) or [vector[place] for place in self._places] or [vector]


class LocalSteps:
    """The local steps of a node on all its buckets.

    Args:
        plain: is the base optimiser x ← x − lr (g + weight_decay · x)? Then the steps are computed here, and the
            round's mean direction is (start − end)/(sum of the stepsizes). Otherwise the optimiser computes them, and
            the corrected gradients are summed in a separate buffer.
        guarded: must a gradient that is not finite leave the corrections unchanged?
    """

    def __init__(self, algorithm: Algorithm, buckets: list[Bucket], plain: bool, guarded: bool = False):
        self.method, self.buckets, self.plain, self.guarded = Checked(algorithm), buckets, plain, guarded
        self.reads = reads = self.method.spec.reads
        keeps_start = "start" in reads or (plain and "direction" in reads)
        sums = not plain and "direction" in reads
        self.divides = not plain and "gamma" in reads
        self.share_made = 1.0  # the share of tau steps that this node did in the round
        self._scratch: dict[Any, Tensor] = {}
        self.corrected = False  # do the gradients contain the corrections now?
        self._last: list[tuple[Any, int] | None] = []  # the last step's gradients, and their versions
        self._zero_gradients: list[Slot] = []  # slots that have a gradient only for the base optimiser's step
        for bucket in buckets:
            x = wide(bucket.x)  # everything except the model itself is kept in float32 at least
            warm = self.method.spec.needs_initial_gradient  # the first gradients are not available yet
            state = dict.fromkeys(self.method.spec.state_fields, 0 * x) if warm else self.method.init(x)
            bucket.state = _unshared({**state, "x": bucket.x.clone() if keeps_start else bucket.x}, bucket.x)
            bucket.first = torch.zeros_like(bucket.x) if "first" in reads else None
            bucket.total = torch.zeros_like(x) if sums else None
        self._segments = self._make_segments(PIECE)
        self._joined = not plain  # has the length of the segments been chosen?

    def _make_segments(self, length: int) -> list[list[_Segment]]:
        return [[_Segment(self.method, one, *place) for place in one.segments(length)] for one in self.buckets]

    def apply(self, groups: list[dict[str, Any]], first: bool) -> None:
        """One local step x ← x − lr (g + correction), or its corrected gradients for the base optimiser.

        A parameter without a gradient has no weight decay either: only its correction changes it.
        """
        made = False  # is some correction a new tensor, and not part of the state?
        for bucket, segments in zip(self.buckets, self._segments, strict=True):
            group = groups[bucket.group]
            rate, bucket.decay = float(group["lr"]), float(group.get("weight_decay", 0.0)) if self.plain else 0.0
            bucket.lr_sum += rate * gain(group) if self.divides else rate
            if not self.plain:
                self._add_zero_gradients(bucket)
            if "last" in self.reads and bucket.decay:
                bucket.keep_last()
            else:
                bucket.final = None
            gradients, used = bucket.gradients(), 0
            for views in segments:
                here, used = slice(used, used + len(views.xs)), used + len(views.xs)
                c = self.method.correction(views.state, wide(views.x))
                corrections = views.split(c) if isinstance(c, Tensor) else None
                made = made or is_reduced(views.x)
                made = made or (corrections is not None and not any(c is kept for kept in views.state.values()))
                lists = views.xs, gradients[here], corrections, views.first, views.total
                for xs, g, cs, firsts, totals in _by_gradient(lists):
                    if first and firsts is not None:
                        torch._foreach_zero_(firsts) if g is None else torch._foreach_copy_(firsts, g)
                        if bucket.decay and g is not None:
                            torch._foreach_add_(firsts, xs, alpha=bucket.decay)
                    if self.plain:
                        _move(xs, g, cs, rate, bucket.decay, not self.guarded)
                        continue
                    if cs is not None and g is not None:
                        torch._foreach_add_(g, cs)
                    if totals is not None and g is not None:
                        torch._foreach_copy_(totals, g) if first else torch._foreach_add_(totals, g)
                    elif totals is not None and first:
                        torch._foreach_zero_(totals)
        self.corrected = not self.plain
        if not self._joined:
            self._joined = True
            if not made:  # without temporaries one operation over the whole bucket is the fastest
                self._segments = self._make_segments(max(bucket.size for bucket in self.buckets))

    def last(self, bucket: Bucket, part: slice) -> Tensor:
        """The round's last gradient without its correction, in a part of a bucket.

        If the method reads it, its weight decay is that of the model where it was computed, else of the current model.
        """
        if bucket.final is not None:
            return bucket.final[part].clone()
        found = bucket.last(part)
        correction = self._correction(bucket, part) if self.corrected else None
        for where, _ in bucket.present(part):
            if bucket.decay:
                found[where].add_(bucket.x[part][where], alpha=bucket.decay)
            if isinstance(correction, Tensor):
                found[where].sub_(correction[where])
        return found

    def _add_zero_gradients(self, bucket: Bucket) -> None:
        """Gives parameters with a correction but without a gradient a zero gradient: the base would skip them."""
        for slot in bucket.slots:
            if slot.parameter.grad is None:
                correction = self._correction(bucket, slice(slot.offset, slot.offset + slot.size))
                if isinstance(correction, Tensor) and bool(correction.any()):
                    slot.parameter.grad = torch.zeros_like(slot.parameter)
                    self._zero_gradients.append(slot)

    def scratch(self, number: int, like: Tensor) -> Tensor:
        """Memory for a chunk's direction, reused RING chunks later: new memory costs more than the arithmetic."""
        key = (number % RING, like.dtype, like.device)
        if key not in self._scratch or self._scratch[key].numel() < like.numel():
            self._scratch[key] = torch.empty_like(like)
        return self._scratch[key][: like.numel()]

    def record_gradients(self) -> None:
        """Records which gradients are the last step's, and removes the zero gradients that were added for it."""
        while self._zero_gradients:
            self._zero_gradients.pop().parameter.grad = None
        gradients = [slot.parameter.grad for bucket in self.buckets for slot in bucket.slots]
        self._last = [None if one is None else (weakref.ref(one), one._version) for one in gradients]

    @property
    def has_gradients(self) -> bool:
        """Are the gradients still those of the last step? zero_grad() or another backward() changes them."""
        gradients = [slot.parameter.grad for bucket in self.buckets for slot in bucket.slots]
        return len(self._last) == len(gradients) and all(
            last is None if one is None else last is not None and last[0]() is one and last[1] == one._version
            for one, last in zip(gradients, self._last, strict=True)
        )

    def check_round(self) -> None:
        """A ValueError if the method cannot end the round."""
        label, reads = self.method.label, self.reads
        if "gamma" in reads and any(bucket.lr_sum == 0 for bucket in self.buckets):
            raise InputError("lr", 0, f" for a whole round: {label} divides by it; start a warm-up above 0.")
        if "last" in reads and not self.has_gradients:
            raise ValueError(f"end_round() after zero_grad(): {label} reads the last gradients; call it before.")

    def stand_still(self, groups: list[dict[str, Any]] | None = None) -> None:
        """Makes the round one whose gradients were all minus the correction; the weights were restored before.

        With `groups` the node has made no steps, and counts as if it had made tau steps with these groups' stepsizes.
        """
        for bucket in self.buckets:
            if groups is not None:
                group = groups[bucket.group]
                bucket.lr_sum = self.method.tau * float(group["lr"]) * (gain(group) if self.divides else 1.0)
            if bucket.total is not None:
                bucket.total.zero_()
            bucket.final, bucket.decay = None, 0.0
            for slot in bucket.slots:
                part = slice(slot.offset, slot.offset + slot.size)
                correction = self._correction(bucket, part)
                if slot.parameter.grad is None and "last" in self.reads:
                    slot.parameter.grad = torch.zeros_like(slot.parameter)
                for place in (slot.gradient(), None if bucket.first is None else bucket.first[part]):
                    if place is not None:
                        place.zero_().sub_(correction)
        self.corrected = False
        self.record_gradients()

    def start_round(self) -> None:
        for bucket in self.buckets:
            bucket.lr_sum = 0.0

    def end_round(self) -> None:
        """Removes the corrections from the gradients before the corrections change, so that .grad is the gradient."""
        if not (self.corrected and self.method.spec.tracks):
            return
        for bucket in self.buckets:
            for slot in bucket.slots:
                gradient, part = slot.gradient(), slice(slot.offset, slot.offset + slot.size)
                if gradient is not None:
                    gradient.sub_(self._correction(bucket, part))
        self.corrected = False
        self.record_gradients()

    def _correction(self, bucket: Bucket, part: slice) -> Any:
        return self.method.correction(self.method.readable(_cut(bucket.state, part)), wide(bucket.x[part]))

    def keep_end(self) -> None:
        """A round without communication: the next round starts at its end."""
        for bucket in self.buckets:
            if bucket.state["x"] is not bucket.x:
                bucket.state["x"].copy_(bucket.x)


@dataclass(eq=False)
class Chunk:
    """A slice of a bucket at the end of a round, as a payload of the exchange."""

    steps: LocalSteps
    number: int  # among all chunks
    bucket: Bucket
    part: slice
    taken: int  # steps of this round
    round: int
    share: float  # of the nodes that take part in a round
    active: bool  # does this node take part?
    exact = False

    def __post_init__(self) -> None:
        self.state = _cut(self.bucket.state, self.part)
        self.local: Any = None

    def message(self) -> Mapping[str, Tensor]:
        self.local = self._local()
        return self.steps.method.message(self._readable(self.state), self.local)

    def _readable(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.steps.method.readable({name: wide(value) for name, value in state.items()})

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        method, state = self.steps.method, _cut(self.state, where)
        assert self.local is not None
        local = self.local.mapped(lambda vector: vector[where] if isinstance(vector, Tensor) else vector)
        merged = method.merge(self._readable(state), local, mixed)
        # A variable may become what another one was, such as the last model: copy that before it is overwritten.
        written = {name: _storage(value) for name, value in state.items()}
        own = _storage(self.bucket.x)
        for name, value in merged.items():
            others = {own, *written.values()} - {written[name]}
            if isinstance(value, Tensor) and _storage(value) in others:
                merged[name] = value.clone()
        for name, value in merged.items():
            if self.active or name in method.spec.server_fields:
                state[name].copy_(value)
                if name == "x":
                    self.bucket.x[self.part][where].copy_(value)

    def _local(self) -> Local:
        steps, bucket, x = self.steps, self.bucket, wide(self.bucket.x[self.part])
        start, method = wide(self.state["x"]), steps.method
        reads, lr_sum = steps.reads, bucket.lr_sum
        direction: Any = 0.0
        if "direction" in reads and self.active:
            if bucket.total is not None:
                direction = bucket.total[self.part] / self.taken
            elif lr_sum > 0:
                direction = torch.sub(start, x, out=steps.scratch(self.number, x)).div_(lr_sum)
            else:  # a round with stepsize 0: the model has not moved, so the mean gradient is the last one
                direction = steps.last(bucket, self.part) + method.correction(self._readable(self.state), x)
        return method.local(
            start=start,
            end=x,
            direction=direction,
            gamma=lr_sum / steps.share_made / method.tau,
            round=self.round,
            participation=self.share,
            first=None if bucket.first is None else wide(bucket.first[self.part]),
            last=steps.last(bucket, self.part) if "last" in reads and self.active else None,
        )


def _by_gradient(lists: tuple[list[Any] | None, ...]) -> list[tuple[Any, ...]]:
    """The lists, split by whether there is a gradient; the second list has the gradients."""
    gradients = lists[1]
    assert gradients is not None
    without = [i for i, one in enumerate(gradients) if one is None]
    if not without:
        return [lists]
    having = [i for i, one in enumerate(gradients) if one is not None]
    parts = [[None if one is None else [one[i] for i in places] for one in lists] for places in (having, without)]
    parts[1][1] = None
    return [tuple(part) for part in parts if part[0]]


def _move(
    x: list[Tensor],
    gradient: list[Tensor] | None,
    correction: list[Tensor] | None,
    rate: float,
    decay: float,
    fused: bool,
) -> None:
    """x ← x − rate (gradient + decay · x + correction), or x ← x − rate · correction without a gradient."""
    if gradient is None:
        if correction is not None:
            torch._foreach_add_(x, correction, alpha=-rate)
    elif is_reduced(x[0]):  # one rounding per step: with two, small steps would be lost
        step = [wide(one) for one in gradient]
        if decay:
            torch._foreach_add_(step, x, alpha=decay)
        if correction is not None:
            torch._foreach_add_(step, correction)
        torch._foreach_add_(x, step, alpha=-rate)
    elif correction is not None and fused and x[0].device.type == "cpu":
        # One pass over the memory, with SGD's kernel for Nesterov momentum. Its buffer b ← 1 · b + (1 − 1) · gradient
        # is the correction, which does not change if the gradient is finite.
        torch._fused_sgd_(
            x,
            gradient,
            correction,
            lr=rate,
            momentum=1.0,
            dampening=1.0,
            nesterov=True,
            weight_decay=decay,
            maximize=False,
            is_first_step=False,
        )
    else:
        if decay:
            torch._foreach_mul_(x, 1.0 - rate * decay)
        torch._foreach_add_(x, gradient, alpha=-rate)
        if correction is not None:
            torch._foreach_add_(x, correction, alpha=-rate)


def _storage(vector: Tensor) -> int:
    return vector.untyped_storage().data_ptr()


def _unshared(state: Mapping[str, Tensor], model: Tensor) -> dict[str, Tensor]:
    """The state with a separate tensor for each variable except x: a method may return one tensor for several."""
    found = {"x": state["x"]}
    for name, value in state.items():
        if name != "x":
            shared = any(value.data_ptr() == other.data_ptr() for other in (model, *found.values()))
            found[name] = value.clone() if shared else value
    return found


def _cut(state: Mapping[str, Tensor], where: slice) -> dict[str, Tensor]:
    return {name: value[where] for name, value in state.items()}
