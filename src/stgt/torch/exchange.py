"""The exchange at the end of a round, in chunks: merging one chunk overlaps with the transfer of the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from stgt.torch.buckets import IN_FLIGHT, RING, slices_of
from stgt.torch.finite import NonFiniteError, is_finite
from stgt.torch.membership import RECEIVE, SEND, BrokenGroupError, Membership, Operation
from stgt.torch.routes import Mean, Route

PIECE = 1 << 16  # elements that are mixed and merged at once: they stay in the cache between the operations


class Payload(Protocol):
    """What is sent as one message, such as a chunk of the model."""

    exact: bool  # must it be sent in full precision, whatever message_dtype is?

    def message(self) -> Mapping[str, Tensor]: ...

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        """Merges the mixed values of a piece of it; of an exact payload, all of it at once."""


class LrSums:
    """A node's sums of stepsizes, one for each bucket. They are sent before the model, and must equal the neighbours'.

    If nodes divide h − W h by different numbers, Σ_i c_i is no longer 0, and the method converges to a wrong point. It
    does not matter which number it is, as long as all nodes use the same.

    Args:
        sums: of this node.
        rank, round: of this node, for the message.
        why: which method needs them to be equal, and what to do.
    """

    exact = True
    ROUNDING = 1e-6  # relative; an lr that is a float32 tensor at only one node differs by less

    def __init__(self, sums: Tensor, rank: int, round: int, why: str):
        self.sums, self.rank, self.round, self.why = sums, rank, round, why

    def message(self) -> Mapping[str, Tensor]:
        return {"x": self.sums}

    def compare(self, peer: int, theirs: Tensor) -> None:
        """A ValueError if a neighbour has another sum."""
        for mine, other in zip(self.sums.tolist(), theirs.tolist(), strict=True):
            if abs(mine - other) > self.ROUNDING * abs(mine):
                raise ValueError(
                    f"the stepsizes of round {self.round} sum up to {mine:.6g} at rank {self.rank} and to {other:.6g} "
                    f"at rank {peer}, as one has another lr or has ended the round early: {self.why}."
                )

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        """Nothing to merge."""


@dataclass
class _InFlight:
    """A payload whose message is on the wire."""

    number: int
    payload: Payload
    message: Mapping[str, Tensor]
    peers: tuple[int, ...]  # all nodes of this exchange
    wires: dict[str, Tensor] = field(default_factory=dict)  # what is sent of each variable, in the wire's precision
    received: dict[str, list[tuple[float, Tensor]]] = field(default_factory=dict)  # by variable: weights and buffers
    arrived: list[tuple[int, Tensor]] = field(default_factory=list)  # (sender, buffer) of all variables
    send_weights: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of a pushed variable
    gathered: dict[tuple[str, Mean], list[tuple[float, Tensor]]] = field(default_factory=dict)  # of means owned here
    means: dict[str, Tensor] = field(default_factory=dict)
    works: list[tuple[int | None, Any]] = field(default_factory=list)  # (peer, torch's handle), not finished yet


class MessageExchange:
    """Sends and receives the messages of one node. Its buffers are reused.

    Args:
        membership: the nodes.
        wire: the dtype of messages; None for that of the values. Means are sent by their owner in full precision.
    """

    def __init__(self, membership: Membership, wire: torch.dtype | None = None):
        self.membership, self.wire = membership, wire
        self.bytes_sent = 0
        self.seconds_waiting = 0.0
        self.seconds_exchanging = 0.0
        self.rounds_alone = 0  # rounds of which this node has ended some part without the others
        self._merged: list[Payload] = []
        self._pool: dict[Any, Tensor] = {}

    def run(self, payloads: Sequence[Payload], routes: Mapping[str, Route]) -> None:
        """Exchanges all payloads; variable f of every message takes route f.

        If a member is lost meanwhile, this node ends the round alone for all payloads that are not merged yet.
        """
        self._merged = []
        try:
            for _ in self.pipeline(payloads, routes):
                pass
        except BrokenGroupError:
            self.alone([one for one in payloads if not any(one is merged for merged in self._merged)])

    def alone(self, payloads: Sequence[Payload]) -> None:
        """Ends a round as if this node's row and column of W_r were unit vectors: it mixes with itself only."""
        self.rounds_alone += 1
        for payload in payloads:
            payload.merge(payload.message(), slice(None))

    def pipeline(self, payloads: Sequence[Payload], routes: Mapping[str, Route]) -> Iterator[None]:
        """The same in steps: yields once the first payloads are on the wire, and after each merged payload."""
        if not payloads:
            return
        peers = tuple(sorted(set().union(*(one.peers for one in routes.values())) - {self.membership.place}))
        held = None  # a payload whose mean has not come back from its owner yet: it is merged one step later
        in_flight = deque(self._post_message(i, one, routes, peers) for i, one in enumerate(payloads[:IN_FLIGHT]))
        yield
        for number in range(len(payloads)):
            began = time.perf_counter()
            following = number + IN_FLIGHT
            if following < len(payloads):
                in_flight.append(self._post_message(following, payloads[following], routes, peers))
            now = in_flight.popleft()
            self._wait_for(now)
            if isinstance(now.payload, LrSums):
                for peer, value in now.arrived:
                    now.payload.compare(peer, value)
            if number == 0:
                self.seconds_waiting += time.perf_counter() - began
                began = time.perf_counter()
            self._send_means(now, routes)
            for one in (held, None if now.works else now):
                if one is not None:
                    self._merge(one)
            held = now if now.works else None
            if held is not None and number + 1 == len(payloads):
                self._merge(held)
            self.seconds_exchanging += time.perf_counter() - began
            yield

    def _post_message(
        self, number: int, payload: Payload, routes: Mapping[str, Route], peers: tuple[int, ...]
    ) -> _InFlight:
        """Posts the sends of a payload's message and the receives of the neighbours' messages."""
        rank, item = self.membership.place, _InFlight(number, payload, payload.message(), peers)
        operations: list[Operation] = []
        for tag, (name, value) in enumerate(item.message.items()):
            route = routes[name]
            wire = value if self.wire is None or payload.exact else self._rounded(value)
            item.wires[name] = wire
            operations += [(SEND, wire, peer, 2 * tag) for peer in route.send_to]
            item.received[name] = []
            if route.send_weights is not None:
                item.send_weights[name] = route.send_weights
            for place, (peer, weight) in enumerate(route.receive_from):
                buffer = self._buffer((number % RING, name, place), wire)
                item.received[name].append((weight, buffer))
                item.arrived.append((peer, buffer))
                operations.append((RECEIVE, buffer, peer, 2 * tag))
            for which, mean in enumerate(route.means):
                if rank not in mean.members:
                    continue
                owner = mean.owner(number)
                if owner != rank:
                    operations.append((SEND, wire, owner, 2 * tag))
                    continue
                item.gathered[name, mean] = []
                for place, peer in enumerate(peer for peer in mean.members if peer != rank):
                    buffer = self._buffer((number % RING, name, which, place), wire)
                    item.gathered[name, mean].append((1.0 / len(mean.members), buffer))
                    item.arrived.append((peer, buffer))
                    operations.append((RECEIVE, buffer, peer, 2 * tag))
        self._post(item, operations)
        return item

    def _send_means(self, item: _InFlight, routes: Mapping[str, Route]) -> None:
        """Posts the sends of the means that this node owns, and the receives of the means that it needs."""
        rank, operations = self.membership.place, []
        for tag, (name, value) in enumerate(item.message.items()):
            route = routes[name]
            for which, mean in enumerate(route.means):
                owner = mean.owner(item.number)
                if owner == rank:
                    wire = item.wires[name].to(value.dtype)
                    found = _mixture(wire, wire, item.gathered[name, mean])
                    operations += [(SEND, found, peer, 2 * tag + 1) for peer in mean.receivers if peer != rank]
                elif rank in mean.receivers:
                    found = self._buffer((item.number % RING, name, which, "mean"), value)
                    operations.append((RECEIVE, found, owner, 2 * tag + 1))
                else:
                    continue
                if mean is route.own_mean:
                    item.means[name] = found
        self._post(item, operations)

    def _merge(self, item: _InFlight) -> None:
        """Mixes the received messages and merges the result, piece by piece, so that a piece stays in the cache."""
        self._wait_for(item)
        size = max(value.numel() for value in item.message.values())
        for where in slices_of(size, size if item.payload.exact else PIECE):
            item.payload.merge({name: self._mixed(item, name, where) for name in item.message}, where)
        self._merged.append(item.payload)
        item.message = item.wires = item.means = {}

    def _mixed(self, item: _InFlight, name: str, where: slice) -> Tensor:
        own, sent = item.message[name][where], item.wires[name][where]
        if name not in item.means:
            received = [(weight, buffer[where]) for weight, buffer in item.received[name]]
            weights = item.send_weights.get(name)
            return _mixture(own, sent, received) if weights is None else _pushed(own, sent, weights, received)
        mean = item.means[name][where]
        # A mean of rounded messages: each node adds its own rounding error back, so that sums over nodes are conserved.
        return mean if own.dtype == sent.dtype else own + (mean - sent)

    def _rounded(self, value: Tensor) -> Tensor:
        found = value.to(self.wire)
        if self.wire == torch.float16 and not is_finite(found):
            raise NonFiniteError(
                f"rank {self.membership.rank}, round {self.membership.round}: a message contains "
                f"{value.abs().max():.3g}, more than float16 can hold: give message_dtype='bfloat16', or leave it out."
            )
        return found

    def _post(self, item: _InFlight, operations: list[Operation]) -> None:
        for do, value, _, _ in operations:
            if do is SEND:
                self.bytes_sent += value.numel() * value.element_size()
        if operations:
            item.works += self.membership.post(operations, item.peers)

    def _wait_for(self, item: _InFlight) -> None:
        if item.works:
            self.membership.wait(item.works, item.peers)
            item.works = []

    def _buffer(self, key: Any, like: Tensor) -> Tensor:
        kept = self._pool.get((key, like.dtype, like.device))
        if kept is None or kept.numel() < like.numel():
            kept = self._pool[key, like.dtype, like.device] = torch.empty_like(like)
        return kept[: like.numel()]


