"""Eight gloo processes against the NumPy reference: the same iterates, minibatches included."""

from dataclasses import replace

import numpy as np
import pytest
import scenarios

from stgt.engines.job import prepare
from stgt.engines.reference import Run

NODES, ROUNDS, TAU, LR = 8, 50, 3, 0.05
ALGORITHMS = [
    "STGT", "KGT", "FlexGT-first", "FlexGT-last", "DSGT", "DPSGD", "FedAvg", "FedProx", "Scaffold-II", "ScaffoldPlus",
    "ProxSkip", "ProxSkip-periodic",
]  # fmt: skip
CASES = [(name, graph) for name in ALGORITHMS for graph in ("static", "one-peer", "server")] + [
    ("STGT-adjoint", "schedule"),
    ("DIGing", "directed"),
    ("NEXT", "matching"),
    ("LUGT-cta", "schedule"),
    ("DPSGD-atc", "hypercuboid"),
    ("STGT", "complete"),
    ("ScaffoldPlus", "relay"),
    ("FedAvg", "server-all"),
]
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
    topology, held = run.job.topology, run.algorithm.held if run.job.topology.has_server else ()
    fresh = topology.active(rounds - 1) | topology.active(rounds)
    for name, expected in run.state.items():
        scale = max(1.0, float(np.abs(expected).max()))
        got = np.array([node["state"][name] for node in found])
        nodes = fresh if name in held else np.ones(NODES, dtype=bool)
        np.testing.assert_allclose(got[nodes], expected[nodes], rtol=0, atol=tolerance * scale, err_msg=name)


QUICK = [case for case in CASES if case[1] == "static" or case[0] in ("STGT", "ScaffoldPlus")]


@pytest.mark.parametrize(("name", "graph"), QUICK)
@pytest.mark.sampled(2)
def test_every_algorithm(world, name, graph):
    dtypes = list(TOLERANCE) if name in ("STGT", "ScaffoldPlus") else ["float64"]
    compare(world, name, graph, dtypes)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "graph"), CASES)
def test_every_algorithm_on_every_graph_in_both_precisions(world, name, graph):
    compare(world, name, graph, list(TOLERANCE))


def compare(world, name: str, graph: str, dtypes: list[str]) -> None:
    run = reference(name, graph)
    for dtype in dtypes:
        # Three chunks where the exchange differs, one elsewhere: with eight processes a chunk costs a few milliseconds.
        chunk = 20 if name in ("STGT", "ScaffoldPlus") else 64
        found = world.run("train", name=name, graph=graph, dtype=dtype, rounds=ROUNDS, tau=TAU, chunk=chunk)
        assert_equal(found, run, TOLERANCE[dtype])
