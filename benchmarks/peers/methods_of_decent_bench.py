"""decent-bench's methods and those that docs/coming_from/decent_bench.md calls equal: how far their models differ.

It needs both libraries in one environment with Python 3.13: pip install decent-bench==0.3.0 .
The problem is logistic regression with different data at 8 nodes, and exact gradients. Both run 50 rounds in float64.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import networkx as nx
import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms import federated, p2p
from decent_bench.costs import L2RegularizerCost, LogisticRegressionCost
from decent_bench.networks import FedNetwork, P2PNetwork

import stgt

N, P, M, L2, ROUNDS, TAU, GAMMA = 8, 5, 12, 0.05, 50, 4, 0.2
LOCAL = {"step_size": GAMMA, "num_local_steps": TAU}
PAIRS = [
    (p2p.DGD(step_size=GAMMA), stgt.DPSGD()),
    (p2p.ATC(step_size=GAMMA), stgt.DPSGD(atc=True)),
    (p2p.ATC_Tracking(step_size=GAMMA), stgt.DSGT()),
    (p2p.AugDGM(step_size=GAMMA), stgt.AugDGM()),
    (p2p.EXTRA(step_size=GAMMA), stgt.EXTRA()),
    (p2p.ED(step_size=GAMMA), stgt.ExactDiffusion()),
    (p2p.KGT(**LOCAL, aux_step_size=1.0), stgt.STGT(tau=TAU)),
    (p2p.KGT(**LOCAL, aux_step_size=0.5), stgt.KGT(tau=TAU, eta_s=0.5)),
    (p2p.LED(**LOCAL, aux_step_size=0.25 / TAU), stgt.LED(tau=TAU, beta=0.25)),
    (federated.FedAvg(**LOCAL), stgt.FedAvg(tau=TAU)),
    (federated.FedProx(**LOCAL, penalty=0.1), stgt.FedProx(tau=TAU, mu_prox=0.1)),
    (federated.FedDyn(**LOCAL, penalty=0.1), stgt.FedDyn(tau=TAU, alpha=0.1)),
    (federated.Scaffold(**LOCAL), stgt.Scaffold(tau=TAU)),
]


def theirs(algorithm, features: np.ndarray, labels: np.ndarray, graph: nx.Graph) -> np.ndarray:
    """The mean model after the last round."""
    costs = []
    for a, y in zip(features, labels, strict=True):
        rows = [(iop.from_numpy(one), iop.from_numpy(np.array([label]))) for one, label in zip(a, y, strict=True)]
        costs.append(LogisticRegressionCost(rows) + L2 * L2RegularizerCost(shape=(P,)))
    agents = [Agent(cost) for cost in costs]
    federation = isinstance(algorithm, federated.FedAlgorithm)
    network = FedNetwork(agents) if federation else P2PNetwork(graph, agents)
    algorithm.run(network, ROUNDS)
    last = [network.server()] if federation else network.agents()
    return np.mean([iop.to_numpy(agent.x) for agent in last], axis=0)


def main() -> None:
    iop.set_backend("numpy")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, M, P)) + rng.normal(size=(N, 1, P))
    labels = (features @ rng.normal(size=P) + rng.normal(size=(N, M)) > 0).astype(int)
    graph = nx.connected_watts_strogatz_graph(N, 4, 0.3, seed=1)
    sites = np.arange(N * M).reshape(N, M)
    problem = stgt.problems.logistic(features.reshape(-1, P), labels.ravel(), partition=list(sites), l2=L2)
    peer_to_peer, server = stgt.topology.from_networkx(graph), stgt.topology.server(N)
    worst = 0.0
    for algorithm, method in PAIRS:
        topology = server if isinstance(algorithm, federated.FedAlgorithm) else peer_to_peer
        ours = stgt.simulate(replace(method, gamma=GAMMA), problem, topology, ROUNDS, engine="numpy")
        difference = float(abs(theirs(algorithm, features, labels, graph) - ours.x[0].mean(axis=0)).max())
        worst = max(worst, difference)
        print(f"{algorithm.name:14} {method.label:14} {difference:.0e}")
    sys.exit(1 if worst > 1e-12 else 0)


if __name__ == "__main__":
    main()
