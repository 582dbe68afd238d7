"""What a run costs all nodes: gradients, messages, floats."""

from __future__ import annotations

import numpy as np

from stgt.algorithms import Algorithm
from stgt.setting import Setting
from stgt.topology import Topology

DRAWS = 100  # rounds of a random schedule whose links are counted


def counts(setting: Setting, links: np.ndarray) -> dict[str, np.ndarray]:
    """The cumulative gradients, messages and floats of runs whose rounds used `links` links, (runs, rounds)."""
    algorithm, topology, problem = setting.algorithm, setting.topology, setting.problem
    samples, again = setting.samples, bool(algorithm.exchanges_again)
    calls = setting.oracle.calls(samples)
    steps = algorithm.tau + ("anchor" in algorithm.reads)
    a_round = np.full(links.shape, topology.sampled * steps * calls)
    initial = problem.n * (setting.oracle.initial_calls(samples) + (algorithm.starts_warm or again) * calls)
    cost = algorithm.cost(round(samples))
    # Through a server a link is a worker's way up or down; half of them each.
    vectors = (cost.up + cost.down) / 2 if topology.has_server else cost.vectors
    return {
        "gradients": initial + _cumulative(a_round),
        "messages": _cumulative(links * (1 + again) * algorithm.gossips),
        "floats": _cumulative(links * vectors * problem.p),
    }


def pushed_share(algorithm: Algorithm) -> float:
    """The share of what is sent that is pushed."""
    sent = (*algorithm.exchanges, *algorithm.exchanges_again)
    return sum(one.pushed for one in sent) / len(sent)


def links_used(algorithm: Algorithm, topology: Topology, r: int, seed: int = 0) -> float:
    """The links of round r; where C_r has others than R_r, the mean over the vectors sent."""
    if not topology.has_push:
        return topology.links(r, seed)
    share = pushed_share(algorithm)
    return (1 - share) * topology.links(r, seed) + share * topology.links(r, seed, pushed=True)


def floats_a_round(setting: Setting) -> float:
    """Floats that a node sends in a round, on average over a period or over draws."""
    topology = setting.topology
    rounds = topology.period or DRAWS
    links = np.array([[links_used(setting.algorithm, topology, r) for r in range(rounds)]])
    total = counts(setting, links)["floats"][0, -1]
    return float(total) / (rounds * topology.n) * float(setting.algorithm.talks)


def _cumulative(a_round: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(a_round), 1)), np.cumsum(a_round, axis=1)], axis=1)
