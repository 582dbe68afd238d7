"""Runs the federation twice in Flower's simulation, and saves the models after each round: `ray_simulation.py out.npz`.

A process of its own, as Ray leaves processes and warnings behind.
"""

import sys
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parents[1]))

import federation

import stgt
from stgt.flower import Strategy

ROUNDS, AGAIN, TAU = 20, 3, 3
METHOD = stgt.ScaffoldPlus(tau=TAU, gamma_g=0.8, gamma_c=0.6)
TOPOLOGY = stgt.topology.server(federation.CLIENTS, sampled=2)


def models(start, rounds: int) -> np.ndarray:
    """The model after each round; `start` is `strategy.start` or like it."""
    seen = []

    def look(r, arrays):
        seen.append(federation.vector(arrays))

    start(federation.initial(), num_rounds=rounds, train_config=ConfigRecord({"tau": TAU}), evaluate_fn=look)
    return np.stack(seen)


def main(path: str) -> None:
    found = {}
    server = ServerApp()

    @server.main()
    def run(grid, context):
        for name, rounds in (("first", ROUNDS), ("again", AGAIN)):  # the second time, clients remember the first
            strategy = Strategy(METHOD, TOPOLOGY, min_clients=federation.CLIENTS)  # all are there when it begins
            found[name] = models(
                lambda *args, strategy=strategy, **options: strategy.start(grid, *args, **options), rounds
            )

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server, federation.app, federation.CLIENTS, backend_config=backend)
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
