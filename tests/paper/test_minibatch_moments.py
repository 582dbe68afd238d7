"""The moments of minibatch gradients: predictions against the mean over everything that can be drawn.

Two nodes with two samples each, so that all draws of two rounds can be run, by the recursions of the papers.
"""

from itertools import combinations, product

import numpy as np
import pytest
from recursions_diffusion import led
from recursions_server import fedavg, scaffold
from recursions_tracking import st_gt

import stgt
from stgt import theory

FEATURES = np.array([[1.0, 0.5], [-0.3, 1.2], [0.8, -1.0], [1.5, 0.2]]).reshape(2, 2, 2)
LABELS = np.array([[1.0, -0.5], [2.0, 0.3]])
L2, GAMMA, TAU, ROUNDS = 0.3, 0.4, 2, 2
START = np.array([[2.0, -1.0], [2.0, -1.0]])
W = np.array([[0.7, 0.3], [0.3, 0.7]])


def problem(batch):
    features, labels = FEATURES.reshape(4, 2), LABELS.ravel()
    return stgt.problems.least_squares(features, labels, partition=[[0, 1], [2, 3]], l2=L2, batch=batch)


def gradients(draws):
    """Those of step k at the samples draws[k], (nodes, batch). What follows the last step enters no model."""

    def gradient(X, k):
        rows = [
            np.mean([a * (a @ x - y) for a, y in zip(A[j], b[j], strict=True)], axis=0) + L2 * x
            for A, b, x, j in zip(FEATURES, LABELS, X, draws[k % len(draws)], strict=True)
        ]
        return np.array(rows)

    return gradient


def mean_error(run, batch, choices):
    """E‖x̄ − x*‖² at the start of each round, over all draws of samples and all choices of a server's workers."""
    optimum, seen = problem(batch).optimum, []
    of_a_node = list(product((0, 1), repeat=batch))
    of_a_step = list(product(of_a_node, repeat=2))
    for draws in product(of_a_step, repeat=ROUNDS * TAU):
        for chosen in choices:
            models = run(gradients(np.array(draws)), chosen)
            seen.append([((X.mean(axis=0) - optimum) ** 2).sum() for X in models])
    return np.mean(seen, axis=0)


def mixing(r):
    return W


EVERYBODY = [None]
ONE_OF_TWO = list(product(combinations((0, 1), 1), repeat=ROUNDS))
OPTIONS = {"gamma": GAMMA, "tau": TAU, "rounds": ROUNDS}
CASES = {
    "ST-GT": (
        stgt.STGT(gamma=GAMMA, tau=TAU),
        stgt.topology.from_matrix(W),
        EVERYBODY,
        lambda grad, _: st_gt(START, grad, mixing, **OPTIONS),
    ),
    "LED": (
        stgt.LED(gamma=GAMMA, tau=TAU),
        stgt.topology.from_matrix(W),
        EVERYBODY,
        lambda grad, _: led(START, grad, mixing, alpha=GAMMA, beta=stgt.LED().beta / TAU, tau=TAU, rounds=ROUNDS)[0],
    ),
    "FedAvg": (
        stgt.FedAvg(gamma=GAMMA, tau=TAU),
        stgt.topology.server(2, sampled=1),
        ONE_OF_TWO,
        lambda grad, chosen: fedavg(START, grad, lambda r: np.array(chosen[r]), **OPTIONS),
    ),
    "Scaffold": (
        stgt.Scaffold(gamma=GAMMA, tau=TAU),
        stgt.topology.server(2, sampled=1),
        ONE_OF_TWO,
        lambda grad, chosen: scaffold(START, grad, lambda r: np.array(chosen[r]), **OPTIONS),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_expected_curve_is_the_mean_over_all_draws(name):
    algorithm, topology, choices, run = CASES[name]
    expected = mean_error(run, 1, choices)
    found = theory.expected_curve(algorithm, problem(1), topology, ROUNDS, x0=START[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_batch_is_drawn_with_replacement():
    """One step a round: the mean over all pairs of samples."""
    seen, optimum = [], problem(2).optimum
    pairs = list(product((0, 1), repeat=2))
    for draws in product(product(pairs, repeat=2), repeat=2):
        models = st_gt(START, gradients(np.array(draws)), mixing, gamma=GAMMA, tau=1, rounds=2)
        seen.append([((X.mean(axis=0) - optimum) ** 2).sum() for X in models])
    method, graph = stgt.STGT(gamma=GAMMA, tau=1), stgt.topology.from_matrix(W)
    found = theory.expected_curve(method, problem(2), graph, 2, x0=START[0])
    np.testing.assert_allclose(found, np.mean(seen, axis=0), rtol=1e-12)
