"""A run while it lasts: whom the server called, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from stgt.flower.outcome import Absence
from stgt.flower.records import NO_NODE, is_unavailable
from stgt.flower.reply import BadReply
from stgt.flower.roster import Roster

Read = TypeVar("Read")


class Calling:
    """What the server knows of the clients from `start` to its end.

    Args:
        grid: Flower's.
        roster: who is there.
        rounds: how many there are in all.
        timeout: seconds that a client has for its reply.
        unit: the number of examples that has the weight 1, the mean of all clients'; 0 if it is not known yet.
    """

    def __init__(self, grid: Grid, roster: Roster, rounds: int, timeout: float, unit: float):
        self.grid, self.roster, self.rounds, self.timeout, self.unit = grid, roster, rounds, timeout, unit
        self.config: Mapping[str, Any] = {}  # the train_config
        self.called: dict[int, int] = {}  # the partition of each node that was sent a message
        self.lost = 0  # rounds in a row that do not count
        self.blind = 0  # and in which nobody whom the server asked has evaluated
        self.began = 0.0  # the round, by the clock
        self.largest = 0  # bytes of the round's largest message to a client

    def read(
        self, replies: Iterable[Message], reader: Callable[[Message, int], Read]
    ) -> tuple[dict[int, Read], list[Absence]]:
        """What those who were called said, by partition, and who said nothing that is of use, and why.

        Args:
            replies: what came.
            reader: makes something of a message and its partition, or raises a BadReply.
        """
        come = {message.metadata.src_node_id: message for message in replies}
        found: dict[int, Read] = {}
        absent: list[Absence] = []
        here: set[int] | None = None
        for node, partition in sorted(self.called.items(), key=lambda pair: pair[1]):
            message = come.get(node)
            if message is None or is_unavailable(message):
                here = set(self.grid.get_node_ids()) if here is None else here
                gone = node not in here or (message is not None and message.error.code == NO_NODE)
                detail = "it is no longer connected." if gone else f"no reply within {self.timeout:g} s."
                absent.append(Absence(partition, "gone" if gone else "late", detail))
                continue
            try:
                found[partition] = reader(message, partition)
            except BadReply as error:
                absent.append(Absence(partition, error.reason, str(error)))
        return found, absent
