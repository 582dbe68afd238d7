"""Who is there: clients are known by their partition, as Flower gives them other node ids in every run."""

from __future__ import annotations

import time
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from stgt.flower.records import HEADER, REMEDY, header, read_partition
from stgt.flower.reply import SAME_VERSION, BadReply, Crashed


class Roster:
    """The partition of each node.

    Args:
        partitions: n, how many there are.
        least: how many must be there.
        wait: seconds to wait for that many.
        timeout: seconds to wait for a new node to say which partition it is, if less.
        count: are clients asked how many examples they have?
    """

    def __init__(self, partitions: int, least: int, wait: float, timeout: float | None = None, count: bool = False):
        self.partitions, self.least, self.wait, self.count = partitions, least, wait, count
        self.answer_within = wait if timeout is None else min(wait, timeout)
        self.examples: dict[int, int] = {}  # of each partition that said so
        self._known: dict[int, int] = {}
        self._unidentified: dict[int, int] = {}  # the nodes that gave none when asked, and how often that was
        self._calls = 0

    def present(self, grid: Grid) -> dict[int, int]:
        """The node of each partition that is connected; waits until enough are.

        A node that gave no partition is asked again while there are too few without it; else after 2, 4, 8, … rounds.
        What is wrong with a client ends the wait only before the first round, when it is likely to be wrong with all.
        """
        until = time.monotonic() + self.wait
        self._calls += 1
        while True:
            nodes = set(grid.get_node_ids())
            if not self._known.keys() <= nodes:  # a partition is free again, and somebody may have claimed it
                self._known = {node: partition for node, partition in self._known.items() if node in nodes}
                self._unidentified = {}
            enough = len(self._known) >= self.least
            resting = {node for node, times in self._unidentified.items() if enough and self._calls % 2**times}
            faults = self._meet(grid, nodes - set(self._known) - resting)
            if len(self._known) >= self.least:
                return {partition: node for node, partition in self._known.items()}
            hopeless = faults and len(nodes) >= self.least and self._calls == 1
            if hopeless or time.monotonic() > until:
                reason = faults[0] if faults else "give --node-config 'partition-id=…' and start more SuperNodes."
                raise ValueError(f"{len(self._known)} of at least {self.least} clients are there: {reason}")
            log(INFO, "waiting for clients: %d of at least %d are there", len(self._known), self.least)
            time.sleep(1.0)

    def forget(self, node: int) -> None:
        """The node is asked again before it is called."""
        self._known.pop(node, None)

    def _meet(self, grid: Grid, nodes: set[int]) -> list[str]:
        """Asks new nodes for their partition. Returns what was wrong with those who gave none.

        A partition belongs to the node that came first for as long as Flower counts that as connected, which is a
        minute after its death at most: a second node that claims it is refused.
        """
        if not nodes:
            return []
        faults = []
        asked = [
            Message(
                content=RecordDict({HEADER: header(count=self.count)}),
                message_type=MessageType.QUERY,
                dst_node_id=node,
                ttl=self.answer_within,
            )
            for node in sorted(nodes)
        ]
        for message in grid.send_and_receive(asked, timeout=self.answer_within):
            node = message.metadata.src_node_id
            try:
                partition, examples = read_partition(message, self.partitions)
                if self.count and examples is None:
                    raise BadReply(f"client {partition} does not say how many examples it has: {SAME_VERSION}")
                holder = next((one for one, held in self._known.items() if held == partition), None)
                if holder is not None:
                    raise BadReply(
                        f"node {node} claims partition-id={partition}, which node {holder} has: it is refused while "
                        "that one is connected; give each SuperNode a partition-id of its own."
                    )
                self._known[node] = partition
                if examples is not None:
                    self.examples[partition] = examples
            except BadReply as error:
                faults.append(f"{error}; {REMEDY}." if isinstance(error, Crashed) else str(error))
                log(WARNING, "%s", faults[-1])
        self._unidentified |= {node: self._unidentified.get(node, 0) + 1 for node in nodes - set(self._known)}
        return faults
