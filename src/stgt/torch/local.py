"""One node's local steps and the parts it exchanges, in terms of the algorithm's own four functions."""

# torch._foreach_… and torch._fused_sgd_ are what torch.optim is made of.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import begin, hear, readable, say
from stgt.torch.exchange import RING
from stgt.torch.flat import PIECE, Block, Slot, Stretch, is_reduced, wide


def gain(group: dict[str, Any]) -> float:
    """How far a gradient moves the model in all, in multiples of lr, behind SGD."""
    return (1.0 - group["dampening"]) / (1.0 - group["momentum"])


class _Views:
    """A stretch of a block's buffers, as views that are made once: making one costs as much as a small operation."""

    def __init__(self, algorithm: Algorithm, block: Block, stretch: Stretch):
        self.stretch = stretch
        self.x, self.state = block.x[stretch.part], readable(algorithm, _cut(block.state, stretch.part))
        self.xs = stretch.split(self.x)
        self.first = None if block.first is None else stretch.split(block.first[stretch.part])
        self.total = None if block.total is None else stretch.split(block.total[stretch.part])
        self._kept = {id(value): stretch.split(value) for value in self.state.values()}

    def split(self, vector: Tensor) -> list[Tensor]:
        """A correction, parameter by parameter."""
        return self._kept.get(id(vector)) or self.stretch.split(vector)


