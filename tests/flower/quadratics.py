"""Clients with f_i(x) = ½ Σ_j a_ij (x_j − b_ij)², exact gradients, and grids on which things go wrong."""

import copy

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict

from stgt._internal.digest import digest
from stgt.flower import Task, client_app
from stgt.flower.client_state import ClientState
from stgt.flower.in_process import InProcessGrid

CLIENTS, P, LR = 5, 4, 0.1
_DRAWS = np.random.default_rng(7)
CURVES = _DRAWS.uniform(0.5, 2.0, (CLIENTS, P))
CENTRES = _DRAWS.normal(size=(CLIENTS, P))
OPTIMUM = (CURVES * CENTRES).sum(axis=0) / CURVES.sum(axis=0)


class Point(torch.nn.Module):
    """A vector in two parameters."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.u = torch.nn.Parameter(torch.zeros(1, 3, dtype=dtype))
        self.v = torch.nn.Parameter(torch.zeros(1, dtype=dtype))

    def vector(self):
        return torch.cat([self.u.reshape(-1), self.v])


def loss(model, batch):
    curve, centre = batch
    return 0.5 * (curve * (model.vector() - centre).square()).sum()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=LR)


def task(partition, optimizer=sgd, steps=None, batches=100, dtype=torch.float64):
    model = Point(dtype)
    batch = torch.tensor(CURVES[partition], dtype=dtype), torch.tensor(CENTRES[partition], dtype=dtype)
    return Task(model, optimizer(model), [batch] * batches, loss, steps=steps)


def counted(partition):
    """A task with a number of examples, 3 + its partition, and an accuracy of ten times its partition."""
    found = task(partition)
    found.metrics, found.evaluate = {"num-examples": 3 + partition}, lambda model: {"accuracy": 10.0 * partition}
    return found


def app_of(make=task, state_dir=None):
    """A ClientApp whose client of a partition has the task `make(partition)`."""
    return client_app(lambda context, config: make(context.node_config["partition-id"]), state_dir=state_dir)


def initial(dtype=torch.float64):
    return ArrayRecord(Point(dtype).state_dict())


def vector(arrays):
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("u", "v")])


def fresh(context):
    """The context of a client that starts again."""
    return Context(context.run_id, context.node_id, context.node_config, RecordDict(), context.run_config)


class FatefulGrid(InProcessGrid):
    """`fate(round, partition)` is what happens to a train message: "ok", "lost" or "late" after the work,
    "error", "nan".
    """

    def __init__(self, app, clients=CLIENTS, fate=lambda r, partition: "ok"):
        super().__init__(app, clients)
        self.fate = fate
        self.sent, self.replied = [], []

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.sent.append(message)
            reply = self._call(message)
            self.replied.append(reply)
            if message.metadata.message_type == "train" and "stgt" in message.content:
                partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
                reply = spoilt(message, reply, self.fate(message.content["stgt"]["round"], partition))
            if reply is not None:
                replies.append(reply)
        return replies

    def sends(self, kind="train"):
        return [message for message in self.sent if message.metadata.message_type == kind]


class RestartGrid(FatefulGrid):
    """Before round `at`, the client of partition 1 starts again with an empty context."""

    at = 3

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].content["stgt"].get("round") == self.at:
            self.contexts[2] = fresh(self.contexts[2])
        return super().send_and_receive(messages, timeout=timeout)


class SpoilingGrid(FatefulGrid):
    """`spoil(round, partition)` gives the function that changes the records of a reply to a message of this kind, or
    None."""

    def __init__(self, app, clients, spoil, kind="train"):
        super().__init__(app, clients)
        self.spoil, self.kind = spoil, kind

    def _call(self, message):
        reply = super()._call(message)
        if message.metadata.message_type != self.kind:
            return reply
        partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        spoil = self.spoil(message.content["stgt"].get("round"), partition)
        if spoil is None or (self.kind == "train" and "end" not in reply.content):
            return reply
        return Message(RecordDict(spoil(dict(reply.content))), reply_to=message)


def spoilt(message, reply, fate):
    """The reply as it comes to the server, after the client has done its work; None if it does not."""
    if fate == "lost":
        return None
    if fate == "late":
        return Message(Error(code=3, reason="the message has expired"), reply_to=message)
    if fate == "error":
        return Message(Error(code=8, reason="the client crashed while it replied"), reply_to=message)
    if fate == "nan" and "end" in reply.content:
        bad = {name: np.full_like(array.numpy(), np.nan) for name, array in reply.content["end"].items()}
        records = {**reply.content, "end": ArrayRecord({name: Array(value) for name, value in bad.items()})}
        return Message(RecordDict(records), reply_to=message)
    return reply


def start(strategy, grid, rounds, arrays=None, **options):
    return vector(strategy.start(grid, arrays or initial(), num_rounds=rounds, **options).arrays)


def own_states(strategy, grid, field):
    """`field` of every client as the server believes it to be, (n, p): zero where nothing was taken in.

    The server's copy is the client's own, to the bit, of those who are not to be sent it.
    """
    state, found = strategy.server_state, []
    for context in grid.contexts.values():
        partition = context.node_config["partition-id"]
        copy_of = state.client_states.get(partition, {})
        client_state = ClientState(
            copy.deepcopy(context.state),
            strategy.algorithm,
            state.view_for(partition),
            digest(state.specs),
            partition,
            None,
        )
        assert client_state.restore(state.accepted[partition], state.state_for(partition))
        for name in ("u", "v") if copy_of else ():
            np.testing.assert_array_equal(client_state.of_parameter(name)[field], copy_of[field][name])
        found.append(np.concatenate([client_state.of_parameter(name)[field].reshape(-1) for name in ("u", "v")]))
    return np.stack(found)


def held(strategy, field):
    """`field` of the server's state, (p,)."""
    (view,) = strategy.server_state.views.values()
    return np.concatenate([view[field][name].reshape(-1) for name in ("u", "v")])
