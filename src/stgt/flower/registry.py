"""The connected clients, and the context of a run: which clients the server called, and their replies.

Clients are identified by their partition, because Flower's node ids change with every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from stgt.flower.protocol import (
    CONFIG,
    HEADER,
    NO_NODE,
    REMEDY,
    BadReply,
    Crashed,
    Diverged,
    PartitionChanged,
    StateLost,
    is_unavailable,
    read_examples,
    read_partition,
)
from stgt.flower.result import Absence
from stgt.flower.server_state import ServerState

Config = Callable[[int, int], Mapping[str, Any]]  # of a round and a partition
Value = TypeVar("Value")


class ClientRegistry:
    """The partition of each connected node.

    Args:
        partitions: n, the total number of clients.
        min_clients: how many must be connected.
        wait: seconds to wait for that many.
        timeout: seconds to wait for a new node's partition, if less.
        count_config: the clients' config, if they are asked for their numbers of examples.
        need_all_examples: are the numbers of examples of all clients needed before a round begins?
    """

    def __init__(
        self,
        partitions: int,
        min_clients: int,
        wait: float,
        timeout: float,
        count_config: Config | None,
        need_all_examples: bool,
    ):
        self.partitions, self.min_clients, self.wait, self.count_config = partitions, min_clients, wait, count_config
        self.need_all_examples, self.query_timeout = need_all_examples, min(wait, timeout)
        self.examples: dict[int, int] = {}  # by partition
        self._partition_of: dict[int, int] = {}  # by node
        self._failures: dict[int, int] = {}  # of each unidentified node: how often it was asked without success
        self._calls = 0

    @property
    def missing_examples(self) -> list[int]:
        """The partitions whose number of examples is needed and unknown."""
        return [one for one in range(self.partitions) if one not in self.examples] if self.need_all_examples else []

    def connected(self, grid: Grid, r: int) -> dict[int, int]:
        """The node of each connected partition in round r. Waits until there are enough.

        A node without a valid partition is asked again: at once while there are too few others, else after 2, 4, 8, …
        rounds. A client's error ends the wait only before the first round, when all clients are likely to have it.
        """
        deadline = time.monotonic() + self.wait
        self._calls += 1
        while True:
            nodes = set(grid.get_node_ids())
            if not self._partition_of.keys() <= nodes:  # a partition is free again; another node may have claimed it
                self._partition_of = {node: one for node, one in self._partition_of.items() if node in nodes}
                self._failures = {}
            enough = len(self._partition_of) >= self.min_clients and not self.missing_examples
            skipped = {node for node, times in self._failures.items() if enough and self._calls % 2**times}
            errors = self._identify(grid, nodes - set(self._partition_of) - skipped, r)
            missing, count = self.missing_examples, len(self._partition_of)
            if count >= self.min_clients and not missing:
                return {partition: node for node, partition in self._partition_of.items()}
            needed = self.partitions if missing else self.min_clients
            hopeless = errors and len(nodes) >= needed and self._calls == 1
            if hopeless or time.monotonic() > deadline:
                reason = errors[0] if errors else "give --node-config 'partition-id=…' and start more SuperNodes."
                shortage = f"{count} of at least {self.min_clients} clients are connected"
                if missing:
                    shortage = (
                        f'weights="num_examples" needs the number of examples of all {self.partitions} clients before '
                        f"the first round, and that of {', '.join(map(str, missing))} is missing"
                    )
                raise ValueError(f"{shortage}: {reason}")
            log(INFO, "waiting for clients: %d of at least %d are connected", count, needed)
            time.sleep(1.0)

    def forget(self, node: int) -> None:
        """Makes the server ask the node for its partition again before it is called."""
        self._partition_of.pop(node, None)

    def _identify(self, grid: Grid, nodes: set[int], r: int) -> list[str]:
        """Asks new nodes for their partition and, if needed, for their number of examples. Returns the errors.

        The first node of a partition keeps it while Flower considers that node connected, which ends at most a minute
        after its death. A second node that claims the partition is refused. A node without a number of examples is
        forgotten.
        """

        def claim(message: Message, node: int) -> None:
            partition = read_partition(message, self.partitions)
            holder = next((other for other, one in self._partition_of.items() if one == partition), None)
            if holder is not None:
                raise BadReply(
                    f"node {node} claims partition-id={partition}, which node {holder} has: it is refused while "
                    f"node {holder} is connected; give each SuperNode its own partition-id."
                )
            self._partition_of[node] = partition

        def count(message: Message, node: int) -> None:
            partition = self._partition_of[node]
            self.examples[partition] = read_examples(message, partition)
            counted.add(node)

        errors = self._query(grid, {node: RecordDict({HEADER: ConfigRecord()}) for node in nodes}, claim)
        if self.count_config is not None:
            counted: set[int] = set()
            header, identified = ConfigRecord({"count": True}), nodes & self._partition_of.keys()
            configs = {node: dict(self.count_config(r, self._partition_of[node])) for node in identified}
            contents = {node: RecordDict({HEADER: header, CONFIG: ConfigRecord(one)}) for node, one in configs.items()}
            errors += self._query(grid, contents, count)
            for node in identified - counted:
                self.forget(node)
        self._failures |= {node: self._failures.get(node, 0) + 1 for node in nodes - set(self._partition_of)}
        return errors

    def _query(self, grid: Grid, contents: Mapping[int, RecordDict], read: Callable[[Message, int], None]) -> list[str]:
        """Sends a query to nodes and reads their replies; returns the errors."""
        timeout, errors = self.query_timeout, list[str]()
        messages = [
            Message(content=contents[node], message_type=MessageType.QUERY, dst_node_id=node, ttl=timeout)
            for node in sorted(contents)
        ]
        for message in grid.send_and_receive(messages, timeout=timeout) if messages else []:
            try:
                read(message, message.metadata.src_node_id)
            except BadReply as error:
                errors.append(f"{error}; {REMEDY}." if isinstance(error, Crashed) else str(error))
                log(WARNING, "%s", errors[-1])
        return errors


@dataclass
class RunContext:
    """What the server needs during one `start`. Of it, only `state` is saved."""

    grid: Grid
    state: ServerState
    registry: ClientRegistry
    rounds: int  # in total
    timeout: float  # seconds that a client has for its reply
    mean_examples: float  # the mean number of examples of all clients, which has the weight 1; 0 while it is unknown
    config: Mapping[str, Any] = field(default_factory=dict)  # the train_config
    called: dict[int, int] = field(default_factory=dict)  # the partition of each node that was sent a message
    failed_rounds: int = 0  # consecutive rounds that do not count
    unevaluated_rounds: int = 0  # consecutive rounds in which no client evaluated
    round_began: float = 0.0  # on the monotonic clock
    largest_message: int = 0  # bytes: the largest of the round's messages to clients

    def read_replies(
        self, replies: Iterable[Message], read: Callable[[Message, int], Value]
    ) -> tuple[dict[int, Value], list[Absence]]:
        """The replies of the called clients, by partition, and the clients without a usable reply, with the reason.

        A client that changed its partition is asked for it again. A client that lost its state is sent it again.

        Args:
            replies: the messages received.
            read: reads a message of a partition, or raises a BadReply.
        """
        messages = {message.metadata.src_node_id: message for message in replies}
        found: dict[int, Value] = {}
        absent: list[Absence] = []
        connected: set[int] | None = None
        for node, partition in sorted(self.called.items(), key=lambda pair: pair[1]):
            message = messages.get(node)
            if message is None or is_unavailable(message):
                connected = set(self.grid.get_node_ids()) if connected is None else connected
                gone = node not in connected or (message is not None and message.error.code == NO_NODE)
                detail = "it is no longer connected." if gone else f"no reply within {self.timeout:g} s."
                absent.append(Absence(partition, "gone" if gone else "late", detail))
                continue
            try:
                found[partition] = read(message, partition)
            except BadReply as error:
                if isinstance(error, PartitionChanged):
                    self.registry.forget(node)
                elif isinstance(error, StateLost):
                    self.state.state_lost(partition)
                absent.append(Absence(partition, error.reason, str(error), isinstance(error, Diverged)))
        return found, absent