def _mixture(own: Tensor, sent: Tensor, received: list[tuple[float, Tensor]]) -> Tensor:
    """w_own · own + Σ_j w_j m_j with weights that sum to one. It overwrites the received buffers.

    Weights rounded to float32 do not sum exactly to one, so sums over all nodes would drift with every round. Therefore
    each message is mixed in as a step towards it: equal messages do not change. Of rounded messages only differences
    are used, so that Σ_i c_i = 0 and the mean model are kept in half precision.
    """
    mixed, left = own, 1.0 - sum(weight for weight, _ in received)
    for weight, other in received:
        left += weight
        if other.dtype == own.dtype:
            mixed = torch.lerp(mixed, other, weight / left, out=other)
        else:
            mixed = torch.add(mixed, other.to(own.dtype).sub_(sent), alpha=weight)
    return mixed


def _pushed(own: Tensor, sent: Tensor, send_weights: tuple[float, ...], received: list[tuple[float, Tensor]]) -> Tensor:
    """own − Σ_i c_i · sent + Σ_j c_j m_j: a node gives away exactly what the others receive from it.

    The weights are rounded to a grid on which sums up to one are exact, so that no sum over the nodes drifts.
    """
    grid = min(torch.finfo(own.dtype).eps, torch.finfo(torch.float32).eps) / 2
    mixed = own - sum(_on(grid, weight) for weight in send_weights) * sent.to(own.dtype)
    for weight, other in received:
        mixed.add_(other.to(own.dtype), alpha=_on(grid, weight))
    return mixed


def _on(grid: float, weight: float) -> float:
    return round(weight / grid) * grid
