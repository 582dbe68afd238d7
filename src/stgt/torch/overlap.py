"""Overlaps communication and computation: the part of a message that the round's start determines is sent first.

A method that declares its messages (`MessageVar.value`) sends combinations of the round's start and its mean direction.
With plain SGD the end is start − (Σ lr) · direction. So W · message = a · W · start + b · W · direction: the first term
is sent while the node computes, and only the direction is left for the end of the round. ST-GT then waits for one model
there instead of two. It costs a model-sized buffer for each variable that is sent early, and needs equal lr everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from stgt._internal.checks import InputError
from stgt.algorithms import Algorithm, RoundSpec
from stgt.torch.buckets import wide
from stgt.torch.exchange import MessageExchange, Payload
from stgt.torch.local_steps import Chunk, LocalSteps
from stgt.torch.routes import Route


class Overlap:
    """The half of each message that a node sends during its local steps."""

    @staticmethod
    def check(algorithm: Algorithm, plain: bool) -> None:
        """A ValueError if the method's message cannot be sent in two halves."""
        spec = algorithm.spec()
        directions = needs_direction(spec)
        declared = all(sent.value is not None and not sent.transposed for sent in spec.messages)
        computed = "direction" in spec.reads or not directions
        saves = len(start_weights(spec)) + directions <= len(spec.messages)
        if (
            not (declared and computed and saves)
            or spec.needs_initial_gradient
            or spec.communication_probability is not None
            or spec.server_fields
        ):
            raise InputError(
                "early",
                True,
                f"{algorithm.label} cannot send half of its message at a round's start; leave early out, or use "
                "STGT, KGT, DIGing or DPSGD.",
            )
        if not plain and "direction" in spec.reads:
            raise InputError(
                "early", True, " needs plain SGD, whose steps add up to its mean direction: leave early out."
            )

    def __init__(self, steps: LocalSteps, exchange: MessageExchange, tau: int):
        self.steps, self.exchange, self.tau = steps, exchange, tau
        self.sends_directions = needs_direction(steps.method.spec)
        weights = start_weights(steps.method.spec)
        self.mixed = [{name: torch.empty_like(wide(bucket.x)) for name in weights} for bucket in steps.buckets]
        self._pipeline: Iterator[None] = iter(())
        self._begun = False  # has any of it been sent?
        self._per_step = 1

    def start(self, chunks: Sequence[Chunk], routes: Mapping[str, Route]) -> None:
        """Prepares a round's messages. Nothing is sent before the round's first step."""
        self.pause()  # a checkpoint may have been loaded in the middle of a round
        self._begun = False
        spec = self.steps.method.spec
        payloads = [_StartHalf(chunk, self._mixed_start(chunk), start_weights(spec, chunk.round)) for chunk in chunks]
        self._per_step = -(-(len(payloads) + 1) // self.tau)
        self._pipeline = self.exchange.pipeline(payloads, routes)

    def advance(self) -> None:
        """Sends and receives one step's share, so that everything is sent after tau steps."""
        self._begun = True
        for _ in range(self._per_step):
            if next(self._pipeline, self) is self:
                return

    def pause(self) -> None:
        """Completes what has begun, so that no message is on the wire. If nothing has begun, it sends nothing."""
        if self._begun:
            self.drain()

    def drain(self) -> None:
        """Sends and receives the rest."""
        for _ in self._pipeline:
            pass

    def finish(self, payloads: Sequence[Payload], routes: Mapping[str, Route]) -> None:
        """Ends the round: completes the early half, exchanges the directions, and merges both."""
        self.drain()
        chunks = [payload for payload in payloads if isinstance(payload, Chunk)]
        others = [payload for payload in payloads if not isinstance(payload, Chunk)]
        with_direction = {**routes, "direction": routes["x"]}
        if not self.sends_directions:
            for chunk in chunks:
                chunk.message()
                chunk.merge(self._mixed_start(chunk), slice(None))
            self.exchange.run(others, with_direction)
            return
        self.exchange.run(
            [*others, *(_DirectionHalf(chunk, self._mixed_start(chunk)) for chunk in chunks)], with_direction
        )

    def _mixed_start(self, chunk: Chunk) -> dict[str, Tensor]:
        number = next(i for i, bucket in enumerate(self.steps.buckets) if bucket is chunk.bucket)
        return {name: buffer[chunk.part] for name, buffer in self.mixed[number].items()}


class _StartHalf:
    """The part of a chunk's message that is available at the start of the round."""

    exact = False

    def __init__(self, chunk: Chunk, kept: dict[str, Tensor], weights: Mapping[str, float]):
        self.chunk, self.kept, self.weights = chunk, kept, weights

    def message(self) -> Mapping[str, Tensor]:
        start = wide(self.chunk.state["x"])  # separate from the model, which changes while this is sent
        return {name: start if weight == 1.0 else weight * start for name, weight in self.weights.items()}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        for name, value in mixed.items():
            self.kept[name][where].copy_(value)


class _DirectionHalf:
    """A chunk's mean direction. The sum of its mixture and that of the early half is the mixed message."""

    exact = False

    def __init__(self, chunk: Chunk, mixed_start: Mapping[str, Tensor]):
        self.chunk, self.mixed_start = chunk, mixed_start

    def message(self) -> Mapping[str, Tensor]:
        message = self.chunk.message()
        assert self.chunk.local is not None
        if self.chunk.round == 0:
            self._check(message)
        return {"direction": self.chunk.local.direction}

    def _check(self, message: Mapping[str, Tensor]) -> None:
        """A ValueError unless the message is the combination that the method declares: half of it is already sent."""
        chunk = self.chunk
        assert chunk.local is not None
        for sent in chunk.steps.method.spec.messages:
            value, found = sent.at(chunk.round), message[sent.name]
            weight = value.direction - value.moved * chunk.bucket.lr_sum
            expected = value.start * chunk.state["x"] + weight * chunk.local.direction
            if (found - expected).abs().max() > 1e-2 * found.abs().max() + 1e-6:
                raise InputError(
                    "early",
                    True,
                    f"{chunk.steps.method.label} declares {sent.name!r} to be {value}, and its message is "
                    "something else: correct the value of that MessageVar, or leave early out.",
                )

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        chunk, received = self.chunk, {}
        for sent in chunk.steps.method.spec.messages:
            value = sent.at(chunk.round)
            weight = value.direction - value.moved * chunk.bucket.lr_sum
            early = self.mixed_start[sent.name][where] if sent.name in self.mixed_start else 0.0
            received[sent.name] = weight * mixed["direction"] + early
        chunk.merge(received, where)


def start_weights(spec: RoundSpec, r: int = 0) -> dict[str, float]:
    """The message variables that contain the round's start, and its factor in each."""
    return {sent.name: sent.at(r).start for sent in spec.messages if sent.at(r).start}


def needs_direction(spec: RoundSpec) -> bool:
    """Is there anything left to send at the end of the round?"""
    return any(sent.at(0).moved or sent.at(0).direction for sent in spec.messages)
