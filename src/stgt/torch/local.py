"""One node's local steps and the parts it exchanges, in terms of the algorithm's own four functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stgt.algorithms import Algorithm, Local
from stgt.torch.flat import Block


class _Recorder(dict):
    """Stands in for a state or a `Local` of numbers, and remembers what was asked of it."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __getattr__(self, name: str) -> Any:
        return self[name]


def uses(algorithm: Algorithm) -> tuple[frozenset[str], tuple[str, ...]]:
    """What the method reads of a round, fields of `Local` and "x", the state's model; and its message's fields.

    It is called with numbers in the vectors' place, so nothing is kept that a method does not ask for.
    """
    state = _Recorder(algorithm.init(0.0, 0.0, 0.0))
    local = _Recorder(
        {"start": 0.0, "end": 0.0, "direction": 0.0, "gamma": 1.0, "round": 0, "participation": 1.0}
        | {"first": 0.0, "last": 0.0, "anchor": 0.0}
    )
    algorithm.correction(state, 0.0)
    message = algorithm.message(state, local)  # pyright: ignore[reportArgumentType]
    algorithm.merge(state, local, message)  # pyright: ignore[reportArgumentType]
    return frozenset(local.asked | (state.asked & {"x"})), tuple(message)


class Steps:
    """The local steps of a node on all its blocks.

    Args:
        plain: is the base optimiser x ← x − lr (g + weight_decay · x)? Then the steps are made here, and the round's
            mean direction is (start − end)/(sum of the stepsizes). Else the optimiser makes them, and the corrected
            gradients are summed up in a buffer of their own.
    """

    def __init__(self, algorithm: Algorithm, blocks: list[Block], plain: bool):
        self.algorithm, self.blocks, self.plain = algorithm, blocks, plain
        self.uses, self.fields = uses(algorithm)
        self.keeps_start = bool(self.uses & {"start", "x"}) or (plain and "direction" in self.uses)
        self.keeps_first = "first" in algorithm.needs
        self.sums = not plain and "direction" in self.uses
        for block in blocks:
            block.state = dict(algorithm.init(block.x, block.x, block.x))
            if "initial" in algorithm.needs:
                block.state = {name: value if name == "x" else 0 * block.x for name, value in block.state.items()}
            if self.keeps_start:
                block.state["x"] = block.x.clone()
            block.first = torch.zeros_like(block.x) if self.keeps_first else None
            block.total = torch.zeros_like(block.x) if self.sums else None
        self._pieces = [self._views(block) for block in blocks]

    def _views(self, block: Block) -> list[Any]:
        """Views of every piece, made once: slicing costs as much as a small operation."""

        def cut(buffer: Tensor | None, where: slice) -> Tensor | None:
            return None if buffer is None else buffer[where]

        return [
            (
                slot,
                [
                    (here, block.x[there], _cut(block.state, there), cut(block.first, there), cut(block.total, there))
                    for here, there in pieces
                ],
            )
            for slot, pieces in block.pieces()
        ]

    def apply(self, groups: list[dict[str, Any]], first: bool) -> None:
        """One local step x ← x − lr (g + correction), or its corrected gradients for the base optimiser.

        A parameter without a gradient counts as one whose gradient is zero.
        """
        correction = self.algorithm.correction
        for block, slots in zip(self.blocks, self._pieces, strict=True):
            group = groups[block.group]
            rate, decay = float(group["lr"]), float(group.get("weight_decay", 0.0)) if self.plain else 0.0
            block.travelled += rate
            for slot, pieces in slots:
                gradient = slot.gradient()
                if gradient is None:
                    slot.parameter.grad = torch.zeros_like(slot.parameter)
                    gradient = slot.gradient()
                assert gradient is not None
                for here, x, state, kept, total in pieces:
                    g = gradient[here]
                    if decay:
                        g.add_(x, alpha=decay)
                    if first and kept is not None:
                        kept.copy_(g)
                    c = correction(state, x)
                    if self.plain:
                        x.add_(g, alpha=-rate)
                        if isinstance(c, Tensor):
                            x.add_(c, alpha=-rate)
                        continue
                    if isinstance(c, Tensor):
                        g.add_(c)
                    if total is not None:
                        total.copy_(g) if first else total.add_(g)

    def last(self, block: Block, part: slice) -> Tensor:
        """The round's last gradient as it was computed, in a part of a block."""
        found = block.last(part)
        if self.plain:
            return found
        return found - self.algorithm.correction(_cut(block.state, part), block.x[part])

    def start_round(self) -> None:
        for block in self.blocks:
            block.travelled = 0.0

    def keep_end(self) -> None:
        """A round without communication: its end is where the next one starts."""
        for block in self.blocks:
            if block.state["x"] is not block.x:
                block.state["x"].copy_(block.x)


class Chunk:
    """A stretch of a block at a round's end."""

    def __init__(self, steps: Steps, block: Block, part: slice, taken: int, r: int, share: float, active: bool):
        self.steps, self.block, self.part = steps, block, part
        self.taken, self.round, self.share, self.active = taken, r, share, active
        self.state = _cut(block.state, part)
        self.local: Local | None = None

    def message(self) -> Mapping[str, Tensor]:
        self.local = self._local()
        return self.steps.algorithm.message(self.state, self.local)

    def merge(self, mixed: Mapping[str, Tensor]) -> None:
        algorithm = self.steps.algorithm
        assert self.local is not None
        for name, value in algorithm.merge(self.state, self.local, mixed).items():
            if self.active or name in algorithm.held:
                self.state[name].copy_(value)
                if name == "x":
                    self.block.x[self.part].copy_(value)
        self.local = None

    def _local(self) -> Local:
        steps, block, x = self.steps, self.block, self.block.x[self.part]
        start = self.state["x"]
        wants, travelled = steps.uses, block.travelled
        direction: Any = 0.0
        if "gamma" in wants and self.active and travelled == 0:
            raise ValueError(f"lr=0 for a whole round: {steps.algorithm.label} divides by it; start a warm-up above 0.")
        if "direction" in wants and self.active:
            if block.total is not None:
                direction = block.total[self.part] / self.taken
            elif travelled > 0:
                direction = (start - x).div_(travelled)
            else:  # a round at stepsize 0: the model has not moved, so its last gradient stands for the round
                direction = block.last(self.part) + steps.algorithm.correction(self.state, x)
        return Local(
            start=start,
            end=x,
            direction=direction,
            gamma=travelled / steps.algorithm.tau,
            round=self.round,
            participation=self.share,
            first=None if block.first is None else block.first[self.part],
            last=steps.last(block, self.part) if "last" in steps.algorithm.needs and self.active else None,
        )


def _cut(state: Mapping[str, Tensor], where: slice) -> dict[str, Tensor]:
    return {name: value[where] for name, value in state.items()}
