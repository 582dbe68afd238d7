"""Scaffold of `stgt.flower` in Flower's simulation engine (Ray, one core). Flower itself has none."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from setting import measured, read

import stgt
from stgt.flower import Strategy, Task, client_app

setting = read()


def model():
    made = torch.nn.Linear(setting.p, 1, bias=False)
    torch.nn.init.zeros_(made.weight)
    return made


def loss(made, sample):
    theta, d = sample
    exact = (made(theta) - d).square().sum() + setting.mu / 2 * made.weight.square().sum()
    return exact + setting.sigma * (torch.randn(setting.p) * made.weight[0]).sum() if setting.sigma else exact


def task(context, config):
    torch.set_num_threads(1)
    i, made = context.node_config["partition-id"], model()
    sample = torch.tensor(setting.theta[i], dtype=torch.float32), float(setting.d[i])
    return Task(made, torch.optim.SGD(made.parameters(), lr=setting.gamma), [sample] * setting.tau, loss)


server = ServerApp()


@server.main()
def main(grid, context):
    def run(rounds):
        topology = stgt.topology.server(setting.n, sampled=setting.sampled)
        strategy = Strategy(stgt.Scaffold(tau=setting.tau), topology, min_clients=setting.n)
        start = time.perf_counter()
        result = strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds)
        return time.perf_counter() - start, result.arrays["weight"].numpy()[0].astype(float)

    measured(setting, run, ("flwr", "ray", "torch", "numpy"))


if __name__ == "__main__":
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": 1, "include_dashboard": False}}
    run_simulation(server, client_app(task), setting.n, backend_config=backend)
