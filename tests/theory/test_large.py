"""States too large for dense maps: the matrix-free answers are the dense ones, and what runs show."""

import numpy as np
import pytest
from scipy import linalg

import stgt
from stgt import theory
from stgt.theory import maps, solvers, stability

# n·p is so large that the projections settle before they span the whole space.
PROBLEM = stgt.problems.ridge(n=64, p=3, mu=0.5, noise=0.1)
ONE_PEER, RING = stgt.topology.one_peer_exponential(64), stgt.topology.ring(64, directed=True)
CASES = [
    (stgt.STGT(gamma=0.1, tau=5), stgt.topology.exponential(64)),
    (stgt.STGT(gamma=0.1, tau=5, adjoint=True), RING),
    (stgt.FlexGT(gamma=0.02, tau=5), stgt.topology.torus(8, 8)),
    (stgt.DPSGD(gamma=0.1), stgt.topology.ring(64)),
    (stgt.STGT(gamma=0.05, tau=5), ONE_PEER),
    (stgt.AugDGM(gamma=0.1), ONE_PEER),
]


@pytest.mark.parametrize(("algorithm", "topology"), CASES, ids=str)
@pytest.mark.sampled
def test_both_ways_agree(algorithm, topology, monkeypatch):
    """AugDGM starts from a noisy gradient, and D-PSGD ends at a biased mean."""
    asked = (algorithm, PROBLEM, topology)
    dense, curve = theory.steady_state(*asked), theory.expected_curve(*asked, 20, x0=np.ones(3))
    radius = theory.round_map(*asked).spectral_radius
    monkeypatch.setattr(stability, "LARGEST", 0)
    found = theory.steady_state(*asked)
    assert theory.spectral_radius(*asked) == pytest.approx(radius, rel=1e-6)
    assert found.residual == pytest.approx(dense.residual, rel=1e-6)
    assert found.bias == pytest.approx(dense.bias, rel=1e-6, abs=1e-15)
    assert dense.consensus_error == 0
    assert abs(found.consensus - dense.consensus) < 3 * found.consensus_error
    assert found.consensus_error < 0.05 * dense.consensus
    np.testing.assert_allclose(theory.expected_curve(*asked, 20, x0=np.ones(3)), curve, rtol=1e-6)


@pytest.mark.thorough
def test_instability_is_seen(monkeypatch):
    """The directed ring, on which plain ST-GT diverges and adjoint ST-GT does not."""
    algorithm = stgt.STGT(gamma=0.4, tau=50)
    radius = theory.spectral_radius(algorithm, PROBLEM, RING)
    monkeypatch.setattr(stability, "LARGEST", 0)
    assert theory.spectral_radius(algorithm, PROBLEM, RING) == pytest.approx(radius, rel=1e-6)
    assert radius > 1.005
    with pytest.raises(ValueError, match="no steady state"):
        theory.steady_state(algorithm, PROBLEM, RING)


@pytest.mark.thorough
def test_the_largest_stepsize_of_a_large_state():
    """f_i(x) = a x²/2, one step, W = J: 2/a."""
    problem = stgt.problems.Quadratic(np.full((2500, 1, 1), 2.0), np.zeros((2500, 1)), noise=0.1)
    complete = stgt.topology.complete(2500)
    largest = theory.largest_stable_stepsize(stgt.DPSGD(atc=True), problem, complete, below=3.0)
    assert largest == pytest.approx(1.0, rel=2e-3)
    exact = theory.steady_state(stgt.DPSGD(gamma=0.25, atc=True), problem, complete)
    assert exact.residual == pytest.approx(0.25 * 0.1 / (2500 * 2 * 1.5), rel=1e-8)


@pytest.mark.thorough
def test_a_thousand_nodes():
    """8 runs from x*: the predicted residual and consensus error lie in the 99 % intervals of the measured ones."""
    problem, graph = stgt.problems.ridge(n=1000, p=10, mu=0.5, noise=0.1), stgt.topology.exponential(1000)
    algorithm = stgt.STGT(gamma=0.1, tau=10)
    exact = theory.steady_state(algorithm, problem, graph)
    options: dict = {"x0": problem.optimum, "metrics": ["residual", "consensus"], "dtype": "float64"}
    trace = stgt.simulate(algorithm, problem, graph, 300, 8, **options)
    for name, value, error in (
        ("residual", exact.residual, 0.0),
        ("consensus", exact.consensus, exact.consensus_error),
    ):
        seen = trace[name][:, -200:].mean(axis=1)
        own = 3.499 * seen.std(ddof=1) / np.sqrt(8)  # Student's t, 7 degrees
        assert abs(seen.mean() - value) < own + 2.576 * error, name


@pytest.mark.parametrize("radius", [0.5, 0.9999])
def test_doubling_solves_the_lyapunov_equation(radius):
    """Against scipy's solver, for an M far from normal."""
    rng = np.random.default_rng(0)
    M = np.triu(rng.normal(size=(12, 12)), 1) + np.diag(np.linspace(-radius, radius, 12))
    B = rng.normal(size=(12, 5))
    found = solvers.lyapunov(M, B @ B.T)
    assert found is not None
    np.testing.assert_allclose(found, linalg.solve_discrete_lyapunov(M, B @ B.T, method="direct"), rtol=1e-6)
    np.testing.assert_allclose(found, M @ found @ M.T + B @ B.T, rtol=1e-12, atol=1e-12 * np.abs(found).max())


def test_doubling_notices_what_is_unstable():
    assert solvers.lyapunov(np.diag([0.5, 1.01]), np.eye(2)) is None
    assert solvers.lyapunov(np.diag([0.5, 1.0]), np.eye(2)) is None


def test_bad_input(monkeypatch):
    algorithm = stgt.STGT(gamma=0.1, tau=3)
    huge, ring = stgt.problems.ridge(200_000), stgt.topology.ring(200_000)
    small = stgt.problems.ridge(8, 2)
    for attempt, words in (
        (lambda: theory.spectral_radius(algorithm, huge, ring), "4000000 entries"),
        (lambda: theory.spectral_radius(stgt.NEXT(gamma=0.1, decay=0.5), small, stgt.topology.ring(8)), "decay=0"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")
    monkeypatch.setattr(stability, "LARGEST", 0)
    with pytest.raises(ValueError, match="decay=0"):
        theory.spectral_radius(stgt.NEXT(gamma=0.1, decay=0.5), small, stgt.topology.ring(8))
    monkeypatch.setattr(maps, "MOST_VECTORS", 5)
    with pytest.raises(ValueError, match="does not converge with 5 vectors"):
        theory.steady_state(stgt.STGT(gamma=0.1, tau=5), PROBLEM, stgt.topology.exponential(64))
