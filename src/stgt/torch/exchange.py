"""The exchange at a round's end: chunk by chunk, so that merging one hides behind the transfer of the next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stgt.torch.routes import Mean, Route
from stgt.torch.world import Watch


class Part(Protocol):
    """A stretch of the model: says its message, and takes the mixture of all messages in."""

    exact: bool  # must it travel in full precision?

    def message(self) -> Mapping[str, Tensor]: ...

    def merge(self, mixed: Mapping[str, Tensor]) -> None: ...


@dataclass
class _Said:
    """A part whose message is under way."""

    number: int
    part: Part
    message: Mapping[str, Tensor]
    wires: dict[str, Tensor] = field(default_factory=dict)  # what is sent of each field, in the wire's precision
    heard: dict[str, list[tuple[float, Tensor]]] = field(default_factory=dict)
    gathered: dict[tuple[str, Mean], list[tuple[float, Tensor]]] = field(default_factory=dict)
    mixed: dict[str, Tensor] = field(default_factory=dict)
    works: list[tuple[int, Any]] = field(default_factory=list)


class Exchange:
    """Sends and hears the messages of one node. Buffers are kept and used again.

    Args:
        watch: told whom the node waits for.
        wire: the dtype messages travel in; None for their own. Means come back from their owner in full.
        whole: the fields that a server holds, of which every hearer must have the same bits.
    """

    def __init__(self, watch: Watch, wire: torch.dtype | None = None, whole: Sequence[str] = ()):
        self.watch, self.wire, self.whole = watch, wire, tuple(whole)
        self.rank = dist.get_rank()
        self.bytes_sent = 0
        self.seconds_waiting = 0.0
        self.seconds = 0.0
        self._pool: dict[Any, Tensor] = {}

    def run(self, parts: Sequence[Part], routes: Mapping[str, Route]) -> None:
        """Exchanges all parts; field f of every message takes route f."""
        for _ in self.walk(parts, routes):
            pass

    def walk(self, parts: Sequence[Part], routes: Mapping[str, Route]) -> Iterator[None]:
        """The same, part by part: yields after each, with the next one under way."""
        peers = tuple(sorted(set().union(*(one.peers for one in routes.values())) - {self.rank}))
        said = held = None
        for number in range(len(parts)):
            began = time.perf_counter()
            with self.watch.waiting(peers):
                now = said or self._tell(number, parts[number], routes)
                said = self._tell(number + 1, parts[number + 1], routes) if number + 1 < len(parts) else None
                self._finish(now)
                if number == 0:
                    self.seconds_waiting += time.perf_counter() - began
                    began = time.perf_counter()
                self._mix(now, routes)
                for one in (held, None if now.works else now):
                    if one is not None:
                        self._merge(one)
                held = now if now.works else None
                if said is None and held is not None:
                    self._merge(held)
            self.seconds += time.perf_counter() - began
            yield

    def _tell(self, number: int, part: Part, routes: Mapping[str, Route]) -> _Said:
        """Posts a part's message and the receipt of the others'."""
        said = _Said(number, part, part.message())
        operations = []
        for tag, (name, value) in enumerate(said.message.items()):
            route = routes[name]
            wire = value if self.wire is None or part.exact else value.to(self.wire)
            said.wires[name] = wire
            operations += [self._send(wire, peer, 2 * tag) for peer in route.tell]
            said.heard[name] = []
            for place, (peer, weight) in enumerate(route.hear):
                buffer = self._buffer((number % 2, name, place), wire)
                said.heard[name].append((weight, buffer))
                operations.append(dist.P2POp(dist.irecv, buffer, peer, tag=2 * tag))
            for which, mean in enumerate(route.joins):
                if self.rank not in mean.members:
                    continue
                owner = mean.owner(number)
                if owner != self.rank:
                    operations.append(self._send(wire, owner, 2 * tag))
                    continue
                said.gathered[name, mean] = []
                for place, peer in enumerate(peer for peer in mean.members if peer != self.rank):
                    buffer = self._buffer((number % 2, name, which, place), wire)
                    said.gathered[name, mean].append((1.0 / len(mean.members), buffer))
                    operations.append(dist.P2POp(dist.irecv, buffer, peer, tag=2 * tag))
        self._post(said, operations)
        return said

    def _mix(self, said: _Said, routes: Mapping[str, Route]) -> None:
        """Mixes what was heard; the owner of a mean sends it to those who want it."""
        operations = []
        for tag, (name, value) in enumerate(said.message.items()):
            route = routes[name]
            said.mixed[name] = self._mixture(value, said.wires[name], said.heard[name])
            for which, mean in enumerate(route.joins):
                owner = mean.owner(said.number)
                if owner == self.rank:
                    wire = said.wires[name].to(value.dtype)
                    found = self._mixture(wire, wire, said.gathered[name, mean])
                    operations += [self._send(found, peer, 2 * tag + 1) for peer in mean.hearers if peer != self.rank]
                elif self.rank in mean.hearers:
                    found = self._buffer((said.number % 3, name, which, "mean"), value)
                    operations.append(dist.P2POp(dist.irecv, found, owner, tag=2 * tag + 1))
                else:
                    continue
                if mean is route.takes:
                    said.mixed[name] = found
        self._post(said, operations)

    def _merge(self, said: _Said) -> None:
        self._finish(said)
        if self.wire is not None:
            for name in [name for name in said.mixed if said.mixed[name] is not said.message[name]]:
                self._lift(said, name)
        said.part.merge(said.mixed)
        said.message = said.wires = said.mixed = {}

    def _lift(self, said: _Said, name: str) -> None:
        """A mean of rounded messages: what rounding took from a node's own is put back, so that sums stay right."""
        own = said.message[name]
        if name not in self.whole and not said.heard[name]:
            said.mixed[name] = own + (said.mixed[name] - said.wires[name].to(own.dtype))

    def _mixture(self, own: Tensor, sent: Tensor, heard: list[tuple[float, Tensor]]) -> Tensor:
        """own + Σ_j w_j (m_j − m_own), which a row of weights that sums to one means.

        Weights rounded to float32 do not sum to one: differences keep that from pulling the mean away. And a message
        that was rounded is compared with one's own as it was rounded, so that Σ_i c_i = 0 survives half precision.
        """
        mixed = None
        for weight, other in heard:
            if other.dtype == own.dtype and mixed is None and sent is own:
                mixed = torch.lerp(own, other, weight)
                continue
            change = other.sub_(sent) if other.dtype == own.dtype else other.to(own.dtype).sub_(sent)
            mixed = torch.add(own, change, alpha=weight) if mixed is None else mixed.add_(change, alpha=weight)
        return own if mixed is None else mixed

    def _send(self, value: Tensor, peer: int, tag: int) -> dist.P2POp:
        self.bytes_sent += value.numel() * value.element_size()
        return dist.P2POp(dist.isend, value, peer, tag=tag)

    def _post(self, said: _Said, operations: list[dist.P2POp]) -> None:
        if operations:
            works = dist.batch_isend_irecv(operations)
            # A backend that joins a batch into one piece of work returns a single handle.
            peers = [one.peer for one in operations] if len(works) == len(operations) else [-1] * len(works)
            said.works += zip(peers, works, strict=True)

    def _finish(self, said: _Said) -> None:
        for peer, work in said.works:
            self.watch.facing = peer if peer >= 0 else None
            work.wait()
        self.watch.facing = None
        said.works = []

    def _buffer(self, key: Any, like: Tensor) -> Tensor:
        kept = self._pool.get((key, like.dtype, like.device))
        if kept is None or kept.numel() < like.numel():
            kept = self._pool[key, like.dtype, like.device] = torch.empty_like(like)
        return kept[: like.numel()]
