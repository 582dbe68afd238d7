"""decent-bench's K-GT and Scaffold on its NumPy arrays, without snapshots between the first round and the last."""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import Scaffold
from decent_bench.algorithms.p2p import KGT
from decent_bench.costs import QuadraticCost
from decent_bench.networks import FedNetwork, P2PNetwork
from decent_bench.schemes import UniformSelection
from setting import measured, read

setting = read()
rng = np.random.default_rng(0)
iop.set_backend("numpy")


class NoisyQuadratic(QuadraticCost):
    """½ xᵀAx + bᵀx, with a noisy gradient."""

    def gradient(self, x, **options):
        return super().gradient(x, **options) + iop.from_numpy(setting.sigma * rng.standard_normal(setting.p))


def agents(rounds):
    kind = NoisyQuadratic if setting.sigma else QuadraticCost
    matrices = 2 * setting.theta[:, :, None] * setting.theta[:, None, :] + setting.mu * np.eye(setting.p)
    vectors = -2 * setting.d[:, None] * setting.theta
    costs = [kind(iop.from_numpy(A), iop.from_numpy(b)) for A, b in zip(matrices, vectors, strict=True)]
    return [Agent(cost, state_snapshot_period=rounds + 1) for cost in costs]


def run(rounds):
    if setting.method == "K-GT":
        network = P2PNetwork(nx.cycle_graph(setting.n), agents(rounds))
        np.testing.assert_allclose(iop.to_numpy(network.weights), setting.W)
        method = KGT(num_local_steps=setting.tau, step_size=setting.gamma, aux_step_size=1.0)
    else:
        network = FedNetwork(agents(rounds))
        chosen = UniformSelection(num_selected_clients=setting.sampled)
        method = Scaffold(step_size=setting.gamma, num_local_steps=setting.tau, selection_scheme=chosen)
    start = time.perf_counter()
    method.run(network, rounds)
    seconds = time.perf_counter() - start
    if setting.method == "Scaffold":
        return seconds, iop.to_numpy(network.server().x)
    return seconds, np.stack([iop.to_numpy(agent.x) for agent in network.agents()])


measured(setting, run, ("decent-bench", "decent-array", "numpy"))
