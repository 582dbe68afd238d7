"""The public interface: what a researcher types, and what comes back."""

import pickle

import numpy as np
import pytest

import stgt
from catalogue import instances, logistic, quadratic
from stgt.simulator import program, simulator


def test_the_example_of_the_readme():
    problem = stgt.problems.ridge(n=32, p=10, mu=0.5, scale="sqrt_p", noise=0.1, seed=0)
    topology = stgt.topology.exponential(32)
    trace = stgt.simulate(stgt.STGT(gamma=0.4, tau=50), problem, topology, rounds=200, seeds=20)
    assert trace.residual.shape == (20, 201)
    assert trace.x.shape == (20, 32, 10)
    assert trace["consensus"].shape == trace["tracking"].shape == (20, 201)
    # x_0 = 0, so the first residual is ‖x*‖².
    np.testing.assert_allclose(trace.residual[:, 0], (problem.optimum**2).sum(), rtol=1e-6)
    assert (trace.tail() < 0.1 * trace.residual[:, 0]).all()
    assert not trace.diverged.any()


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_a_batch_of_all_samples_in_any_order_is_the_exact_gradient(engine):
    rng, counts = np.random.default_rng(0), 6
    problem = stgt.problems.least_squares(rng.normal(size=(4 * counts, 3)), rng.normal(size=4 * counts), n=4)
    exact, shuffled = (
        stgt.simulate(
            stgt.STGT(gamma=0.1, tau=3), problem, stgt.topology.ring(4), 20, oracle=oracle, engine=engine,
            dtype="float64",
        )
        for oracle in (stgt.oracles.Exact(), stgt.oracles.Shuffled(counts))
    )  # fmt: skip
    np.testing.assert_allclose(shuffled.x, exact.x, rtol=1e-12, atol=1e-13)
    assert shuffled["gradients"][0, -1] == 20 * 3 * 4 * counts


def test_passes_without_replacement_continue_to_the_same_bits():
    problem, graph, method = logistic(4), stgt.topology.ring(4), stgt.STGT(gamma=0.1, tau=3)
    oracle = stgt.oracles.Shuffled(2)
    whole = stgt.simulate(method, problem, graph, 10, seeds=2, oracle=oracle)
    half = stgt.simulate(method, problem, graph, 5, seeds=2, oracle=oracle)
    np.testing.assert_array_equal(stgt.simulate(method, problem, graph, 5, resume=half).x, whole.x)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_measurements_are_what_they_say(engine):
    """Each against its formula, written out with the state before round 0, which is given."""
    n, p, gamma, tau = 5, 2, 0.03, 4
    problem, topology = quadratic(n, p), stgt.topology.ring(n)
    rng = np.random.default_rng(0)
    x0, c = rng.normal(size=(n, p)), rng.normal(size=(n, p))
    c -= c.mean(axis=0)
    trace = stgt.simulate(
        stgt.STGT(gamma=gamma, tau=tau), problem, topology, 3, x0=x0, state0={"c": c}, engine=engine, dtype="float64"
    )
    A, b = problem.data["A"], problem.data["b"]
    mean = x0.mean(axis=0)
    star = np.linalg.solve(A.sum(axis=0), b.sum(axis=0))
    f = lambda x: np.mean([0.5 * x @ A[i] @ x - b[i] @ x for i in range(n)])  # noqa: E731
    F = np.stack([A[i] @ mean - b[i] for i in range(n)])
    upsilon = c - F.mean(axis=0) + F
    # Ring with weights 1/3: eigenvalues (1 + 2cos(2πk/n))/3, so ρ is the second largest squared.
    rho = max(((1 + 2 * np.cos(2 * np.pi * k / n)) / 3) ** 2 for k in range(1, n))
    L = max(np.linalg.eigvalsh(A[i])[-1] for i in range(n))
    expected = {
        "residual": ((mean - star) ** 2).sum(),
        "loss": f(mean) - f(star),
        "squared_gradient_norm": (F.mean(axis=0) ** 2).sum(),
        "consensus": ((x0 - mean) ** 2).sum(),
        "tracking": (upsilon**2).sum(),
    }
    expected["lyapunov"] = (
        expected["residual"]
        + 80 * gamma * tau * L / (n * (1 - rho)) * expected["consensus"]
        + 3556 * gamma**3 * tau**3 * L / (n * (1 - rho) ** 3) * expected["tracking"]
    )
    for name, value in expected.items():
        np.testing.assert_allclose(trace[name][0, 0], value, rtol=1e-9, err_msg=name)
    assert trace["sum_c"][0, 0] < 1e-12
    # 5 nodes × 4 steps; 5 nodes × 2 neighbours; 2 vectors of 2 floats on each of the 10 links.
    np.testing.assert_array_equal(trace["gradients"][0], [0, 20, 40, 60])
    np.testing.assert_array_equal(trace["messages"][0], [0, 10, 20, 30])
    np.testing.assert_array_equal(trace["floats"][0], [0, 40, 80, 120])


