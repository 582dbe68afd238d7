"""The costs of a run for all nodes: gradients, messages, floats, rounds with communication, and seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stgt._internal.registry import register
from stgt.algorithms import RoundSpec
from stgt.simulator.instance import Instance
from stgt.simulator.metrics import Metric
from stgt.topology import Topology

DRAWS = 100  # rounds of a random schedule for which links are counted


def counts(instance: Instance, links: np.ndarray) -> dict[str, np.ndarray]:
    """The cumulative gradients, messages and floats of runs whose rounds used `links` links, (runs, rounds)."""
    spec, topology, problem = instance.spec, instance.topology, instance.problem
    samples, again = instance.samples, bool(spec.second_messages)
    calls = instance.oracle.calls(samples)
    steps = instance.algorithm.tau + ("start_gradient" in spec.reads)
    a_round = np.full(links.shape, topology.sampled * steps * calls)
    initial = problem.n * (instance.oracle.initial_calls(samples) + (spec.needs_initial_gradient or again) * calls)
    cost = instance.algorithm.cost(round(samples))
    # With a server a link is an upload or a download of a worker; there are as many of each.
    vectors = (cost.up + cost.down) / 2 if topology.has_server else cost.vectors
    return {
        "gradients": initial + _cumulative(a_round),
        "messages": _cumulative(links * (1 + again) * spec.mixing_steps),
        "floats": _cumulative(links * vectors * problem.p),
    }


def pushed_share(spec: RoundSpec) -> float:
    """The share of the messages that are pushed."""
    sent = (*spec.messages, *spec.second_messages)
    return sum(one.pushed for one in sent) / len(sent)


def links_used(spec: RoundSpec, topology: Topology, r: int, seed: int = 0) -> float:
    """The links of round r; if C_r has other links than R_r, the mean over the vectors sent."""
    if not topology.has_push:
        return topology.links(r, seed)
    share = pushed_share(spec)
    return (1 - share) * topology.links(r, seed) + share * topology.links(r, seed, pushed=True)


def floats_a_round(instance: Instance) -> tuple[float, float]:
    """Floats that a node sends and receives in a round, on average over a period or over draws."""
    topology, cost = instance.topology, instance.algorithm.cost(round(instance.samples))
    rounds = topology.period or DRAWS
    links = np.array([[links_used(instance.spec, topology, r) for r in range(rounds)]])
    total = counts(instance, links)["floats"][0, -1]
    a_node = float(total) / (rounds * topology.n) * float(instance.spec.communication_probability or 1)
    if not topology.has_server:
        return a_node, a_node  # every float sent by a node is received by another
    both = cost.up + cost.down
    return a_node * cost.up / both, a_node * cost.down / both


def _cumulative(a_round: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(a_round), 1)), np.cumsum(a_round, axis=1)], axis=1)


def _cost(name: str, words: str, compute: Callable[[Any], np.ndarray]) -> Metric:
    return register(Metric(name, words, compute, kind="cost", of_trace=True))


_costs = [
    _cost(
        "communications",
        "rounds so far in which some node sent anything",
        lambda trace: _cumulative((trace.run_state.links > 0).astype(np.float64)),
    ),
    _cost("gradients", "gradients computed by all nodes so far", lambda trace: trace.values["gradients"]),
    _cost("messages", "messages sent so far, by all nodes and a server", lambda trace: trace.values["messages"]),
    _cost("floats", "floats sent so far, by all nodes and a server", lambda trace: trace.values["floats"]),
    _cost(
        "seconds",
        "seconds of this computer, for all runs of the batch together",
        lambda trace: np.broadcast_to(trace.seconds, (len(trace.seeds), len(trace.seconds))),
    ),
]
COUNTED = tuple(one.name for one in _costs)
