"""Hiding latency: what a message says of the round's start is sent at the start.

A method's message is linear in the start of the round and in its mean direction, and behind plain SGD the end is
start − (Σ lr) · direction. So W · message = W · message(start, direction=0) + coefficient · W · direction: the first
part travels while the node computes, and at the round's end only the direction is left to say. ST-GT then waits for one
model at the boundary instead of two. It costs a model-sized buffer for each field sent early, and needs one lr for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stgt.algorithms import Algorithm, Local
from stgt.engines.probe import uses
from stgt.torch.exchange import Exchange, Part
from stgt.torch.local import Chunk, Steps
from stgt.torch.routes import Route


class Early:
    """The early half of the rounds of one node."""

    @staticmethod
    def check(algorithm: Algorithm, plain: bool) -> None:
        """A ValueError if the method's message cannot be sent in two halves."""
        asked, fields = uses(algorithm)
        ahead, late = _early_fields(algorithm)
        if algorithm.needs or algorithm.against or algorithm.held or len(ahead) + late > len(fields):
            raise ValueError(
                f"early=True: {algorithm.label} cannot send half of its message at a round's start; leave early out, "
                "or use STGT, KGT, DIGing or DPSGD."
            )
        if not plain and "direction" in asked:
            raise ValueError("early=True needs plain SGD, whose steps add up to its mean direction: leave early out.")

    def __init__(self, steps: Steps, exchange: Exchange, tau: int):
        self.steps, self.exchange, self.tau = steps, exchange, tau
        self.fields, self.late = _early_fields(steps.algorithm)
        self.mixed = [{name: torch.empty_like(block.x) for name in self.fields} for block in steps.blocks]
        self._walk: Iterator[None] = iter(())
        self._per_step = 1

    def start(self, chunks: Sequence[Chunk], routes: Mapping[str, Route]) -> None:
        """Gets ready to send; called when a round begins. Nothing is under way before its first step."""
        self.settle()  # a checkpoint may have been loaded in the middle of a round
        parts = [_Ahead(chunk, self._where(chunk)) for chunk in chunks]
        self._per_step = -(-(len(parts) + 1) // self.tau)
        self._walk = self.exchange.walk(parts, routes)

    def advance(self) -> None:
        """Starts sending after the round's first step, and keeps it going after each other one."""
        for _ in range(self._per_step):
            if next(self._walk, self) is self:
                return

    def settle(self) -> None:
        """Hears what is still under way."""
        for _ in self._walk:
            pass

    def finish(self, parts: Sequence[Part], routes: Mapping[str, Route]) -> None:
        """Ends the round: hears the rest of the early half, exchanges the directions, and merges both."""
        self.settle()
        chunks = [part for part in parts if isinstance(part, Chunk)]
        others = [part for part in parts if not isinstance(part, Chunk)]
        way = {**routes, "direction": routes["x"]}
        if not self.late:
            for chunk in chunks:
                chunk.message()
                chunk.merge(self._where(chunk), slice(None))
            self.exchange.run(others, way)
            return
        travelled = torch.tensor([block.travelled for block in self.steps.blocks], dtype=torch.float64)
        late = [_Late(chunk, self._where(chunk)) for chunk in chunks]
        self.exchange.run([_SameRate(travelled), *late, *others], way)

    def _where(self, chunk: Chunk) -> dict[str, Tensor]:
        number = next(i for i, block in enumerate(self.steps.blocks) if block is chunk.block)
        return {name: buffer[chunk.part] for name, buffer in self.mixed[number].items()}


class _Ahead:
    """A chunk's message as far as it is known at the round's start."""

    exact = False

    def __init__(self, chunk: Chunk, kept: dict[str, Tensor]):
        self.chunk, self.kept = chunk, kept

    def message(self) -> Mapping[str, Tensor]:
        chunk = self.chunk
        start = chunk.state["x"]  # kept apart from the model, which moves on while this travels
        local = Local(start=start, end=start, direction=0.0, gamma=1.0, round=chunk.round, participation=chunk.share)
        said = chunk.steps.algorithm.message(chunk.state, local)
        return {name: said[name] for name in self.kept}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        for name, value in mixed.items():
            self.kept[name][where].copy_(value)


class _Late:
    """A chunk's mean direction, from whose mixture and the early half the message's mixture is put together."""

    exact = False

    def __init__(self, chunk: Chunk, early: Mapping[str, Tensor]):
        self.chunk, self.early = chunk, early

    def message(self) -> Mapping[str, Tensor]:
        self.chunk.message()
        assert self.chunk.local is not None
        return {"direction": self.chunk.local.direction}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        chunk = self.chunk
        assert chunk.local is not None
        numbers = replace(chunk.local, start=0.0, end=-chunk.block.travelled, direction=1.0)
        algorithm = chunk.steps.algorithm
        coefficients = algorithm.message(dict.fromkeys(chunk.state, 0.0), numbers)
        chunk.merge(
            {
                name: coefficient * mixed["direction"] + (self.early[name][where] if name in self.early else 0.0)
                for name, coefficient in coefficients.items()
            },
            where,
        )


class _SameRate:
    """The sums of the nodes' stepsizes, which the early half takes to be the same."""

    exact = True

    def __init__(self, travelled: Tensor):
        self.travelled = travelled

    def message(self) -> Mapping[str, Tensor]:
        return {"direction": self.travelled}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        if not torch.allclose(mixed["direction"], self.travelled, rtol=1e-3, atol=0):
            raise ValueError(
                "early=True, and a neighbour has another lr or tau: give all nodes the same, or leave it out."
            )


def _early_fields(algorithm: Algorithm) -> tuple[tuple[str, ...], bool]:
    """Which fields say something of the round's start, and whether anything is left to say of its direction."""
    state = dict.fromkeys(algorithm.init(0.0, 0.0, 0.0), 1.0)
    nothing = Local(start=0.0, end=0.0, direction=0.0, gamma=1.0, first=0.0, last=0.0, anchor=0.0)
    begun = algorithm.message(state, replace(nothing, start=1.0, end=1.0))
    done = algorithm.message(dict.fromkeys(state, 0.0), replace(nothing, end=-1.0, direction=1.0))
    return tuple(name for name, value in begun.items() if value != 0.0), any(value != 0.0 for value in done.values())
