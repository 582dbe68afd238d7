"""Minibatches, whose noise grows with the distance to the minimum: exact predictions against closed forms and runs.

`tests/paper/test_minibatch_moments.py` holds them against everything that can be drawn.
"""

from dataclasses import replace

import numpy as np
import pytest

import stgt
from catalogue import logistic
from stgt import theory
from stgt.theory import mean_square

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(80, 3))
LABELS = FEATURES @ np.array([1.0, -2.0, 0.5]) + 0.5 * RNG.normal(size=80)
RING, SERVER = stgt.topology.ring(4), stgt.topology.server(4, sampled=2)
METHODS = [
    (stgt.STGT(tau=4), RING),
    (stgt.LED(tau=4), RING),
    (stgt.Scaffold(tau=4), SERVER),
    (stgt.FedAvg(tau=4), SERVER),
    (stgt.FlexGT(tau=4), RING),
    (stgt.Scaffold(tau=4, option=1), SERVER),
    (stgt.ProxSkip(p=0.5), stgt.topology.server(4)),
    (stgt.STGT(tau=4), stgt.topology.random_matching(4)),
    (stgt.DPSGD(tau=4), stgt.topology.one_peer_exponential(4)),
    (stgt.Outer(stgt.STGT(tau=4), momentum=0.5), stgt.topology.server(4)),
]


def of(batch):
    return stgt.problems.least_squares(FEATURES, LABELS, 4, partition="sorted", batch=batch)


def test_one_node_with_one_coordinate():
    """x ← (1 − γa_j)x + γa_j y_j for a drawn j: E x² shrinks by mean (1 − γa_j)² a step, so that the limit on γ is
    2 mean a/mean a². Where all y_j are c, x* = c, and nothing is left in the long run."""
    root = np.array([1.0, 2.0, 3.0])
    a, gamma, tau = root**2, 0.1, 3
    problem = stgt.problems.least_squares(root[:, None], root * 0.7, partition=[range(3)], batch=1)
    method, alone = stgt.DPSGD(gamma=gamma, tau=tau, atc=True), stgt.topology.complete(1)
    rate = np.mean((1 - gamma * a) ** 2)
    assert theory.spectral_radius(method, problem, alone) == pytest.approx(rate ** (tau / 2), rel=1e-9)
    curve = theory.expected_curve(method, problem, alone, 4, x0=[2.0])
    np.testing.assert_allclose(curve, 1.3**2 * rate ** (tau * np.arange(5)), rtol=1e-10)
    assert theory.steady_state(method, problem, alone).residual == pytest.approx(0, abs=1e-12)
    largest = theory.largest_stable_stepsize(method, problem, alone)
    assert largest == pytest.approx(2 * a.mean() / (a**2).mean(), rel=2e-3)


def test_coordinates_that_know_nothing_of_each_other():
    """Samples along the axes, so that the radius is the larger one of two problems of one coordinate. The coordinate
    that is slower with exact gradients is not the one whose second moment grows."""
    rows = np.array([[0.4, 0.0], [0.4, 0.0], [0.0, 0.2], [0.0, 3.0]])
    problem = stgt.problems.least_squares(np.tile(rows, (6, 1)), np.zeros(24), 6, batch=1)
    method, graph = stgt.STGT(gamma=0.4, tau=2), stgt.topology.complete(6)
    alone = [theory.spectral_radius(method, _coordinate(problem, k), graph) for k in (0, 1)]
    assert alone[0] < 1 < alone[1]
    assert theory.spectral_radius(method, problem, graph) == pytest.approx(alone[1], rel=1e-7)


def _coordinate(problem, k):
    """The problem in one coordinate: the same samples, of which half have nothing to do with it."""
    features, labels = problem.data["features"][:, :, [k]].reshape(-1, 1), problem.data["labels"].ravel()
    m = problem.data["features"].shape[1]
    parts = [range(m * i, m * (i + 1)) for i in range(problem.n)]
    return stgt.problems.least_squares(features, labels, partition=parts, batch=problem.batch)


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize(("method", "topology"), METHODS, ids=lambda one: getattr(one, "label", None) or str(one))
@pytest.mark.sampled(10)
def test_predictions_are_what_runs_show(method, topology, batch):
    """At half of the largest stable stepsize, 400 seeds: the long run and the curve lie in the 99 % intervals."""
    problem, rounds, seeds = of(batch), 240, 400
    method = replace(method, gamma=0.5 * theory.largest_stable_stepsize(method, problem, topology, precision=0.05))
    exact = theory.steady_state(method, problem, topology)
    curve = theory.expected_curve(method, problem, topology, rounds)
    options = {"dtype": "float64", "metrics": ["residual", "consensus"]}
    trace = stgt.simulate(method, problem, topology, rounds, seeds, **options)
    seen = {
        "residual": (trace.residual[:, -120:].mean(axis=1), curve[-120:].mean()),
        "first": (trace.residual[:, 3], curve[3]),
        "consensus": (trace["consensus"][:, -120:].mean(axis=1), exact.consensus),
    }
    for name, (values, expected) in seen.items():
        half = 2.588 * values.std(ddof=1) / np.sqrt(seeds)  # Student's t, 399 degrees
        assert abs(values.mean() - expected) < half + 1e-12, name
    assert exact.residual == pytest.approx(curve[-(topology.period or 1) :].mean(), rel=0.02)