class Steps:
    """The local steps of a node on all its blocks.

    Args:
        plain: is the base optimiser x ← x − lr (g + weight_decay · x)? Then the steps are made here, and the round's
            mean direction is (start − end)/(sum of the stepsizes). Else the optimiser makes them, and the corrected
            gradients are summed up in a buffer of their own.
        guarded: must a gradient that is not finite leave the corrections as they are?
    """

    def __init__(self, algorithm: Algorithm, blocks: list[Block], plain: bool, guarded: bool = False):
        self.algorithm, self.blocks, self.plain, self.guarded = algorithm, blocks, plain, guarded
        reads = algorithm.reads
        self.keeps_start = "start" in reads or (plain and "direction" in reads)
        self.keeps_first = "first" in reads
        self.sums = not plain and "direction" in reads
        self.divides = not plain and "gamma" in reads
        self._scratch: dict[Any, Tensor] = {}
        self.corrected = False  # do the gradients hold the corrections now?
        self._last: list[tuple[Any, int] | None] = []  # the last step's gradients, and their versions
        self._lent: list[Slot] = []  # those that have a gradient for the time of the base optimiser's step only
        for block in blocks:
            x = wide(block.x)  # all but the model itself is kept in float32 at least
            warm = algorithm.starts_warm  # it waits for the first gradients
            state = dict.fromkeys(algorithm.state_fields, 0 * x) if warm else begin(algorithm, x)
            block.state = _apart({**state, "x": block.x.clone() if self.keeps_start else block.x}, block.x)
            block.first = torch.zeros_like(block.x) if self.keeps_first else None
            block.total = torch.zeros_like(x) if self.sums else None
        self._stretches = self._cut_up(PIECE)
        self._joined = not plain  # is it settled how much a step works on at once?

    def _cut_up(self, length: int) -> list[list[_Views]]:
        return [
            [_Views(self.algorithm, block, stretch) for stretch in block.stretches(length)] for block in self.blocks
        ]

    def apply(self, groups: list[dict[str, Any]], first: bool) -> None:
        """One local step x ← x − lr (g + correction), or its corrected gradients for the base optimiser.

        A parameter without a gradient has no weight decay either: its correction alone moves it.
        """
        made = False  # is some correction a new tensor, and not one that is kept?
        for block, stretches in zip(self.blocks, self._stretches, strict=True):
            group = groups[block.group]
            rate, block.decay = float(group["lr"]), float(group.get("weight_decay", 0.0)) if self.plain else 0.0
            block.travelled += rate * gain(group) if self.divides else rate
            if not self.plain:
                self._lend(block)
            if "last" in self.algorithm.reads and block.decay:
                block.keep_last()
            else:
                block.final = None
            gradients, used = block.gradients(), 0
            for views in stretches:
                here, used = slice(used, used + len(views.xs)), used + len(views.xs)
                c = self.algorithm.correction(views.state, wide(views.x))
                corrections = views.split(c) if isinstance(c, Tensor) else None
                made = made or is_reduced(views.x)
                made = made or (corrections is not None and not any(c is kept for kept in views.state.values()))
                lists = views.xs, gradients[here], corrections, views.first, views.total
                for xs, g, cs, firsts, totals in _by_gradient(lists):
                    if first and firsts is not None:
                        torch._foreach_zero_(firsts) if g is None else torch._foreach_copy_(firsts, g)
                        if block.decay and g is not None:
                            torch._foreach_add_(firsts, xs, alpha=block.decay)
                    if self.plain:
                        _move(xs, g, cs, rate, block.decay, not self.guarded)
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
            if not made:  # one operation makes a whole block's step without temporaries
                self._stretches = self._cut_up(max(block.size for block in self.blocks))

    def last(self, block: Block, part: slice) -> Tensor:
        """The round's last gradient as it was computed, in a part of a block.

        Weight decay is that of the model it was computed at if the method reads it, else that of the present one.
        """
        if block.final is not None:
            return block.final[part].clone()
        found = block.last(part)
        correction = self._correction(block, part) if self.corrected else None
        for where, _ in block.present(part):
            if block.decay:
                found[where].add_(block.x[part][where], alpha=block.decay)
            if isinstance(correction, Tensor):
                found[where].sub_(correction[where])
        return found

    def _lend(self, block: Block) -> None:
        """Gives a gradient, of 0, to what has none and a correction: the base optimiser leaves out what has none."""
        for slot in block.slots:
            if slot.parameter.grad is None:
                correction = self._correction(block, slice(slot.offset, slot.offset + slot.size))
                if isinstance(correction, Tensor) and bool(correction.any()):
                    slot.parameter.grad = torch.zeros_like(slot.parameter)
                    self._lent.append(slot)

    def scratch(self, number: int, like: Tensor) -> Tensor:
        """Room for a chunk's direction, used again some chunks later: fresh memory costs more than the arithmetic."""
        key = (number % RING, like.dtype, like.device)
        if key not in self._scratch or self._scratch[key].numel() < like.numel():
            self._scratch[key] = torch.empty_like(like)
        return self._scratch[key][: like.numel()]

    def note_gradients(self) -> None:
        """Remembers which gradients are the last step's, and takes back those that were lent for it."""
        while self._lent:
            self._lent.pop().parameter.grad = None
        gradients = [slot.parameter.grad for block in self.blocks for slot in block.slots]
        self._last = [None if one is None else (weakref.ref(one), one._version) for one in gradients]

    @property
    def has_gradients(self) -> bool:
        """Are the gradients still those of the last step? zero_grad() or another backward() has changed them."""
        gradients = [slot.parameter.grad for block in self.blocks for slot in block.slots]
        return len(self._last) == len(gradients) and all(
            known is None if one is None else known is not None and known[0]() is one and known[1] == one._version
            for one, known in zip(gradients, self._last, strict=True)
        )

    def check_round(self) -> None:
        """A ValueError if a round that is to end cannot."""
        label, reads = self.algorithm.label, self.algorithm.reads
        if "gamma" in reads and any(block.travelled == 0 for block in self.blocks):
            raise ValueError(f"lr=0 for a whole round: {label} divides by it; start a warm-up above 0.")
        if "last" in reads and not self.has_gradients:
            raise ValueError(f"end_round() after zero_grad(): {label} reads the last gradients; call it before.")

    def stand_still(self) -> None:
        """Makes the round one whose every gradient was minus the correction; the weights are where it began."""
        for block in self.blocks:
            if block.total is not None:
                block.total.zero_()
            block.final, block.decay = None, 0.0
            for slot in block.slots:
                part = slice(slot.offset, slot.offset + slot.size)
                correction = self._correction(block, part)
                if slot.parameter.grad is None and "last" in self.algorithm.reads:
                    slot.parameter.grad = torch.zeros_like(slot.parameter)
                for place in (slot.gradient(), None if block.first is None else block.first[part]):
                    if place is not None:
                        place.zero_().sub_(correction)
        self.corrected = False
        self.note_gradients()

    def start_round(self) -> None:
        for block in self.blocks:
            block.travelled = 0.0

    def end_round(self) -> None:
        """Takes the corrections out of the gradients before they change, for whoever looks at the gradients later."""
        if not (self.corrected and self.algorithm.tracks):
            return
        for block in self.blocks:
            for slot in block.slots:
                gradient, part = slot.gradient(), slice(slot.offset, slot.offset + slot.size)
                if gradient is not None:
                    gradient.sub_(self._correction(block, part))
        self.corrected = False
        self.note_gradients()

    def _correction(self, block: Block, part: slice) -> Any:
        return self.algorithm.correction(readable(self.algorithm, _cut(block.state, part)), wide(block.x[part]))

    def keep_end(self) -> None:
        """A round without communication: its end is where the next one starts."""
        for block in self.blocks:
            if block.state["x"] is not block.x:
                block.state["x"].copy_(block.x)


