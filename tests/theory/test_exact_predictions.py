"""Exact predictions against closed forms, and against runs."""

import doctest

import numpy as np
import pytest

import stgt
from catalogue import directed_schedule, logistic, quadratic, suited
from stgt import theory
from stgt.theory import stability

PROBLEM = stgt.problems.ridge(n=8, p=3, mu=0.5, noise=0.1)
GRAPHS = [stgt.topology.ring(8), stgt.topology.exponential(8), stgt.topology.one_peer_exponential(8)]
ALGORITHMS = [
    stgt.STGT(gamma=0.1, tau=5),
    stgt.FlexGT(gamma=0.1, tau=5, snapshot="first"),
    stgt.FlexGT(gamma=0.1, tau=5, snapshot="last"),
    stgt.DSGT(gamma=0.1),
    stgt.KGT(gamma=0.1, tau=5, eta_s=0.8),
    stgt.DPSGD(gamma=0.1),
]


@pytest.mark.parametrize("topology", GRAPHS, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.label)
@pytest.mark.sampled(16)
def test_the_steady_state_is_what_runs_show(algorithm, topology):
    """200 seeds: the predicted residual and consensus error lie in the 99 % intervals of the measured ones."""
    exact = theory.steady_state(algorithm, PROBLEM, topology)
    trace = stgt.simulate(algorithm, PROBLEM, topology, 600, 200, dtype="float64", metrics=["residual", "consensus"])
    last = 300 // topology.period * topology.period  # whole periods
    for name, value in (("residual", exact.residual), ("consensus", exact.consensus)):
        seen = trace[name][:, -last:].mean(axis=1)
        assert abs(seen.mean() - value) < 2.601 * seen.std(ddof=1) / np.sqrt(200), name  # Student's t, 199 degrees
    if algorithm.label == "D-PSGD":
        assert exact.bias > 1e-5
    else:
        assert exact.bias < 1e-20


def test_closed_form():
    """f_i(x) = a x²/2 − b_i x, one step, W = J: x̄⁺ = (1 − γa)x̄ + γb̄ − γδ̄, so that E‖x̄ − x*‖² = γσ²/(n a (2 − γa)),
    the spectral radius is |1 − γa|, and γ = 2/a is the largest stable stepsize."""
    a, gamma, variance, n = 2.0, 0.25, 0.3, 4
    problem = stgt.problems.Quadratic(np.full((n, 1, 1), a), np.arange(4.0)[:, None], noise=variance)
    complete = stgt.topology.complete(n)
    exact = theory.steady_state(stgt.DPSGD(gamma=gamma, atc=True), problem, complete)
    assert exact.residual == pytest.approx(gamma * variance / (n * a * (2 - gamma * a)), rel=1e-10)
    assert exact.consensus == pytest.approx(0, abs=1e-15)
    assert theory.spectral_radius(stgt.DPSGD(gamma=gamma, atc=True), problem, complete) == pytest.approx(1 - gamma * a)
    largest = theory.largest_stable_stepsize(stgt.DPSGD(atc=True), problem, complete, below=3.0)
    assert largest == pytest.approx(2 / a, rel=2e-3)
    curve = theory.expected_curve(stgt.DPSGD(gamma=gamma, atc=True), problem, complete, 5, x0=[7.0])
    q, x_star = (1 - gamma * a) ** 2, 0.75
    noise = gamma**2 * variance / n
    expected = [q**r * (7 - x_star) ** 2 + noise * (1 - q**r) / (1 - q) for r in range(6)]
    np.testing.assert_allclose(curve, expected, rtol=1e-10)


def test_the_noise_of_the_first_gradient_counts():
    """Aug-DGM takes its first gradient before round 0. With W = J and f_i(x) = a x²/2 its mean is that of plain SGD."""
    a, gamma, variance, n = 2.0, 0.25, 0.3, 4
    problem = stgt.problems.Quadratic(np.full((n, 1, 1), a), np.zeros((n, 1)), noise=variance)
    curve = theory.expected_curve(stgt.AugDGM(gamma=gamma), problem, stgt.topology.complete(n), 4)
    q = (1 - gamma * a) ** 2
    expected = [gamma**2 * variance / n * (1 - q**r) / (1 - q) for r in range(5)]
    np.testing.assert_allclose(curve, expected, rtol=1e-10, atol=1e-18)


@pytest.mark.parametrize(
    "algorithm", [stgt.KGT(gamma=0.2, tau=3, warm_start=True), stgt.LUGT(gamma=0.2, tau=3)], ids=str
)
@pytest.mark.sampled
def test_the_expected_curve_is_the_mean_of_runs(algorithm):
    """4,000 seeds, the first rounds, where a noisy start shows: each within its 99.9 % interval."""
    problem, ring = quadratic(4, 2, noise=0.5), stgt.topology.ring(4)
    curve = theory.expected_curve(algorithm, problem, ring, 4)
    runs = stgt.simulate(algorithm, problem, ring, 4, 4000, dtype="float64", metrics=["residual"]).residual
    error = runs.std(axis=0, ddof=1)[1:] / np.sqrt(len(runs))
    assert (np.abs(runs.mean(axis=0) - curve)[1:] < 3.29 * error).all()


