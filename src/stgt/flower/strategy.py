"""The server's strategy, for Flower's Message API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import nn

from stgt._internal.checks import check_choice, check_count, check_number, check_seed
from stgt.algorithms import Algorithm
from stgt.flower.bounds import far_ones, typical
from stgt.flower.calling import Calling
from stgt.flower.checkpoint import Checkpoint
from stgt.flower.fit import as_text, check_usable
from stgt.flower.ledger import Ledger
from stgt.flower.metrics import NUM_EXAMPLES, Aggregate, aggregated
from stgt.flower.outcome import Absence, Outcome, load_history, save_history, together
from stgt.flower.records import (
    CONFIG,
    HEADER,
    REST,
    Answer,
    Moved,
    fingerprint,
    from_record,
    header,
    read_answer,
    read_evaluation,
    size_of,
    to_record,
    view_records,
)
from stgt.flower.records import OWN as COPY
from stgt.flower.reply import BadReply, Lost, Reply
from stgt.flower.result import FederatedResult
from stgt.flower.roster import Roster
from stgt.flower.worker import ties
from stgt.topology import Topology

WEIGHTS = ("equal", "num_examples")


class Strategy(FlowerStrategy):
    """Any server–worker method of the family: ScaffoldPlus, Scaffold, FedAvg, FedProx, FedDyn, these with a server
    optimiser (DiLoCo, FedAdam, Outer, Adaptive), or STGT and LED on a sampled server.

    Replies have the weight 1/|S|. Clients are known by their partition, so that the same seed gives the same run. A
    client that fails, is late or whose reply is of no use is left out of its round, by name and with the reason, and
    the method's algebra stays right.

    Args:
        algorithm: such as stgt.ScaffoldPlus(tau=10, gamma_g=1.0, gamma_c=1.0); gamma is the clients' lr. With s < n,
            ScaffoldPlus takes steps n/s times as long as Scaffold: what is alike in both is lr·γ_c·n/s.
        topology: stgt.topology.server(n, sampled=s, seed=…): n clients in all, of whom s are called each round.
        seed: of the run: it changes whom the server calls and what clients draw.
        min_clients: how many must be there for a round to begin.
        min_replies: how many must reply for it to count.
        wait: seconds to wait for clients to be there, and for a new one to say which partition it is.
        patience: rounds in a row that may be lost; after that many the run ends with the reasons.
        checkpoint: a file to write the server's state to after every round, and to go on from; none if left out.
        evaluate: how many clients are asked to evaluate the model after each round; the run ends when none of them
            could in `patience` rounds in a row, or in any round.
        weights: "equal" minimises (1/n) Σ f_i, the mean over clients; "num_examples" Σ m_i f_i / Σ m_i, the mean over
            all examples, if f_i is that over the m_i examples of client i. Each client multiplies its loss by
            n m_i / Σ m_i, which makes it exact for every method; m_i is its metric "num-examples", for which all n
            clients are asked before the first round.
        client_config: `client_config(round, partition)` gives what one client's config has beside train_config, in
            training, in evaluation and when it is asked for its examples.
        train_metrics_aggr_fn, evaluate_metrics_aggr_fn: as Flower's strategies have them; the mean if left out, in
            evaluation with the weights "num-examples".
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
        check_usable(algorithm, topology)
        self.algorithm, self.topology = algorithm, topology
        self.seed, self.wait = check_seed(seed), check_number(wait, "wait", above=0)
        self.patience = check_count(patience, "patience")
        self.min_clients = check_count(min_clients, "min_clients")
        self.min_replies = check_count(min_replies, "min_replies")
        if self.min_clients > topology.n:
            raise ValueError(f"min_clients={min_clients}: there are {topology.n} in all; give at most that many.")
        if self.min_replies > topology.sampled:
            raise ValueError(f"min_replies={min_replies}: a round calls {topology.sampled}; give at most that many.")
        self.evaluate = check_count(evaluate, "evaluate", 0)
        self.weights = check_choice(weights, "weights", WEIGHTS)
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint, self.seed, self.weights)
        self.client_config = client_config
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.ledger: Ledger | None = None
        self.history: list[Outcome] = []
        self.done = 0  # rounds before this start
        self._run: Calling | None = None

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
        """Runs `num_rounds` rounds in all, less those that a checkpoint has behind it; see Flower's `Strategy.start`.

        Args:
            initial_arrays: the first model, as an ArrayRecord of its state_dict, or of a part of it that holds all that
                is trained; or the model itself, which then says what is trained: what requires a gradient. Else most
                of the first replies say it.
            timeout: seconds after which a client that has not replied is left out of the round.
        """
        check_count(num_rounds, "num_rounds")
        check_number(timeout, "timeout", above=0)
        self.ledger, self.done, self.history = self._begin(initial_arrays), 0, []
        unit = 0.0
        if self.checkpoint is not None and self.checkpoint.exists():
            self.done, unit = self.checkpoint.load(self.ledger)
            self.history = load_history(self.checkpoint.history, self.done)
            log(INFO, "going on from round %d of %s", self.done, self.checkpoint.path)
        count = self._config if self.weights == "num_examples" else None
        everybody = count is not None and not unit
        roster = Roster(self.topology.n, self.min_clients, self.wait, timeout, count, everybody)
        self._run = Calling(grid, roster, num_rounds, timeout, unit)
        begin, done = to_record(self.ledger.model()), self.done

        def look(number: int, arrays: ArrayRecord) -> MetricRecord | None:
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
                begin,
                max(0, num_rounds - done),
                timeout,
                train_config,
                evaluate_config,
                look if evaluate_fn is not None else None,
            )
        finally:
            run, self._run = self._run, None
        if run.lost:
            last = f"the last of them is round {self.history[-1].round}: {self.history[-1].reasons}"
            if run.lost == num_rounds - done:
                raise ValueError(f"no round counted; {last}")
            log(WARNING, "the run ended with rounds that do not count, %d of them; %s", run.lost, last)
        if run.blind and run.blind == num_rounds - done:
            raise ValueError(f"no client evaluated in any round; {self._unevaluated()}")
        found = {
            name: {r + done if r else r: values for r, values in getattr(result, name).items()}
            for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
        }
        title = f"{self.algorithm.label}, {self.topology.sampled} of {self.topology.n} clients a round"
        return FederatedResult(to_record(self.ledger.model()), **found, history=self.history, title=title)

    def _begin(self, given: ArrayRecord | nn.Module) -> Ledger:
        if not isinstance(given, nn.Module):
            return Ledger(self.algorithm, self.topology, from_record(given))
        trained = [name for name, value in given.named_parameters() if value.requires_grad]
        arrays = from_record(ArrayRecord(given.state_dict()))
        return Ledger(self.algorithm, self.topology, arrays, trained, ties(given, trained))

    def summary(self) -> None:
        log(INFO, "\t├── %s on %s, seed %d", self.algorithm, self.topology, self.seed)
        log(
            INFO,
            "\t└── at least %d clients and %d replies a round; replies weigh 1/|S|, clients %s",
            self.min_clients,
            self.min_replies,
            "the same" if self.weights == "equal" else "by their examples",
        )

    # -- training ----------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Calls s of the clients that are there: the same ones for the same seed."""
        ledger, run = self._begun()
        r, run.config = self.done + server_round - 1, config
        present = run.roster.present(grid, r)
        run.called = {present[partition]: partition for partition in self.topology.called(r, self.seed, present)}
        outcome = Outcome(r + 1, sorted(run.called.values()), sampled=self.topology.sampled)
        self.history.append(outcome)
        run.began, run.largest = time.monotonic(), 0
        method, model = as_text(self.algorithm), fingerprint(ledger.kinds)
        messages, records = [], {}
        for node, partition in run.called.items():
            at = ledger.at[partition]
            if at not in records:
                records[at] = view_records(ledger.view(partition))
            told = {
                "algorithm": method,
                "model": model,
                "round": r,
                "participation": self.topology.participation,
                "accepted": ledger.accepted[partition],
                "seed": self.seed,
                **({} if self.weights == "equal" else {"scale": self._scale(partition)}),
            }
            content = self._content(partition, records[at], told, self._config(r, partition))
            content.update(view_records(ledger.copy_for(partition), COPY))
            outcome.down += size_of(content)
            run.largest = max(run.largest, size_of(content))
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node, ttl=run.timeout))
        return messages  # a list: Flower's grid of a deployment goes through them twice

    def _content(
        self, partition: int, view: Mapping[str, ArrayRecord], told: dict[str, Any], config: Mapping[str, Any]
    ) -> RecordDict:
        """A message to a client: the view, what it lacks of the other arrays, and what it is told."""
        ledger, _ = self._begun()
        rest = ledger.rest_for(partition)
        records: dict[str, Any] = {**view, **({REST: to_record(rest)} if rest else {})}
        records[HEADER] = header(**told, rest=ledger.rest_digest)
        records[CONFIG] = ConfigRecord({**config})
        return RecordDict(records)

    def _config(self, r: int, partition: int) -> dict[str, Any]:
        """What a client's setup is told in round r, in every stage."""
        own = {} if self.client_config is None else self.client_config(r + 1, partition)
        return {**self._begun()[1].config, **own, "server-round": r + 1}

    def _scale(self, partition: int) -> float:
        """n m_i / Σ m_i, if clients weigh by their examples: the mean is over all n, who have said theirs before the
        first round, so that it does not matter who came first."""
        if self.weights == "equal":
            return 1.0
        _, run = self._begun()
        examples = run.roster.examples
        run.unit = run.unit or float(np.mean(list(examples.values())))
        return examples[partition] / run.unit

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes in the replies that are right; a round with too few leaves everything as it was."""
        ledger, run = self._begun()
        r, outcome = self.done + server_round - 1, self.history[-1]
        answers, outcome.absent = run.read(replies, lambda message, i: self._answer(message, i, r))
        good = {partition: answer.reply for partition, answer in answers.items()}

        def left_out(faults: Mapping[int, str]) -> None:
            for partition, fault in faults.items():
                outcome.absent.append(Absence(partition, "refused", fault))
                del good[partition], answers[partition]

        left_out(ledger.odd_ones(good))
        measured = ledger.measured(good, {partition: self._scale(partition) for partition in good})
        left_out(far_ones(measured, ledger.usual))
        outcome.up = sum(answer.size for answer in answers.values())
        if len(good) < self.min_replies:
            outcome.problem = f"{len(good)} of at least {self.min_replies} replies"
        else:
            self._note_vote(good, r)
            try:
                ledger.take(r, good)
                ledger.usual = typical((measured[partition] for partition in good), ledger.usual)
            except BadReply as error:  # what is wrong with the method itself ends the run
                outcome.problem = str(error)
        if outcome.problem:
            told = f"its reply is right, and the round does not count: {outcome.problem}"
            outcome.absent += [Absence(partition, "refused", told) for partition in good]
        else:
            outcome.taken = sorted(good)
            outcome.metrics = aggregated([answer.metrics for answer in answers.values()], self.train_metrics_aggr_fn)
            outcome.metrics |= {
                "clients": len(good),
                "uplink-bytes": max(answer.size for answer in answers.values()),
                "downlink-bytes": run.largest,
            }
        outcome.absent.sort(key=lambda absence: absence.client)
        return self._end(outcome)

    def _answer(self, message: Message, partition: int, r: int) -> Answer:
        """A reply to round r, looked at."""
        with self._remembered(message, partition):
            answer = read_answer(message, partition, r)
        self._begun()[0].check(partition, answer.reply)
        return answer

    @contextmanager
    def _remembered(self, message: Message, partition: int) -> Iterator[None]:
        """What is wrong with a client is kept in mind until it is called again."""
        ledger, run = self._begun()
        try:
            yield
        except Moved:
            run.roster.forget(message.metadata.src_node_id)
            raise
        except Lost:
            ledger.missed(partition)
            raise

    def _note_vote(self, good: Mapping[int, Reply], r: int) -> None:
        if self._begun()[0].trained is None and len(good) <= self.topology.n / 2:
            log(
                INFO,
                "round %d: %d of %d clients decide what is trained: give start the model itself, and the server does.",
                r + 1,
                len(good),
                self.topology.n,
            )

    def _end(self, outcome: Outcome) -> tuple[ArrayRecord, MetricRecord | None]:
        """The round's model and its numbers; its line, the checkpoint, and the end of a run that leads nowhere."""
        ledger, run = self._begun()
        outcome.seconds = time.monotonic() - run.began
        for absence in outcome.absent:
            log(WARNING, "round %d: %s", outcome.round, absence)
        log(WARNING if outcome.problem else INFO, "%s", outcome.line(run.rounds))
        if self.checkpoint is not None and (outcome.taken or self.checkpoint.exists()):
            self._write_history()
            self.checkpoint.save(ledger, outcome.round, run.unit, bool(outcome.taken))
        run.lost = 0 if outcome.taken else run.lost + 1
        if run.lost >= self.patience:
            raise ValueError(
                f"{run.lost} rounds in a row do not count, as many as patience allows; the last of them is round "
                f"{outcome.round}: {outcome.reasons}"
            )
        return to_record(ledger.model()), MetricRecord(outcome.metrics) if outcome.taken else None

    def _write_history(self) -> None:
        if self.checkpoint is not None:
            save_history(self.checkpoint.history, self.history)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks `evaluate` clients, drawn by seed and round, what they think of the model."""
        if not self.evaluate:
            return []
        ledger, run = self._begun()
        r = self.done + server_round - 1
        present = run.roster.present(grid, r)
        line = np.random.default_rng([self.seed, r, 1]).permutation(self.topology.n)
        chosen = [int(partition) for partition in line if partition in present][: self.evaluate]
        run.called = {present[partition]: partition for partition in sorted(chosen)}
        names = arrays.keys() if ledger.trained is None else ledger.trained
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
        """The clients' numbers, averaged with the weights "num-examples" if all of them say it."""
        if not self.evaluate:
            return None
        (_, run), outcome = self._begun(), self.history[-1]
        found, outcome.unevaluated = run.read(replies, self._evaluated)
        for absence in outcome.unevaluated:
            log(WARNING, "round %d: evaluation: %s", outcome.round, absence)
        if found:
            outcome.evaluation = aggregated(list(found.values()), self.evaluate_metrics_aggr_fn, NUM_EXAMPLES)
        self._write_history()
        run.blind = 0 if found else run.blind + 1
        if run.blind >= self.patience:
            raise ValueError(
                f"no client evaluated in {run.blind} rounds in a row, as many as patience allows; {self._unevaluated()}"
            )
        return MetricRecord(outcome.evaluation) if found else None

    def _unevaluated(self) -> str:
        last = self.history[-1]
        return f"the last of them is round {last.round}: {'; '.join(together(last.unevaluated))}"

    def _evaluated(self, message: Message, partition: int) -> dict[str, Any]:
        with self._remembered(message, partition):
            found, held = read_evaluation(message, partition)
        self._begun()[0].confirm(partition, self.history[-1].round, held)
        return found

    def _begun(self) -> tuple[Ledger, Calling]:
        if self.ledger is None or self._run is None:
            raise ValueError(
                "the strategy was not started: call strategy.start(grid, initial_arrays, …). It cannot stand inside "
                "another one, such as Flower's DifferentialPrivacyServerSideFixedClipping, which would not see the "
                "control variables: give client_app mods=[LocalDpMod(…)] instead."
            )
        return self.ledger, self._run