def test_counts_with_a_server_and_with_two_exchanges():
    problem = quadratic(6, 2)
    trace = stgt.simulate(stgt.Scaffold(gamma=0.1, tau=3, option="I"), problem, stgt.topology.server(6, sampled=2), 2)
    # Two workers: 3 + 1 gradients each; a way up and a way down each; 2 vectors of 2 floats each way.
    np.testing.assert_array_equal(trace["gradients"][0], [0, 8, 16])
    np.testing.assert_array_equal(trace["messages"][0], [0, 4, 8])
    np.testing.assert_array_equal(trace["floats"][0], [0, 16, 32])
    trace = stgt.simulate(stgt.AugDGM(gamma=0.1), problem, stgt.topology.ring(6), 2)
    # One gradient a node before round 0, then one a round; each of the 12 links carries two messages of 2 floats.
    np.testing.assert_array_equal(trace["gradients"][0], [6, 12, 18])
    np.testing.assert_array_equal(trace["messages"][0], [0, 24, 48])
    np.testing.assert_array_equal(trace["floats"][0], [0, 48, 96])


@pytest.mark.parametrize("name", instances())
def test_costs_agree_with_what_a_run_counts(name):
    algorithm = instances()[name]
    n, p, m = 4, 2, 5
    rng = np.random.default_rng(0)
    parts = list(np.arange(n * m).reshape(n, m))
    problem = stgt.problems.logistic(rng.normal(size=(n * m, p)), np.arange(n * m) % 2, partition=parts, l2=0.1)
    trace = stgt.simulate(algorithm, problem, stgt.topology.ring(n), 5, engine="numpy")
    cost = algorithm.cost(m)
    # An exact gradient is m sample gradients; SAGA's and SVRG's costs are in sample gradients already.
    each = 1 if algorithm.spec().oracle else m
    lookahead = bool(algorithm.spec().second_messages)  # its first gradient is computed before round 0
    assert trace["gradients"][0, 0] == n * each * (cost.initial + lookahead)
    assert np.diff(trace["gradients"][0]) == pytest.approx(n * each * cost.gradients)
    talked = np.diff(trace["messages"][0]) > 0
    assert np.diff(trace["floats"][0])[talked] == pytest.approx(2 * n * p * cost.vectors)