@pytest.mark.parametrize(
    "algorithm",
    [
        *ALGORITHMS,
        stgt.STGT(gamma=0.1, tau=5, adjoint=True),
        stgt.LUGT(gamma=0.1, tau=3),
        stgt.AugDGM(gamma=0.1),
        stgt.DIGing(gamma=0.05),
        stgt.ScaffoldPlus(gamma=0.1, tau=5, gamma_c=0.7),
        stgt.Scaffold(gamma=0.1, tau=5, option="I"),
        stgt.FedProx(gamma=0.1, tau=5),
        stgt.ProxSkip(gamma=0.05, tau=3),
    ],
    ids=str,
)
@pytest.mark.sampled(8)
def test_without_noise_the_curve_is_the_run(algorithm):
    problem, topology = quadratic(6, 2), suited(algorithm, directed_schedule(6))
    x0 = np.array([1.0, -2.0])
    curve = theory.expected_curve(algorithm, problem, topology, 25, x0=x0)
    trace = stgt.simulate(algorithm, problem, topology, 25, x0=x0, dtype="float64")
    np.testing.assert_allclose(curve, trace.residual[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("topology", GRAPHS, ids=str)
@pytest.mark.sampled
def test_the_spectral_radius_is_the_measured_rate(topology):
    """Noise-free, the distance to the optimum shrinks by the spectral radius a round, in the end: to 3 digits."""
    rng = np.random.default_rng(0)
    # Curvatures far apart, so that one mode is the slowest by far.
    A = np.diag([0.3, 1.0, 2.0]) + 0.05 * rng.uniform(size=(8, 1, 1)) * np.eye(3)
    problem = stgt.problems.Quadratic(A, rng.normal(size=(8, 3)))
    for algorithm in (stgt.STGT(gamma=0.02, tau=5), stgt.DSGT(gamma=0.1), stgt.FlexGT(gamma=0.02, tau=5)):
        trace = stgt.simulate(algorithm, problem, topology, 400, dtype="float64")
        distance = np.sqrt(trace.residual[0] + trace["consensus"][0])
        measured = (distance[400] / distance[200]) ** (1 / 200)
        assert theory.spectral_radius(algorithm, problem, topology) == pytest.approx(measured, abs=1e-3)


@pytest.mark.thorough
def test_which_graphs_of_the_paper_are_stable():
    """Ridge, n=32, tau=50, gamma=0.4, θ/√p, mu=0.1: directed hops {1, 2, 4} are not, {±1, 16} and exp-5 are."""
    problem, algorithm = stgt.problems.ridge(n=32, p=10, mu=0.1), stgt.STGT(gamma=0.4, tau=50)
    assert theory.spectral_radius(algorithm, problem, stgt.topology.exponential(32, neighbors=3)) > 1.01
    assert theory.spectral_radius(algorithm, problem, stgt.topology.exponential(32, neighbors=3, symmetric=True)) < 1
    assert theory.spectral_radius(algorithm, problem, stgt.topology.exponential(32)) < 0.999


@pytest.mark.thorough
def test_adjoint_tracking_makes_directed_graphs_stable():
    problem = stgt.problems.ridge(n=16, p=4, mu=0.1)
    for hops in ([1], [1, 2], [1, 2, 4]):
        graph = stgt.topology.circulant(16, hops)
        plain, adjoint = (
            theory.spectral_radius(stgt.STGT(gamma=0.4, tau=50, adjoint=flag), problem, graph) for flag in (False, True)
        )
        assert adjoint < 1 < plain


def test_bad_input():
    algorithm = stgt.STGT(gamma=0.1, tau=3)
    for attempt, words in (
        (lambda: theory.round_map(algorithm, quadratic(4, 2), stgt.topology.random_matching(4)), "is random"),
        (lambda: theory.round_map(algorithm, logistic(4, 2, batch=None), stgt.topology.ring(4)), "not quadratic"),
        (
            lambda: theory.round_map(stgt.STGT(gamma=1e300, tau=3), quadratic(4, 2), stgt.topology.ring(4)),
            r"ST-GT with gamma=1e\+300 overflows within a round",
        ),
        (lambda: theory.round_map(stgt.ProxSkip(gamma=0.1, p=0.5), quadratic(4, 2), stgt.topology.ring(4)), "coin"),
        (lambda: theory.round_map(algorithm, quadratic(300, 4), stgt.topology.ring(300)), "2400 entries"),
        (
            lambda: theory.round_map(algorithm, stgt.problems.ridge(100_000), stgt.topology.ring(100_000)),
            "2000000 entries",
        ),
        (lambda: theory.round_map(algorithm, logistic(4, 2), stgt.topology.ring(4)), "draws minibatches"),
        (
            lambda: theory.steady_state(
                stgt.STGT(gamma=0.4, tau=50), stgt.problems.ridge(16, 4, 0.1), stgt.topology.ring(16, directed=True)
            ),
            "no steady state",
        ),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")


def test_docstrings_run():
    assert doctest.testmod(stability).failed == 0
