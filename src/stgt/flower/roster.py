"""Who is there: clients are known by their partition, as Flower gives them other node ids in every run."""

from __future__ import annotations

import time
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from stgt.flower.records import HEADER, REMEDY, FailedError, header, header_of


class Roster:
    """The partition of each node.

    Args:
        partitions: n, how many there are.
        least: how many must be there.
        patience: seconds to wait for that many.
        timeout: seconds to wait for a new node to say which partition it is, if less.
    """

    def __init__(self, partitions: int, least: int, patience: float, timeout: float | None = None):
        self.partitions, self.least, self.patience = partitions, least, patience
        self.wait = patience if timeout is None else min(patience, timeout)
        self._known: dict[int, int] = {}  # in the order in which they came
        self._unidentified: dict[int, int] = {}  # the nodes that gave none when asked, and how often that was
        self._calls = 0

    def present(self, grid: Grid) -> dict[int, int]:
        """The node of each partition that is connected; waits until enough are.

        A node that gave no partition is asked again while there are too few without it; else after 2, 4, 8, … rounds.
        """
        until = time.monotonic() + self.patience
        self._calls += 1
        while True:
            nodes = set(grid.get_node_ids())
            self._known = {node: partition for node, partition in self._known.items() if node in nodes}
            enough = len(set(self._known.values())) >= self.least
            resting = {node for node, times in self._unidentified.items() if enough and self._calls % 2**times}
            faults = self._meet(grid, nodes - set(self._known) - resting)
            found = {partition: node for node, partition in self._known.items()}
            if len(found) >= self.least:
                return found
            if (faults and len(nodes) >= self.least) or time.monotonic() > until:
                reason = faults[0] if faults else "give --node-config 'partition-id=…' and start more SuperNodes."
                raise ValueError(f"{len(found)} of at least {self.least} clients are there: {reason}")
            log(INFO, "waiting for clients: %d of at least %d are there", len(found), self.least)
            time.sleep(1.0)

    def forget(self, node: int) -> None:
        """The node is asked again before it is called."""
        self._known.pop(node, None)

    def _meet(self, grid: Grid, nodes: set[int]) -> list[str]:
        """Asks new nodes for their partition. Returns what was wrong with those who gave none."""
        if not nodes:
            return []
        faults = []
        asked = [
            Message(
                content=RecordDict({HEADER: header()}), message_type=MessageType.QUERY, dst_node_id=node, ttl=self.wait
            )
            for node in sorted(nodes)
        ]
        for message in grid.send_and_receive(asked, timeout=self.wait):
            try:
                partition = int(header_of(message, "a client")["partition"])
                if not 0 <= partition < self.partitions:
                    raise ValueError(f"a client has partition-id={partition}: use 0 to {self.partitions - 1}.")
                if partition in self._known.values():
                    log(WARNING, "two clients have partition-id=%d: the one that came last is called.", partition)
                self._known[message.metadata.src_node_id] = partition
            except ValueError as error:
                faults.append(f"{error}; {REMEDY}." if isinstance(error, FailedError) else str(error))
                log(WARNING, "%s", faults[-1])
        self._unidentified |= {node: self._unidentified.get(node, 0) + 1 for node in nodes - set(self._known)}
        return faults
