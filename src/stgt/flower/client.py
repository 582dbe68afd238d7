"""The worker: a ClientApp made of a user's model, optimiser, batches and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from stgt.checks import check_count
from stgt.flower.fit import from_text
from stgt.flower.ledger import Arrays, Reply, check_reply, same_bits
from stgt.flower.memory import Memory
from stgt.flower.records import HEADER, header, header_of, reply_to, to_record, view_of
from stgt.torch.fit import check_divided, is_plain
from stgt.torch.flat import Block, make_blocks
from stgt.torch.local import Steps


@dataclass
class Task:
    """What a client trains.

    Attributes:
        model: its weights are overwritten by the server's.
        optimizer: over the model's parameters; its lr is the method's gamma. A new one each round.
        batches: as many as there are steps; a loader that ends earlier makes the round shorter, which is allowed.
        loss: the train step: `loss(model, batch)`, a number to differentiate.
        steps: local steps of this client, if not the method's tau; a client may take more or fewer than others.
        evaluate: `evaluate(model)` gives numbers by name, for the server's rounds of evaluation.
        metrics: numbers by name that go with each reply, such as {"num-examples": 600}.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    steps: int | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


Setup = Callable[[Context, dict[str, Any]], Task]


def client_app(setup: Setup, *, state_dir: Path | str | None = None) -> ClientApp:
    """A ClientApp for `stgt.flower.Strategy`.

    Args:
        setup: called with Flower's context and the round's config ("server-round" and what was given as train_config);
            returns the client's task. Its partition is context.node_config["partition-id"].
        state_dir: folder where the client keeps what is its own on disk as well, so that it survives a restart of the
            SuperNode and the end of a run. Without it, it lives in Flower's context, as long as the run does.
    """
    app = ClientApp()

    def answer(message: Message, context: Context, work: Callable[..., Message]) -> Message:
        header_of(message, "the server's strategy")
        try:
            return work(message, context)
        except ValueError as error:  # what a user can mend travels to the server as a sentence
            return reply_to(message, **{HEADER: header(fault=str(error))})

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: reply_to(m, **{HEADER: header(partition=_partition(c))}))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: _train(m, c, setup, state_dir))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: _evaluate(m, c, setup))

    return app


def _train(message: Message, context: Context, setup: Setup, state_dir: Path | str | None) -> Message:
    told, partition = header_of(message, "the server's strategy"), _partition(context)
    algorithm, r, view = from_text(told["algorithm"]), int(told["round"]), view_of(message.content)
    memory = Memory(context.state, algorithm, view, partition, state_dir)
    if not memory.recall(str(told["accepted"])):
        return reply_to(message, **{HEADER: header(lost=True, partition=partition, round=r)})
    torch.manual_seed(int(np.random.SeedSequence([told["seed"], partition, r]).generate_state(1)[0]))
    task = setup(context, _config(message))
    worker = Worker(task, memory)
    reply, loss = worker.work(task)
    try:
        check_reply(reply, view["x"])
    except ValueError as error:  # of a round that went wrong, nothing is kept
        raise ValueError(f"partition {partition}, round {r + 1}: {error}") from None
    memory.keep(reply, r, float(told["participation"]))
    metrics = MetricRecord({**task.metrics, "loss": loss, "steps": worker.taken})
    records = {"end": to_record(reply.end), "buffers": to_record(reply.buffers)}
    if reply.direction is not None:
        records["direction"] = to_record(reply.direction)
    said = header(partition=partition, round=r, tied=[f"{other}={name}" for other, name in reply.tied.items()])
    return reply_to(
        message, **records, travelled=MetricRecord(dict(reply.travelled)), metrics=metrics, **{HEADER: said}
    )


def _evaluate(message: Message, context: Context, setup: Setup) -> Message:
    task = setup(context, _config(message))
    if task.evaluate is None:
        raise ValueError("the client has nothing to evaluate with: give Task evaluate=, or Strategy evaluate=0.")
    _load(task.model, view_of(message.content)["x"])
    task.model.eval()
    with torch.inference_mode():
        found = {name: float(value) for name, value in task.evaluate(task.model).items()}
    return reply_to(
        message, metrics=MetricRecord({**task.metrics, **found}), **{HEADER: header(partition=_partition(context))}
    )


