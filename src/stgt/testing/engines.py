"""Runs a method in this process on the code for torch and Flower, compares it with the reference, counts gradients."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stgt._internal.randomness import coin
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import Checked
from stgt.oracles import Exact
from stgt.problems import Problem
from stgt.simulator import simulate
from stgt.simulator.instance import check_runs
from stgt.testing.report import SkipError
from stgt.topology import Topology


def torch_difference(algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int) -> float:
    """The deviation of the trainer's local steps, messages and merges from the reference, all nodes in this process."""
    if importlib.util.find_spec("torch") is None:
        raise SkipError("PyTorch is not installed")
    if isinstance(algorithm.gamma, tuple):
        raise SkipError("a torch optimiser has one lr for all nodes")
    method = replace(algorithm, gamma=None)
    try:
        check_runs(method, topology, "trainer")
    except ValueError as error:
        raise SkipError(str(error)) from None
    found = _train(method, cast(float, algorithm.gamma), problem, topology, rounds)
    trace = simulate(algorithm, problem, topology, rounds, engine="numpy", metrics=[], oracle=Exact())
    return max(difference(found[name], value[0]) for name, value in trace.state.items())


def _train(method: Algorithm, gamma: float, problem: Problem, topology: Topology, rounds: int) -> dict[str, np.ndarray]:
    """The state of all nodes, (n, p), computed by the trainer's own parts. The mixing is done here."""
    import torch

    from stgt.torch.buckets import make_buckets
    from stgt.torch.local_steps import Chunk, LocalSteps

    checked, n, p, tau = Checked(method), problem.n, problem.p, method.tau
    parameters = [torch.nn.Parameter(torch.zeros(p, dtype=torch.float64)) for _ in range(n)]
    groups = [{"params": [one], "lr": gamma, "weight_decay": 0.0} for one in parameters]
    nodes = [LocalSteps(method, make_buckets([group]), plain=True) for group in groups]
    if checked.spec.needs_initial_gradient:
        gradients = torch.from_numpy(problem.gradients(np.zeros(p)))
        for i, node in enumerate(nodes):
            block = node.buckets[0]
            own, mean = (_padded(vector, block.size) for vector in (gradients[i], gradients.mean(dim=0)))
            for name, value in checked.init(block.x, own, mean).items():
                if name != "x":
                    block.state[name].copy_(value)
    chance = checked.spec.communication_probability
    with torch.no_grad():
        for r in range(rounds):
            for t in range(tau):
                gradients = problem.gradients(np.stack([one.numpy() for one in parameters]))
                for i, node in enumerate(nodes):
                    parameters[i].grad = torch.from_numpy(gradients[i].copy())
                    node.apply([groups[i]], first=t == 0)
            if chance is None or coin(np, 0, r, chance, np.float64):
                whole = slice(0, nodes[0].buckets[0].size)
                chunks = [Chunk(node, i, node.buckets[0], whole, tau, r, 1.0, True) for i, node in enumerate(nodes)]
                messages = [{name: value.clone() for name, value in chunk.message().items()} for chunk in chunks]
                W, C = (torch.from_numpy(topology.matrix(r, pushed=pushed)) for pushed in (False, True))
                for i, chunk in enumerate(chunks):
                    mixed = {}
                    for sent in checked.spec.messages:
                        row = C[i] if sent.pushed else W[:, i] if sent.transposed else W[i]
                        mixed[sent.name] = row @ torch.stack([message[sent.name] for message in messages])
                    chunk.merge(mixed, slice(None))
            else:
                for node in nodes:
                    node.keep_end()
            for node in nodes:
                node.start_round()
    names = checked.spec.state_fields
    blocks = [node.buckets[0] for node in nodes]
    kept = {name: np.stack([block.state[name][:p].numpy() for block in blocks]) for name in names if name != "x"}
    return kept | {"x": np.stack([block.x[:p].numpy() for block in blocks])}


def _padded(vector: Any, size: int) -> Any:
    import torch

    return torch.nn.functional.pad(vector, (0, size - len(vector)))


def flower_difference(algorithm: Algorithm, problem: Problem, topology: Topology, rounds: int) -> float:
    """The distance of the server's model on Flower, with clients in this process, from the reference's mean model."""
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("torch") is None:
        raise SkipError("Flower or PyTorch is not installed")
    import logging

    import torch
    from flwr.app import ArrayRecord

    from stgt.flower import Strategy, Task, client_app, run_in_process

    try:
        strategy = Strategy(replace(algorithm, gamma=None), topology)
    except ValueError as error:
        raise SkipError(str(error)) from None

    class Point(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.zeros(problem.p, dtype=torch.float64))

    def setup(context: Any, config: Any) -> Task:
        i, model = int(context.node_config["partition-id"]), Point()

        def loss(model: Any, batch: Any) -> Any:
            gradient = problem.gradients(model.x.detach().numpy())[i]
            return (model.x * torch.from_numpy(gradient)).sum()  # its gradient is that of f_i

        optimizer = torch.optim.SGD(model.parameters(), lr=float(algorithm.gamma or 0.0))  # pyright: ignore
        return Task(model, optimizer, [None] * algorithm.tau, loss)

    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        result = run_in_process(strategy, client_app(setup), ArrayRecord(Point().state_dict()), num_rounds=rounds)
    finally:
        logger.setLevel(level)
    trace = simulate(algorithm, problem, topology, rounds, engine="numpy", metrics=[], oracle=Exact())
    return difference(result.arrays["x"].numpy(), trace.x[0].mean(axis=0))


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest entry if that is above 1."""
    return float(np.abs(found - expected).max()) / max(1.0, float(np.abs(expected).max()))


class CountingModel:
    """A problem's model that counts its gradients: one per sample, or one per node for a problem without samples.

    Only for the NumPy reference, which computes exactly the requested gradients.
    """

    def __init__(self, model: Any):
        self.model, self.count = model, 0

    def losses(self, xp: Any, data: dict[str, Any], x: Any) -> Any:
        return self.model.losses(xp, data, x)

    def gradients(self, xp: Any, data: dict[str, Any], x: Any) -> Any:
        self.count += int(np.count_nonzero(data["weight"])) if "weight" in data else len(x)
        return self.model.gradients(xp, data, x)

    def component_gradients(self, xp: Any, data: dict[str, Any], x: Any) -> Any:
        self.count += int(np.count_nonzero(data["weight"]))
        return self.model.component_gradients(xp, data, x)

    def sample_gradients(self, xp: Any, data: dict[str, Any], x: Any, index: Any) -> Any:
        self.count += int(index.size)
        return self.model.sample_gradients(xp, data, x, index)
