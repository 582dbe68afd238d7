"""Eigenvalues in plain Python, and the map of a round: its eigenvalues are those of the exact theory."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import stgt
from playground.engine import graphs
from playground.engine.eigenvalues import eigenvalues
from playground.engine.graphs import Mixing, count_links
from playground.engine.maps import Map
from playground.engine.result import simulate
from playground.engine.settings import check
from playground_reference import algorithm, problem, settings, topology_of

METHODS = [
    {"name": "FedAvg"},
    {"name": "DPSGD"},
    {"name": "Scaffold", "beta": 0.5},
    {"name": "STGT"},
    {"name": "STGT_adjoint", "beta": 0.7},
    {"name": "LED", "beta": 0.25},
    {"name": "DiLoCo", "momentum": 0.9},
    {"name": "STGT", "momentum": 0.4},
    {"name": "Scaffold", "momentum": 0.4},
]
ENTRIES = np.random.default_rng(0).standard_normal((64, 64))
ROTATION = np.array([[0.0, -1.0], [1.0, 0.0]])
MATRICES = {
    **{f"random {n}": ENTRIES[:n, :n] for n in (0, 1, 2, 3, 7, 24, 64)},
    "symmetric": ENTRIES[:20, :20] + ENTRIES[:20, :20].T,
    "identity": np.eye(6),
    "zero": np.zeros((5, 5)),
    "cycle, whose plain QR steps never end": np.roll(np.eye(8), 1, axis=0),
    "Jordan block": np.eye(5) + np.diag(np.ones(4), 1),
    "rotations": np.kron(np.diag([1.0, 2.0, 3.0]), ROTATION),
    "very different sizes": np.diag(10.0 ** np.arange(-6, 7, 3)) @ (np.eye(5) + 0.1 * ENTRIES[:5, :5]),
}


def distance(found, wanted) -> float:
    """The largest distance of two lists of eigenvalues, each to its partner in the nearest pairing."""
    apart = np.abs(np.array(found)[:, None] - np.array(wanted)[None])
    return float(apart[linear_sum_assignment(apart)].max(initial=0.0))


@pytest.mark.parametrize("name", MATRICES)
def test_eigenvalues(name):
    matrix = MATRICES[name]
    found = eigenvalues(matrix.tolist())
    assert len(found) == len(matrix)
    assert distance(found, np.linalg.eigvals(matrix)) < 1e-13 * max(1, np.linalg.norm(matrix))


def test_eigenvalues_next_to_much_larger_ones():
    """Up to 2346, and many near 3/4: steps that begin at the first row lose their shifts in rounding here, and
    never end."""
    graph, entry = {"kind": "server", "sampled": 2}, {"name": "LED", "gamma": 2.0, "tau": 20, "beta": 0.5}
    given = settings(graph, [entry], n=8)
    chosen = check({**given, "problem": {**given["problem"], "spread": 1.0, "seed": 113}})
    matrix = np.array(Map(chosen.methods[0], chosen.problem, chosen.graph(range(8))).matrix)
    found = np.array(eigenvalues(matrix.tolist()))
    assert distance(found, np.linalg.eigvals(matrix)) < 1e-13 * np.linalg.norm(matrix)


@pytest.mark.parametrize("entry", METHODS, ids=lambda entry: "-".join(map(str, entry.values())))
@pytest.mark.parametrize("graph", ["ring", "directed", "exponential", "one_peer", "server"])
def test_the_map_of_a_period_is_that_of_the_theory(graph, entry):
    """The theory's map has the server's variables once for each node, so it may have more eigenvalues."""
    given = settings(graph, [entry], n=4)
    result = simulate(given)
    run, given_entry = result["runs"][0], given["methods"][0]
    arguments = algorithm(given_entry), problem(result, 0.0), topology_of(given_entry, given["graph"], 4)
    theory = stgt.theory.round_map(*arguments)
    found = np.array([complex(*value) for value in run["eigenvalues"]])
    wanted = np.linalg.eigvals(theory.period_matrix)
    # A pair of equal eigenvalues is known to half of the digits.
    assert distance(found, wanted) < 1e-7
    assert run["map"]["size"] == len(found) <= len(wanted)
    assert run["radius"] == pytest.approx(stgt.theory.spectral_radius(*arguments), rel=1e-9)
    assert run["map"]["what"] == ("the map of 2 rounds" if theory.period == 2 else "the map of a round")


@pytest.mark.parametrize("name", ["STGT", "LED", "DPSGD"])
def test_the_mean_over_lost_links_needs_the_mean_weights_only(name):
    """The same as the mean of the maps over all sets of lost links, each with its probability."""
    loss, links = 0.3, [(0, 1), (1, 2), (2, 3)]
    chosen = check(settings({"kind": "edges", "edges": links, "lost": loss}, [name], n=4))
    (method,), graph = chosen.methods, chosen.graph(range(4))

    class AllCases(graphs.Lossy):
        def laws(self):
            cases = []
            for lost in product([False, True], repeat=len(links)):
                W = [list(row) for row in self.phases[0]]
                for (i, j), fails in zip(links, lost, strict=True):
                    if fails:
                        W[i][i], W[j][j] = W[i][i] + W[i][j], W[j][j] + W[j][i]
                        W[i][j] = W[j][i] = 0.0
                chance = np.prod([loss if fails else 1 - loss for fails in lost])
                cases.append((float(chance), Mixing(W, count_links(W))))
            return [cases]

    every = AllCases("all cases", graph.phases, loss=loss)
    means = [np.array(Map(method, chosen.problem, one).matrix) for one in (graph, every)]
    np.testing.assert_allclose(*means, atol=1e-13)


def test_the_mean_over_sampled_workers():
    """FedAvg's model after a round is x ← mean over the workers of P_i x with P_i = (I − γA_i)^τ: in the mean over all
    nodes, however many are sampled."""
    given = settings({"kind": "server", "sampled": 2}, ["FedAvg"])
    result = simulate(given)
    A = np.array([[[a, c], [c, d]] for a, c, d in result["problem"]["A"]])
    mean = np.mean([np.linalg.matrix_power(np.eye(2) - 0.05 * one, 4) for one in A], axis=0)
    run = result["runs"][0]
    assert distance([complex(*value) for value in run["eigenvalues"]], np.linalg.eigvals(mean)) < 1e-13
    assert run["map"]["what"] == "the mean of a round's map"