class Worker:
    """A model's local steps, with the method's correction in each."""

    def __init__(self, task: Task, memory: Memory):
        self.algorithm, self.model, self.optimizer = memory.algorithm, task.model, task.optimizer
        self.sent = memory.view["x"]
        _load(self.model, self.sent)
        self.names = {id(value): name for name, value in self.model.named_parameters()}
        self.blocks = make_blocks(self.optimizer.param_groups)
        for block in self.blocks:
            if any(id(slot.parameter) not in self.names for slot in block.slots):
                raise ValueError("the optimiser holds parameters that are not the model's: give it model.parameters().")
        check_divided(self.algorithm, self.optimizer)
        self.plain = is_plain(self.optimizer)
        self.steps = Steps(self.algorithm, self.blocks, self.plain)
        self.taken = 0
        for block in self.blocks:
            for name, place in self._places(block):
                for key, value in memory.of(name).items():
                    if key != "x":
                        place(block.state[key]).copy_(torch.from_numpy(value))

    def work(self, task: Task) -> tuple[Reply, float]:
        """All local steps; what to reply, and the mean loss."""
        limit = self.algorithm.tau if task.steps is None else check_count(task.steps, "steps")
        total = 0.0
        self.model.train()
        for batch in islice(task.batches, limit):
            self.optimizer.zero_grad()
            loss = task.loss(self.model, batch)
            loss.backward()
            self.steps.apply(self.optimizer.param_groups, first=self.taken == 0)
            if not self.plain:
                self.optimizer.step()
            total += float(loss.detach())
            self.taken += 1
        if self.taken == 0:
            raise ValueError("the client has no batch to train on: give Task batches with at least one.")
        return self._reply(), total / self.taken

    def _reply(self) -> Reply:
        end: Arrays = {}
        travelled: dict[str, float] = {}
        direction: Arrays = {}
        for block in self.blocks:
            for name, place in self._places(block):
                end[name] = place(block.x).detach().cpu().numpy().copy()
                travelled[name] = block.travelled
                if block.total is not None:
                    direction[name] = (place(block.total) / self.taken).cpu().numpy()
        named = dict(self.model.state_dict(keep_vars=True).items())
        tied = {other: self.names[id(value)] for other, value in named.items() if id(value) in self.names}
        held = self.model.named_buffers(remove_duplicate=False)  # a module used twice has two names in the state_dict
        buffers = {name: value.detach().cpu().numpy() for name, value in held if name in named}
        buffers = {name: value for name, value in buffers.items() if _differs(value, self.sent[name])}
        tied = {other: name for other, name in tied.items() if other != name}
        return Reply(end, travelled, direction or None, buffers, tied)

    def _places(self, block: Block) -> Iterable[tuple[str, Callable[[Tensor], Tensor]]]:
        """The name of each parameter of a block, and how to look at its place in a flat buffer."""
        for slot in block.slots:

            def place(flat: Tensor, slot: Any = slot) -> Tensor:
                return torch.as_strided(flat, slot.shape, slot.strides, slot.offset)

            yield self.names[id(slot.parameter)], place


def _differs(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or one.dtype != other.dtype or not same_bits(one, other).all()


def _load(model: nn.Module, arrays: Arrays) -> None:
    mine = model.state_dict()
    for name in sorted(set(mine) | set(arrays)):
        if name not in mine or name not in arrays:
            side = "the client's" if name not in arrays else "the server's"
            raise ValueError(f"{name} is in {side} model only: give both sides the same one.")
        if tuple(mine[name].shape) != arrays[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(mine[name].shape)} at the client and {arrays[name].shape} at the server: "
                "give both sides the same model."
            )
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def _partition(context: Context) -> int:
    found = context.node_config.get("partition-id")
    if found is None:
        raise ValueError("the client has no partition: start its SuperNode with --node-config 'partition-id=0'.")
    return check_count(found, "partition-id", 0)


def _config(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records.get("config", ConfigRecord()))
