"""A loss of one's own: what it reads from outside, where runs begin, and parameters in the form that it takes."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import stgt
from stgt.closures import Bound
from stgt.engines import simulator

RING = stgt.topology.ring(3)
DATA = [np.array([[1.0], [3.0]]), np.array([[2.0]]), np.array([[0.0], [4.0]])]
ENGINES = ["jax", "numpy"]
target = 1.0


def loss_of_global(x, sample):
    return 0.5 * ((x - target) ** 2).sum() + 0.0 * sample.sum()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_changed_global_is_another_problem(engine, monkeypatch):
    """½(x − target)² by gradient descent with γ = 1: target after one step."""

    def ends_at(problem):
        return stgt.simulate(stgt.DPSGD(gamma=1.0), problem, RING, 1, engine=engine, metrics=[]).x[0, 0, 0]

    first = stgt.problems.from_loss(loss_of_global, DATA, 1)
    assert ends_at(first) == 1.0
    monkeypatch.setitem(globals(), "target", 5.0)
    assert ends_at(stgt.problems.from_loss(loss_of_global, DATA, 1)) == 5.0
    with pytest.raises(
        ValueError, match=r"what loss_of_global reads from outside has changed .* make the problem anew"
    ):
        ends_at(first)


def test_each_problem_is_a_key_of_its_own_and_may_be_run_again():
    problem = stgt.problems.from_loss(loss_of_global, DATA, 1)
    stgt.simulate(stgt.STGT(gamma=0.1), problem, RING, 2)
    compiled = simulator._advance._cache_size()
    stgt.simulate(stgt.STGT(gamma=0.2), problem, RING, 9)
    assert simulator._advance._cache_size() == compiled


def loss_of_tree(params, sample):
    return 0.5 * ((params["a"] - sample) ** 2).sum() + 0.5 * (params["b"][0] ** 2).sum()


START = {"a": np.array([2.0]), "b": [np.array([[1.0, -1.0], [0.5, 4.0]])]}


@pytest.mark.parametrize("engine", ENGINES)
def test_runs_begin_at_the_parameters_that_were_given(engine):
    """x0 = 0 would be a saddle for a network. With γ = ½ and these quadratics, b is halved in a step."""
    problem = stgt.problems.from_loss(loss_of_tree, DATA, START)
    states = []
    trace = stgt.simulate(
        stgt.DPSGD(gamma=0.5), problem, RING, 1, engine=engine, callback=lambda r, s: states.append(s["x"])
    )
    np.testing.assert_allclose(trace.params[0]["b"][0], START["b"][0] / 2, rtol=1e-6)
    np.testing.assert_allclose(problem.start, [2.0, 1.0, -1.0, 0.5, 4.0])
    other = {"a": np.array([0.0]), "b": [np.zeros((2, 2))]}
    given = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, RING, 1, x0=other, engine=engine)
    np.testing.assert_array_equal(given.params[0]["b"][0], 0)
    flat = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, RING, 1, x0=np.zeros(5), engine=engine)
    np.testing.assert_array_equal(flat.x, given.x)


def test_parameters_go_in_and_out():
    problem = stgt.problems.from_loss(loss_of_tree, DATA, START)
    flat = problem.ravel(START)
    back = problem.unravel(flat)
    np.testing.assert_array_equal(back["a"], START["a"])
    np.testing.assert_array_equal(back["b"][0], START["b"][0])
    assert problem.unravel(flat.astype(np.float32))["a"].dtype == np.float32
    with pytest.raises(ValueError, match=r"parameters of structure .*has"):
        problem.ravel({"a": np.zeros(1)})
    with pytest.raises(ValueError, match=r"parameters of shapes \[\(2,\), \(2, 2\)\]"):
        problem.ravel({"a": np.zeros(2), "b": [np.zeros((2, 2))]})
    for bad, words in (({"a": "no"}, "pytree of arrays of numbers"), ({"a": np.array([np.nan])}, "not finite")):
        with pytest.raises(ValueError, match=words):
            stgt.problems.from_loss(loss_of_tree, DATA, bad)


@pytest.mark.parametrize("method", [stgt.STGT, stgt.KGT, stgt.FlexGT])
@pytest.mark.sampled
def test_the_library_takes_its_own_single_precision_states_back(method):
    problem, graph = stgt.problems.ridge(n=16, p=10), stgt.topology.exponential(16)
    ends = stgt.simulate(method(gamma=0.1, tau=10), problem, graph, 300, seeds=4)
    for seed in range(4):
        again = stgt.simulate(
            method(gamma=0.1, tau=10), problem, graph, 1, x0=ends.x[seed], state0={"c": ends.state["c"][seed]}
        )
        assert np.isfinite(again.residual).all()
    with pytest.raises(ValueError, match=r"breaks what .* conserves"):
        stgt.simulate(method(gamma=0.1, tau=10), problem, graph, 1, state0={"c": ends.state["c"][0] + np.float32(1e-3)})


class TestWhatAFunctionReads:
    def test_values_count(self):
        def make(values):
            return lambda x: (x * values).sum()

        array = np.arange(3.0)
        assert Bound(make(array)) == Bound(make(array.copy())), "the same definition with the same values"
        assert hash(Bound(make(array))) == hash(Bound(make(array.copy())))
        assert Bound(make(array)) != Bound(make(array + 1))
        assert Bound(make(2)) != Bound(make(2.0))
        assert Bound(make([array, {"a": 1}])) != Bound(make([array, {"a": 2}]))

    def test_what_it_calls_counts(self, monkeypatch):
        def outer(x):
            return loss_of_global(x, x) + jnp.tanh(x).sum()

        before = Bound(outer)
        assert before == Bound(outer)
        monkeypatch.setitem(globals(), "target", 7.0)
        assert before != Bound(outer)

    def test_partials_methods_defaults_and_inner_functions_count(self, monkeypatch):
        class Thing:
            def method(self, x):
                return x

        def with_default(x, k=1):
            return k * x

        def inner(x):
            return next(target * one for one in (x,)) + (lambda y: y * target)(x)

        one, other = Thing(), Thing()
        assert Bound(partial(with_default, k=2)) != Bound(partial(with_default, k=3))
        assert Bound(one.method) == Bound(one.method) != Bound(other.method)
        before = Bound(inner)
        monkeypatch.setitem(globals(), "target", 9.0)
        assert before != Bound(inner)

    def test_what_an_object_holds_counts(self):
        class Scale:
            def __init__(self):
                self.k = 2.0

            def method(self, x):
                return self.k * x

            def __call__(self, x):
                return self.k * x

        def of_global(x):
            return scale.k * x

        scale = Scale()
        for function in (scale.method, scale, of_global):
            scale.k = 2.0
            before = Bound(function)
            assert before == Bound(function)
            scale.k = 3.0
            assert before != Bound(function)

    def test_the_insides_of_packages_do_not(self):
        import jax

        def network(x):
            return jax.nn.relu(x).sum() + jax.nn.gelu(x).sum()

        before = Bound(network)
        network(jnp.ones(3))
        assert before == Bound(network)
        assert len(before._reads) < 10
