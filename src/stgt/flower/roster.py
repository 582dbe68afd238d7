"""Who is there: clients are known by their partition, as Flower gives them other node ids in every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from stgt.flower.records import CONFIG, HEADER, REMEDY, header, read_examples, read_partition
from stgt.flower.reply import BadReply, Crashed

Config = Callable[[int, int], Mapping[str, Any]]  # of a round and a partition


class Roster:
    """The partition of each node.

    Args:
        partitions: n, how many there are.
        least: how many must be there.
        wait: seconds to wait for that many.
        timeout: seconds to wait for a new node to say which partition it is, if less.
        count: the clients' config, if they are asked how many examples they have.
        everybody: must all have said that for a round to begin?
    """

    def __init__(
        self,
        partitions: int,
        least: int,
        wait: float,
        timeout: float | None = None,
        count: Config | None = None,
        everybody: bool = False,
    ):
        self.partitions, self.least, self.wait, self.count = partitions, least, wait, count
        self.everybody, self.answer_within = everybody, wait if timeout is None else min(wait, timeout)
        self.examples: dict[int, int] = {}  # of each partition that said so
        self._known: dict[int, int] = {}
        self._unidentified: dict[int, int] = {}  # the nodes that gave none when asked, and how often that was
        self._calls = 0

    @property
    def unsaid(self) -> list[int]:
        """The partitions whose number of examples is missing."""
        return [one for one in range(self.partitions) if one not in self.examples] if self.everybody else []

    def present(self, grid: Grid, r: int) -> dict[int, int]:
        """The node of each partition that is connected in round r; waits until enough are.

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
            enough = len(self._known) >= self.least and not self.unsaid
            resting = {node for node, times in self._unidentified.items() if enough and self._calls % 2**times}
            faults = self._meet(grid, nodes - set(self._known) - resting, r)
            needed = self.partitions if self.unsaid else self.least
            if len(self._known) >= self.least and not self.unsaid:
                return {partition: node for node, partition in self._known.items()}
            hopeless = faults and len(nodes) >= needed and self._calls == 1
            if hopeless or time.monotonic() > until:
                reason = faults[0] if faults else "give --node-config 'partition-id=…' and start more SuperNodes."
                lack = f"{len(self._known)} of at least {self.least} clients are there"
                if self.unsaid:
                    lack = (
                        f'weights="num_examples" needs the number of examples of all {self.partitions} clients before '
                        f"the first round, and that of {', '.join(map(str, self.unsaid))} is missing"
                    )
                raise ValueError(f"{lack}: {reason}")
            log(INFO, "waiting for clients: %d of at least %d are there", len(self._known), needed)
            time.sleep(1.0)

    def forget(self, node: int) -> None:
        """The node is asked again before it is called."""
        self._known.pop(node, None)

    def _meet(self, grid: Grid, nodes: set[int], r: int) -> list[str]:
        """Asks new nodes for their partition, and then how many examples they have, if that is needed. Returns what
        was wrong with those who did not say it.

        A partition belongs to the node that came first for as long as Flower counts that as connected, which is a
        minute after its death at most: a second node that claims it is refused.
        """
        faults: list[str] = []
        for message in self._asked(grid, {node: RecordDict({HEADER: header()}) for node in nodes}):
            node = message.metadata.src_node_id
            try:
                partition = read_partition(message, self.partitions)
                holder = next((one for one, held in self._known.items() if held == partition), None)
                if holder is not None:
                    raise BadReply(
                        f"node {node} claims partition-id={partition}, which node {holder} has: it is refused while "
                        "that one is connected; give each SuperNode a partition-id of its own."
                    )
                self._known[node] = partition
            except BadReply as error:
                faults.append(_warned(error))
        if self.count is not None:
            faults += self._count(grid, {node: self._known[node] for node in nodes & self._known.keys()}, self.count, r)
        self._unidentified |= {node: self._unidentified.get(node, 0) + 1 for node in nodes - set(self._known)}
        return faults

    def _count(self, grid: Grid, nodes: dict[int, int], config: Config, r: int) -> list[str]:
        """Asks nodes, whose partitions are given, for their numbers of examples; who gives none is not known."""
        faults: list[str] = []
        contents = {
            node: RecordDict({HEADER: header(count=True), CONFIG: ConfigRecord(dict(config(r, partition)))})
            for node, partition in nodes.items()
        }
        counted = set()
        for message in self._asked(grid, contents):
            node = message.metadata.src_node_id
            try:
                self.examples[nodes[node]] = read_examples(message, nodes[node])
                counted.add(node)
            except BadReply as error:
                faults.append(_warned(error))
        for node in nodes.keys() - counted:
            self.forget(node)
        return faults

    def _asked(self, grid: Grid, contents: Mapping[int, RecordDict]) -> Iterable[Message]:
        within = self.answer_within
        messages = [
            Message(content=contents[node], message_type=MessageType.QUERY, dst_node_id=node, ttl=within)
            for node in sorted(contents)
        ]
        return grid.send_and_receive(messages, timeout=within) if messages else []


def _warned(error: BadReply) -> str:
    told = f"{error}; {REMEDY}." if isinstance(error, Crashed) else str(error)
    log(WARNING, "%s", told)
    return told
