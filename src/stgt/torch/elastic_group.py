"""The process group of an epoch's members. It is made once, never repaired, and closed as a whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import (
    AllgatherOptions,  # pyright: ignore[reportPrivateImportUsage]
    AllreduceOptions,  # pyright: ignore[reportPrivateImportUsage]
    BroadcastOptions,  # pyright: ignore[reportPrivateImportUsage]
)

from stgt.torch.addresses import reach_store
from stgt.torch.membership import SEND, Operation
from stgt.torch.process_group import BACKEND_TIMEOUT
from stgt.torch.waiting import Waiter, start_thread

CONNECT_TIMEOUT = timedelta(seconds=10)  # for the connections of a new group, whose members all wait for them
STORE_TIMEOUT = timedelta(seconds=10)  # for a store to answer
PAUSE = 0.002  # seconds between two checks of what another thread or node has done
KEPT = 16  # rounds for which a store keeps the list of nodes that took part
HERE, ASSEMBLED = 1 << 19, 1 << 18  # tags of the one-byte messages that announce a node
BELL = "broken"  # the key that a member sets when the group has failed


class ElasticGroup:
    """One node's communication with the other members of its epoch.

    Args:
        store: the address of the store at which they meet.
        key: of their meeting; every meeting has a different one.
        node: this node's id.
        members: the ids of all members, in the order of their places.
        timeout: seconds for a message to arrive, once its sender has begun to send it.

    Attributes:
        rank, nodes: this node's place, and the number of nodes.
        present: the places of the nodes that take part in this round's exchange.
        over: should all waits end, even if the group is not closed?
    """

    def __init__(self, store: str, key: str, node: str, members: Sequence[str], timeout: float):
        self.address, self.key, self.node, self.members = store, key, node, tuple(members)
        self.rank, self.nodes = self.members.index(node), len(self.members)
        self.present = tuple(range(self.nodes))
        self._store: Any = None
        self._processes: Any = None
        self._timeout = timedelta(seconds=timeout)
        self._closed, self._waiter = False, Waiter()
        self.over: Callable[[], bool] = lambda: False
        self.called = self._calls_before = -1  # the round before which another node, and this one, called all members

    # -- start and end -----------------------------------------------------------------------------------------------

    def assemble(self) -> None:
        """Waits until all members have arrived; a ForgottenError if `over` becomes true before.

        The store's host may be lost, which takes long to detect. So a separate thread waits.
        """

        def wait() -> None:
            store = PrefixStore(self.key, reach_store(self.address, STORE_TIMEOUT))
            store.set(f"here/{self.node}", "")
            while not store.check([f"here/{who}" for who in self.members]) and not self.over():
                time.sleep(PAUSE)
            self._store = store

        waiter = Waiter(short=True)
        waiter.run(wait, self.over)
        waiter.stop()

    def connect(self) -> None:
        """Connects the members. All of them must call it."""
        from torchft.process_group import ProcessGroupGloo

        self._processes = ProcessGroupGloo(timeout=CONNECT_TIMEOUT)
        place, waiter = f"{self.address}/{self.key}/group", Waiter(short=True)
        self._finish(lambda: self._processes.configure(place, self.node, self.rank, self.nodes), waiter)
        waiter.stop()

    def _finish(self, wait: Callable[[], object], waiter: Waiter) -> None:
        # An abandoned thread keeps the group alive: otherwise gloo would end with it, and would join the thread.
        waiter.run(wait, lambda: self._closed or self.over(), keep=self._processes)

    def close(self) -> None:
        """Closes all connections, so that all waits in this group fail at once.

        gloo cannot be aborted, but it closes them when one receive times out. This needs an open connection.
        """
        self._closed = True
        for peer in range(self.nodes):
            with suppress(Exception):
                if peer != self.rank:
                    self._processes.recv([torch.zeros(1)], peer, 1 << 20).wait(timedelta(milliseconds=1))
        # Members that are in their local steps read the key. The store may not answer, so nothing waits for it.
        start_thread(self._ring)

    def _ring(self) -> None:
        with suppress(RuntimeError):
            self._store.set(BELL, "")

    def watch(self) -> Callable[[], bool]:
        """Returns a function: has a member closed this group? It raises a RuntimeError if the store's host is lost.

        It has its own connection: on that of another thread it might have to wait.
        """
        store = PrefixStore(self.key, reach_store(self.address, STORE_TIMEOUT))
        return lambda: store.check([BELL])

    # -- tensors and values ------------------------------------------------------------------------------------------

    def sum(self, value: Tensor) -> None:
        options, here = AllreduceOptions(), _on_host(value)
        self._together(lambda: self._processes.allreduce([here], options), options)
        _take_back(value, here)

    def broadcast(self, value: Tensor) -> None:
        options, here = BroadcastOptions(), _on_host(value)
        options.rootRank = 0
        self._together(lambda: self._processes.broadcast([here], options), options)
        _take_back(value, here)

    def gather(self, value: Tensor) -> list[Tensor]:
        here, options = _on_host(value), AllgatherOptions()
        found = [torch.empty_like(here) for _ in self.members]
        self._together(lambda: self._processes.allgather([found], [here], options), options)
        return [one.to(value.device) for one in found]

    def _together(self, begin: Callable[[], Any], options: Any) -> None:
        """A collective call. It has a timeout, so it begins only when all members have arrived."""
        options.timeout = self._timeout
        others = range(1, self.nodes) if self.rank == 0 else (0,)
        arrivals = self._receive_bytes(others, ASSEMBLED)
        if self.rank != 0:
            sent = self._send_bytes(others, ASSEMBLED)
            self._wait(arrivals, sent)
        else:
            self._wait(arrivals, [])
            self._wait([], self._send_bytes(others, ASSEMBLED))
        self._finish(lambda: begin().wait(), self._waiter)

    def gather_values(self, value: Any) -> list[Any]:
        """The values of all members; they must be JSON."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(one) for one in self.gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = data
        return [
            json.loads(bytes(one[:length].numpy()).decode())
            for one, length in zip(self.gather(padded), lengths, strict=True)
        ]

    def post(self, operations: Sequence[Operation]) -> list[tuple[int | None, Any]]:
        """Begins to send and receive; the peers are places among the present nodes.

        Each neighbour also sends a byte after its messages. A node waits for this byte without a time limit. If the
        connection closes in the middle of a message, gloo forgets that message, but not the byte (`waiting.py`).
        """
        posted, places = [], self.present
        for do, value, peer, tag in operations:
            here = _on_host(value)
            begin = self._processes.send if do is SEND else self._processes.recv
            posted.append(_Posted(begin([here], places[peer], tag), here, None if do is SEND else value))
        neighbours = [places[peer] for peer in dict.fromkeys(peer for _, _, peer, _ in operations)]
        arrivals = self._receive_bytes(neighbours, HERE)
        return [(None, one) for one in (*arrivals, *posted, *self._send_bytes(neighbours, HERE))]

    def wait(self, posted: Sequence[_Posted]) -> None:
        """Waits for what was posted."""
        self._wait([one for one in posted if one.arrival], [one for one in posted if not one.arrival])
        for one in posted:
            if one.goal is not None:
                _take_back(one.goal, one.here)

    def _wait(self, arrivals: Sequence[_Posted], others: Sequence[_Posted]) -> None:
        """Waits until the neighbours have arrived, however long that takes, and then at most for the timeout.

        So a wait also ends if gloo has forgotten a message that this node sends.
        """

        def wait() -> None:
            for one in arrivals:
                one.work.wait(BACKEND_TIMEOUT)
            for one in others:
                one.work.wait(self._timeout)

        self._finish(wait, self._waiter)

    def _send_bytes(self, places: Iterable[int], tag: int) -> list[_Posted]:
        byte = torch.zeros(1, dtype=torch.uint8)
        return [_Posted(self._processes.send([byte], place, tag), byte) for place in places]

    def _receive_bytes(self, places: Iterable[int], tag: int) -> list[_Posted]:
        bytes_ = [(place, torch.zeros(1, dtype=torch.uint8)) for place in places]
        return [_Posted(self._processes.recv([byte], place, tag), byte, arrival=True) for place, byte in bytes_]

    # -- late members ------------------------------------------------------------------------------------------------

    def call(self, r: int) -> None:
        """Announces a call of all members before this node begins round r. A node that is late for r must join it."""
        self._calls_before = r
        self._store.set("called", str(r))

    def choose_present(self, r: int, patience: float, check: Callable[[], None]) -> int | None:
        """Agrees on who takes part in the next exchange: all members, or those that are ready soon after half of them.

        A node that is late for its round takes part in the next undecided round. The first proposal in the store is
        valid, so all nodes that read it use the same one.

        Args:
            r: the round that this node wants to end.
            patience: seconds that half of the members wait for the others.
            check: called repeatedly while it waits.

        Returns:
            The round in which this node takes part; None if the others wait for it in a call before the round `called`.
        """
        store = self._store
        while True:
            r = max(r, self._undecided())
            ready = [f"ready/{r}/{place}" for place in range(self.nodes)]
            store.set(ready[self.rank], "")
            there, since = store.add(f"count/{r}", 1), None
            while not store.check([f"present/{r}"]):
                check()
                now = time.monotonic()
                since = now if since is None and 2 * there >= self.nodes else since
                if there == self.nodes or (since is not None and now - since > patience):
                    self._propose(r, [place for place, key in enumerate(ready) if store.check([key])])
                    continue
                self.called = int(store.compare_set("called", "", "-1"))
                if self.called == r != self._calls_before:
                    self._calls_before = r  # if it does not make that call now, the nodes wait for one another
                    store.delete_key(ready[self.rank])
                    store.add(f"count/{r}", -1)
                    return None
                if self._undecided() > r + 1:  # it was decided long ago, and its keys were removed
                    break
                time.sleep(PAUSE)
                there = store.add(f"count/{r}", 0)
            else:
                self.present = tuple(json.loads(store.get(f"present/{r}")))
                if self.rank in self.present:
                    return r
            r += 1

    def _undecided(self) -> int:
        """The first round for which it is not decided who takes part."""
        return int(self._store.compare_set("decided", "", "0"))

    def _propose(self, r: int, present: list[int]) -> None:
        """Proposes who takes part in round r. If this is the first proposal, removes the keys of old rounds."""
        mine = json.dumps(present)
        if self._store.compare_set(f"present/{r}", "", mine).decode() == mine:
            self._store.set("decided", str(r + 1))
            old = [f"ready/{r - KEPT}/{place}" for place in range(self.nodes)]
            for key in (*old, f"count/{r - KEPT}", f"present/{r - KEPT}"):
                self._store.delete_key(key)


@dataclass(frozen=True)
class _Posted:
    """A message in transfer.

    Attributes:
        work: torch's handle.
        here: the tensor that gloo sends or fills.
        goal: the tensor that will receive it, if any.
        arrival: is it the byte that announces a node?
    """

    work: Any
    here: Tensor
    goal: Tensor | None = None
    arrival: bool = False


def _on_host(value: Tensor) -> Tensor:
    """The tensor itself, or a copy if it is on a GPU: gloo sends only from the host's memory."""
    return value if value.is_cpu else value.to("cpu")


def _take_back(value: Tensor, here: Tensor) -> None:
    if here is not value:
        value.copy_(here)
