"""The rule for β: it is where the real algorithm turns unstable; the noise in c; what `check` says; directed graphs."""

import re
from pathlib import Path

import numpy as np
import pytest

import stgt
from catalogue import quadratic
from stgt import theory

PAGE = (Path(__file__).parents[2] / "docs" / "led.md").read_text()
GRAPHS = {
    "ring": stgt.topology.circulant(6, [1, -1], [0.45, 0.45]),
    "directed ring": stgt.topology.ring(6, directed=True),
    "exponential": stgt.topology.exponential(8),
    "hypercuboid": stgt.topology.hypercuboid(8),
    "one-peer": stgt.topology.one_peer_exponential(8),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_largest_beta_is_where_led_turns_unstable(name):
    """On quadratics that differ, at a small stepsize: 2 % below it is stable, 2 % above it is not."""
    topology = GRAPHS[name]
    problem, limit = quadratic(topology.n, 1), theory.largest_beta(topology)
    assert limit < 2
    gamma = 1e-4 / problem.L
    assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=3, beta=0.98 * limit), problem, topology) < 1
    assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=3, beta=1.02 * limit), problem, topology) > 1
    if topology.period == 1:
        assert theory.small_step_radius(topology, limit) == pytest.approx(1, abs=1e-9)
    assert theory.largest_stable_stepsize(stgt.LED(tau=3, beta=0.9 * limit), problem, topology) > gamma


def test_closed_forms():
    """2(1 + λ)/(1 − λ) with λ = 0.1 − 0.9; 2s/(4 − 3s) with s = sin²(π/n); 2/log₂ n; 2 for J and on W ⪰ 0."""
    assert theory.largest_beta(GRAPHS["ring"]) == pytest.approx(2 * 0.2 / 1.8)
    for n in (5, 16, 100):
        s = np.sin(np.pi / n) ** 2
        assert theory.largest_beta(stgt.topology.ring(n, directed=True)) == pytest.approx(2 * s / (4 - 3 * s))
    assert theory.largest_beta(stgt.topology.hypercuboid(8)) == pytest.approx(2 / 3, rel=1e-5)
    assert theory.largest_beta(stgt.topology.complete(5)) == 2
    assert theory.largest_beta(stgt.topology.complete(1)) == 2


def test_random_rounds_turn_unstable_there():
    topology, problem = stgt.topology.unreliable(GRAPHS["ring"], 0.2), quadratic(6, 1)
    limit, gamma = theory.largest_beta(topology), 1e-3 / problem.L
    assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=3, beta=0.97 * limit), problem, topology) < 1
    assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=3, beta=1.03 * limit), problem, topology) > 1


@pytest.mark.parametrize("algorithm", [stgt.STGT(tau=4, gamma=1e-6, beta=0.6), stgt.LED(tau=4, gamma=1e-6, beta=0.6)])
def test_the_noise_in_c(algorithm):
    """Against the stationary covariance of the library's rounds: Var c over σ²/τ, the mean of the nodes."""
    n, ring = 5, stgt.topology.ring(5)
    problem = stgt.problems.Quadratic(np.ones((n, 1, 1)), np.zeros((n, 1)), 0.1)
    found = theory.round_map(algorithm, problem, ring)
    M, Q = found.rounds[0].M, found.rounds[0].Q
    keep = np.linalg.qr(np.c_[np.ones(n), np.eye(n)[:, 1:]])[0][:, 1:]
    apart = np.kron(keep, np.eye(2))  # the disagreement of x and c
    M, Q = apart.T @ M @ apart, apart.T @ Q @ apart
    scale = np.kron(np.eye(n - 1), np.diag([1.0, algorithm.gamma * algorithm.tau]))  # c̃ = γτc, for good numbers
    M, Q = scale @ M @ np.linalg.inv(scale), scale @ Q @ scale
    P = np.linalg.solve(np.eye(len(M) ** 2) - np.kron(M, M), Q.ravel()).reshape(Q.shape)
    variance = np.trace(P[1::2, 1::2]) / n / (algorithm.gamma * algorithm.tau) ** 2
    assert theory.tracker_noise(algorithm, ring) == pytest.approx(variance / (0.1 / algorithm.tau), rel=1e-4)


