"""The server's strategy, for Flower's Message API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from stgt.algorithms import Algorithm
from stgt.checks import check_count, check_number, check_seed
from stgt.flower.checkpoint import load_ledger, save_ledger
from stgt.flower.fit import as_text, check_usable
from stgt.flower.ledger import Ledger, Reply
from stgt.flower.records import (
    HEADER,
    FailedError,
    from_record,
    header,
    header_of,
    is_unavailable,
    size_of,
    to_record,
    view_records,
)
from stgt.flower.roster import Roster
from stgt.topology import Topology

NUM_EXAMPLES = "num-examples"


class Strategy(FlowerStrategy):
    """Any server–worker method of the family: ScaffoldPlus, Scaffold, FedAvg, FedProx, FedDyn, these with outer
    momentum (DiLoCo, Outer), or STGT and LED on a sampled server.

    Weights are 1/|S|. Clients are known by their partition, so that the same seed gives the same run. A client that
    fails, is late or whose reply is invalid is left out of its round, and the method's algebra stays right.

    Args:
        algorithm: such as stgt.ScaffoldPlus(tau=10, gamma_g=1.0, gamma_c=1.0); gamma is the clients' lr.
        topology: stgt.topology.server(n, sampled=s, seed=…): n clients in all, of whom s are called each round.
        seed: of the run: it changes whom the server calls and what clients draw.
        min_clients: how many must be there for a round to begin.
        min_replies: how many must reply for it to count.
        patience: seconds to wait for clients to be there, and for a new one to say which partition it is.
        checkpoint: a file to write the server's state to after every round, and to go on from; none if left out.
        evaluate: how many clients are asked to evaluate the model after each round.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        topology: Topology,
        *,
        seed: int = 0,
        min_clients: int = 1,
        min_replies: int = 1,
        patience: float = 600.0,
        checkpoint: Path | str | None = None,
        evaluate: int = 0,
    ):
        check_usable(algorithm, topology)
        self.algorithm, self.topology = algorithm, topology
        self.seed, self.patience = check_seed(seed), check_number(patience, "patience", above=0)
        self.min_clients = check_count(min_clients, "min_clients")
        self.min_replies = check_count(min_replies, "min_replies")
        if self.min_clients > topology.n:
            raise ValueError(f"min_clients={min_clients}: there are {topology.n} in all; give at most that many.")
        if self.min_replies > topology.sampled:
            raise ValueError(f"min_replies={min_replies}: a round calls {topology.sampled}; give at most that many.")
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.evaluate = check_count(evaluate, "evaluate", 0)
        self.ledger: Ledger | None = None
        self.done = 0  # rounds before this start
        self._roster = Roster(topology.n, self.min_clients, self.patience)
        self._called: dict[int, int] = {}  # the partition of each node that was sent this round's message
        self._ttl: float | None = None
        self._sent = 0

    # -- the whole run -----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs `num_rounds` rounds in all, less those that a checkpoint has behind it; see Flower's `Strategy.start`.

        A client that has not replied after `timeout` seconds is left out of the round.
        """
        check_count(num_rounds, "num_rounds")
        self.ledger, self.done = Ledger(self.algorithm, self.topology, from_record(initial_arrays)), 0
        if self.checkpoint is not None and self.checkpoint.exists():
            self.done = load_ledger(self.checkpoint, self.ledger, self.seed)
            log(INFO, "going on from round %d of %s", self.done, self.checkpoint)
        self._ttl, self._roster = timeout, Roster(self.topology.n, self.min_clients, self.patience, timeout)
        begin, done = to_record(self.ledger.model()), self.done

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if evaluate_fn is None or (done and not number) else evaluate_fn(done + number, arrays)

        result = super().start(
            grid,
            begin,
            max(0, num_rounds - done),
            timeout,
            train_config,
            evaluate_config,
            evaluate if evaluate_fn is not None else None,
        )
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            found = getattr(result, name)
            setattr(result, name, {r + done if r else r: values for r, values in found.items()})
        result.arrays = to_record(self.ledger.model())
        return result

    def summary(self) -> None:
        log(INFO, "\t├── %s on %s, seed %d", self.algorithm, self.topology, self.seed)
        log(INFO, "\t└── at least %d clients and %d replies a round; weights 1/|S|", self.min_clients, self.min_replies)

    # -- training ----------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Calls s of the clients that are there: the same ones for the same seed."""
        ledger, r = self._begun(), self.done + server_round - 1
        present = self._roster.present(grid)
        called = self.topology.called(r, self.seed, present)
        self._called = {present[partition]: partition for partition in called}
        self._sent, records, messages = 0, {}, []
        for node, partition in self._called.items():
            at = ledger.at[partition]
            if at not in records:
                records[at] = view_records(ledger.view(partition))
            told = header(
                algorithm=as_text(self.algorithm),
                round=r,
                participation=self.topology.participation,
                accepted=ledger.accepted[partition],
                seed=self.seed,
            )
            content = RecordDict({**records[at], HEADER: told, "config": _config(config, r)})
            self._sent = max(self._sent, size_of(content))
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node, ttl=self._ttl))
        return messages  # a list: Flower's grid of a deployment goes through them twice

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes in the replies that are right; a round with too few leaves everything as it was."""
        ledger, r = self._begun(), self.done + server_round - 1
        come = {
            self._called.get(message.metadata.src_node_id): message
            for message in replies
            if not is_unavailable(message)
        }
        good: dict[int, Reply] = {}
        faults: list[str] = []
        lost: list[int] = []
        for partition in sorted(self._called.values()):
            if partition not in come:
                continue
            try:
                found = self._read(come[partition], partition, r)
                if found is None:
                    lost.append(partition)
                else:
                    ledger.check(partition, found, next(iter(good.values()), None))
                    good[partition] = found
            except ValueError as error:
                log(WARNING, "round %d: client %d: %s", r + 1, partition, error)
                if ledger.trained is None or not isinstance(error, FailedError):
                    faults.append(f"client {partition}: {error}")
        if lost:
            log(WARNING, "round %d: client %d has lost its state; all control variables start anew.", r + 1, lost[0])
            ledger.forget(r)
            return self._end(r), None
        if faults and len(faults) == len(self._called):
            raise ValueError(f"no client could do round {r + 1}: {faults[0]}")
        if len(good) < self.min_replies:
            log(WARNING, "round %d does not count: %d replies of %d.", r + 1, len(good), self.min_replies)
            return self._end(r), None
        ledger.take(r, good)
        contents = [come[partition].content for partition in good]
        numbers = _averaged([dict(content.metric_records["metrics"]) for content in contents], None)
        numbers |= {"clients": len(good), "uplink-bytes": max(map(size_of, contents)), "downlink-bytes": self._sent}
        return self._end(r), MetricRecord({**numbers})

    def _end(self, r: int) -> ArrayRecord:
        """The round's model, and the checkpoint."""
        ledger = self._begun()
        if self.checkpoint is not None:
            save_ledger(self.checkpoint, ledger, self.seed, r + 1)
        return to_record(ledger.model())

    def _read(self, message: Message, partition: int, r: int) -> Reply | None:
        """A client's reply to round r; None if it has lost its state."""
        said = header_of(message, "it")
        if said.get("partition") != partition:
            self._roster.forget(message.metadata.src_node_id)
            raise ValueError(f"it is partition {said.get('partition')} now: it is asked again before it is called.")
        if said.get("round") != r:
            raise ValueError("its reply is to another round: it is left out.")
        if said.get("lost"):
            return None
        missing = {"end", "buffers", "travelled", "metrics"} - set(message.content)
        if missing:
            raise ValueError(f"its reply lacks {min(missing)!r}: use the same version of stgt on both sides.")
        records, travelled = message.content.array_records, message.content.metric_records["travelled"]
        return Reply(
            end=from_record(records["end"]),
            travelled={name: float(str(value)) for name, value in travelled.items()},
            direction=from_record(records["direction"]) if "direction" in records else None,
            buffers=from_record(records["buffers"]),
            tied=dict(pair.split("=", 1) for pair in said["tied"]),
        )

    # -- evaluation --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks `evaluate` clients what they think of the model."""
        if not self.evaluate:
            return []
        r, present = self.done + server_round - 1, self._roster.present(grid)
        self._called, messages = {}, []
        for partition in sorted(present)[: self.evaluate]:
            self._called[present[partition]] = partition
            content = RecordDict({"view.x": arrays, HEADER: header(round=r), "config": _config(config, r)})
            kind = MessageType.EVALUATE
            messages.append(Message(content=content, message_type=kind, dst_node_id=present[partition], ttl=self._ttl))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' numbers, averaged with the weights "num-examples" if all of them say it."""
        found = []
        for message in replies:
            try:
                header_of(message, "it")
                found.append(dict(message.content.metric_records["metrics"]))
            except ValueError as error:
                log(WARNING, "evaluation: client %s: %s", self._called.get(message.metadata.src_node_id), error)
        weigh = all(numbers.get(NUM_EXAMPLES, 0) > 0 for numbers in found)
        return MetricRecord({**_averaged(found, NUM_EXAMPLES if weigh else None)}) if found else None

    def _begun(self) -> Ledger:
        if self.ledger is None:
            raise ValueError("the strategy was not started: call strategy.start(grid, initial_arrays, …).")
        return self.ledger


def _config(config: ConfigRecord, r: int) -> ConfigRecord:
    return ConfigRecord({**config, "server-round": r + 1})


def _averaged(rows: list[dict], weight: str | None) -> dict[str, float]:
    """The mean of each number that all rows have; lists are left out."""
    weights = np.array([float(row[weight]) if weight else 1.0 for row in rows])
    names = [name for name in rows[0] if name != weight and all(isinstance(row.get(name), int | float) for row in rows)]
    return {name: float(np.average([float(row[name]) for row in rows], weights=weights)) for name in names}
