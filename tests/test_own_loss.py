"""A loss of one's own: what it reads from outside, where runs begin, and parameters in the form that it takes."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import stgt
from stgt._internal.xla import Traced
from stgt.simulator import simulator

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
        ValueError, match=r"outside values that loss_of_global reads have changed .* make the problem again"
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
    with pytest.raises(ValueError, match=r"violates what .* conserves"):
        stgt.simulate(method(gamma=0.1, tau=10), problem, graph, 1, state0={"c": ends.state["c"][0] + np.float32(1e-3)})


class TestWhatAFunctionComputes:
    """Another value that it reads from outside, wherever it comes from, is another computation."""

    SHAPE = jax.ShapeDtypeStruct((3,), np.float32)

    def key(self, function) -> Traced:
        return Traced(function, self.SHAPE)

    def test_equal_values_are_equal(self):
        def make(values):
            return lambda x: (x * values).sum()

        array = np.arange(600.0).reshape(200, 3)
        other = array.copy()
        other[100, 1] += 1
        assert self.key(make(array)) == self.key(make(array.copy())), "the same definition with the same values"
        assert hash(self.key(make(array))) == hash(self.key(make(array.copy())))
        assert self.key(make(array)) != self.key(make(other))
        assert self.key(partial(lambda k, x: k * x, 2.0)) == self.key(partial(lambda k, x: k * x, 2.0))
        assert self.key(partial(lambda k, x: k * x, 2.0)) != self.key(partial(lambda k, x: k * x, 3.0))

    def test_what_it_calls_and_what_objects_hold(self, monkeypatch):
        class Scale:
            k = 2.0

            def method(self, x):
                return self.k * x

            def __call__(self, x):
                return self.k * x

        scale, space, names = Scale(), SimpleNamespace(k=2.0), {"a": 1.0}

        def calls(x):
            return loss_of_global(x, x)

        def inside(x):
            return jax.lax.cond(x[0] > 0, lambda y: y * space.k, lambda y: y, x)

        functions = [scale.method, scale, lambda x: scale.k * x, lambda x: space.k * x, calls, inside]
        functions.append(lambda x: x * len(next(iter(names))))
        before = [self.key(function) for function in functions]
        assert before == [self.key(function) for function in functions]
        scale.k = space.k = 3.0
        monkeypatch.setitem(globals(), "target", 7.0)
        names = {"longer": 1.0}
        assert not [one for one, function in zip(before, functions, strict=True) if one == self.key(function)]

    def test_an_attribute_is_no_global(self, monkeypatch):
        def of_attribute(x):
            return x.target if hasattr(x, "target") else x.sum()

        before = self.key(of_attribute)
        monkeypatch.setitem(globals(), "target", 9.0)
        assert before == self.key(of_attribute)

    def test_functions_of_packages(self):
        def network(x):
            return jax.nn.relu(x).sum() + jax.nn.gelu(x).sum() + jax.nn.softmax(x)[0]

        assert self.key(network) == self.key(network)


def test_an_oracle_of_ones_own_with_a_name_of_ours(tmp_path):
    """It is known by more than its name: a file does not turn it into the library's."""

    @dataclass(frozen=True)
    class Noisy(stgt.oracles.Noisy):
        def gradient(self, ops, model, data, state, x, drawn):
            return 2 * model.gradients(ops.xp, data, x), state

    problem = stgt.problems.ridge(n=3, p=2)
    options = {"engine": "numpy", "oracle": Noisy(0.1)}
    trace = stgt.simulate(stgt.STGT(gamma=0.05), problem, RING, 3, **options)
    loaded = stgt.Trace.load(trace.save(tmp_path / "run.stgt"))
    with pytest.raises(ValueError, match=r"oracle\.name is 'Noisy', and was 'Noisy \(not registered\)'"):
        stgt.simulate(stgt.STGT(gamma=0.05), problem, RING, 3, resume=loaded)
    longer = stgt.simulate(stgt.STGT(gamma=0.05), problem, RING, 3, resume=loaded, **options)
    np.testing.assert_array_equal(longer.x, stgt.simulate(stgt.STGT(gamma=0.05), problem, RING, 6, **options).x)


def test_parameters_that_are_one_array():
    start = np.arange(6.0).reshape(2, 3)
    problem = stgt.problems.from_loss(lambda w, s: 0.5 * (w**2).sum() + 0 * s.sum(), DATA, start)
    for x0 in (None, start, start.ravel(), np.tile(start.ravel(), (3, 1)), start.ravel().tolist()):
        trace = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, RING, 1, x0=x0, engine="numpy")
        np.testing.assert_allclose(trace.params[0], start / 2)