def test_other_values_do_not_compile_again():
    problem, topology = quadratic(6, 3, noise=0.1), stgt.topology.server(6, sampled=2)

    def run(rounds, **values):
        algorithm = stgt.ScaffoldPlus(**{"gamma": 0.05, "tau": 3, **values})
        return stgt.simulate(algorithm, problem, topology, rounds, seeds=2)

    run(10)
    compiled = simulator._advance._cache_size()
    run(10, gamma=0.02)
    run(10, gamma_g=1.3, gamma_c=0.2)
    run(300)
    stgt.simulate(
        stgt.ScaffoldPlus(gamma=0.1, tau=3), quadratic(6, 3, noise=0.7, seed=5), topology.with_seed(9), 10, seeds=[4, 8]
    )
    assert simulator._advance._cache_size() == compiled
    run(10, tau=4)
    assert simulator._advance._cache_size() == compiled + 1, "the count must see a new program"


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_sweep_equals_runs_one_by_one(engine):
    problem, topology = quadratic(6, 3, noise=0.1), stgt.topology.server(6, sampled=2)
    grid = {"gamma": [0.02, 0.05], "gamma_c": [0.3, 1.0]}
    options = {"rounds": 10, "seeds": 3, "dtype": "float64", "engine": engine}
    traces = stgt.sweep(stgt.ScaffoldPlus(gamma=0.1, tau=3), problem, topology, grid=grid, **options)
    assert [(t.algorithm.gamma, t.algorithm.gamma_c) for t in traces] == [
        (0.02, 0.3),
        (0.02, 1.0),
        (0.05, 0.3),
        (0.05, 1.0),
    ]
    for trace in traces:
        alone = stgt.simulate(trace.algorithm, problem, topology, **options)
        np.testing.assert_allclose(trace.residual, alone.residual, rtol=1e-12)
        np.testing.assert_allclose(trace.x, alone.x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_divergence_is_a_result(engine):
    """f(x) = x²/2 with gamma = 4: x_r = (1 − 4)^r = (−3)^r, and gamma · x_r = 4 · 3^r passes 1.8e308 from
    r = (308.25 − log10 4)/log10 3 = 644.8 on, so x_646 is the first that is not finite. Its square, the residual, is
    9^r, and passes it from r = 308.25/log10 9 = 323.03 on."""
    problem = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
    parts = (stgt.DPSGD(gamma=4.0), problem, stgt.topology.complete(2))
    options = {"x0": [1.0], "metrics": ["residual"], "engine": engine, "dtype": "float64"}
    assert stgt.simulate(*parts, 700, **{**options, "metrics": []}).diverged_at[0] == 646
    trace = stgt.simulate(*parts, 700, **options)
    assert trace.diverged_at[0] == 324
    assert stgt.simulate(*parts, 324, **options).diverged_at[0] == 324  # measured after the last round
    assert not stgt.simulate(*parts, 323, **options).diverged[0]
    assert trace.diverged[0]
    assert "1 diverged" in repr(trace)
    assert np.isfinite(trace.residual[0, :300]).all()
    calm = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, stgt.topology.complete(2), 50, x0=[1.0], engine=engine)
    assert calm.diverged_at[0] == -1


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_a_metric_of_ones_own_that_is_nan_is_no_divergence(engine):
    parts = (stgt.DPSGD(gamma=0.5), quadratic(2, 1), stgt.topology.complete(2))
    trace = stgt.simulate(*parts, 3, metrics={"nan": lambda x: x[0] * np.nan}, engine=engine)
    assert np.isnan(trace["nan"]).all()
    assert not trace.diverged[0]


def test_seeds_are_runs_of_their_own():
    problem, topology = quadratic(6, 3, noise=0.1), stgt.topology.random_matching(6)
    both = stgt.simulate(stgt.STGT(gamma=0.05, tau=2), problem, topology, 5, seeds=[3, 9], dtype="float64")
    alone = stgt.simulate(stgt.STGT(gamma=0.05, tau=2), problem, topology, 5, seeds=[9], dtype="float64")
    np.testing.assert_allclose(both.x[1], alone.x[0], rtol=1e-12)
    again = stgt.simulate(stgt.STGT(gamma=0.05, tau=2), problem, topology, 5, seeds=[3, 9], dtype="float64")
    np.testing.assert_array_equal(both.x, again.x)


def test_draws_step_by_step_are_those_of_a_whole_round(monkeypatch):
    problem, topology = quadratic(5, 3, noise=0.1), stgt.topology.ring(5)
    whole = stgt.simulate(stgt.STGT(gamma=0.05, tau=4), problem, topology, 6, dtype="float64")
    monkeypatch.setattr(program, "DRAWN_AT_ONCE", 0)
    steps = stgt.simulate(stgt.STGT(gamma=0.05, tau=4), problem, topology, 6, seeds=[0, 1], dtype="float64")
    np.testing.assert_allclose(steps.x[0], whole.x[0], rtol=1e-12)


def test_progress_is_told_and_changes_nothing():
    problem, topology = quadratic(5, 3, noise=0.1), stgt.topology.ring(5)
    quiet = stgt.simulate(stgt.STGT(gamma=0.05, tau=4), problem, topology, 30, seeds=2)
    for engine in ("jax", "numpy"):
        told = []
        trace = stgt.simulate(
            stgt.STGT(gamma=0.05, tau=4),
            problem,
            topology,
            30,
            seeds=2,
            engine=engine,
            dtype="float32",
            progress=lambda done, total, told=told: told.append((done, total)),
        )
        assert told[-1] == (60, 60)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        np.testing.assert_allclose(trace.residual, quiet.residual, rtol=1e-3)


