"""A small federation: the logistic problem, minibatches drawn by the clock, a model of several parameters."""

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch.nn.functional import softplus

import catalogue
import stgt
from stgt.flower import Task, client_app
from stgt.oracles import Minibatch
from stgt.torch.data import sample_indices

CLIENTS, P, BATCH, LR = 6, 12, 2, 0.05


class Linear(torch.nn.Module):
    """The logistic problem's model, its vector cut into three parameters."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(2, 2, dtype=dtype))
        self.b = torch.nn.Parameter(torch.zeros(5, dtype=dtype))
        self.c = torch.nn.Parameter(torch.zeros(1, 3, dtype=dtype))

    def vector(self):
        return torch.cat([self.a.reshape(-1), self.b, self.c.reshape(-1)])


@cache
def problem() -> stgt.problems.Problem:
    return catalogue.logistic(CLIENTS, p=P)


def loss(model, rows):
    x = model.vector()
    return softplus(-(rows @ x)).mean() + 0.05 * x.square().sum()


def task(partition: int, first_step: int, tau: int, dtype=torch.float64, steps=None, lr=LR) -> Task:
    """The client's part: step k of the run takes the samples which the reference takes."""
    made, model = problem(), Linear(dtype)

    def batches():
        step = first_step
        while True:
            chosen = sample_indices(0, partition, step, BATCH, int(made.counts[partition]))
            yield torch.tensor(made.data["signed"][partition][chosen], dtype=dtype)  # each times its label, ±1
            step += 1

    return Task(model, torch.optim.SGD(model.parameters(), lr=lr), batches(), loss, steps=steps)


def setup(context, config) -> Task:
    tau = int(config.get("tau", 3))
    first = (config["server-round"] - 1) * tau
    return task(context.node_config["partition-id"], first, tau, steps=1 if tau == 1 else None)


app = client_app(setup)


def initial() -> ArrayRecord:
    return ArrayRecord(Linear().state_dict())


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("a", "b", "c")])


def reference(algorithm, topology, rounds: int) -> dict[str, np.ndarray]:
    """The last state of the reference engine, (n, p) by field."""
    trace = stgt.simulate(
        algorithm, problem(), topology, rounds, engine="reference", oracle=Minibatch(BATCH), metrics=[]
    )
    return {name: value[0] for name, value in trace.state.items()}
