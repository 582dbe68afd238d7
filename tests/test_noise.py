"""Gradient noise of every kind: what is drawn against its covariance, in closed form, and on every engine."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg
from scipy.stats import norm

import stgt
from bits import assert_same_bits
from catalogue import instances, logistic
from stgt._internal.ops import NUMPY
from stgt._internal.randomness import Clock
from stgt.oracles import Exact, Noisy, ProblemNoise, default_oracle
from stgt.study.spec.runs import build_run, load_spec
from stgt.theory import constants
from stgt.theory.estimates import local_model

N, P = 6, 3
SIGMA2, STEPS = 0.3, 20_000
VARIANCES = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
ROOT = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, -1.0]])
SHARED = ROOT @ ROOT.T  # of rank 2
OWN = np.stack([i * np.eye(P) + np.ones((P, P)) for i in range(N)])  # of rank 1 at node 0, of rank 3 elsewhere
ONES = np.ones((P, P))

# The arguments, the covariance of each node that follows from the definition, how many numbers a node draws a step.
KINDS = {
    "isotropic": ({"noise": SIGMA2}, lambda theta: np.stack([SIGMA2 * np.eye(P)] * N), P),
    "scalar": ({"noise": SIGMA2, "noise_kind": "scalar"}, lambda theta: np.stack([SIGMA2 * ONES] * N), 1),
    "labels": (
        {"noise": SIGMA2, "noise_kind": "labels"},
        lambda theta: np.stack([4 * SIGMA2 * np.outer(one, one) for one in theta]),
        1,
    ),
    "variances": ({"noise": VARIANCES.tolist()}, lambda theta: np.stack([v * np.eye(P) for v in VARIANCES]), P),
    "scalar, variances": (
        {"noise": VARIANCES.tolist(), "noise_kind": "scalar"},
        lambda theta: np.stack([v * ONES for v in VARIANCES]),
        1,
    ),
    "covariance": ({"noise": SHARED.tolist()}, lambda theta: np.stack([SHARED] * N), 2),
    "covariances": ({"noise": OWN.tolist()}, lambda theta: OWN, P),
}
NEW = [kind for kind in KINDS if kind != "isotropic"]
STGT = stgt.STGT(gamma=0.05, tau=3)
LEAN = {"dtype": "float64", "metrics": ["consensus"]}


def ridge(kind: str, **options) -> stgt.problems.Problem:
    return stgt.problems.ridge(N, P, **KINDS[kind][0], **options)


def covariances(kind: str, problem: stgt.problems.Problem) -> np.ndarray:
    return KINDS[kind][1](problem.data["theta"])


def drawn_noise(problem: stgt.problems.Problem, steps: int) -> np.ndarray:
    """g − ∇f at 0 in the first steps, (steps, n, p)."""
    oracle, x = default_oracle(problem), np.zeros((N, P))
    drawn = oracle.draw(Clock(NUMPY, np.float64, 5, np.arange(N), np.arange(steps)), P, None)
    found = [oracle.gradient(NUMPY, problem.model, problem.data, {}, x, one)[0] for one in drawn]
    return np.stack(found) - problem.gradients(x)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_gradients_have_the_covariance(kind):
    """A mean of T products of centred normals a, b has variance (C_aa C_bb + C_ab²)/T.

    All products of all nodes at once lie in their intervals with 99.99 % (Bonferroni); nodes are independent.
    """
    problem = ridge(kind)
    noise = drawn_noise(problem, STEPS).reshape(STEPS, N * P)
    C = np.zeros((N * P, N * P))
    for i, one in enumerate(covariances(kind, problem)):
        C[i * P : (i + 1) * P, i * P : (i + 1) * P] = one
    half = norm.isf(1e-4 / 2 / C.size) * np.sqrt((np.outer(C.diagonal(), C.diagonal()) + C**2) / STEPS)
    assert (np.abs(noise.T @ noise / STEPS - C) <= half + 1e-12).all()
    spread = norm.isf(1e-4 / 2 / len(C)) * np.sqrt(C.diagonal() / STEPS)
    assert (np.abs(noise.mean(axis=0)) <= spread + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_problem_says_of_its_noise(kind):
    problem = ridge(kind)
    expected = covariances(kind, problem)
    assert problem.covariance.dtype == np.float64
    np.testing.assert_allclose(problem.covariance, expected, atol=1e-14)
    assert problem.sigma2 == pytest.approx(max(np.trace(one) for one in expected), rel=1e-14)
    assert problem.noisy
    assert (problem.noise is None) == (kind != "isotropic")
    assert default_oracle(problem).width(P) == KINDS[kind][2]
    assert constants(problem, stgt.topology.ring(N), 3).sigma2 == problem.sigma2
    assert local_model(problem).sigma2 == problem.sigma2


def test_isotropic_noise_is_that_of_the_clock_to_the_last_bit():
    problem, clock = ridge("isotropic"), Clock(NUMPY, np.float64, 5, np.arange(N), np.arange(4))
    gradients = problem.gradients(np.zeros((N, P)))
    expected = gradients + SIGMA2**0.5 * clock.normal(P)
    np.testing.assert_array_equal(drawn_noise(problem, 4), expected - gradients)


def test_one_number_serves_all_coordinates():
    """The same ε: δ = ε 1 for the scalar, δ = −2ε θ for labels."""
    scalar, labels = ridge("scalar"), ridge("labels")
    shared, through = drawn_noise(scalar, 50), drawn_noise(labels, 50)
    np.testing.assert_allclose(shared, shared[:, :, :1] * np.ones(P), atol=1e-13)
    np.testing.assert_allclose(through, -2 * shared * labels.data["theta"], atol=1e-13)


def test_labels_are_a_sampled_d():
    """Noise through labels is the gradient with d_i + ε in the place of d_i: the two differ by −2ε θ_i."""
    problem = ridge("labels")
    noise = drawn_noise(problem, 1)[0]
    epsilon = drawn_noise(ridge("scalar"), 1)[0, :, 0]
    moved = replace(problem, data={**problem.data, "d": problem.data["d"] + epsilon})
    x = np.linspace(-1, 1, N * P).reshape(N, P)
    np.testing.assert_allclose(moved.gradients(x), problem.gradients(x) + noise, atol=1e-13)


@pytest.mark.parametrize("noise", [[SIGMA2] * N, SIGMA2 * np.eye(P), [SIGMA2 * np.eye(P)] * N], ids=np.ndim)
def test_isotropic_noise_said_otherwise_is_the_same_run(noise):
    runs = [
        stgt.simulate(STGT, stgt.problems.ridge(N, P, noise=one), stgt.topology.ring(N), 8, engine="numpy")
        for one in (SIGMA2, noise)
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "noise",
    [0.0, [0.0] * N, np.zeros((P, P)), np.zeros((N, P, P))],
    ids=np.ndim,
)
def test_no_noise(noise):
    problem = stgt.problems.ridge(N, P, noise=noise)
    assert (problem.noise, problem.sigma2, problem.noisy) == (0.0, 0.0, False)
    assert default_oracle(problem) == Exact()
    np.testing.assert_array_equal(problem.covariance, np.zeros((N, P, P)))


def test_noise_can_be_left_out_of_a_problem_again():
    quiet, other = (replace(ridge("covariance"), noise=noise) for noise in (0.0, 0.4))
    assert (default_oracle(quiet), quiet.sigma2) == (Exact(), 0.0)
    assert (default_oracle(other), other.sigma2) == (Noisy(0.4), pytest.approx(0.4 * P))
    with pytest.raises(ValueError, match="noise_factor"):
        replace(stgt.problems.ridge(N, P), noise=None)


class TestFactors:
    """F Fᵀ is the covariance that was given, with as many columns as its rank."""

    @staticmethod
    def problem(covariance: np.ndarray) -> stgt.problems.Problem:
        p = len(covariance)
        return stgt.problems.Quadratic(np.ones((2, 1, 1)) * np.eye(p), np.zeros((2, p)), covariance)

    @pytest.mark.parametrize("rank", [1, 4, 9, 12])
    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
    def test_any_rank_and_scale(self, rank, scale):
        root = np.random.default_rng(rank).normal(size=(12, rank))
        C = scale * root @ root.T
        problem = self.problem(C)
        assert default_oracle(problem) == ProblemNoise(rank)
        np.testing.assert_allclose(problem.covariance, [C, C], rtol=0, atol=1e-12 * np.abs(C).max())

    def test_a_coordinate_with_little_noise_keeps_it(self):
        problem = self.problem(np.diag([1.0, 0.0, 1e-11]))
        np.testing.assert_allclose(problem.covariance[0], np.diag([1.0, 0.0, 1e-11]), rtol=1e-14)
        assert default_oracle(problem) == ProblemNoise(2)

    def test_rounding_is_forgiven(self):
        """v is orthogonal to the columns of ROOT, so SHARED − 1e-9 v vᵀ has eigenvalue −1e-9 ‖v‖² = −6e-9."""
        v = np.array([-2.0, 1.0, 1.0])
        problem = self.problem(SHARED - 1e-9 * np.outer(v, v))
        assert default_oracle(problem) == ProblemNoise(2)
        np.testing.assert_allclose(problem.covariance[0], SHARED, atol=1e-7)


@pytest.mark.parametrize("graph", ["directed", "server"])
@pytest.mark.parametrize("kind", NEW)
@pytest.mark.sampled(each="kind")
def test_the_simulator_equals_the_reference(kind, graph):
    """To 1e-10, the promise of tests/parity; Scaffold I draws one more gradient a round."""
    topology = stgt.topology.exponential(N) if graph == "directed" else stgt.topology.server(N, sampled=2, seed=5)
    algorithm = STGT if graph == "directed" else instances()["Scaffold-I"]
    fast, plain, quiet = (
        stgt.simulate(algorithm, ridge(kind), topology, 10, seeds=[0, 7], engine=engine, **LEAN, **options)
        for engine, options in (("jax", {}), ("numpy", {}), ("numpy", {"oracle": Exact()}))
    )
    for name in plain.state:
        np.testing.assert_allclose(fast.state[name], plain.state[name], rtol=1e-10, atol=1e-10, err_msg=name)
    assert np.abs(plain.x - quiet.x).max() > 1e-3


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_a_run_goes_on_to_the_last_bit(engine, tmp_path):
    def run(rounds, noise=OWN, **options):
        problem, graph = stgt.problems.ridge(N, P, noise=noise), stgt.topology.exponential(N)
        return stgt.simulate(STGT, problem, graph, rounds, seeds=[0, 7], engine=engine, **LEAN, **options)

    run(9).save(tmp_path / "run.stgt")
    loaded = stgt.Trace.load(tmp_path / "run.stgt")
    assert_same_bits(run(12, resume=loaded), run(21))
    assert loaded.oracle == ProblemNoise(P)
    assert loaded.problem.noise is None
    assert loaded.problem.sigma2 == P * N  # tr(5 I + 11ᵀ)
    for noise in (SIGMA2, SHARED, OWN[::-1]):
        with pytest.raises(ValueError, match=r"the run to resume is a different one: problem\."):
            run(3, noise, resume=loaded)


def test_problems_that_differ_in_noise_have_different_fingerprints():
    problems = [ridge(kind) for kind in KINDS] + [
        stgt.problems.ridge(N, P, noise=noise) for noise in (2 * SHARED, VARIANCES[::-1], OWN[::-1])
    ]
    assert len({problem.fingerprint for problem in problems}) == len(problems)
    assert ridge("covariance").fingerprint == ridge("covariance").fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_file_makes_the_problem(kind, tmp_path):
    arguments = {"n": N, "p": P, **KINDS[kind][0]}
    lines = [f"{name} = {value!r}" for name, value in arguments.items()]
    text = "\n".join(
        ['[algorithm]\nname = "STGT"\ngamma = 0.1\n[topology]\nname = "ring"\n[problem]\nname = "ridge"', *lines]
    )
    (tmp_path / "run.toml").write_text(text)
    problem = build_run(load_spec(tmp_path / "run.toml").runs[0]).problem
    np.testing.assert_allclose(problem.covariance, covariances(kind, problem), atol=1e-14)
    assert problem.fingerprint == ridge(kind).fingerprint


@pytest.mark.parametrize("kind", NEW)
def test_the_exact_theory_knows_the_covariance(kind):
    """D-PSGD (ATC) with W = J: x̄ ← (I − γĀ)x̄ + γb̄ − γδ̄, so P = (I − γĀ) P (I − γĀ) + γ² (mean of C_i)/n."""
    problem, gamma = ridge(kind), 0.1
    theta = problem.data["theta"]
    M = np.eye(P) - gamma * (2 / N * theta.T @ theta + problem.mu * np.eye(P))
    expected = linalg.solve_discrete_lyapunov(M, gamma**2 * covariances(kind, problem).mean(axis=0) / N)
    exact = stgt.theory.steady_state(stgt.DPSGD(gamma=gamma, atc=True), problem, stgt.topology.complete(N))
    assert exact.residual == pytest.approx(np.trace(expected), rel=1e-9)


def test_the_quadratic_model_of_a_problem_has_its_noise():
    smooth = logistic(N, P, batch=None)
    noisy = replace(smooth, noise=None, data={**smooth.data, "noise_factor": np.stack([ROOT] * N)})
    model = local_model(noisy)
    assert model.sigma2 == pytest.approx(np.trace(SHARED))
    np.testing.assert_allclose(model.problem.covariance, [SHARED] * N, atol=1e-12)
