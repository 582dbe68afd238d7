"""The status that each process publishes in torch's store, and the conclusions from it.

A status has a process's progress and what it waits for. The stack probe at the end finds the line of the user's script
that the training thread is at.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

UNEQUAL_LOADERS = "; with loaders of unequal lengths, loop over opt.batches(loader)"
UNREACHABLE = (
    "the nodes cannot reach one another: on each machine GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) must name the network "
    "interface at which the others reach it, and no firewall may block them"
)


class JsonStore:
    """JSON values in torch's store, by key. A call returns when the store answers; it may never return."""

    def __init__(self, store: Store):
        self.store = store

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def put_if_absent(self, key: str, value: Any) -> Any:
        """Stores a value unless there is one; returns the stored value."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def get(self, key: str) -> Any:
        """The value; None if there is none."""
        found = self.get_all([key])
        return found and found[0]

    def get_all(self, keys: list[str]) -> list[Any] | None:
        """The values; None if one is missing."""
        return [json.loads(text) for text in self.store.multi_get(keys)] if self.store.check(keys) else None

    def remove(self, key: str) -> None:
        self.store.delete_key(key)


@dataclass
class Wait:
    """What a node waits for.

    Attributes:
        call: as the user wrote it, for messages.
        kind: "join" connects the nodes; "barrier" needs all of them to make this call; "exchange" needs the awaited
            node to end its round; "torch" is any of torch's own collectives.
        scope: the optimiser's number; 0 if there is none.
        number: of the barrier.
        round: of the exchange, counted like `Status.rounds`; of a barrier, the round in which it takes place.
        peers: the nodes whose heartbeats are checked.
        awaited: the node whose message is awaited, or None if it may be any.
        group: the process group in which it takes place.
    """

    call: str
    kind: str
    scope: int = 0
    number: int = 0
    round: int = 0
    peers: tuple[int, ...] = ()
    awaited: int | None = None
    group: Any = None


@dataclass
class Status:
    """What a process publishes once a second."""

    heartbeat: int = 0
    progress: int = 0
    round: int = 0
    line: str = ""  # of the user's script, where the training thread is
    call: str = ""  # what it waits in; the next five fields describe that wait
    kind: str = ""
    scope: int = 0
    number: int = 0
    exchange: int = 0  # the round that it waits to end, counted like `rounds`
    awaited: int | None = None
    barriers: dict[str, int] = field(default_factory=dict)  # by scope: the last one it has reached
    rounds: dict[str, int] = field(default_factory=dict)  # by scope: rounds done in this process
    left: bool = False  # has it ended without an error?

    def waits_for(self, other: Status) -> bool:
        """Is this node blocked until the other one does something that it is not about to do?"""
        scope = str(self.scope)
        if self.kind == "barrier":
            return other.barriers.get(scope, 0) < self.number
        if self.kind == "exchange":
            elsewhere = (other.kind, other.scope) != ("exchange", self.scope)
            return elsewhere and other.rounds.get(scope, 0) <= self.exchange
        return False


# -- deadlocks -------------------------------------------------------------------------------------------------------


def find_cycle(start: int, statuses: dict[int, Status]) -> list[int]:
    """Nodes that wait for one another, each for the next one, from `start` back to it; [] if there are none.

    Statuses are read one after the other. Even so, a cycle is real if its first node still waits: the counts of rounds
    and barriers only grow, so none of the other nodes can have continued since it published its status.
    """
    path: list[int] = []
    tried: set[int] = set()

    def closes(rank: int) -> bool:
        path.append(rank)
        status = statuses[rank]
        needed = [status.awaited] if status.kind == "exchange" else sorted(statuses)
        for other in needed:
            if other is None or other not in statuses or other == rank or not status.waits_for(statuses[other]):
                continue
            if other == start:
                return True
            if other not in tried and statuses[other].kind in ("barrier", "exchange"):
                tried.add(other)
                if closes(other):
                    return True
        path.pop()
        return False

    return path if closes(start) else []


def describe_deadlock(statuses: dict[int, Status], ranks: list[int], timeout: float) -> str:
    """Which node waits in which call, where each node is, and which mistake is likely."""
    kinds = {statuses[rank].kind for rank in ranks}
    if kinds == {"join"}:
        return UNREACHABLE
    sentences = []
    for rank in ranks:
        status = statuses[rank]
        sentences.append(
            f"rank {rank} has ended" if status.left else f"rank {rank} waits in {status.call}{_place(status.line)}"
        )
    words = ", ".join(sentences) + ": the nodes wait for one another"
    same = {(statuses[rank].scope, statuses[rank].exchange) for rank in ranks}
    if kinds == {"exchange"} and len(same) == 1:
        return f"{words}, and no message has come for {timeout:g} s; is the network between two of them cut?"
    for rank in ranks:
        status = statuses[rank]
        if status.kind != "barrier":
            continue
        there = [
            other for other, one in statuses.items() if (one.kind, one.scope) == (status.kind, status.scope)
            and one.number == status.number
        ]  # fmt: skip
        ranks_there = ", ".join(map(str, sorted(there)))
        alone = f"by rank {ranks_there} alone" if len(there) == 1 else f"by ranks {ranks_there} only"
        lengths = UNEQUAL_LOADERS if any(statuses[one].kind == "exchange" for one in ranks) else ""
        return f"{words}; {status.call} must be called by all nodes at the same point, not {alone}{lengths}"
    exchanges = [statuses[rank].scope for rank in ranks if statuses[rank].kind == "exchange"]
    if len(exchanges) == len(ranks) and len(set(exchanges)) > 1:
        return f"{words}; the rounds of several optimisers must end in the same order on all nodes"
    return words


def describe_place(status: Status) -> str:
    if status.call:
        return f"; it waits in {status.call}{_place(status.line)}, and gives no sign of life"
    return f"; it was last seen{_place(status.line, ' at ', '')}" if status.line else ""


def _place(line: str, before: str = " (", after: str = ")") -> str:
    return f"{before}{line}{after}" if line else ""


# -- the stack probe -------------------------------------------------------------------------------------------------

_STGT = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_DISTRIBUTED = str(Path(_TORCH, "distributed", "distributed_c10d.py"))
_LIBRARY = sysconfig.get_paths()["stdlib"]
_PACKAGES = ("site-packages", "dist-packages")


def user_line(thread: int) -> str:
    """The innermost line of the user's own code in a thread, such as "train.py:40"; "" if there is none."""
    for frame in _frames(thread):
        name = frame.f_code.co_filename
        own = not name.startswith((_STGT, _TORCH, _LIBRARY, "<")) and not any(one in name for one in _PACKAGES)
        if own:
            return f"{Path(name).name}:{frame.f_lineno}"
    return ""


def torch_collective(thread: int) -> str:
    """The function of torch.distributed that the user's code has called in a thread; "" if there is none."""
    found = ""
    for frame in _frames(thread):
        name = frame.f_code.co_filename
        if name.startswith(_DISTRIBUTED):
            found = frame.f_code.co_name
        elif found and not name.startswith(_TORCH):
            return "" if name.startswith(_STGT) and "torch" in Path(name).parts[-2:] else found
    return found


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
