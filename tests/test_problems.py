"""Problems against their formulas: gradients by differences, optima by their equations, partitions by promise."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import stgt
from catalogue import least_squares, logistic, quadratic
from stgt.theory.estimates import problem_hessians

PROBLEMS = {
    "ridge": stgt.problems.ridge(n=5, p=3, mu=0.2),
    "raw ridge": stgt.problems.ridge(n=5, p=3, mu=0.2, scale="none"),
    "quadratic": quadratic(5, 3),
    "logistic": logistic(5, 3),
    "nonconvex": logistic(5, 3, l2=0.05, nonconvex=0.4),
    "least squares": least_squares(5, 3),
    "least squares, plain": least_squares(5, 3, l2=0.0, partition="sorted"),
}
ROWS, VALUES = np.random.default_rng(5).normal(size=(12, 3)), np.random.default_rng(6).normal(size=12)
UNEVEN = [[3], [0, 1, 2, 4], [5, 6, 7, 8, 9, 10, 11]]
PROBLEMS["logistic, by samples"] = stgt.problems.logistic(ROWS, VALUES > 0, partition=UNEVEN, l2=0.1, weights="samples")
PROBLEMS["least squares, by samples"] = stgt.problems.least_squares(
    ROWS, VALUES, partition=UNEVEN, l2=0.1, weights="samples"
)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_gradients_are_those_of_the_losses(problem):
    rng = np.random.default_rng(0)
    x, step = rng.normal(size=(problem.n, problem.p)), 1e-6
    differences = np.stack(
        [
            (
                problem.model.losses(np, problem.data, x + step * e)
                - problem.model.losses(np, problem.data, x - step * e)
            )
            / (2 * step)
            for e in np.eye(problem.p)
        ],
        axis=1,
    )
    np.testing.assert_allclose(problem.gradients(x), differences, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "nonconvex"])
def test_the_gradient_vanishes_at_the_optimum(name):
    problem = PROBLEMS[name]
    np.testing.assert_allclose(problem.gradient(problem.optimum), 0, atol=1e-13)
    rng = np.random.default_rng(0)
    for _ in range(10):
        assert problem.value(problem.optimum + 0.1 * rng.normal(size=3)) > problem.minimum


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_L_and_mu_bound_the_curvature(problem):
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, y = rng.normal(size=(2, problem.n, problem.p)) * rng.choice([0.1, 1, 5])
        change = problem.gradients(x) - problem.gradients(y)
        assert (np.linalg.norm(change, axis=1) <= problem.L * np.linalg.norm(x - y, axis=1) * (1 + 1e-9)).all()
        if problem.mu is not None:
            assert ((change * (x - y)).sum(axis=1) >= problem.mu * ((x - y) ** 2).sum(axis=1) * (1 - 1e-9)).all()


def test_the_ridge_problem_is_the_paper_s():
    """Prob_RR: f_i(x) = (θᵀx − d)² + (μ/2)‖x‖², θ in [0, 1]^p, L_i = 2‖θ_i‖² + μ; θ/√p if scaled."""
    raw, scaled = (stgt.problems.ridge(n=6, p=4, mu=0.3, scale=scale, seed=2) for scale in ("none", "sqrt_p"))
    theta, d = raw.data["theta"], raw.data["d"]
    assert theta.min() >= 0
    assert theta.max() <= 1
    np.testing.assert_allclose(scaled.data["theta"] * 2, theta)
    x = np.array([0.3, -1.0, 2.0, 0.1])
    assert raw.value(x) == pytest.approx(np.mean([(theta[i] @ x - d[i]) ** 2 + 0.15 * x @ x for i in range(6)]))
    assert pytest.approx(max(2 * theta[i] @ theta[i] + 0.3 for i in range(6))) == raw.L


@pytest.mark.parametrize(("n", "p"), [(6, 4), (5, 5), (4, 9), (3, 40)])
def test_the_optimum_of_ridge_is_the_dense_solution(n, p):
    problem = stgt.problems.ridge(n=n, p=p, mu=0.3, seed=2)
    theta, d = problem.data["theta"], problem.data["d"]
    dense = np.linalg.solve(2 / n * theta.T @ theta + 0.3 * np.eye(p), 2 / n * theta.T @ d)
    np.testing.assert_allclose(problem.optimum, dense, rtol=0, atol=1e-12 * np.abs(dense).max())


def test_ridge_of_a_million_coordinates():
    """One p × p matrix would have 8 TB."""
    problem = stgt.problems.ridge(n=2, p=10**6, noise=0.0)
    assert np.abs(problem.gradient(problem.optimum)).max() < 1e-15
    trace = stgt.simulate(stgt.STGT(gamma=0.5), problem, stgt.topology.ring(2), 2, engine="numpy", metrics=["residual"])
    assert trace.residual[0, 2] < trace.residual[0, 0]


def test_as_printed_the_stepsize_of_the_paper_diverges():
    """θ in [0, 1]^10 and gamma = 0.4: γL is far above 2 and a round of 50 steps leaves the finite numbers."""
    problem = stgt.problems.ridge(n=32, p=10, mu=0.5, scale="none")
    assert 0.4 * problem.L > 2
    trace = stgt.simulate(stgt.STGT(gamma=0.4, tau=50), problem, stgt.topology.exponential(32), 5)
    assert trace.diverged.all()


@pytest.mark.parametrize("name", [name for name in PROBLEMS if PROBLEMS[name].counts is not None])
def test_sums_over_samples(name):
    problem = PROBLEMS[name]
    n, rng = problem.n, np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    parts = problem.model.component_gradients(np, problem.data, x)
    for i, m in enumerate(problem.counts):
        np.testing.assert_allclose(parts[i, :m].mean(axis=0), problem.gradients(x)[i], atol=1e-14)
    index = np.array([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]])[:n] % problem.counts.min()
    expected = np.stack([parts[i, index[i]].mean(axis=0) for i in range(n)])
    np.testing.assert_allclose(problem.model.sample_gradients(np, problem.data, x, index), expected, atol=1e-14)


def test_least_squares_are_numpy_s():
    """With equal parts and no penalty, x* is the solution of one least-squares problem over all samples; L_i is the
    largest squared singular value of A_i over m_i, mu_i the smallest."""
    rng = np.random.default_rng(3)
    A, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    problem = stgt.problems.least_squares(A, y, 4, partition="sorted")
    np.testing.assert_allclose(problem.optimum, np.linalg.lstsq(A, y)[0], atol=1e-12)
    parts = np.sort(np.argsort(y).reshape(4, 5), axis=1)
    np.testing.assert_array_equal(problem.data["labels"], y[parts])
    squares = np.array([np.linalg.svd(A[part])[1] ** 2 / 5 for part in parts])
    assert pytest.approx(squares.max()) == problem.L
    assert problem.mu == pytest.approx(squares.min())
    x = rng.normal(size=3)
    assert problem.value(x) == pytest.approx(np.mean((A @ x - y) ** 2) / 2)


def test_weights_by_samples_minimise_the_mean_over_all():
    """The normal equations of all samples; with "equal" each node's own mean counts 1/n, which is something else."""
    problem, M = PROBLEMS["least squares, by samples"], len(VALUES)
    pooled = np.linalg.solve(ROWS.T @ ROWS / M + 0.1 * np.eye(3), ROWS.T @ VALUES / M)
    np.testing.assert_allclose(problem.optimum, pooled, atol=1e-13)
    x = np.array([0.3, -1.0, 2.0])
    assert problem.value(x) == pytest.approx(np.mean((ROWS @ x - VALUES) ** 2) / 2 + 0.05 * x @ x)
    np.testing.assert_allclose(problem_hessians(problem, x).mean(axis=0), ROWS.T @ ROWS / M + 0.1 * np.eye(3))
    equal = stgt.problems.least_squares(ROWS, VALUES, partition=UNEVEN, l2=0.1)
    assert np.linalg.norm(equal.optimum - pooled) > 0.1
    signs = np.sign(VALUES)
    x = PROBLEMS["logistic, by samples"].optimum
    slope = -signs / (1 + np.exp(signs * (ROWS @ x)))
    np.testing.assert_allclose(slope @ ROWS / M + 0.1 * x, 0, atol=1e-13)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