@pytest.mark.thorough
def test_what_cannot_be_measured_says_why():
    nonconvex = logistic(4, 2, l2=0.0, nonconvex=0.1)
    trace = stgt.simulate(stgt.DPSGD(gamma=0.1), nonconvex, stgt.topology.ring(4), 2)
    with pytest.raises(KeyError, match="no known unique optimum"):
        trace["residual"]
    with pytest.raises(KeyError, match="tracks no gradient"):
        trace["tracking"]
    with pytest.raises(KeyError, match="choose from"):
        trace["speed"]
    cube = stgt.simulate(stgt.STGT(gamma=0.1), quadratic(4, 2), stgt.topology.hypercuboid(4), 2)
    with pytest.raises(KeyError, match="does not exist"):
        cube["lyapunov"]
    short = stgt.simulate(stgt.STGT(gamma=0.1), quadratic(4, 2), stgt.topology.ring(4), 2, metrics=["residual"])
    with pytest.raises(KeyError, match="left out of metrics"):
        short["consensus"]
    relay = stgt.simulate(stgt.Scaffold(gamma=0.1), quadratic(4, 2), stgt.topology.relay(4, sampled=2), 2)
    with pytest.raises(KeyError, match="idle nodes hold an old c"):
        relay["sum_c"]
    # Without f* the loss is f(x̄) itself: log 2 at x = 0.
    assert trace["loss"][0, 0] == pytest.approx(np.log(2), rel=1e-6)


def test_results_and_problems_can_be_pickled():
    problem = stgt.problems.ridge(n=4, p=2)
    trace = stgt.simulate(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(4), 2, metrics=["lyapunov"])
    again = pickle.loads(pickle.dumps(trace))
    np.testing.assert_array_equal(again["lyapunov"], trace["lyapunov"])
    np.testing.assert_array_equal(again.problem.optimum, problem.optimum)
    trace.x[:] = 0  # the caller's own


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_the_optimum_is_solved_for_only_if_it_is_measured_against(engine):
    problem = logistic(4, 2)
    stgt.simulate(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(4), 1, metrics=["consensus"], engine=engine)
    assert "optimum" not in vars(problem)
    stgt.simulate(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(4), 1, engine=engine)
    assert "optimum" in vars(problem)


def test_unknown_options():
    with pytest.raises(TypeError, match="no option 'bogus'"):
        stgt.sweep(stgt.STGT(gamma=0.1), quadratic(4, 2), stgt.topology.ring(4), 1, grid={}, bogus=1)


def test_both_names_of_an_engine():
    runs = {
        name: stgt.simulate(stgt.STGT(gamma=0.1), quadratic(4, 2, noise=0.1), stgt.topology.ring(4), 3, engine=name)
        for name in ("jax", "simulator", "numpy", "reference")
    }
    np.testing.assert_array_equal(runs["jax"].x, runs["simulator"].x)
    np.testing.assert_array_equal(runs["numpy"].x, runs["reference"].x)


def test_no_rounds():
    trace = stgt.simulate(stgt.STGT(gamma=0.1), quadratic(4, 2), stgt.topology.ring(4), 0, x0=np.ones(2))
    assert trace.residual.shape == (1, 1)
    np.testing.assert_array_equal(trace.x[0], np.ones((4, 2)))


def test_names():
    assert stgt.list_algorithms()[0] == "STGT"
    ours = [name for name in stgt.list_algorithms() if hasattr(stgt, name)]  # other tests register theirs
    assert len(ours) == 30
    for name in ours:
        wrapped = (stgt.STGT(),) if name in ("Outer", "Adaptive") else ()
        assert isinstance(getattr(stgt, name)(*wrapped, gamma=0.1), stgt.Algorithm)
    ours = [name for name in stgt.list_topologies() if hasattr(stgt.topology, name)]
    assert len(ours) == 24
    assert all(callable(getattr(stgt.topology, name)) for name in ours)


def test_a_large_batch_in_single_precision():
    """A compiler that gets large batches wrong (jaxlib 0.10.2, jax-ml/jax#39103) is noticed: off by 1e-3 there."""
    problem, graph = stgt.problems.ridge(n=1000, p=10, mu=0.5, noise=0.1), stgt.topology.exponential(1000)
    runs = [
        stgt.simulate(stgt.STGT(gamma=0.1, tau=2), problem, graph, 1, 8, dtype=dtype, metrics=["residual"])
        for dtype in ("float32", "float64")
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-5)
