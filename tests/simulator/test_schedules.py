"""Stepsizes that change from round to round."""

import math
from dataclasses import replace

import numpy as np
import pytest

import stgt
from catalogue import directed_schedule, instances, quadratic, suited
from stgt.simulator import simulator

ENGINES = ["jax", "numpy"]


def test_the_formulas():
    cosine = stgt.schedules.cosine(0.4, rounds=10, end=0.1)
    assert cosine(0) == 0.4
    assert cosine(5) == pytest.approx(0.25)  # half way, the cosine is 0
    assert cosine(10) == cosine(99) == 0.1
    step = stgt.schedules.step(0.8, every=3, factor=0.5)
    assert [step(r) for r in (0, 2, 3, 8, 9)] == [0.8, 0.8, 0.4, 0.2, 0.1]
    inverse = stgt.schedules.inverse(0.6, delay=2)
    assert [inverse(r) for r in (0, 2, 4)] == pytest.approx([0.6, 0.3, 0.2])
    assert repr(inverse) == "inverse(0.6, delay=2.0)"
    assert stgt.schedules.inverse(0.6, delay=2) == inverse != stgt.schedules.inverse(0.6, delay=3)


def literal(method: str, problem: stgt.Problem, matrices: list[np.ndarray], gamma, tau: int, rounds: int) -> np.ndarray:
    """With γ_r in round r, node by node: z_i = (a_i − h_i)/(γ_r τ), the mean of what was stepped along."""
    A, b = problem.data["A"], problem.data["b"]
    x, c = np.zeros((problem.n, problem.p)), np.zeros((problem.n, problem.p))
    for r in range(rounds):
        W, h = matrices[r % len(matrices)], x.copy()
        for i in range(problem.n):
            for _ in range(tau):
                h[i] = h[i] - gamma(r) * (A[i] @ h[i] - b[i] + c[i])
        z = (x - h) / (gamma(r) * tau)
        if method == "STGT":
            x, c = W @ h, c - z + W @ z
        elif method == "ProxSkip":
            x, c = W @ h, c + (h - W @ h) / (gamma(r) * tau)
        else:
            x = W @ h
    return x


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method", [stgt.STGT(gamma=1, tau=3), stgt.ProxSkip(gamma=1, tau=3), stgt.FedAvg(gamma=1, tau=3)], ids=repr
)
def test_equals_the_literal_recursion(engine, method):
    n, rounds = 5, 12
    problem, graph = quadratic(n, 2), suited(method, directed_schedule(n))
    gamma = stgt.schedules.cosine(0.08, rounds=20, end=0.01)
    trace = stgt.simulate(
        type(method)(gamma=gamma, tau=3), problem, graph, rounds, engine=engine, dtype="float64", metrics=[]
    )
    expected = literal(type(method).__name__, problem, [graph.matrix(r) for r in range(3)], gamma, 3, rounds)
    np.testing.assert_allclose(trace.x[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_noise_of_a_vanishing_stepsize(engine):
    """f(x) = x²/2 with noise of variance σ² at each of n nodes that average: E x̄² obeys
    e ← (1 − γ_r)² e + γ_r² σ²/n, and 1/r takes it below what any of its constant stepsizes would leave."""
    n, rounds, seeds, variance = 2, 60, 400 if engine == "jax" else 60, 0.5
    gamma = stgt.schedules.inverse(0.5, delay=4)
    problem = stgt.problems.Quadratic(np.ones((n, 1, 1)), np.zeros((n, 1)), variance)
    trace = stgt.simulate(stgt.DPSGD(gamma=gamma), problem, stgt.topology.complete(n), rounds, seeds, engine=engine)
    expected = 0.0
    for r in range(rounds):
        expected = (1 - gamma(r)) ** 2 * expected + gamma(r) ** 2 * variance / n
    found = trace.residual[:, -1]
    assert abs(found.mean() - expected) < 4 * found.std(ddof=1) / math.sqrt(seeds)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", instances())
@pytest.mark.sampled(each="engine")
def test_a_constant_function_is_a_number(engine, name):
    algorithm, rounds = instances()[name], 4
    problem, graph = quadratic(4, 2, noise=0.1), stgt.topology.ring(4)
    if algorithm.spec().oracle:
        problem = quadratic(4, 2)
    options = {"seeds": 2, "engine": engine, "dtype": "float64", "metrics": []}
    plain = stgt.simulate(algorithm, problem, graph, rounds, **options)
    gamma = algorithm.gamma
    varying = stgt.simulate(replace(algorithm, gamma=lambda r: gamma), problem, graph, rounds, **options)
    for field in plain.state:
        np.testing.assert_array_equal(plain.state[field], varying.state[field])


def test_schedules_are_swept_in_one_batch_and_compile_nothing():
    problem, graph = quadratic(4, 2, noise=0.1), stgt.topology.ring(4)
    values = [0.05, stgt.schedules.cosine(0.1, rounds=50), lambda r: 0.1 / (r + 1)]
    traces = stgt.sweep(stgt.STGT(gamma=0.1, tau=2), problem, graph, 8, 2, grid={"gamma": values})
    assert [trace.algorithm.gamma for trace in traces] == values
    compiled = simulator._advance._cache_size()
    values.reverse()
    again = stgt.sweep(stgt.STGT(gamma=0.1, tau=2), problem, graph, 30, 2, grid={"gamma": values})
    assert simulator._advance._cache_size() == compiled
    for one, other in zip(traces, reversed(again), strict=True):
        np.testing.assert_array_equal(one.residual, other.residual[:, :9])
        alone = stgt.simulate(one.algorithm, problem, graph, 8, 2, engine="numpy")
        np.testing.assert_allclose(one.residual, alone.residual, rtol=1e-3)


BAD = {
    "not positive later": (lambda r: 0.1 - 0.05 * r, r"gamma\(2\)=0: give a finite number above 0\."),
    "after the end of a cosine": (stgt.schedules.cosine(0.1, rounds=2), r"gamma\(2\)=0: "),
    "not finite": (lambda r: math.nan, r"gamma\(0\)=nan: "),
    "text": (lambda r: "0.1", r"gamma\(0\)='0\.1' is text: drop the quotes"),
    "not of the round": (
        lambda: 0.1,
        r"gamma\(0\) failed \(TypeError: .*\): give a number, or a function of the round",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schedules_are_one_sentence(name):
    gamma, words = BAD[name]
    with pytest.raises(ValueError, match=words) as caught:
        stgt.simulate(stgt.STGT(gamma=gamma), quadratic(4, 2), stgt.topology.ring(4), 5, engine="numpy")
    assert "\n" not in str(caught.value)


def test_a_stepsize_that_is_0_in_the_run_s_precision_is_refused():
    fading = stgt.STGT(gamma=stgt.schedules.step(0.1, every=1))
    with pytest.raises(ValueError, match="gamma comes down to 1e-60, which is 0 in float32"):
        stgt.simulate(fading, quadratic(4, 2), stgt.topology.ring(4), 60)
    assert stgt.simulate(fading, quadratic(4, 2), stgt.topology.ring(4), 60, engine="numpy").rounds == 60


def test_bad_arguments_are_one_sentence():
    for make, words in (
        (lambda: stgt.schedules.cosine(0, rounds=5), "start=0"),
        (lambda: stgt.schedules.cosine(0.1, rounds=0), "rounds=0"),
        (lambda: stgt.schedules.step(0.1, every=2, factor=-1), "factor=-1"),
        (lambda: stgt.schedules.inverse(0.1, delay=0), "delay=0"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_theory_and_training_want_a_number():
    varying = stgt.STGT(gamma=stgt.schedules.inverse(0.1), tau=2)
    problem, graph = quadratic(4, 2), stgt.topology.ring(4)
    asked = [stgt.theory.spectral_radius, stgt.theory.steady_state, stgt.theory.check]
    for ask in asked:
        with pytest.raises(ValueError, match="needs a constant stepsize: give a number"):
            ask(varying, problem, graph)
    with pytest.raises(ValueError, match="needs a constant stepsize: give a number"):
        stgt.testing.check_algorithm(varying)
    trace = stgt.simulate(varying, problem, graph, 2, engine="numpy")
    assert "lyapunov" not in trace