def test_a_beta_for_a_share_of_the_noise():
    """On J all n − 1 modes have β/(2 − β): a seventh of them is β = ¼."""
    many = stgt.topology.complete(6)
    for method in (stgt.STGT(tau=2), stgt.LED(tau=2)):
        assert theory.beta_for_noise(method, many, 5 / 6 / 7) == pytest.approx(0.25)
        assert theory.beta_for_noise(method, many, 10.0) in (1.0, pytest.approx(2 * 10 / (10 + 5 / 6)))
    assert theory.tracker_noise(stgt.STGT(tau=2), many) == pytest.approx(5 / 6)
    assert theory.tracker_noise(stgt.LED(tau=2, beta=0.3), GRAPHS["ring"]) == np.inf  # its largest is 0.22


def test_check_names_a_beta_that_is_too_large():
    problem, cube = quadratic(8, 1, noise=0.1), stgt.topology.hypercuboid(8)
    found = theory.check(stgt.LED(gamma=0.01, tau=5, beta=0.8), problem, cube)
    assert found.warnings[0].endswith("no small gamma is safe.")
    assert "LED with beta=0.8 on hypercuboid(8) is unstable at small stepsizes" in found.warnings[1]
    assert found.warnings[1].endswith("this graph needs beta below 0.667.")
    assert theory.check(stgt.LED(gamma=0.01, tau=5), problem, cube).warnings == ()
    even = stgt.topology.circulant(8, [1, -1], [0.45, 0.45])
    found = theory.check(stgt.LED(gamma=0.01, tau=5), problem, even)
    assert found.largest_gamma is None, "small stepsizes are what is not safe"
    fixed = found.warnings[-1]
    assert "beta below 0.222, or the lazy weights (I + W)/2" in fixed
    directed = theory.check(stgt.LED(gamma=0.01, tau=5), problem, stgt.topology.ring(8, directed=True)).warnings[-1]
    assert "needs beta below 0.0823, as it is directed" in directed
    assert "STGT(adjoint=True), or LED on the undirected graph (W + Wᵀ)/2, which allows beta below 2" in directed


def test_a_stepsize_at_which_too_large_a_beta_is_stable_is_named_too():
    problem, graph = stgt.problems.ridge(n=16, p=2, mu=0.1), stgt.topology.exponential(16)
    found = theory.check(stgt.LED(gamma=0.3, tau=20, beta=0.9), problem, graph)
    assert found.stable
    assert any(
        "beta=0.9" in sentence and "this graph needs beta below 0.826" in sentence for sentence in found.warnings
    )


def test_what_has_no_rule_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="all nodes must work"):
        theory.largest_beta(stgt.topology.server(6, sampled=2))
    with pytest.raises(ValueError, match="is not connected"):
        theory.largest_beta(stgt.topology.from_matrix(np.eye(3)))
    with pytest.raises(ValueError, match="at most 256 nodes"):
        theory.largest_beta(stgt.topology.ring(300))
    with pytest.raises(ValueError, match="fixed symmetric"):
        theory.tracker_noise(stgt.LED(), stgt.topology.hypercuboid(4))
    with pytest.raises(ValueError, match="for STGT and LED"):
        theory.tracker_noise(stgt.DSGT(), stgt.topology.ring(4))
    with pytest.raises(ValueError, match="beta=3"):
        theory.small_step_radius(stgt.topology.ring(4), 3)


def test_the_page_runs_and_has_the_numbers_it_prints(capsys):
    """Its two tables are what its two blocks print."""
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(block, {"__name__": "page"})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 20
    for line in printed:
        assert line in PAGE
