"""`check`: what it says of a run is what the run then shows."""

import math
from functools import partial

import numpy as np
import pytest

import stgt
from catalogue import least_squares, logistic, quadratic
from stgt import theory
from stgt.theory.estimates import growth, local_model
from stgt.theory.sample_noise import sample_noise


def test_a_stable_run_is_predicted_exactly():
    problem, ring = quadratic(6, 2, noise=0.1), stgt.topology.ring(6)
    algorithm = stgt.STGT(gamma=0.05, tau=4)
    target = 4 * theory.steady_state(algorithm, problem, ring).residual
    advice = theory.check(algorithm, problem, ring, target=target)
    assert advice.basis == "exact"
    assert advice.stable
    assert advice.warnings == ()
    assert advice.error == theory.steady_state(algorithm, problem, ring).residual
    assert advice.sigma2 == pytest.approx(0.2)  # two coordinates of variance 0.1
    assert (advice.L, advice.mu) == (pytest.approx(problem.L), pytest.approx(problem.mu))
    curve = theory.expected_curve(algorithm, problem, ring, advice.rounds_to_target)
    assert curve[-1] <= target < curve[-2]
    # Two vectors of p = 2 numbers of 4 bytes to each of two neighbours.
    assert advice.bytes_a_round == advice.bytes_received == 2 * 2 * 4 * 2
    assert advice.theorem_gamma < advice.largest_gamma


def test_a_directed_graph_is_named():
    problem, ring = stgt.problems.ridge(n=16, p=4, mu=0.1), stgt.topology.ring(16, directed=True)
    advice = theory.check(stgt.STGT(gamma=0.4, tau=50), problem, ring)
    assert not advice.stable
    assert advice.error is None
    assert "ST-GT on ring(16, directed) is unstable at gamma=0.4: spectral radius 1.03" in advice.warnings[0]
    assert "is directed: with adjoint=True the radius is 0.99" in advice.warnings[1]
    assert theory.check(stgt.STGT(gamma=0.4, tau=50, adjoint=True), problem, ring).stable


def test_a_stepsize_too_large_for_any_graph_is_named():
    problem = quadratic(4, 2)
    advice = theory.check(stgt.STGT(gamma=2.5 / problem.L, tau=2), problem, stgt.topology.ring(4))
    assert not advice.stable
    assert "too large on any graph" in advice.warnings[1]
    safe = stgt.STGT(gamma=0.99 * advice.largest_gamma, tau=2)
    assert theory.spectral_radius(safe, problem, stgt.topology.ring(4)) <= 1


@pytest.mark.thorough
def test_a_sampled_server_is_predicted_exactly():
    """Its error is that of runs, within a twentieth; a stepsize above the one it calls safe diverges."""
    problem, server = quadratic(8, 2, noise=0.1), stgt.topology.server(8, sampled=3)
    algorithm = stgt.Scaffold(gamma=0.05, tau=4)
    advice = theory.check(algorithm, problem, server, target=1.0)
    assert advice.basis == "exact"
    assert advice.stable
    assert advice.theorem_gamma is None
    assert advice.rounds_to_target is not None
    runs = stgt.simulate(algorithm, problem, server, 3000, 20, metrics=["residual"])
    assert advice.error == pytest.approx(runs.tail().mean(), rel=0.05)
    beyond = stgt.simulate(stgt.Scaffold(gamma=4 * advice.largest_gamma, tau=4), problem, server, 3000)
    assert not beyond.residual[0, -1] < 1e6
    # Three of eight workers, one model up and two down, of 2 numbers of 4 bytes.
    assert advice.bytes_a_round == pytest.approx(3 * 1 * 2 * 4 / 8)
    assert advice.bytes_received == pytest.approx(3 * 2 * 2 * 4 / 8)


def test_logistic_regression_is_estimated():
    """The local model's steady state is close to what runs show, where noise is small."""
    problem = logistic(4, 2, batch=2)
    algorithm, ring = stgt.STGT(gamma=0.05, tau=4), stgt.topology.ring(4)
    advice = theory.check(algorithm, problem, ring)
    assert advice.basis == "an estimate, from the quadratic model at the minimum"
    runs = stgt.simulate(algorithm, problem, ring, 2000, 50, metrics=["residual"])
    assert advice.error == pytest.approx(runs.tail().mean(), rel=0.3)
    assert (advice.L, advice.mu) == (problem.L, problem.mu), "the problem's own, not those at the minimum"


