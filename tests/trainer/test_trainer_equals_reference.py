"""Eight gloo processes against the NumPy reference: the same iterates, minibatches included."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import scenarios
import torch

import catalogue
from stgt.simulator.job import prepare
from stgt.simulator.reference import Run
from stgt.torch import DistributedOptimizer

NODES, ROUNDS, TAU, LR = 8, 50, 3, 0.05
ALGORITHMS = [
    "STGT", "KGT", "FlexGT-first", "FlexGT-last", "DSGT", "DPSGD", "FedAvg", "FedProx", "Scaffold-II", "ScaffoldPlus",
]  # fmt: skip
CASES = [(name, graph) for name in ALGORITHMS for graph in ("static", "one-peer", "server")] + [
    *((name, graph) for name in ("ProxSkip", "ProxSkip-periodic") for graph in ("static", "hypercuboid", "server")),
    ("STGT-adjoint", "schedule"),
    ("DIGing", "directed"),
    ("NEXT", "matching"),
    ("LUGT-cta", "schedule"),
    ("DPSGD-atc", "hypercuboid"),
    ("STGT", "complete"),
    ("ScaffoldPlus", "relay"),
    ("FedAvg", "server-all"),
    ("PushPull", "push-pull"),
    ("STGT", "push-pull"),
    ("FlexGT-last", "push-pull"),
    ("LED", "static"),
    ("LED", "matching"),
    ("Outer-STGT", "one-peer"),
    ("DiLoCo", "server-all"),
    ("NoLoCo", "matching"),
    ("FedAdam", "server-all"),
    ("Adaptive-LED", "static"),
]
BEYOND = [
    ("STGT-relaxed", "static"),
    ("STGT-relaxed", "server"),
    ("KGT-relaxed", "one-peer"),
    ("FlexGT-relaxed", "schedule"),
    ("Scaffold-relaxed", "server"),
    ("LED", "one-peer"),
    ("LED", "server"),
    ("ExactDiffusion", "hypercuboid"),
    ("EXTRA", "static"),
    ("FedDyn", "server"),
    ("MomentumTracking", "directed"),
    ("GTAdam", "static"),
    ("Outer-STGT", "server"),
    ("Outer-LED", "static"),
    ("Outer-ScaffoldPlus", "server-all"),
    ("DiLoCo", "static"),
    ("DiLoCo", "complete"),
    ("FedAvgM", "server-all"),
    ("FedAdam", "static"),
    ("FedYogi", "server-all"),
    ("Adaptive-STGT", "one-peer"),
    ("Adaptive-STGT", "server"),
    ("Adaptive-ScaffoldPlus", "server-all"),
]  # their parts are those of the methods above
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def reference(name: str, graph: str, rounds: int = ROUNDS) -> Run:
    """The reference's run in float64 after `rounds` rounds."""
    topology = scenarios.topology(graph, NODES)
    algorithm = replace(scenarios.algorithm(name, TAU), gamma=LR)
    job = prepare([algorithm], scenarios.problem(NODES), topology, rounds, [0], dtype="float64", metrics=[])
    run = Run(job, algorithm, 0)
    for r in range(rounds):
        run.round(r)
    return run


def assert_equal(found: list, run: Run, tolerance: float, rounds: int = ROUNDS) -> None:
    """Every field of every node; what a server holds is compared at the nodes that work next or worked last."""
    topology, held = run.job.topology, run.method.spec.server_fields if run.job.topology.has_server else ()
    fresh = topology.active(rounds - 1) | topology.active(rounds)
    for name, expected in run.state.items():
        scale = max(1.0, float(np.abs(expected).max()))
        got = np.array([node["state"][name] for node in found])
        nodes = fresh if name in held else np.ones(NODES, dtype=bool)
        np.testing.assert_allclose(got[nodes], expected[nodes], rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize(("name", "graph"), CASES)
@pytest.mark.sampled(8, each="graph")
def test_every_algorithm(world, name, graph):
    compare(world, name, graph, "float64")


@pytest.mark.parametrize(("name", "graph"), BEYOND)
@pytest.mark.thorough
def test_every_method_beyond_the_paper(world, name, graph):
    compare(world, name, graph, "float64")


@pytest.mark.parametrize(
    ("name", "graph"),
    [("STGT", "complete"), ("STGT-adjoint", "schedule"), ("ScaffoldPlus", "server"), ("LED", "static")],
)
def test_single_precision(world, name, graph):
    """The methods do the same in any precision; the kinds of exchange differ in how they round."""
    compare(world, name, graph, "float32")


def compare(world, name: str, graph: str, dtype: str) -> None:
    # Three chunks where the exchange differs, one elsewhere: with eight processes a chunk costs a few milliseconds.
    chunk = 20 if name in ("STGT", "ScaffoldPlus") else 64
    found = world.run("train", name=name, graph=graph, dtype=dtype, rounds=ROUNDS, tau=TAU, chunk=chunk)
    assert_equal(found, reference(name, graph), TOLERANCE[dtype])


def test_every_algorithm_is_compared_or_refused(alone):
    """With the reference above; those that start from gradients with the paper's lines in test_trainer_errors.py."""
    compared = {name for name, _ in CASES + BEYOND} | {"KGT-warm", "Scaffold-warm"}
    for name, algorithm in catalogue.instances().items():
        model = scenarios.Linear(torch.float64)
        base = torch.optim.SGD(model.parameters(), lr=LR)
        refused = pytest.raises(ValueError, match=", which the trainer does not support: use STGT, KGT, ")
        with nullcontext() if name in compared else refused:
            DistributedOptimizer(base, replace(algorithm, gamma=None), "complete", model=model)