@pytest.mark.parametrize("method", [stgt.STGT(gamma=0.2, tau=2), stgt.GTSAGA(gamma=0.04), stgt.GTSVRG(gamma=0.04)])
def test_methods_find_the_mean_over_all_samples(method, engine):
    problem, M = PROBLEMS["least squares, by samples"], len(VALUES)
    pooled = np.linalg.solve(ROWS.T @ ROWS / M + 0.1 * np.eye(3), ROWS.T @ VALUES / M)
    trace = stgt.simulate(method, problem, stgt.topology.complete(3), 1000, engine=engine, dtype="float64")
    np.testing.assert_allclose(trace.x[0], np.tile(pooled, (3, 1)), atol=1e-6)


def test_least_squares_without_a_unique_minimum():
    """Fewer samples than unknowns: mu = 0 and x* is not unique; with a penalty both are known again."""
    A, y = np.eye(2, 5), np.ones(2)
    assert stgt.problems.least_squares(A, y, 1).optimum is None
    assert stgt.problems.least_squares(A, y, 1).mu is None
    problem = stgt.problems.least_squares(A, y, 1, l2=0.5)
    assert problem.mu == pytest.approx(0.5)
    np.testing.assert_allclose(problem.optimum, [0.5, 0.5, 0, 0, 0], atol=1e-15)  # (x − 1)/2 + x/2 = 0 in each of two


