"""A logistic problem whose clients differ a little, by ScaffoldPlus; each round's model goes to a file."""

from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from torch.nn.functional import softplus

import stgt
from stgt._internal.files import write_atomically
from stgt.flower import Strategy, Task, client_app

P, TAU, LR, SAMPLES = 12, 5, 0.2, 200


class Linear(torch.nn.Module):
    def __init__(self, wide: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(P))
        self.wide = torch.nn.Parameter(torch.zeros(wide))


def rows(partition: int) -> torch.Tensor:
    """A client's samples, each times its label: around a direction that all clients share, and one of its own."""
    common, own = np.random.default_rng(0), np.random.default_rng(partition + 1)
    centre = common.normal(size=P) + 0.3 * own.normal(size=P)
    return torch.tensor(0.3 * centre + own.normal(size=(SAMPLES, P)), dtype=torch.float32)


def setup(context, config) -> Task:
    partition = int(context.node_config["partition-id"])
    model, mine = Linear(context.run_config["wide"]), rows(partition)
    target = partition + torch.linspace(0, 1, len(model.wide))  # no two the same: Flower sends equal pieces once

    def loss(net, batch):
        fit = softplus(-(batch @ net.weight)).mean() + 0.05 * net.weight.square().sum()
        return fit + 0.5 * (net.wide - target).square().sum()

    return Task(model, torch.optim.SGD(model.parameters(), lr=LR), [mine] * TAU, loss)


client = client_app(setup)
server = ServerApp()


def strategy(config) -> Strategy:
    return Strategy(
        stgt.ScaffoldPlus(tau=TAU, gamma_g=1.0, gamma_c=1.0),
        stgt.topology.server(config["clients"], sampled=config["sampled"]),
    )


def initial(config) -> ArrayRecord:
    return ArrayRecord(Linear(config["wide"]).state_dict())


def weight(arrays: ArrayRecord) -> np.ndarray:
    return arrays["weight"].numpy()


@server.main()
def main(grid, context) -> None:
    config = context.run_config

    def keep(done: int, arrays: ArrayRecord) -> None:
        path = Path(config["out"]) / f"round-{done}.txt"
        write_atomically(path, lambda file: np.savetxt(file, weight(arrays)))

    strategy(config).start(
        grid, initial(config), num_rounds=config["rounds"], timeout=config["timeout"], evaluate_fn=keep
    )
