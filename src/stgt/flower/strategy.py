"""The server's strategy, for Flower's Message API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import nn

from stgt._internal.checks import InputError, check_choice, check_count, check_number, check_seed
from stgt._internal.digest import digest
from stgt._internal.serialize import to_plain
from stgt.algorithms import Algorithm
from stgt.flower.checkpoint import ServerCheckpoint
from stgt.flower.methods import check_supported
from stgt.flower.outliers import find_outliers, typical_sizes
from stgt.flower.protocol import (
    CLIENT_STATE,
    CONFIG,
    HEADER,
    NUM_EXAMPLES,
    UNTRAINED,
    BadReply,
    Diverged,
    Reply,
    from_record,
    read_evaluation,
    read_reply,
    size_of,
    to_record,
    view_to_records,
)
from stgt.flower.registry import ClientRegistry, RunContext
from stgt.flower.result import (
    Absence,
    Aggregate,
    FederatedResult,
    RoundOutcome,
    aggregate_metrics,
    grouped,
    load_history,
    save_history,
)
from stgt.flower.server_state import ServerState
from stgt.flower.training import ties
from stgt.topology import Topology

WEIGHTS = ("equal", "num_examples")


class Strategy(FlowerStrategy):
    """Any server–client method of the library: ScaffoldPlus, Scaffold, FedAvg, FedProx, FedDyn, these with a server
    optimiser (DiLoCo, FedAdam, Outer, Adaptive), or STGT and LED on a sampled server.

    Replies have the weight 1/|S|. Clients are identified by their partition, so that the same seed gives the same run.
    A client that fails, is late or sends an unusable reply is left out of its round, and the log gives the reason. The
    method's invariants still hold.

    Args:
        algorithm: such as stgt.ScaffoldPlus(tau=10, gamma_g=1.0, gamma_c=1.0); gamma is the clients' lr. If s < n,
            ScaffoldPlus takes n/s times longer steps than Scaffold: equal lr·γ_c·n/s give equal steps.
        topology: stgt.topology.server(n, sampled=s, seed=…): n clients, of which s are called each round.
        seed: of the run: it determines which clients are called and their random draws.
        min_clients: how many must be connected for a round to begin.
        min_replies: how many must reply for a round to count.
        wait: seconds to wait for clients to connect, and for a new client to send its partition.
        patience: consecutive rounds that may fail; after that many the run ends with the reasons.
        checkpoint: a file for the server's state, written after every round and used to continue; none by default.
        evaluate: how many clients are asked to evaluate the model after each round. The run ends with an error if no
            client evaluated in `patience` consecutive rounds, or in any round.
        weights: "equal" minimises (1/n) Σ f_i, the mean over clients. "num_examples" minimises Σ m_i f_i / Σ m_i, the
            mean over all examples, if f_i is the mean over the m_i examples of client i. Each client multiplies its
            loss by n m_i / Σ m_i, which is exact for every method. m_i is the client's metric "num-examples"; all n
            clients are asked for it before the first round.
        client_config: `client_config(round, partition)` returns more entries for one client's config, in addition to
            train_config. They apply to training, evaluation and the query for its number of examples.
        train_metrics_aggr_fn, evaluate_metrics_aggr_fn: as in Flower's strategies. The default is the mean; in
            evaluation it has the weights "num-examples".
    """

    def __init__(
        self,
        algorithm: Algorithm,
        topology: Topology,
        *,
        seed: int = 0,
        min_clients: int = 1,
        min_replies: int = 1,
        wait: float = 600.0,
        patience: int = 5,
        checkpoint: Path | str | None = None,
        evaluate: int = 0,
        weights: str = "equal",
        client_config: Callable[[int, int], Mapping[str, Any]] | None = None,
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ):
        check_supported(algorithm, topology)
        self.algorithm, self.topology = algorithm, topology
        self.seed, self.wait = check_seed(seed), check_number(wait, "wait", above=0)
        self.patience = check_count(patience, "patience")
        self.min_clients = check_count(min_clients, "min_clients")
        self.min_replies = check_count(min_replies, "min_replies")
        if self.min_clients > topology.n:
            raise InputError("min_clients", min_clients, f"there are {topology.n} in all; give at most that many.")
        if self.min_replies > topology.sampled:
            raise InputError("min_replies", min_replies, f"a round calls {topology.sampled}; give at most that many.")
        self.evaluate = check_count(evaluate, "evaluate", 0)
        self.weights = check_choice(weights, "weights", WEIGHTS)
        self.checkpoint = None if checkpoint is None else ServerCheckpoint(checkpoint, self.seed, self.weights)
        self.client_config = client_config
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.server_state: ServerState | None = None
        self.history: list[RoundOutcome] = []
        self.done = 0  # rounds completed before this start
        self._run: RunContext | None = None

    # -- the whole run -----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | nn.Module,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FederatedResult:
        """Runs `num_rounds` rounds in total, including those before a checkpoint; see Flower's `Strategy.start`.

        Args:
            grid: Flower's grid.
            initial_arrays: the initial model, or an ArrayRecord of its state_dict. The ArrayRecord may lack arrays that
                are not trained. With the model, the parameters that require a gradient are trained. With an
                ArrayRecord, the majority of the first replies determines which are trained.
            num_rounds: rounds in total.
            timeout: seconds after which a client that has not replied is left out of the round.
            train_config, evaluate_config: entries of the clients' config.
            evaluate_fn: `evaluate_fn(round, arrays)`, called at the server after each round.
        """
        check_count(num_rounds, "num_rounds")
        check_number(timeout, "timeout", above=0)
        state = self.server_state = self._initial_state(initial_arrays)
        self.done, self.history, mean_examples = 0, [], 0.0
        if self.checkpoint is not None and self.checkpoint.exists():
            self.done, mean_examples = self.checkpoint.load(state)
            self.history = load_history(self.checkpoint.history, self.done)
            log(INFO, "continuing from round %d of %s", self.done, self.checkpoint.path)
        count_config = self._config if self.weights == "num_examples" else None
        need_all = count_config is not None and not mean_examples
        registry = ClientRegistry(self.topology.n, self.min_clients, self.wait, timeout, count_config, need_all)
        run = self._run = RunContext(grid, state, registry, num_rounds, timeout, mean_examples)
        done = self.done

        def evaluate_and_record(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            if evaluate_fn is None or (done and not number):
                return None
            found = evaluate_fn(done + number, arrays)
            if number and found is not None:
                self.history[-1].server = dict(found)
                self._write_history()
            return found

        try:
            result = super().start(
                grid,
                to_record(state.model()),
                max(0, num_rounds - done),
                timeout,
                train_config,
                evaluate_config,
                evaluate_and_record if evaluate_fn is not None else None,
            )
        finally:
            self._run = None
        if run.failed_rounds:
            last = f"the last of them is round {self.history[-1].round}: {self.history[-1].reasons}"
            if run.failed_rounds == num_rounds - done:
                raise ValueError(f"no round counted; {last}")
            log(WARNING, "the last %d rounds of the run do not count; %s", run.failed_rounds, last)
        if run.unevaluated_rounds and run.unevaluated_rounds == num_rounds - done:
            raise ValueError(f"no client evaluated in any round; {self._unevaluated()}")
        found = {
            name: {r + done if r else r: values for r, values in getattr(result, name).items()}
            for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
        }
        title = f"{self.algorithm.label}, {self.topology.sampled} of {self.topology.n} clients a round"
        return FederatedResult(to_record(state.model()), **found, history=self.history, title=title)

    def _initial_state(self, given: ArrayRecord | nn.Module) -> ServerState:
        if not isinstance(given, nn.Module):
            return ServerState(self.algorithm, self.topology, from_record(given))
        trained = [name for name, value in given.named_parameters() if value.requires_grad]
        arrays = from_record(ArrayRecord(given.state_dict()))
        return ServerState(self.algorithm, self.topology, arrays, trained, ties(given, trained))

    def summary(self) -> None:
        log(INFO, "\t├── %s on %s, seed %d", self.algorithm, self.topology, self.seed)
        log(
            INFO,
            "\t└── at least %d clients and %d replies a round; replies have the weight 1/|S|, clients have %s",
            self.min_clients,
            self.min_replies,
            "equal weights" if self.weights == "equal" else "weights by their examples",
        )

    # -- training ----------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Calls s of the connected clients: the same ones for the same seed."""
        state, run = self._started()
        r, run.config = self.done + server_round - 1, config
        connected = run.registry.connected(grid, r)
        run.called = {connected[partition]: partition for partition in self.topology.called(r, self.seed, connected)}
        outcome = RoundOutcome(r + 1, sorted(run.called.values()), sampled=self.topology.sampled)
        self.history.append(outcome)
        run.round_began, run.largest_message = time.monotonic(), 0
        method, model = json.dumps(to_plain(self.algorithm)), digest(state.specs)
        messages, views = [], {}
        for node, partition in run.called.items():
            view_round = state.view_round[partition]
            if view_round not in views:
                views[view_round] = view_to_records(state.view_for(partition))
            header = {
                "algorithm": method,
                "model": model,
                "round": r,
                "participation": self.topology.participation,
                "accepted": state.accepted[partition],
                "seed": self.seed,
                **({} if self.weights == "equal" else {"scale": self._scale(partition)}),
            }
            content = self._content(partition, views[view_round], header, self._config(r, partition))
            content.update(view_to_records(state.state_for(partition), CLIENT_STATE))
            outcome.down += size_of(content)
            run.largest_message = max(run.largest_message, size_of(content))
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node, ttl=run.timeout))
        return messages  # a list, because Flower's deployment grid iterates over it twice

    def _content(
        self, partition: int, view: Mapping[str, ArrayRecord], header: dict[str, Any], config: Mapping[str, Any]
    ) -> RecordDict:
        """A message to a client: the view, the untrained arrays that it lacks, the header and the config."""
        state, _ = self._started()
        untrained = state.untrained_for(partition)
        records: dict[str, Any] = {**view, **({UNTRAINED: to_record(untrained)} if untrained else {})}
        records[HEADER] = ConfigRecord({**header, UNTRAINED: state.untrained_digest})
        records[CONFIG] = ConfigRecord({**config})
        return RecordDict(records)

    def _config(self, r: int, partition: int) -> dict[str, Any]:
        """The config of a client's setup in round r, in every stage."""
        given = {} if self.client_config is None else self.client_config(r + 1, partition)
        return {**self._started()[1].config, **given, "server-round": r + 1}

    def _scale(self, partition: int) -> float:
        """n m_i / Σ m_i if the weights are the numbers of examples, else 1.

        The sum is over all n clients. All numbers are known before the first round, so the order in which clients
        connect does not matter.
        """
        if self.weights == "equal":
            return 1.0
        _, run = self._started()
        examples = run.registry.examples
        run.mean_examples = run.mean_examples or float(np.mean(list(examples.values())))
        return examples[partition] / run.mean_examples

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregates the usable replies. A round with too few of them changes nothing."""
        state, run = self._started()
        r, outcome = self.done + server_round - 1, self.history[-1]

        def read(message: Message, partition: int) -> Reply:
            reply = read_reply(message, partition, r)
            state.check(partition, reply)
            return reply

        good, outcome.absent = run.read_replies(replies, read)

        def refuse(errors: Mapping[int, str], diverged: bool = False) -> None:
            for partition, error in errors.items():
                outcome.absent.append(Absence(partition, "refused", error, diverged))
                del good[partition]

        refuse(state.mismatches(good))
        sizes = state.measure(good, {partition: self._scale(partition) for partition in good})
        refuse(find_outliers(sizes, state.usual), diverged=True)
        diverged = False
        outcome.up = sum(reply.size for reply in good.values())
        if len(good) < self.min_replies:
            outcome.problem = f"{len(good)} of at least {self.min_replies} replies"
        else:
            if state.trained is None and len(good) <= self.topology.n / 2:
                advice = "clients determine what is trained: give start the model itself to determine it there."
                log(INFO, "round %d: %d of %d %s", r + 1, len(good), self.topology.n, advice)
            try:
                state.aggregate(r, good)
                state.usual = typical_sizes((sizes[partition] for partition in good), state.usual)
            except BadReply as error:  # another exception is an error of the method, and ends the run
                outcome.problem, diverged = str(error), isinstance(error, Diverged)
        if outcome.problem:
            detail = f"its reply is usable, but the round does not count: {outcome.problem}"
            outcome.absent += [Absence(partition, "refused", detail, diverged) for partition in good]
        else:
            outcome.taken = sorted(good)
            rows = [reply.metrics for reply in good.values()]
            outcome.metrics = aggregate_metrics(rows, self.train_metrics_aggr_fn)
            outcome.metrics |= {
                "clients": len(good),
                "uplink-bytes": max(reply.size for reply in good.values()),
                "downlink-bytes": run.largest_message,
            }
        outcome.absent.sort(key=lambda absence: absence.client)
        return self._end_round(outcome)

    def _end_round(self, outcome: RoundOutcome) -> tuple[ArrayRecord, MetricRecord | None]:
        """Logs the round, writes the checkpoint, and ends a run that failed too often. Returns model and metrics."""
        state, run = self._started()
        outcome.seconds = time.monotonic() - run.round_began
        for absence in outcome.absent:
            log(WARNING, "round %d: %s", outcome.round, absence)
        log(WARNING if outcome.problem else INFO, "%s", outcome.line(run.rounds))
        if self.checkpoint is not None and (outcome.taken or self.checkpoint.exists()):
            self._write_history()
            self.checkpoint.save(state, outcome.round, run.mean_examples, bool(outcome.taken))
        run.failed_rounds = 0 if outcome.taken else run.failed_rounds + 1
        if run.failed_rounds >= self.patience:
            raise ValueError(
                f"{run.failed_rounds} rounds in a row do not count, as many as patience allows; the last of them is "
                f"round {outcome.round}: {outcome.reasons}"
            )
        return to_record(state.model()), MetricRecord(outcome.metrics) if outcome.taken else None

    def _write_history(self) -> None:
        if self.checkpoint is not None:
            save_history(self.checkpoint.history, self.history)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks `evaluate` clients, drawn by seed and round, to evaluate the model."""
        if not self.evaluate:
            return []
        state, run = self._started()
        r = self.done + server_round - 1
        connected = run.registry.connected(grid, r)
        order = np.random.default_rng([self.seed, r, 1]).permutation(self.topology.n)
        chosen = [int(partition) for partition in order if partition in connected][: self.evaluate]
        run.called = {connected[partition]: partition for partition in sorted(chosen)}
        names = arrays.keys() if state.trained is None else state.trained
        view = {"view.x": ArrayRecord({name: arrays[name] for name in names})}
        return [
            Message(
                content=self._content(partition, view, {"round": r}, {**self._config(r, partition), **config}),
                message_type=MessageType.EVALUATE,
                dst_node_id=node,
                ttl=run.timeout,
            )
            for node, partition in run.called.items()
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics, averaged; with the weights "num-examples" if all clients have that metric."""
        if not self.evaluate:
            return None
        (state, run), outcome = self._started(), self.history[-1]

        def read(message: Message, partition: int) -> dict[str, Any]:
            metrics, untrained_digest = read_evaluation(message, partition)
            state.confirm(partition, outcome.round, untrained_digest)
            return metrics

        found, outcome.unevaluated = run.read_replies(replies, read)
        for absence in outcome.unevaluated:
            log(WARNING, "round %d: evaluation: %s", outcome.round, absence)
        if found:
            outcome.evaluation = aggregate_metrics(list(found.values()), self.evaluate_metrics_aggr_fn, NUM_EXAMPLES)
        self._write_history()
        run.unevaluated_rounds = 0 if found else run.unevaluated_rounds + 1
        if run.unevaluated_rounds >= self.patience:
            raise ValueError(
                f"no client evaluated in {run.unevaluated_rounds} rounds in a row, as many as patience allows; "
                f"{self._unevaluated()}"
            )
        return MetricRecord(outcome.evaluation) if found else None

    def _unevaluated(self) -> str:
        last = self.history[-1]
        return f"the last of them is round {last.round}: {'; '.join(grouped(last.unevaluated))}"

    def _started(self) -> tuple[ServerState, RunContext]:
        if self._run is None:
            raise ValueError(
                "the strategy was not started: call strategy.start(grid, initial_arrays, …). It cannot be wrapped by "
                "another strategy, such as Flower's DifferentialPrivacyServerSideFixedClipping, which would not cover "
                "the control variates: give client_app mods=[LocalDpMod(…)] instead."
            )
        return self._run.state, self._run