@pytest.mark.parametrize("kind", ["csr_array", "coo_array", "csc_matrix"])
def test_sparse_features_are_those_of_the_dense_array(kind):
    dense, x = np.where(ROWS > 0.3, ROWS, 0.0), np.arange(3.0)
    sparse = getattr(scipy.sparse, kind)(dense)
    for make, labels in ((stgt.problems.logistic, VALUES > 0), (stgt.problems.least_squares, VALUES)):
        one, other = (make(features, labels, n=3, l2=0.1) for features in (dense, sparse))
        np.testing.assert_array_equal(one.gradients(x), other.gradients(x))

    def loss(params, sample):
        return (params @ sample[0] - sample[1]) ** 2

    one, other = (stgt.problems.from_loss(loss, [(of, VALUES)], 3) for of in (dense, sparse))
    np.testing.assert_array_equal(one.gradients(x), other.gradients(x))


def test_sparse_features_that_are_too_large_are_refused():
    features = scipy.sparse.coo_array((10**5, 10**5))
    with pytest.raises(ValueError, match=r"features is sparse, with 1\.0e\+10 entries when dense: give at most 5e\+08"):
        stgt.problems.least_squares(features, np.zeros(10**5), n=2)


def test_labels_may_be_words():
    """Of two words the later in the alphabet is +1."""
    A = np.arange(8.0).reshape(4, 2)
    words, numbers = ["no", "yes", "no", "yes"], [0, 1, 0, 1]
    one, other = (stgt.problems.logistic(A, given, 2, l2=0.1) for given in (np.array(words), numbers))
    np.testing.assert_array_equal(one.data["signed"], other.data["signed"])


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_a_loss_in_jax_equals_the_built_in_one(weights):
    rng = np.random.default_rng(4)
    features, labels = rng.normal(size=(12, 3)), np.arange(12) % 2
    parts = [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11]]
    built_in = stgt.problems.logistic(features, labels, partition=parts, l2=0.2, weights=weights)

    def loss(x, sample):
        import jax.numpy as jnp

        a, sign = sample
        return jnp.logaddexp(0.0, -sign * (a @ x)) + 0.1 * (x @ x)

    data = [(features[part], 2.0 * labels[part] - 1) for part in parts]
    own = stgt.problems.from_loss(loss, data, 3, L=1.0, mu=0.2, weights=weights)
    # The largest node has 5 of 12 samples, the smallest 2: 3 · 5/12 and 3 · 2/12.
    assert (own.L, own.mu) == ((1.0, 0.2) if weights == "equal" else pytest.approx((1.25, 0.1)))
    x = rng.normal(size=(3, 3))
    np.testing.assert_allclose(own.gradients(x), built_in.gradients(x), atol=1e-14)
    assert own.value(x[0]) == pytest.approx(built_in.value(x[0]), abs=1e-14)
    np.testing.assert_array_equal(own.counts, built_in.counts)
    index = np.array([[4, 0], [1, 1], [2, 3]])
    for name, arguments in (("component_gradients", ()), ("sample_gradients", (index,))):
        ours = getattr(own.model, name)(np, own.data, x, *arguments)
        theirs = getattr(built_in.model, name)(np, built_in.data, x, *arguments)
        if name == "component_gradients":  # padding differs, and is not used
            ours, theirs = ours * own.data["weight"][:, :, None], theirs * own.data["weight"][:, :, None]
        np.testing.assert_allclose(ours, theirs, atol=1e-14)


