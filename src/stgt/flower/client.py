"""The client's side: a ClientApp made of a user's task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from stgt._internal.checks import check_count
from stgt.flower.fit import from_text
from stgt.flower.memory import Memory
from stgt.flower.records import (
    BUFFERS,
    CONFIG,
    DIRECTION,
    END,
    HEADER,
    METRICS,
    OWN,
    TRAVELLED,
    from_record,
    header,
    header_of,
    reply_to,
    to_record,
    view_of,
)
from stgt.flower.reply import Crashed, Reply, check_reply, differs
from stgt.flower.rest import Rest
from stgt.flower.worker import Task, Worker, evaluate, users_code

SERVER = "the server's strategy"
ARRAYS = "arrays"  # the model in the messages that mods see, as in Flower's own apps
NUM_EXAMPLES = "num-examples"

Setup = Callable[[Context, dict[str, Any]], Task]


Folder = Path | str | None


def client_app(
    setup: Setup, *, state_dir: Folder | Callable[[Context], Folder] = None, mods: Iterable[Mod] = ()
) -> ClientApp:
    """A ClientApp for `stgt.flower.Strategy`.

    Args:
        setup: called with Flower's context and the round's config; returns the client's task. The config holds, in
            every stage, what was given as train_config and client_config, "server-round" and "stage", which is
            "train", "evaluate" (then with evaluate_config over it) or "count" (of its examples: only `Task.metrics`
            is looked at). The client's partition is context.node_config["partition-id"].
        state_dir: folder where the client keeps what is its own on disk as well, so that it survives a restart of the
            SuperNode; or a function of the context that names it, such as
            `lambda context: context.node_config["state-dir"]`. Without it, it lives in Flower's context.
        mods: Flower's, around the training, such as LocalDpMod. They see messages as Flower's own apps have them: the
            parameters that are trained in "arrays", "config" and "metrics". What they make of the model is what is
            sent, and what the control variables follow.
    """
    app, mods = ClientApp(), tuple(mods)

    def folder(context: Context) -> Folder:
        return state_dir(context) if callable(state_dir) else state_dir

    def answer(message: Message, context: Context, work: Callable[..., Message]) -> Message:
        header_of(message, SERVER)
        try:
            return work(message, context)
        except ValueError as error:  # what a user can mend travels to the server as a sentence
            return reply_to(message, **{HEADER: header(fault=str(error), crashed=isinstance(error, Crashed))})

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: _query(m, c, setup))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: _train(m, c, setup, folder(c), mods))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, lambda m, c: _evaluate(m, c, setup, folder(c)))

    return app


def _query(message: Message, context: Context, setup: Setup) -> Message:
    said = {"partition": _partition(context)}
    if header_of(message, SERVER).get("count"):
        found = _task(setup, context, _config(message, "count")).metrics.get(NUM_EXAMPLES)
        if found is None:
            raise ValueError(
                f'weights="num_examples" needs each client\'s number: give Task metrics={{"{NUM_EXAMPLES}": …}}.'
            )
        said["examples"] = check_count(found, NUM_EXAMPLES)
    return reply_to(message, **{HEADER: header(**said)})


def _train(message: Message, context: Context, setup: Setup, state_dir: Folder, mods: tuple[Mod, ...]) -> Message:
    told, partition = header_of(message, SERVER), _partition(context)
    algorithm, r, view = from_text(told["algorithm"]), int(told["round"]), view_of(message.content)
    memory = Memory(context.state, algorithm, view, str(told["model"]), partition, state_dir)
    rest = Rest(context.state, partition, state_dir)
    untrained = rest.whole(message.content, str(told["rest"]))
    if not memory.recall(str(told["accepted"]), view_of(message.content, OWN)) or untrained is None:
        return _lost(message, partition, r)
    torch.manual_seed(int(np.random.SeedSequence([told["seed"], partition, r]).generate_state(1)[0]))
    config = _config(message, "train")
    sent = {**untrained, **view["x"]}
    worker = Worker(_task(setup, context, config), algorithm, sent, told.get("scale"))
    worker.begin(memory)
    found = _worked(message, context, worker, config, mods)
    if isinstance(found, Message):
        return found
    reply, metrics = found
    check_reply(reply, {**sent, **{other: sent[name] for other, name in worker.tied.items()}})
    memory.keep(reply, r, float(told["participation"]))
    tied = [f"{other}={name}" for other, name in reply.tied.items()]
    held = rest.keep(worker.untrained, str(told["rest"]))
    records = {END: to_record(reply.end), BUFFERS: to_record(reply.buffers)}
    if reply.direction is not None:
        records[DIRECTION] = to_record(reply.direction)
    return reply_to(
        message,
        **records,
        **{TRAVELLED: MetricRecord(dict(reply.travelled)), METRICS: metrics},
        **{HEADER: header(partition=partition, round=r, tied=tied, rest=held)},
    )


def _worked(
    message: Message, context: Context, worker: Worker, config: dict[str, Any], mods: tuple[Mod, ...]
) -> tuple[Reply, MetricRecord] | Message:
    """The local steps with the mods around them: what is said in the end. A message, if a mod refused."""
    made: list[Reply] = []
    down = {ARRAYS: to_record({name: worker.sent[name] for name in worker.trained}), CONFIG: ConfigRecord(config)}

    def work(plain: Message, context: Context) -> Message:
        if any(plain.content.get(name) != record for name, record in down.items()):
            raise ValueError(
                "a mod changed what came down, which a method that tracks gradients cannot follow: leave it out."
            )
        reply, loss = worker.work()
        made.append(reply)
        metrics = MetricRecord({**worker.task.metrics, "loss": loss, "steps": worker.taken})
        return Message(RecordDict({ARRAYS: to_record(reply.end), METRICS: metrics}), reply_to=plain)

    def around(inner: ClientAppCallable, mod: Mod) -> ClientAppCallable:
        return lambda message, context: mod(message, context, inner)

    call: ClientAppCallable = work
    for mod in reversed(mods):
        call = around(call, mod)
    plain: Any = Message(content=RecordDict(down), metadata=message.metadata)  # pyright: ignore[reportCallIssue]
    out = call(plain, context)
    if out.has_error():
        return out
    (reply,), arrays, metrics = made, out.content.get(ARRAYS), out.content.get(METRICS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise ValueError(f'a mod took "{ARRAYS}" or "{METRICS}" out of the reply: leave both in.')
    end = from_record(arrays)
    if end.keys() != reply.end.keys():
        raise ValueError("a mod changed the names of the model's arrays: leave them as they are.")
    if any(differs(end[name], reply.end[name]) for name in end):
        beside = "the direction of an optimiser other than plain SGD" if reply.direction else ""
        beside = beside or (f"{min(reply.buffers)}, a buffer that training changes," if reply.buffers else "")
        if beside:
            raise ValueError(
                f"a mod changed the model that goes up, and {beside} would go beside it unchanged: use SGD without "
                "momentum, and a model without BatchNorm."
            )
    return replace(reply, end={name: end[name] for name in reply.end}), metrics


def _evaluate(message: Message, context: Context, setup: Setup, state_dir: Folder) -> Message:
    told, partition = header_of(message, SERVER), _partition(context)
    rest = Rest(context.state, partition, state_dir)
    untrained = rest.whole(message.content, str(told["rest"]))
    if untrained is None:
        return _lost(message, partition, int(told["round"]))
    task = _task(setup, context, _config(message, "evaluate"))
    found = evaluate(task, {**untrained, **view_of(message.content)["x"]})
    said = header(partition=partition, round=told["round"], rest=rest.keep(untrained, str(told["rest"])))
    return reply_to(message, **{METRICS: MetricRecord({**task.metrics, **found}), HEADER: said})


def _lost(message: Message, partition: int, r: int) -> Message:
    return reply_to(message, **{HEADER: header(lost=True, partition=partition, round=r)})


def _task(setup: Setup, context: Context, config: dict[str, Any]) -> Task:
    with users_code("the client's setup"):
        task = setup(context, config)
    if not isinstance(task, Task):
        raise ValueError(f"setup returned a {type(task).__name__}: return a stgt.flower.Task.")
    return task


def _partition(context: Context) -> int:
    found = context.node_config.get("partition-id")
    if found is None:
        raise ValueError("the client has no partition: start its SuperNode with --node-config 'partition-id=0'.")
    return check_count(found, "partition-id", 0)


def _config(message: Message, stage: str) -> dict[str, Any]:
    return {**message.content.config_records.get(CONFIG, ConfigRecord()), "stage": stage}