def test_hessians_and_variance_against_closed_forms():
    """One dimension, one sample a: ∇² log(1 + exp(−a x)) at 0 is a²/4; the gradient there −a/2."""
    problem = stgt.problems.logistic([[2.0], [4.0], [2.0], [4.0]], [0, 0, 1, 1], partition=[range(4)], batch=2)
    assert pytest.approx((4 + 16) / 8) == local_model(problem).L  # x* = 0 by symmetry
    model = local_model(stgt.problems.logistic([[2.0], [-2.0]], [1, 0], partition=[[0, 1]], l2=0.5, batch=1))
    assert model.sigma2 == pytest.approx(0, abs=1e-12)  # both samples say the same
    apart = stgt.problems.logistic([[2.0], [2.0]], [1, 0], partition=[[0, 1]], l2=0.5, batch=4)
    # x* = 0 by symmetry, gradients ±1 there, so that a batch of 4 has variance 1/4.
    assert local_model(apart).sigma2 == pytest.approx(0.25)


def test_no_strict_minimum_is_said():
    problem = stgt.problems.logistic([[1.0, 0.0], [1.0, 0.0]], [0, 1], partition=[[0], [1]])
    advice = theory.check(stgt.STGT(gamma=0.1, tau=2), problem, stgt.topology.complete(2))
    assert advice.stable is None
    assert "not a strict minimum" in advice.warnings[0]


def test_a_bias_and_a_target_out_of_reach_are_named():
    problem, ring = quadratic(4, 2, noise=0.01), stgt.topology.ring(4)
    advice = theory.check(stgt.DPSGD(gamma=0.1), problem, ring, target=1e-9)
    assert any("does not converge to x*" in sentence for sentence in advice.warnings)
    assert any("never reaches 1e-09" in sentence for sentence in advice.warnings)
    assert advice.rounds_to_target is None


def test_bad_input():
    problem = quadratic(4, 2)
    with pytest.raises(ValueError, match="target=-1"):
        theory.check(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(4), target=-1)
    with pytest.raises(ValueError, match="make them equal"):
        theory.check(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(5))


def test_a_short_run_whose_distance_overflows_is_unstable():
    """Finite models whose distance is not: inf/inf says nothing, the run does."""

    class Overflown(dict):
        diverged = np.array([False])

    trace = Overflown(residual=np.array([[1.0, np.inf, np.inf, np.inf, np.inf]]), consensus=np.zeros((1, 5)))
    assert growth(trace) == np.inf


def test_a_relay_has_no_rho():
    problem, relay = quadratic(4, 2, noise=0.1), stgt.topology.relay(4, sampled=4)
    assert theory.check(stgt.ScaffoldPlus(gamma=0.01, tau=2), problem, relay).rho == pytest.approx(0, abs=1e-12)
    advice = theory.check(stgt.ScaffoldPlus(gamma=0.01, tau=2), problem, stgt.topology.relay(4, sampled=2))
    assert math.isnan(advice.rho)
    assert advice.theorem_gamma is None


def test_least_squares_are_predicted_exactly():
    """Without minibatches they are quadratic: the reference reaches the target in the very round that is predicted."""
    problem, graph, method = least_squares(4, batch=None), stgt.topology.ring(4), stgt.STGT(gamma=0.1, tau=3)
    advice = stgt.theory.check(method, problem, graph, target=1e-6)
    assert advice.basis == "exact"
    trace = stgt.simulate(method, problem, graph, advice.rounds_to_target, engine="numpy")
    assert int((trace.residual[0] <= 1e-6).argmax()) == advice.rounds_to_target


