"""The exchange at a round's end: chunk by chunk, so that merging one hides behind the transfer of the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stgt.torch.finite import NonFiniteError, is_finite
from stgt.torch.flat import parts_of
from stgt.torch.group import Group
from stgt.torch.rates import SameRate
from stgt.torch.routes import Mean, Route
from stgt.torch.status import Wait

AHEAD = 2  # parts that are under way while one is merged
RING = AHEAD + 2  # parts until a buffer is used again
PIECE = 1 << 16  # elements that are mixed and merged at once: they stay in the cache from one operation to the next


class Part(Protocol):
    """A stretch of the model: says its message, and takes the mixture of all messages in."""

    exact: bool  # must it travel in full precision?

    def message(self) -> Mapping[str, Tensor]: ...

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        """Takes in the mixture of a piece of it; of an exact part, of all of it at once."""


@dataclass
class _Said:
    """A part whose message is under way."""

    number: int
    part: Part
    message: Mapping[str, Tensor]
    wires: dict[str, Tensor] = field(default_factory=dict)  # what is sent of each field, in the wire's precision
    heard: dict[str, list[tuple[float, Tensor]]] = field(default_factory=dict)
    came: list[tuple[int, Tensor]] = field(default_factory=list)  # who has said what, of all fields
    gives: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by which those told take a pushed field
    gathered: dict[tuple[str, Mean], list[tuple[float, Tensor]]] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    works: list[tuple[int, Any]] = field(default_factory=list)


class Exchange:
    """Sends and hears the messages of one node. Buffers are kept and used again.

    Args:
        group: the nodes.
        wire: the dtype messages travel in; None for their own. Means come back from their owner in full.
    """

    def __init__(self, group: Group, wire: torch.dtype | None = None):
        self.group, self.wire = group, wire
        self.rank = group.rank
        self._peers: tuple[int, ...] = ()
        self.bytes_sent = 0
        self.seconds_waiting = 0.0
        self.seconds = 0.0
        self._pool: dict[Any, Tensor] = {}

    def run(self, parts: Sequence[Part], routes: Mapping[str, Route]) -> None:
        """Exchanges all parts; field f of every message takes route f."""
        for _ in self.walk(parts, routes):
            pass

    def walk(self, parts: Sequence[Part], routes: Mapping[str, Route]) -> Iterator[None]:
        """The same, part by part: yields once the first are under way, and after each, with the next under way."""
        if not parts:
            return
        peers = tuple(sorted(set().union(*(one.peers for one in routes.values())) - {self.rank}))
        held = None
        self._peers = peers
        under_way = deque(self._tell(number, parts[number], routes) for number in range(min(AHEAD, len(parts))))
        yield
        for number in range(len(parts)):
            began = time.perf_counter()
            self._peers = peers
            if number + AHEAD < len(parts):
                under_way.append(self._tell(number + AHEAD, parts[number + AHEAD], routes))
            now = under_way.popleft()
            self._finish(now)
            if isinstance(now.part, SameRate):
                for peer, value in now.came:
                    now.part.compare(peer, value)
            if number == 0:
                self.seconds_waiting += time.perf_counter() - began
                began = time.perf_counter()
            self._send_means(now, routes)
            for one in (held, None if now.works else now):
                if one is not None:
                    self._merge(one)
            held = now if now.works else None
            if held is not None and number + 1 == len(parts):
                self._merge(held)
            self.seconds += time.perf_counter() - began
            yield

    def _tell(self, number: int, part: Part, routes: Mapping[str, Route]) -> _Said:
        """Posts a part's message and the receipt of the others'."""
        said = _Said(number, part, part.message())
        operations = []
        for tag, (name, value) in enumerate(said.message.items()):
            route = routes[name]
            wire = value if self.wire is None or part.exact else self._rounded(value)
            said.wires[name] = wire
            operations += [self._send(wire, peer, 2 * tag) for peer in route.tell]
            said.heard[name] = []
            if route.gives is not None:
                said.gives[name] = route.gives
            for place, (peer, weight) in enumerate(route.hear):
                buffer = self._buffer((number % RING, name, place), wire)
                said.heard[name].append((weight, buffer))
                said.came.append((peer, buffer))
                operations.append(self._receive(buffer, peer, 2 * tag))
            for which, mean in enumerate(route.joins):
                if self.rank not in mean.members:
                    continue
                owner = mean.owner(number)
                if owner != self.rank:
                    operations.append(self._send(wire, owner, 2 * tag))
                    continue
                said.gathered[name, mean] = []
                for place, peer in enumerate(peer for peer in mean.members if peer != self.rank):
                    buffer = self._buffer((number % RING, name, which, place), wire)
                    said.gathered[name, mean].append((1.0 / len(mean.members), buffer))
                    said.came.append((peer, buffer))
                    operations.append(self._receive(buffer, peer, 2 * tag))
        self._post(said, operations)
        return said

    def _send_means(self, said: _Said, routes: Mapping[str, Route]) -> None:
        """The owner of a mean sends it to those who want it."""
        operations = []
        for tag, (name, value) in enumerate(said.message.items()):
            route = routes[name]
            for which, mean in enumerate(route.joins):
                owner = mean.owner(said.number)
                if owner == self.rank:
                    wire = said.wires[name].to(value.dtype)
                    found = _mixture(wire, wire, said.gathered[name, mean])
                    operations += [self._send(found, peer, 2 * tag + 1) for peer in mean.hearers if peer != self.rank]
                elif self.rank in mean.hearers:
                    found = self._buffer((said.number % RING, name, which, "mean"), value)
                    operations.append(self._receive(found, owner, 2 * tag + 1))
                else:
                    continue
                if mean is route.takes:
                    said.means[name] = found
        self._post(said, operations)

    def _merge(self, said: _Said) -> None:
        """Mixes what was heard and merges it, piece by piece: a piece stays in the cache from the one to the other."""
        self._finish(said)
        size = max(value.numel() for value in said.message.values())
        for where in parts_of(size, size if said.part.exact else PIECE):
            said.part.merge({name: self._mixed(said, name, where) for name in said.message}, where)
        said.message = said.wires = said.means = {}

    def _mixed(self, said: _Said, name: str, where: slice) -> Tensor:
        own, sent = said.message[name][where], said.wires[name][where]
        if name not in said.means:
            heard = [(weight, buffer[where]) for weight, buffer in said.heard[name]]
            gives = said.gives.get(name)
            return _mixture(own, sent, heard) if gives is None else _pushed(own, sent, gives, heard)
        mean = said.means[name][where]
        # A mean of rounded messages: what rounding took from a node's own is put back, so that sums stay right.
        return mean if own.dtype == sent.dtype else own + (mean - sent)

    def _rounded(self, value: Tensor) -> Tensor:
        found = value.to(self.wire)
        if self.wire == torch.float16 and not is_finite(found):
            raise NonFiniteError(
                f"rank {self.rank}, round {self.group.round}: a message holds {value.abs().max():.3g}, more than "
                "float16 can say: give message_dtype='bfloat16', or leave it out."
            )
        return found

    def _send(self, value: Tensor, peer: int, tag: int) -> dist.P2POp:
        self.bytes_sent += value.numel() * value.element_size()
        return dist.P2POp(dist.isend, value, peer, self.group.processes, tag)

    def _receive(self, buffer: Tensor, peer: int, tag: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, buffer, peer, self.group.processes, tag)

    def _post(self, said: _Said, operations: list[dist.P2POp]) -> None:
        if operations:
            with self._waiting():
                works = dist.batch_isend_irecv(operations)
            # A backend that joins a batch into one piece of work returns a single handle.
            peers = [one.peer for one in operations] if len(works) == len(operations) else [-1] * len(works)
            said.works += zip(peers, works, strict=True)

    def _finish(self, said: _Said) -> None:
        if not said.works:
            return
        with self._waiting() as wait:
            for peer, work in said.works:
                wait.facing = peer if peer >= 0 else None
                work.wait()
        said.works = []

    def _waiting(self) -> AbstractContextManager[Wait]:
        return self.group.watch.waiting(self.group.exchange(self._peers))

    def _buffer(self, key: Any, like: Tensor) -> Tensor:
        kept = self._pool.get((key, like.dtype, like.device))
        if kept is None or kept.numel() < like.numel():
            kept = self._pool[key, like.dtype, like.device] = torch.empty_like(like)
        return kept[: like.numel()]


def _mixture(own: Tensor, sent: Tensor, heard: list[tuple[float, Tensor]]) -> Tensor:
    """w_own · own + Σ_j w_j m_j with weights that sum to one; the buffers of what was heard are written over.

    Weights rounded to float32 do not quite sum to one, which would pull the sums of all nodes away round by round: each
    node is therefore mixed in as a step from what there is towards it, so that equal messages stay what they are. Of
    rounded messages only the differences are used, so that Σ_i c_i = 0 and the mean model survive half precision.
    """
    mixed, left = own, 1.0 - sum(weight for weight, _ in heard)
    for weight, other in heard:
        left += weight
        if other.dtype == own.dtype:
            mixed = torch.lerp(mixed, other, weight / left, out=other)
        else:
            mixed = torch.add(mixed, other.to(own.dtype).sub_(sent), alpha=weight)
    return mixed


def _pushed(own: Tensor, sent: Tensor, gives: tuple[float, ...], heard: list[tuple[float, Tensor]]) -> Tensor:
    """own − Σ_i c_i · sent + Σ_j c_j m_j: what a node gives away is just what others hear of it.

    The weights are rounded to a grid on which sums up to one are exact, so that no sum over the nodes drifts.
    """
    grid = min(torch.finfo(own.dtype).eps, torch.finfo(torch.float32).eps) / 2
    mixed = own - sum(_on(grid, weight) for weight in gives) * sent.to(own.dtype)
    for weight, other in heard:
        mixed.add_(other.to(own.dtype), alpha=_on(grid, weight))
    return mixed


def _on(grid: float, weight: float) -> float:
    return round(weight / grid) * grid
