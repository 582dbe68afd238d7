"""What must hold for every algorithm, whatever the graph, the data and the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stgt
from catalogue import directed_schedule, instances, logistic, quadratic, suited

TRACKERS = [name for name, algorithm in instances().items() if algorithm.spec().tracks]
# Biased on purpose: their fixed point is not the optimum when nodes hold different data.
BIASED = {"DPSGD", "DPSGD-atc", "FedAvg", "FedProx", "DiLoCo", "NoLoCo", "FedAvgM", "FedAdam", "FedYogi"}
P = 3


def graphs(n: int, seed: int) -> list[stgt.topology.Topology]:
    return [
        stgt.topology.ring(n),
        stgt.topology.exponential(n),
        directed_schedule(n, seed=seed),
        stgt.topology.random_matching(n, seed=seed),
        stgt.topology.server(n, sampled=max(2, n // 2), seed=seed),
        stgt.topology.unreliable(stgt.topology.ring(n), link=0.4, seed=seed),
    ]


def run(algorithm, problem, topology, rounds, **options):
    return stgt.simulate(algorithm, problem, topology, rounds, engine="numpy", **options)


@pytest.mark.parametrize("name", TRACKERS)
@settings(max_examples=8)
@given(n=st.integers(2, 9), seed=st.integers(0, 1000), which=st.integers(0, 5))
def test_corrections_sum_to_zero(name, n, seed, which):
    algorithm = instances()[name]
    problem = logistic(n, P, seed) if algorithm.spec().oracle else quadratic(n, P, noise=0.1, seed=seed)
    trace = run(algorithm, problem, suited(algorithm, graphs(n, seed)[which]), 10, seeds=[seed])
    size = sum(np.abs(value).sum() for value in trace.state.values())
    assert trace["sum_c"].max() <= 1e-12 * size * 10


@pytest.mark.parametrize("name", instances())
@settings(max_examples=6)
@given(n=st.integers(2, 8), seed=st.integers(0, 1000), directed=st.booleans())
def test_permuting_the_nodes_permutes_the_result(name, n, seed, directed):
    graph = directed_schedule(n, period=1, seed=seed) if directed else stgt.topology.ring(n)
    W = suited(instances()[name], graph).matrix(0)
    rng = np.random.default_rng(seed)
    order, x0 = rng.permutation(n), rng.normal(size=(n, P))
    # SAGA and SVRG draw samples by node number; with one sample a node there is nothing to draw.
    A = rng.normal(size=(n, 1, P))
    labels = rng.permutation(np.arange(n) % 2)
    problems = [
        stgt.problems.logistic(A[some, 0], labels[some], partition=[[i] for i in range(n)], l2=0.1)
        for some in (np.arange(n), order)
    ]
    graphs = [stgt.topology.from_matrix(W), stgt.topology.from_matrix(W[np.ix_(order, order)])]
    exact = None if instances()[name].spec().oracle else stgt.oracles.Exact()
    x, y = (
        run(instances()[name], problem, graph, 8, x0=start, oracle=exact).x[0]
        for problem, graph, start in zip(problems, graphs, (x0, x0[order]), strict=True)
    )
    np.testing.assert_allclose(y, x[order], rtol=0, atol=1e-11)


def at_rest(algorithm, g):
    """The state at x* in which nothing moves, g being the gradients there; momenta of what is 0 are 0."""
    if algorithm.spec().needs_initial_gradient:
        return None  # a warm start at x* is that state
    fields = algorithm.spec().state_fields
    if "u" in fields:  # what is tracked is u = μu + g
        u = g / (1 - algorithm.momentum)
        return {"c": -u, "u": u}
    if "own" in fields:
        return {"own": g, ("H" if "H" in fields else "c"): 0 * g[0]}
    return {"h": g} if "h" in fields else {"c": -g}


@pytest.mark.parametrize("name", [name for name in instances() if name not in BIASED])
@settings(max_examples=6)
@given(n=st.integers(2, 8), seed=st.integers(0, 1000), which=st.integers(0, 5))
def test_the_optimum_is_a_fixed_point(name, n, seed, which):
    """At x* with the correction that cancels ∇f_i(x*) nothing moves, on any graph."""
    algorithm = instances()[name]
    problem = logistic(n, P, seed, batch=None) if algorithm.spec().oracle else quadratic(n, P, seed=seed)
    g = problem.gradients(problem.optimum)
    state0 = at_rest(algorithm, g)
    trace = run(algorithm, problem, suited(algorithm, graphs(n, seed)[which]), 6, x0=problem.optimum, state0=state0)
    np.testing.assert_allclose(trace.x[0], np.tile(problem.optimum, (n, 1)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", sorted(BIASED))
def test_biased_methods_leave_the_optimum(name):
    problem = quadratic(6, P)
    trace = run(instances()[name], problem, stgt.topology.ring(6), 200, x0=problem.optimum)
    assert trace["consensus"][0, -1] + trace.residual[0, -1] > 1e-3


@pytest.mark.parametrize("name", [name for name in instances() if name not in BIASED])
@pytest.mark.sampled(6)
def test_exact_methods_converge(name):
    """Noiseless, on a strongly convex problem with different data at each node: to x* at every node."""
    algorithm = instances()[name]
    problem = logistic(6, P, batch=None) if algorithm.spec().oracle else quadratic(6, P)
    topology = stgt.topology.complete(6) if "ProxSkip" in name else stgt.topology.ring(6)
    if algorithm.spec().server_fields:
        topology = stgt.topology.server(6, sampled=3)
    rounds = 6000 if algorithm.tau == 1 else 1500
    trace = stgt.simulate(algorithm, problem, topology, rounds, dtype="float64", metrics=[])
    np.testing.assert_allclose(trace.x[0], np.tile(problem.optimum, (6, 1)), rtol=0, atol=1e-8)


@given(n=st.integers(3, 9), seed=st.integers(0, 100))
@settings(max_examples=10)
def test_adjoint_tracking_conserves_on_directed_graphs(n, seed):
    trace = run(
        stgt.STGT(gamma=0.05, tau=4, adjoint=True), quadratic(n, P, 0.1, seed), directed_schedule(n, seed=seed), 15
    )
    assert trace["sum_c"].max() <= 1e-12


@pytest.mark.parametrize(("ratio", "settles"), [(37.0, True), (39.0, False)])
def test_adam_settles_without_noise_below_heavy_ball_s_limit(ratio, settles):
    """f(x) = ½(x − 1)² with γ = 1: a round goes all of its way, Δ = 1 − x. Once v has died away e = x − 1 follows
    m ← β₁m − (1 − β₁)e, e ← e + (η/ε)m, whose eigenvalues are inside the circle for η/ε < 2(1 + β₁)/(1 − β₁) = 38."""
    problem, epsilon = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.ones((2, 1))), 0.01
    algorithm, e = stgt.FedAdam(gamma=1.0, lr=ratio * epsilon, epsilon=epsilon), 1e-6 * epsilon
    trace = run(algorithm, problem, stgt.topology.complete(2), 100, x0=[1 + e], state0={"v": [0.0]})
    assert (trace.residual[0, -1] < 1e-2 * e**2) if settles else (trace.residual[0, -1] > 1e2 * e**2)