@pytest.mark.parametrize(("method", "topology"), METHODS[:4], ids=lambda one: getattr(one, "label", None) or str(one))
@pytest.mark.sampled(4)
def test_the_limit_is_where_runs_begin_to_diverge(method, topology):
    """On both sides of it the first rounds are as predicted, below it all runs settle, and far above all diverge.

    Just above it second moments grow by rare runs, of which a mean over seeds soon sees none: hence the first rounds.
    """
    problem = of(8)
    limit = float(theory.largest_stable_stepsize(method, problem, topology, precision=0.01))
    radii = [theory.spectral_radius(replace(method, gamma=f * limit), problem, topology) for f in (0.98, 1.02)]
    assert radii[0] < 1 < radii[1]
    options = {"dtype": "float64", "metrics": ["residual"]}
    for factor in (0.9, 1.1):
        here = replace(method, gamma=factor * limit)
        seen = stgt.simulate(here, problem, topology, 4, 4000, **options).residual[:, 4]
        expected = theory.expected_curve(here, problem, topology, 4)[4]
        assert abs(seen.mean() - expected) < 2.576 * seen.std(ddof=1) / np.sqrt(4000)
    below = stgt.simulate(replace(method, gamma=0.7 * limit), problem, topology, 2000, 50, **options)
    assert below.residual[:, 1000:].max() < 1e3
    beyond = stgt.simulate(replace(method, gamma=2 * limit), problem, topology, 400, 20, **options)
    assert not (beyond.residual[:, -1] < 1e6).any()


def test_a_run_that_minibatches_let_explode_is_not_called_stable():
    """Stable with exact gradients, and with noise as strong as at the minimum; 20 runs end beyond 1e6 nevertheless."""
    problem, method = of(1), stgt.STGT(gamma=0.8, tau=4)
    assert theory.check(method, of(None), RING).stable
    advice = theory.check(method, problem, RING)
    assert advice.basis == "exact"
    assert not advice.stable
    assert advice.error is None
    assert advice.largest_gamma < 0.5
    assert "The reason is the noise of minibatches of 1" in advice.warnings[1]
    runs = stgt.simulate(method, problem, RING, 2000, 20, dtype="float64", metrics=["residual"])
    assert not (runs.residual[:, -1] < 1e6).any()


def test_a_theorem_that_asks_for_a_bounded_variance_is_silent():
    assert theory.check(stgt.STGT(gamma=0.01, tau=4), of(None), RING, stepsizes=False).theorem_gamma is not None
    assert theory.check(stgt.STGT(gamma=0.01, tau=4), of(1), RING, stepsizes=False).theorem_gamma is None


def test_logistic_regression_is_never_called_safe_where_second_moments_grow():
    """Sample by sample at the minimum. At a stepsize that is stable with exact gradients, and not with one sample."""
    problem = logistic(4, 3, batch=1)
    method = stgt.STGT(gamma=0.1, tau=4)
    exact = theory.check(method, problem, RING, oracle=stgt.oracles.Exact()).largest_gamma
    advice = theory.check(replace(method, gamma=0.9 * float(exact)), problem, RING)
    assert advice.basis == "an estimate, from the quadratic model at the minimum"
    assert not advice.stable
    assert advice.largest_gamma < 0.9 * exact


def test_a_theorem_uses_the_problems_constants():
    problem = logistic(4, 2)
    advice = theory.check(stgt.STGT(gamma=0.01, tau=4), problem, RING, stepsizes=False)
    constants = theory.constants(problem, RING, 4, sigma2=0.0)
    assert advice.theorem_gamma == theory.stepsize(constants, theorem=1).limit
    assert (advice.L, advice.mu) == (problem.L, problem.mu)


def test_variance_reduction_is_tried_out():
    """GT-SAGA's noise vanishes at x* and grows with the distance, so that exact gradients say nothing of stability."""
    problem = replace(of(None), batch=None)
    largest = theory.largest_stable_stepsize(stgt.DIGing(), problem, RING)
    advice = theory.check(stgt.GTSAGA(gamma=0.9 * float(largest)), problem, RING)
    assert advice.basis == "an estimate, from short runs"
    assert not advice.stable
    assert theory.check(stgt.GTSAGA(gamma=0.02 * float(largest)), problem, RING).stable


def test_what_is_not_known_under_minibatches_is_tried_out_or_refused():
    """Aug-DGM takes gradients between two exchanges."""
    problem, method = of(2), stgt.AugDGM(gamma=0.02)
    with pytest.raises(stgt.NotCovered, match="gradients between two exchanges"):
        theory.spectral_radius(method, problem, RING)
    advice = theory.check(method, problem, RING)
    assert advice.basis == "an estimate, from short runs"
    assert advice.stable
    assert not theory.check(replace(method, gamma=2.0), problem, RING).stable


def test_a_state_too_large_for_second_moments_is_refused_before_anything_is_made(monkeypatch):
    """800 nodes with three coordinates: ST-GT keeps 4,800 numbers."""
    problem = stgt.problems.least_squares(np.tile(FEATURES, (10, 1)), np.tile(LABELS, 10), 800, batch=1)
    monkeypatch.setattr(mean_square, "KnownMixing", None)
    with pytest.raises(stgt.NotCovered, match="the state has 4800 entries"):
        theory.spectral_radius(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(800))
