"""Hiding latency: what a message says of the round's start is sent at the start.

A method that declares what its message's fields are made of (`Sent.value`) says combinations of the round's start and
its mean direction, and behind plain SGD the end is start − (Σ lr) · direction. So W · message = a · W · start +
b · W · direction: the first part travels while the node computes, and at the round's end only the direction is left.
ST-GT then waits for one model at the boundary instead of two. It costs a model-sized buffer for each field sent early,
and needs one lr for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from stgt.algorithms import Algorithm, Linear
from stgt.torch.exchange import Exchange, Part
from stgt.torch.flat import wide
from stgt.torch.local import Chunk, Steps
from stgt.torch.routes import Route


class Early:
    """The early half of the rounds of one node."""

    @staticmethod
    def check(algorithm: Algorithm, plain: bool) -> None:
        """A ValueError if the method's message cannot be sent in two halves."""
        ahead, late = ahead_of(algorithm), late_of(algorithm)
        declared = all(sent.value is not None and not sent.transposed for sent in algorithm.exchanges)
        spoken = "direction" in algorithm.reads or not late
        saves = len(ahead) + bool(late) <= len(algorithm.exchanges)
        if not (declared and spoken and saves) or algorithm.starts_warm or algorithm.coin or algorithm.held:
            raise ValueError(
                f"early=True: {algorithm.label} cannot send half of its message at a round's start; leave early out, "
                "or use STGT, KGT, DIGing or DPSGD."
            )
        if not plain and "direction" in algorithm.reads:
            raise ValueError("early=True needs plain SGD, whose steps add up to its mean direction: leave early out.")

    def __init__(self, steps: Steps, exchange: Exchange, tau: int):
        self.steps, self.exchange, self.tau = steps, exchange, tau
        self.late = bool(late_of(steps.algorithm))
        ahead = ahead_of(steps.algorithm)
        self.mixed = [{name: torch.empty_like(wide(block.x)) for name in ahead} for block in steps.blocks]
        self._walk: Iterator[None] = iter(())
        self._begun = False  # has some of it been sent?
        self._per_step = 1

    def start(self, chunks: Sequence[Chunk], routes: Mapping[str, Route]) -> None:
        """Gets ready to send; called when a round begins. Nothing is under way before its first step."""
        self.pause()  # a checkpoint may have been loaded in the middle of a round
        self._begun = False
        algorithm = self.steps.algorithm
        parts = [_Ahead(chunk, self._where(chunk), ahead_of(algorithm, chunk.round)) for chunk in chunks]
        self._per_step = -(-(len(parts) + 1) // self.tau)
        self._walk = self.exchange.walk(parts, routes)

    def advance(self) -> None:
        """Starts sending after the round's first step, and keeps it going after each other one."""
        self._begun = True
        for _ in range(self._per_step):
            if next(self._walk, self) is self:
                return

    def pause(self) -> None:
        """Leaves nothing under way; where nothing is, nothing is sent."""
        if self._begun:
            self.settle()

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
        self.exchange.run([*others, *(_Late(chunk, self._where(chunk)) for chunk in chunks)], way)

    def _where(self, chunk: Chunk) -> dict[str, Tensor]:
        number = next(i for i, block in enumerate(self.steps.blocks) if block is chunk.block)
        return {name: buffer[chunk.part] for name, buffer in self.mixed[number].items()}


class _Ahead:
    """A chunk's message as far as it is known at the round's start."""

    exact = False

    def __init__(self, chunk: Chunk, kept: dict[str, Tensor], weights: Mapping[str, float]):
        self.chunk, self.kept, self.weights = chunk, kept, weights

    def message(self) -> Mapping[str, Tensor]:
        start = wide(self.chunk.state["x"])  # kept apart from the model, which moves on while this travels
        return {name: start if weight == 1.0 else weight * start for name, weight in self.weights.items()}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        for name, value in mixed.items():
            self.kept[name][where].copy_(value)


class _Late:
    """A chunk's mean direction, from whose mixture and the early half the message's mixture is put together."""

    exact = False

    def __init__(self, chunk: Chunk, early: Mapping[str, Tensor]):
        self.chunk, self.early = chunk, early

    def message(self) -> Mapping[str, Tensor]:
        said = self.chunk.message()
        assert self.chunk.local is not None
        if self.chunk.round == 0:
            self._check(said)
        return {"direction": self.chunk.local.direction}

    def _check(self, said: Mapping[str, Tensor]) -> None:
        """A ValueError if the method's message is not the combination that it declares: half of it has been sent."""
        chunk = self.chunk
        assert chunk.local is not None
        for sent in chunk.steps.algorithm.exchanges:
            value, found = sent.at(chunk.round), said[sent.name]
            weight = value.direction - value.moved * chunk.block.travelled
            expected = value.start * chunk.state["x"] + weight * chunk.local.direction
            if (found - expected).abs().max() > 1e-2 * found.abs().max() + 1e-6:
                raise ValueError(
                    f"early=True: {chunk.steps.algorithm.label} declares {sent.name!r} to be {value}, and its message "
                    "says something else: mend the value of that Sent, or leave early out."
                )

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        chunk, heard = self.chunk, {}
        for sent in chunk.steps.algorithm.exchanges:
            value = sent.at(chunk.round)
            weight = value.direction - value.moved * chunk.block.travelled
            early = self.early[sent.name][where] if sent.name in self.early else 0.0
            heard[sent.name] = weight * mixed["direction"] + early
        chunk.merge(heard, where)


def ahead_of(algorithm: Algorithm, r: int = 0) -> dict[str, float]:
    """The fields that say something of the round's start, and how much of it."""
    return {sent.name: sent.at(r).start for sent in algorithm.exchanges if sent.at(r).start}


def late_of(algorithm: Algorithm, r: int = 0) -> dict[str, Linear]:
    """The fields of which something is left to say at the round's end."""
    values = {sent.name: sent.at(r) for sent in algorithm.exchanges}
    return {name: value for name, value in values.items() if value.moved or value.direction}
