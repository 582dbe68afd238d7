"""fluke's Scaffold: a linear model, the squared error, SGD with weight decay μ, and no evaluation."""

from __future__ import annotations

import time

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from setting import measured, read

setting = read()
torch.set_num_threads(1)


class NoisySGD(torch.optim.SGD):
    """SGD with noisy gradients."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(torch.randn_like(parameter), alpha=setting.sigma)
        return super().step(closure)


class Samples:
    """Each client's sample, repeated tau times: an epoch with batches of one sample is a round."""

    def assign(self, clients, batch_size):
        loaders = []
        for theta, d in zip(setting.theta, setting.d, strict=True):
            X = torch.tensor(theta, dtype=torch.float32).repeat(setting.tau, 1)
            y = torch.full((setting.tau, 1), float(d))
            loaders.append(FastDataLoader(X, y, num_labels=1, batch_size=1, skip_singleton=False))
        return (loaders, [None] * clients), None


class Clock(FederationObserver):
    def start_round(self, round, global_model):
        if round == 1:
            self.start = time.perf_counter()

    def end_round(self, round):
        self.end = time.perf_counter()


def run(rounds):
    model = torch.nn.Linear(setting.p, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = NoisySGD if setting.sigma else torch.optim.SGD
    client = {
        "batch_size": 1,
        "local_epochs": 1,
        "loss": torch.nn.MSELoss,
        "optimizer": {"name": optimizer, "lr": setting.gamma, "weight_decay": setting.mu},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    method = SCAFFOLD(setting.n, Samples(), DDict(client=client, server={"weighted": True}, model=model))
    clock = Clock()
    method.set_callbacks(clock)
    method.run(rounds, setting.sampled / setting.n)
    return clock.end - clock.start, method.server.model.weight.detach().numpy()[0].astype(float)


np.random.seed(0)  # noqa: NPY002  fluke draws the clients from it
FlukeENV().set_eval_cfg(server=False)
measured(setting, run, ("fluke-fl", "torch", "numpy"))