def test_the_oracle_decides_the_noise():
    """What is given as an oracle is the same as a problem that was made for it; another one is refused."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3))
    labels = features[:, 0] + rng.normal(size=40) > 0
    make = partial(stgt.problems.logistic, features, labels, 4, l2=0.1)
    method, graph = stgt.STGT(gamma=0.1, tau=3), stgt.topology.ring(4)
    given = theory.check(method, make(), graph, oracle=stgt.oracles.Minibatch(2))
    assert given == theory.check(method, make(batch=2), graph)
    assert given.error > 0
    assert theory.check(method, make(batch=2), graph, oracle=stgt.oracles.Exact()).sigma2 == 0
    ridge = stgt.problems.ridge(n=4, p=2, noise=0.1)
    noisy = theory.check(method, ridge, graph, oracle=stgt.oracles.Noisy(0.4))
    assert noisy.error == pytest.approx(4 * theory.check(method, ridge, graph).error), "it is proportional to σ²"
    assert theory.check(method, make(), graph, oracle=stgt.oracles.SAGA()).sigma2 == 0

    class Own(stgt.oracles.Oracle):
        pass

    with pytest.raises(ValueError, match="its noise is not covered by the theory"):
        theory.check(method, ridge, graph, oracle=Own())


def test_minibatches_have_the_covariance_of_their_samples():
    """At the minimum, of b samples with replacement: the samples' covariance over b, node by node."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(30, 2))
    labels = features[:, 0] + rng.normal(size=30) > 0
    parts = [np.arange(0, 12), np.arange(12, 30)]
    problem = stgt.problems.logistic(features, labels, partition=parts, l2=0.1, batch=3)
    found = sample_noise(local_model(problem).problem)
    known = np.append(problem.optimum, 1.0)
    covariances = found.covariance(np.broadcast_to(np.outer(known, known), (2, 3, 3)))
    for node, part in enumerate(parts):
        signs = np.where(labels[part], 1.0, -1.0)
        slopes = -signs / (1 + np.exp(signs * (features[part] @ problem.optimum)))
        gradients = slopes[:, None] * features[part]
        np.testing.assert_allclose(covariances[node], np.cov(gradients.T, bias=True) / 3, atol=1e-12)


def test_the_search_for_a_stepsize_can_be_left_out():
    ridge, graph = stgt.problems.ridge(n=8, p=2, mu=0.1), stgt.topology.ring(8, directed=True)
    quick = theory.check(stgt.STGT(gamma=0.4, tau=50), ridge, graph, stepsizes=False)
    whole = theory.check(stgt.STGT(gamma=0.4, tau=50), ridge, graph)
    assert quick.radius == whole.radius > 1
    assert quick.largest_gamma is None
    assert "smaller ones may be stable" in quick.warnings[0]


SERVER = stgt.topology.server(6, sampled=3)


@pytest.mark.parametrize("graph", [stgt.topology.ring(6), stgt.topology.random_matching(6), SERVER], ids=str)
@pytest.mark.parametrize(
    "make", [partial(quadratic, 6, 2, noise=0.1), partial(logistic, 6, 2)], ids=["quadratic", "logistic"]
)
@pytest.mark.parametrize(
    "algorithm",
    [
        stgt.FedAdam(gamma=0.05, tau=4),
        stgt.Adaptive(stgt.STGT(gamma=0.05, tau=4), rule="yogi"),
        stgt.GTAdam(gamma=0.05),
    ],
    ids=lambda one: one.label,
)
def test_of_a_step_that_is_not_linear_nothing_is_said_but_what_it_sends(algorithm, make, graph):
    problem = make()
    found = theory.check(algorithm, problem, graph, target=1e-3)
    assert found.basis == "outside the theory"
    assert found.stable is None
    assert (found.error, found.bias, found.largest_gamma, found.theorem_gamma) == (None, None, None, None)
    (words,) = found.warnings
    assert words == (
        f"{algorithm.label} makes a step that is not linear in the models and gradients, so the theory says "
        "nothing about its steady state; try it in a short run."
    )
    vectors = 1 if algorithm.label == "FedAdam" else 2
    plain = stgt.DPSGD(gamma=0.05, tau=4, atc=True)  # which sends one
    assert found.bytes_a_round == vectors * theory.check(plain, problem, graph, stepsizes=False).bytes_a_round
