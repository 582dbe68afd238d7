"""What a process says of itself to the others, and what follows from what all of them say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

UNEQUAL = "; with loaders of unequal lengths, loop over opt.batches(loader)"
UNREACHED = (
    "the nodes do not reach one another: GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) must name on each machine the network "
    "interface by which the others reach it, and no firewall keep them apart"
)


@dataclass
class Wait:
    """What a node waits in.

    Attributes:
        call: in words.
        kind: "join" connects the nodes, "meeting" needs all of them to make this call, "exchange" the one that is
            faced to end its round; of "torch", a collective of torch's own, nothing is known.
        scope: the optimiser's number; 0 stands for none.
        number: of the meeting.
        round: of the exchange, counted as `Status.rounds` is; of a meeting, the round it takes place in.
        peers: whose signs of life count.
        facing: the node whose message is waited for, where it is known.
        group: the process group it takes place in.
    """

    call: str
    kind: str
    scope: int = 0
    number: int = 0
    round: int = 0
    peers: tuple[int, ...] = ()
    facing: int | None = None
    group: Any = None


@dataclass
class Status:
    """What a process says of itself once a second."""

    beat: int = 0
    progress: int = 0
    round: int = 0
    line: str = ""  # where its training stands
    call: str = ""  # what it waits in; the fields below are that wait's
    kind: str = ""
    scope: int = 0
    number: int = 0
    exchange: int = 0  # the round that it waits to end, counted as `rounds` is
    facing: int | None = None
    meetings: dict[str, int] = field(default_factory=dict)  # by scope: the last one it came to
    rounds: dict[str, int] = field(default_factory=dict)  # by scope: rounds done in this process
    left: bool = False  # has it ended in good order?

    def waits_for(self, other: Status) -> bool:
        """Can this node not go on until the other one has done something that it is not about to do?"""
        scope = str(self.scope)
        if self.kind == "meeting":
            return other.meetings.get(scope, 0) < self.number
        if self.kind == "exchange":
            elsewhere = (other.kind, other.scope) != ("exchange", self.scope)
            return elsewhere and other.rounds.get(scope, 0) <= self.exchange
        return False


def circle_of(start: int, everybody: dict[int, Status]) -> list[int]:
    """Nodes that wait for one another, each for the next, from `start` and back to it; none if there are none.

    If the first of them still waits, none of the others can have gone on since it wrote: rounds and meetings only grow.
    """
    path: list[int] = []
    tried: set[int] = set()

    def closes(rank: int) -> bool:
        path.append(rank)
        mine = everybody[rank]
        needed = [mine.facing] if mine.kind == "exchange" else sorted(everybody)
        for other in needed:
            if other is None or other not in everybody or other == rank or not mine.waits_for(everybody[other]):
                continue
            if other == start:
                return True
            if other not in tried and everybody[other].kind in ("meeting", "exchange"):
                tried.add(other)
                if closes(other):
                    return True
        path.pop()
        return False

    return path if closes(start) else []


def who_waits(everybody: dict[int, Status], ranks: list[int], timeout: float) -> str:
    """Who waits in which call, who is where, and which mistake that looks like."""
    kinds = {everybody[rank].kind for rank in ranks}
    if kinds == {"join"}:
        return UNREACHED
    said = []
    for rank in ranks:
        status = everybody[rank]
        said.append(
            f"rank {rank} has ended" if status.left else f"rank {rank} waits in {status.call}{_place(status.line)}"
        )
    words = ", ".join(said) + ": the nodes wait for one another"
    same = {(everybody[rank].scope, everybody[rank].exchange) for rank in ranks}
    if kinds == {"exchange"} and len(same) == 1:
        return f"{words}, and no message has come for {timeout:g} s; is the network between two of them cut?"
    for rank in ranks:
        status = everybody[rank]
        if status.kind != "meeting":
            continue
        there = [
            other for other, one in everybody.items() if (one.kind, one.scope) == (status.kind, status.scope)
            and one.number == status.number
        ]  # fmt: skip
        ranks_there = ", ".join(map(str, sorted(there)))
        alone = f"by rank {ranks_there} alone" if len(there) == 1 else f"by ranks {ranks_there} only"
        lengths = UNEQUAL if any(everybody[one].kind == "exchange" for one in ranks) else ""
        return f"{words}; {status.call} must be called by all nodes at the same point, not {alone}{lengths}"
    exchanges = [everybody[rank].scope for rank in ranks if everybody[rank].kind == "exchange"]
    if len(exchanges) == len(ranks) and len(set(exchanges)) > 1:
        return f"{words}; the rounds of several optimisers must end in the same order on all nodes"
    return words


def place_of(status: Status) -> str:
    if status.call:
        return f"; it waits in {status.call}{_place(status.line)}, and gives no sign of life"
    return f"; it was last seen{_place(status.line, ' at ', '')}" if status.line else ""


def _place(line: str, before: str = " (", after: str = ")") -> str:
    return f"{before}{line}{after}" if line else ""
