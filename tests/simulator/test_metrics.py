"""Measurements of one's own, callbacks, and what a trace says that it has."""

import jax.numpy as jnp
import numpy as np
import pytest

import stgt
from catalogue import quadratic
from stgt.simulator import simulator

ENGINES = ["jax", "numpy"]
PROBLEM, RING = quadratic(4, 3, noise=0.1), stgt.topology.ring(4)
STGT = stgt.STGT(gamma=0.05, tau=2)
factor = 1.0


def largest(x):
    return abs(x).max()


def scaled(x):
    return factor * x[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_they_are_measured_at_the_start_of_each_round(engine):
    """Against states that a callback saw, one before each round."""
    states = {}
    metrics = {"largest": largest, "spread": stgt.of_state(lambda s: ((s["x"] - s["x"].mean(axis=0)) ** 2).sum())}
    options = {"metrics": metrics, "callback": lambda r, state: states.update({r: state["x"]}), "engine": engine}
    trace = stgt.simulate(STGT, PROBLEM, RING, 6, seeds=3, **options)
    assert sorted(states) == [1, 2, 3, 4, 5, 6]
    assert trace["largest"].shape == (3, 7)
    np.testing.assert_array_equal(trace["largest"][:, 0], 0)
    for r, x in states.items():
        np.testing.assert_allclose(trace["largest"][:, r], np.abs(x.mean(axis=1)).max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(trace["spread"], trace["consensus"], rtol=1e-6)
    assert "residual" in trace, "beside the built-in ones"


def test_names_and_functions_in_one_list():
    trace = stgt.simulate(STGT, PROBLEM, RING, 2, metrics=["consensus", {"largest": largest}], engine="numpy")
    assert set(trace) == {"consensus", "largest", "gradients", "messages", "floats"}
    with pytest.raises(KeyError, match="'residual' was not measured: it was left out of metrics"):
        trace["residual"]


def test_more_rounds_and_the_same_function_compile_nothing():
    def run(rounds, function):
        return stgt.simulate(STGT, PROBLEM, RING, rounds, seeds=2, metrics={"own": function})

    run(3, largest)
    compiled = simulator._advance._cache_size()
    run(40, largest)
    assert simulator._advance._cache_size() == compiled
    run(3, lambda x: x[1])
    assert simulator._advance._cache_size() == compiled + 1, "the count must see a new program"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_changed_global_is_seen(engine, monkeypatch):
    def run():
        return stgt.simulate(STGT, PROBLEM, RING, 2, metrics={"scaled": scaled}, engine=engine)["scaled"]

    once = run()
    monkeypatch.setitem(globals(), "factor", 3.0)
    np.testing.assert_allclose(run(), 3 * once, rtol=1e-6)


def test_a_metric_cannot_change_the_run():
    def spoils(state):
        state["x"][:] = 0
        return 0.0

    def spoils_mean(x):
        x[:] = 0
        return 0.0

    metrics = {"a": spoils_mean, "b": lambda x: x[0], "c": stgt.of_state(spoils)}
    trace = stgt.simulate(STGT, PROBLEM, RING, 4, metrics=metrics, engine="numpy")
    plain = stgt.simulate(STGT, PROBLEM, RING, 4, metrics={"b": lambda x: x[0]}, engine="numpy")
    np.testing.assert_array_equal(trace.x, plain.x)
    np.testing.assert_array_equal(trace["b"], plain["b"])


def test_they_have_the_precision_of_the_run():
    third = {"third": lambda x: jnp.float64(1) / 3 + 0 * x[0]}
    double = stgt.simulate(STGT, PROBLEM, RING, 1, metrics=third, engine="numpy")["third"]
    assert double.dtype == np.float64
    assert double[0, 0] == 1 / 3
    compiled = stgt.simulate(STGT, PROBLEM, RING, 1, metrics=third, dtype="float64")["third"]
    assert compiled[0, 0] == 1 / 3
    whole = {"count": lambda x: (x > 0).sum()}
    assert stgt.simulate(STGT, PROBLEM, RING, 1, metrics=whole, engine="numpy")["count"].dtype == np.float64


def test_progress_ends_where_it_should():
    """Also of runs that have left the finite numbers, which make no more rounds."""
    seen = []
    stgt.simulate(stgt.DPSGD(gamma=50.0), PROBLEM, RING, 1000, progress=lambda *one: seen.append(one))
    assert seen[-1] == (1000, 1000)


def test_a_callback_every_few_rounds():
    seen = []
    stgt.simulate(STGT, PROBLEM, RING, 10, callback=lambda r, state: seen.append((r, state["c"].shape)), every=4)
    assert seen == [(4, (1, 4, 3)), (8, (1, 4, 3))]


BAD = {
    "a name of ours": ({"residual": largest}, "which is known already"),
    "no function": ({"own": 3}, r"metrics.own=3: give a function"),
    "no word": ({3: largest}, "the name of a metric is a word"),
    "an array": ({"own": lambda x: x}, r"returns an array of shape \(3,\)"),
    "not real": ({"own": lambda x: x[0] + 1j}, "return one real number"),
    "not traceable": ({"own": lambda x: float(x[0])}, r"metrics.own failed \(.*write it with jax.numpy"),
    "an unknown field": (
        {"own": stgt.of_state(lambda s: s["y"].sum())},
        r"metrics.own failed \(KeyError: 'y'\)",
    ),
    "a column of the table": ({"gamma": largest}, "which is known already"),
    "neither": (3, "metrics=3: give a list of names, a dict of functions by name, or both in a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_metrics_are_one_sentence(name):
    metrics, words = BAD[name]
    with pytest.raises(ValueError, match=words) as caught:
        stgt.simulate(STGT, PROBLEM, RING, 1, metrics=metrics)
    assert "\n" not in str(caught.value)


def test_bad_callbacks_are_one_sentence():
    with pytest.raises(ValueError, match="callback=3: give a function of"):
        stgt.simulate(STGT, PROBLEM, RING, 1, callback=3)
    with pytest.raises(ValueError, match="every=0: give a whole number"):
        stgt.simulate(STGT, PROBLEM, RING, 1, callback=print, every=0)
    with pytest.raises(ValueError, match="of_state"):
        stgt.of_state(3)


def test_what_can_be_asked_for_is_in_a_trace():
    trace = stgt.simulate(STGT, PROBLEM, RING, 3, engine="numpy")
    assert "lyapunov" in trace
    assert trace["lyapunov"].shape == (1, 4)
    assert "seconds" in trace
    assert (np.diff(trace["seconds"][0]) > 0).all()
    assert "accuracy" not in trace
    without = stgt.simulate(STGT, PROBLEM, RING, 3, metrics=["residual"], engine="numpy")
    assert "lyapunov" not in without
    with pytest.raises(KeyError, match="'consensus' was not measured"):
        without["lyapunov"]


def test_best():
    """Gradient descent on x²/2 with γ = 1/2: x_r = 2^−r, so the residual is 4^−r, exactly."""
    problem = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
    graph = stgt.topology.complete(2)
    trace = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, graph, 5, x0=[1.0], engine="numpy")
    assert trace.best() == (4.0**-5, 5)
    assert trace.best("residual", largest=True) == (1.0, 0)
    lost = stgt.simulate(stgt.DPSGD(gamma=3.0), problem, graph, 1100, x0=[1.0], engine="numpy")
    assert lost.best() == (1.0, 0)


def test_tables(tmp_path):
    pandas = pytest.importorskip("pandas")
    trace = stgt.simulate(STGT, PROBLEM, RING, 3, seeds=[4, 7], metrics={"largest": largest}, engine="numpy")
    frame = trace.to_pandas()
    assert len(frame) == 2 * 4
    assert list(frame.columns[:6]) == ["method", "topology", "gamma", "tau", "seed", "round"]
    np.testing.assert_array_equal(frame[frame.seed == 7]["largest"], trace["largest"][1])
    again = pandas.read_csv(trace.to_csv(tmp_path / "trace.csv"))
    assert list(again.columns) == list(frame.columns)
    np.testing.assert_array_equal(again["residual"], trace.residual.ravel())


def test_an_mlp_on_digits_counts_what_it_gets_right():
    """The accuracy that was measured at the end is that of the models that came back, counted here."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(4, 20, 6)), rng.integers(3, size=(4, 20))
    start = {"w": rng.normal(size=(6, 5)), "v": rng.normal(size=(5, 3))}

    def logits(params, image):
        return jnp.tanh(image @ params["w"]) @ params["v"]

    def loss(params, sample):
        z = logits(params, sample[0])
        return jnp.log(jnp.exp(z).sum()) - z[sample[1]]

    problem = stgt.problems.from_loss(loss, (images, labels), start, batch=4)

    def accuracy(x):
        return (jnp.argmax(logits(problem.unravel(x), images.reshape(-1, 6)), axis=1) == labels.ravel()).mean()

    trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=3), problem, RING, 20, seeds=2, metrics={"accuracy": accuracy})
    for seed, params in enumerate(trace.params):
        assert params["w"].shape == (6, 5)
        hidden = np.tanh(images.reshape(-1, 6) @ params["w"]) @ params["v"]
        right = (hidden.argmax(axis=1) == labels.ravel()).mean()
        np.testing.assert_allclose(trace["accuracy"][seed, -1], right, rtol=1e-6)
    assert trace["accuracy"][:, -1].mean() > trace["accuracy"][:, 0].mean()