def test_data_keep_their_precision_and_shape():
    """Nodes of different types are joined in the wider one; arrays (n, m, …) are a node a row."""
    mixed = stgt.problems.from_loss(lambda x, s: (x * s).sum(), [np.array([[1], [2]]), np.array([[0.5]])], np.int64(1))
    np.testing.assert_array_equal(mixed.data["leaf0"][1, 0], [0.5])
    X, y = np.ones((3, 4, 2)), np.zeros((3, 4))
    stacked = stgt.problems.from_loss(lambda x, s: (s[0] @ x - s[1]) ** 2, (X, y), 2)
    assert (stacked.n, stacked.p, list(stacked.counts)) == (3, 2, [4, 4, 4])


LABELS = np.repeat(np.arange(10), 30)


@given(n=st.integers(1, 40), seed=st.integers(0, 10**6), how=st.sampled_from(["iid", "label", "dirichlet"]))
def test_a_partition_gives_every_sample_to_one_node(n, seed, how):
    classes = max(2, -(-10 // n)) if how == "label" else 1
    parts = stgt.problems.partition(LABELS, n, how, classes=min(classes, 10), alpha=1.0, seed=seed)
    assert len(parts) == n
    assert min(len(part) for part in parts) > 0
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    again = stgt.problems.partition(LABELS, n, how, classes=min(classes, 10), alpha=1.0, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@given(n=st.integers(5, 40), classes=st.integers(2, 8), seed=st.integers(0, 1000))
def test_by_label_gives_each_node_that_many_classes(n, classes, seed):
    parts = stgt.problems.by_label(LABELS, n, classes, seed)
    assert {len(np.unique(LABELS[part])) for part in parts} == {classes}


@given(n=st.integers(5, 40), classes=st.integers(2, 8), seed=st.integers(0, 1000), concentration=st.floats(1e-3, 1e3))
def test_uneven_shares_leave_each_node_its_classes(n, classes, seed, concentration):
    # At most ceil(40·8/10) = 32 nodes hold a label, which then has 40 samples.
    labels = np.repeat(np.arange(10), 40)
    parts = stgt.problems.partition(labels, n, "label", classes=classes, seed=seed, concentration=concentration)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    equal = stgt.problems.by_label(labels, n, classes, seed)
    for part, other in zip(parts, equal, strict=True):
        assert len(np.unique(labels[part])) == classes
        assert set(labels[part]) == set(labels[other]), "which labels a node is given does not hang on the shares"


def test_shares_follow_the_dirichlet_distribution():
    """Two nodes share 102 samples of one label: 1 + ⌊100 U⌋ and the rest, with U uniform for a concentration of 1.

    The share is then uniform on 1, …, 100: mean 50.5, variance 9999/12, kurtosis 1.8; five standard errors are allowed.
    """
    seeds = 400
    shares = [len(stgt.problems.by_label(np.zeros(102), 2, 1, seed, concentration=1)[0]) for seed in range(seeds)]
    variance = 9999 / 12
    assert abs(np.mean(shares) - 50.5) < 5 * np.sqrt(variance / seeds)
    assert abs(np.var(shares) - variance) < 5 * variance * np.sqrt(0.8 / seeds)
    even = stgt.problems.by_label(np.zeros(102), 2, 1, concentration=1e9)  # U within 1e-4 of 1/2: 1 + 49 or 1 + 50
    assert {len(part) for part in even} <= {50, 51, 52}


def test_what_is_wrong_with_uneven_shares_is_said():
    for wrong in (0, -1, float("nan"), "much"):
        with pytest.raises(ValueError, match="concentration="):
            stgt.problems.by_label(LABELS, 5, 2, concentration=wrong)
    with pytest.raises(ValueError, match="a label has 2 samples for 3 nodes that hold it; give fewer nodes"):
        stgt.problems.by_label([0, 0, 1, 1], 3, 2, concentration=1)


def test_iid_parts_are_even_and_dirichlet_grows_even_with_alpha():
    assert {len(part) for part in stgt.problems.iid(LABELS, 7)} == {42, 43}

    def skew(alpha):
        parts = stgt.problems.dirichlet(LABELS, 10, alpha, seed=1)
        return np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts])

    # The share of a node's commonest label: 1/10 if even, 1 if it has but one.
    assert skew(0.1) > 0.4 > 0.2 > skew(100.0) > 0.1
