"""Test samples: never a node's, the same for every partition, and what is measured on them is counted here by hand."""

import numpy as np
import pytest

import stgt
from stgt.problems import load_table
from stgt.study.spec.runs import build_all, load_spec

SAMPLES, P = 60, 3
RNG = np.random.default_rng(0)
# The first column numbers the rows from 1, so that every row is found again wherever it is.
FEATURES = np.column_stack([np.arange(1, SAMPLES + 1), RNG.normal(size=(SAMPLES, P - 1))])
LABELS = RNG.permutation(np.arange(SAMPLES) % 2)
GIVEN = np.array_split(np.arange(SAMPLES - 6), 4)  # six rows are nobody's
PROBLEMS = {
    "logistic": (stgt.problems.logistic, "signed", ["iid", "label", "dirichlet", GIVEN]),
    "least_squares": (stgt.problems.least_squares, "features", ["iid", "sorted", GIVEN]),
}
CASES = [(name, k) for name, (_, _, ways) in PROBLEMS.items() for k in range(len(ways))]


def numbers(data, rows) -> set[int]:
    """The numbers of the samples in a problem's data; padding is 0."""
    return {round(one) for one in np.abs(data[rows][:, :, 0]).ravel()} - {0}


@pytest.mark.parametrize(("name", "way"), CASES)
def test_no_test_sample_is_trained_on(name, way):
    make, rows, ways = PROBLEMS[name]
    n = None if ways[way] is GIVEN else 4
    problem = make(FEATURES, LABELS, n, partition=ways[way], test=0.2, seed=5)
    train, test = numbers(problem.data, rows), numbers(problem.test, rows)
    assert not train & test
    assert len(test) == 12
    assert problem.test[rows].shape == (1, 12, P)
    assert len(train) == problem.counts.sum()
    assert train | test == (set(range(1, SAMPLES + 1)) if n else {*range(1, SAMPLES - 5)} | test)
    assert test == numbers(make(FEATURES, LABELS, 3, test=0.2, seed=5).test, rows), "whatever the partition"
    assert test != numbers(make(FEATURES, LABELS, 3, test=0.2, seed=6).test, rows)


@pytest.mark.parametrize("name", PROBLEMS)
def test_without_one_nothing_changes(name):
    make, rows, _ = PROBLEMS[name]
    plain, zero = make(FEATURES, LABELS, 4), make(FEATURES, LABELS, 4, test=0)
    assert plain.test is zero.test is None
    assert plain.fingerprint == zero.fingerprint
    kept = sorted(numbers(make(FEATURES, LABELS, 1, test=0.3).data, rows))
    index = np.array(kept) - 1
    alone = make(FEATURES[index], LABELS[index], 1)
    x = np.array([0.01, -0.4, 0.7])
    np.testing.assert_allclose(make(FEATURES, LABELS, 1, test=0.3).gradient(x), alone.gradient(x), rtol=1e-12)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_what_is_measured_on_them(engine):
    """At the last models: mean log(1 + exp(−y aᵀx)) and the share of y aᵀx > 0; the mean of (aᵀx − y)²/2."""
    features = FEATURES / [SAMPLES, 1, 1]
    ring, method = stgt.topology.ring(4), stgt.STGT(gamma=0.2, tau=2)
    problem = stgt.problems.logistic(features, LABELS, 4, l2=0.1, weights="samples", test=0.2)
    trace = stgt.simulate(method, problem, ring, 6, seeds=2, engine=engine)
    margin = problem.test["signed"][0] @ trace.x.mean(axis=1).T
    np.testing.assert_allclose(trace["test_loss"][:, -1], np.logaddexp(0, -margin).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(trace["test_accuracy"][:, -1], (margin > 0).mean(axis=0), rtol=1e-6)
    problem = stgt.problems.least_squares(features, LABELS, 4, l2=0.1, test=0.2)
    trace = stgt.simulate(method, problem, ring, 6, engine=engine)
    error = problem.test["features"][0] @ trace.x[0].mean(axis=0) - problem.test["labels"][0]
    np.testing.assert_allclose(trace["test_loss"][0, -1], (error**2).mean() / 2, rtol=1e-5)
    with pytest.raises(KeyError, match=r"'test_accuracy' was not measured: least_squares.* has no classes"):
        trace["test_accuracy"]
    with pytest.raises(ValueError, match=r"metrics has 'test_loss', but .* has no test samples"):
        stgt.simulate(method, stgt.problems.logistic(features, LABELS, 4), ring, 1, metrics=["test_loss"])


SPEC = """
rounds = 3
seeds = 1
by = "test_accuracy"
largest = true
[algorithm]
name = "STGT"
gamma = 0.1
[problem]
name = "logistic"
data = "own.csv"
n = 4
test = 0.25
seed = 2
standardise = true
[topology]
name = "ring"
"""


def test_a_spec_file(tmp_path):
    """Mean 0 and variance 1 are those of the training rows: a test row has no part in what is trained on."""
    rows = [[*row, label] for row, label in zip(FEATURES.tolist(), LABELS.tolist(), strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    spec = load_spec(tmp_path / "run.toml")
    (built,) = build_all(spec, tmp_path / "run.toml")
    assert built.problem.counts.sum() == 45
    assert built.problem.test["signed"].shape == (1, 15, P)
    held = numbers(stgt.problems.logistic(FEATURES, LABELS, 4, test=0.25, seed=2).test, "signed")
    train = np.array(sorted(set(range(1, SAMPLES + 1)) - held)) - 1
    table = load_table(tmp_path / "own.csv", standardise=True, test=0.25, seed=2)
    np.testing.assert_allclose(table.features[train].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(table.features[train].std(axis=0), 1, rtol=1e-12)
    again = stgt.problems.logistic(table.features, table.labels, 4, test=0.25, seed=2)
    np.testing.assert_array_equal(again.data["signed"], built.problem.data["signed"])


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (1, r"test=1: give a finite number of at least 0 and below 1"),
        (-0.1, "test=-0.1: give"),
        (0.001, "leave some to test and some to train on"),
        ("a fifth", "test='a fifth'"),
    ],
)
def test_bad_shares_are_one_sentence(test, words):
    with pytest.raises(ValueError, match=words):
        stgt.problems.logistic(FEATURES, LABELS, 4, test=test)


def test_a_node_that_would_have_nothing_left():
    parts = [np.array([i]) for i in range(SAMPLES)]
    with pytest.raises(ValueError, match=r"test takes all samples of node \d+: give a smaller share"):
        stgt.problems.least_squares(FEATURES, LABELS, partition=parts, test=0.2)