class Chunk:
    """A stretch of a block at a round's end."""

    exact = False

    def __init__(
        self, steps: Steps, number: int, block: Block, part: slice, taken: int, r: int, share: float, active: bool
    ):
        self.steps, self.number, self.block, self.part = steps, number, block, part
        self.taken, self.round, self.share, self.active = taken, r, share, active
        self.state = _cut(block.state, part)
        self.local: Local | None = None

    def message(self) -> Mapping[str, Tensor]:
        algorithm = self.steps.algorithm
        self.local = self._local()
        return say(algorithm, self._readable(self.state), self.local)

    def _readable(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return readable(self.steps.algorithm, {name: wide(value) for name, value in state.items()})

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        algorithm, state = self.steps.algorithm, _cut(self.state, where)
        assert self.local is not None
        local = self.local.mapped(lambda vector: vector[where] if isinstance(vector, Tensor) else vector)
        merged = hear(algorithm, self._readable(state), local, mixed)
        # A field may become what another one was, such as the model of the round before: it must not be written over.
        written = {name: _storage(value) for name, value in state.items()}
        own = _storage(self.block.x)
        for name, value in merged.items():
            others = {own, *written.values()} - {written[name]}
            if isinstance(value, Tensor) and _storage(value) in others:
                merged[name] = value.clone()
        for name, value in merged.items():
            if self.active or name in algorithm.held:
                state[name].copy_(value)
                if name == "x":
                    self.block.x[self.part][where].copy_(value)

    def _local(self) -> Local:
        steps, block, x = self.steps, self.block, wide(self.block.x[self.part])
        start, algorithm = wide(self.state["x"]), steps.algorithm
        reads, travelled = algorithm.reads, block.travelled
        direction: Any = 0.0
        if "direction" in reads and self.active:
            if block.total is not None:
                direction = block.total[self.part] / self.taken
            elif travelled > 0:
                direction = torch.sub(start, x, out=steps.scratch(self.number, x)).div_(travelled)
            else:  # a round at stepsize 0: the model has not moved, so its last gradient stands for the round
                direction = steps.last(block, self.part) + algorithm.correction(self._readable(self.state), x)
        return Local(
            algorithm.label,
            reads,
            start=start,
            end=x,
            direction=direction,
            gamma=travelled / algorithm.tau,
            round=self.round,
            participation=self.share,
            first=None if block.first is None else wide(block.first[self.part]),
            last=steps.last(block, self.part) if "last" in reads and self.active else None,
        )


def _by_gradient(lists: tuple[list[Any] | None, ...]) -> list[tuple[Any, ...]]:
    """Lists of which the second has the gradients, in two parts: with a gradient, and without, if there are such."""
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
    """x ← x − rate (gradient + decay · x + correction), and x ← x − rate · correction where there is no gradient."""
    if gradient is None:
        if correction is not None:
            torch._foreach_add_(x, correction, alpha=-rate)
    elif is_reduced(x[0]):  # one rounding a step: two would lose what a sum of small ones keeps
        step = [wide(one) for one in gradient]
        if decay:
            torch._foreach_add_(step, x, alpha=decay)
        if correction is not None:
            torch._foreach_add_(step, correction)
        torch._foreach_add_(x, step, alpha=-rate)
    elif correction is not None and fused and x[0].device.type == "cpu":
        # One pass over the memory: SGD's kernel for Nesterov's momentum, whose buffer b ← 1 · b + (1 − 1) · gradient
        # is the correction and stays as it is, where the gradient is finite.
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


def _apart(state: Mapping[str, Tensor], model: Tensor) -> dict[str, Tensor]:
    """The state with a tensor of its own for each field but x: a method may start several of them from one."""
    found = {"x": state["x"]}
    for name, value in state.items():
        if name != "x":
            shared = any(value.data_ptr() == other.data_ptr() for other in (model, *found.values()))
            found[name] = value.clone() if shared else value
    return found


def _cut(state: Mapping[str, Tensor], where: slice) -> dict[str, Tensor]:
    return {name: value[where] for name, value in state.items()}
