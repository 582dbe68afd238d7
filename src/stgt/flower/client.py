"""The client's side: a ClientApp made from a user's task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from stgt._internal.checks import check_count, under
from stgt._internal.registry import ALGORITHMS
from stgt._internal.serialize import from_plain, registered
from stgt.flower.client_state import ClientState, UntrainedArrays
from stgt.flower.protocol import (
    BUFFERS,
    CLIENT_STATE,
    CONFIG,
    DIRECTION,
    END,
    HEADER,
    LR_SUM,
    METRICS,
    NUM_EXAMPLES,
    UNTRAINED,
    Reply,
    check_reply,
    differs,
    from_record,
    read_header,
    to_record,
    view_from_records,
)
from stgt.flower.training import LocalTraining, Task, evaluate, users_code

SERVER = "the server's strategy"
ARRAYS = "arrays"  # the model in the messages that mods receive, as in Flower's own apps

Setup = Callable[[Context, dict[str, Any]], Task]
Folder = Path | str | None


def client_app(
    setup: Setup, *, state_dir: Folder | Callable[[Context], Folder] = None, mods: Iterable[Mod] = ()
) -> ClientApp:
    """A ClientApp for `stgt.flower.Strategy`.

    Args:
        setup: called with Flower's context and the round's config; returns the client's task. In every stage the
            config has the entries of train_config and client_config, "server-round" and "stage". The stage is "train",
            "evaluate" (then evaluate_config takes precedence) or "count" (the server asks for the client's number of
            examples: only `Task.metrics` is read). The client's partition is context.node_config["partition-id"].
        state_dir: folder where the client keeps its state on disk, so that the state survives a restart of the
            SuperNode. It may be a function of the context that returns the folder, such as
            `lambda context: context.node_config["state-dir"]`. By default the state is only in Flower's context.
        mods: Flower's mods around the training, such as LocalDpMod. They receive messages as in Flower's own apps: the
            trained parameters in "arrays", "config" and "metrics". The model that they return is sent to the server,
            and the control variates are computed from it.
    """
    app, mods = ClientApp(), tuple(mods)

    def answering(handle: Callable[[_Call], Message]) -> ClientAppCallable:
        def answer(message: Message, context: Context) -> Message:
            header = read_header(message, SERVER)
            try:
                folder = state_dir(context) if callable(state_dir) else state_dir
                return handle(_Call(message, context, header, setup, folder, mods))
            except ValueError as error:  # the user can correct it: its text is sent to the server
                return _reply(message, fault=str(error), kind=type(error).__name__)

        return answer

    app.query()(answering(_query))
    app.train()(answering(_train))
    app.evaluate()(answering(_evaluate))
    return app


@dataclass(frozen=True)
class _Call:
    """A message from the server, and the arguments of `client_app`."""

    message: Message
    context: Context
    header: dict[str, Any]
    setup: Setup
    state_dir: Folder
    mods: tuple[Mod, ...]

    @cached_property
    def partition(self) -> int:
        found = self.context.node_config.get("partition-id")
        if found is None:
            raise ValueError("the client has no partition: start its SuperNode with --node-config 'partition-id=0'.")
        return check_count(found, "partition-id", 0)

    def config(self, stage: str) -> dict[str, Any]:
        return {**self.message.content.config_records.get(CONFIG, ConfigRecord()), "stage": stage}

    def task(self, stage: str) -> Task:
        with users_code("the client's setup"):
            task = self.setup(self.context, self.config(stage))
        if not isinstance(task, Task):
            raise ValueError(f"setup returned a {type(task).__name__}: return a stgt.flower.Task.")
        return task

    def reply(self, records: dict[str, Any] | None = None, **header: Any) -> Message:
        return _reply(self.message, records, partition=self.partition, round=self.header["round"], **header)


def _query(call: _Call) -> Message:
    header: dict[str, Any] = {"partition": call.partition}
    if call.header.get("count"):
        examples = call.task("count").metrics.get(NUM_EXAMPLES)
        if examples is None:
            raise ValueError(
                f'weights="num_examples" needs each client\'s number: give Task metrics={{"{NUM_EXAMPLES}": …}}.'
            )
        header["examples"] = check_count(examples, NUM_EXAMPLES)
    return _reply(call.message, **header)


def _train(call: _Call) -> Message:
    header, partition, content, records = call.header, call.partition, call.message.content, call.context.state
    with under("the server's algorithm"):  # it may be a method that this process has not registered
        algorithm = from_plain(json.loads(header["algorithm"]), registered(ALGORITHMS))
    r, view = int(header["round"]), view_from_records(content)
    state = ClientState(records, algorithm, view, str(header["model"]), partition, call.state_dir)
    stored = UntrainedArrays(records, partition, call.state_dir)
    untrained = stored.complete(content, str(header[UNTRAINED]))
    server_copy = view_from_records(content, CLIENT_STATE)
    if not state.restore(str(header["accepted"]), server_copy) or untrained is None:
        return call.reply(lost=True)
    torch.manual_seed(int(np.random.SeedSequence([header["seed"], partition, r]).generate_state(1)[0]))
    received = {**untrained, **view["x"]}
    training = LocalTraining(call.task("train"), algorithm, received, header.get("scale"))
    training.set_state(state)
    found = _train_with_mods(call, training)
    if isinstance(found, Message):
        return found
    reply, metrics = found
    check_reply(reply, {**received, **{other: received[name] for other, name in training.tied.items()}})
    state.store(reply, r, float(header["participation"]))
    tied = [f"{other}={name}" for other, name in reply.tied.items()]
    untrained_digest = stored.store(training.untrained, str(header[UNTRAINED]))
    sent: dict[str, Any] = {END: to_record(reply.end), BUFFERS: to_record(reply.buffers), METRICS: metrics}
    sent[LR_SUM] = MetricRecord(dict(reply.lr_sum))
    if reply.direction is not None:
        sent[DIRECTION] = to_record(reply.direction)
    return call.reply(sent, tied=tied, **{UNTRAINED: untrained_digest})


def _train_with_mods(call: _Call, training: LocalTraining) -> tuple[Reply, MetricRecord] | Message:
    """The local steps with the mods around them. Returns the reply and its metrics, or a mod's error message."""
    made: list[Reply] = []
    trained = to_record({name: training.received[name] for name in training.trained})
    request = {ARRAYS: trained, CONFIG: ConfigRecord(call.config("train"))}

    def train(plain: Message, context: Context) -> Message:
        if any(plain.content.get(name) != record for name, record in request.items()):
            raise ValueError(
                "a mod changed the model or the config that the server sent, and a method that tracks gradients cannot "
                "correct for that: leave the mod out."
            )
        reply, loss = training.run()
        made.append(reply)
        metrics = MetricRecord({**training.task.metrics, "loss": loss, "steps": training.steps_done})
        return Message(RecordDict({ARRAYS: to_record(reply.end), METRICS: metrics}), reply_to=plain)

    def wrap(inner: ClientAppCallable, mod: Mod) -> ClientAppCallable:
        return lambda message, context: mod(message, context, inner)

    wrapped: ClientAppCallable = train
    for mod in reversed(call.mods):
        wrapped = wrap(wrapped, mod)
    message: Any = Message  # its type stub lacks the arguments of a message that is not sent
    out = wrapped(message(content=RecordDict(request), metadata=call.message.metadata), call.context)
    if out.has_error():
        return out
    (reply,), arrays, metrics = made, out.content.get(ARRAYS), out.content.get(METRICS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise ValueError(f'a mod removed "{ARRAYS}" or "{METRICS}" from the reply: keep both.')
    end = from_record(arrays)
    if end.keys() != reply.end.keys():
        raise ValueError("a mod changed the names of the model's arrays: keep them.")
    if any(differs(end[name], reply.end[name]) for name in end):
        unchanged = "the direction of an optimiser other than plain SGD" if reply.direction else ""
        unchanged = unchanged or (f"{min(reply.buffers)}, a buffer that training changes," if reply.buffers else "")
        if unchanged:
            raise ValueError(
                f"a mod changed the model of the reply, but {unchanged} would be sent unchanged: use SGD without "
                "momentum, and a model without BatchNorm."
            )
    return replace(reply, end={name: end[name] for name in reply.end}), metrics


def _evaluate(call: _Call) -> Message:
    stored = UntrainedArrays(call.context.state, call.partition, call.state_dir)
    untrained = stored.complete(call.message.content, str(call.header[UNTRAINED]))
    if untrained is None:
        return call.reply(lost=True)
    task = call.task("evaluate")
    found = evaluate(task, {**untrained, **view_from_records(call.message.content)["x"]})
    untrained_digest = stored.store(untrained, str(call.header[UNTRAINED]))
    return call.reply({METRICS: MetricRecord({**task.metrics, **found})}, **{UNTRAINED: untrained_digest})


def _reply(message: Message, records: dict[str, Any] | None = None, **header: Any) -> Message:
    return Message(RecordDict({**(records or {}), HEADER: ConfigRecord(header)}), reply_to=message)
