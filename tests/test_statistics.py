"""Intervals hold what they say as often as they say. Samples come from laws whose means are known."""

import numpy as np
import pytest
from scipy.stats import t

import stgt
from stgt._internal.markup import interval
from stgt._internal.statistics import difference_interval, error_interval, mean_interval
from stgt.simulator import Rule
from stgt.simulator.metrics import over_seeds
from stgt.study.comparison import Comparison
from stgt.theory import steady_state
from studies import with_values

SEEDS = (3, 5, 10, 20)
FREEDOM = (1, 2, 5, 10, 50)  # degrees, of χ²
TIMES = 4000  # a coverage of 95 % is known to 0.7 % then, at two standard deviations


def holds(low, high, true):
    return float(np.mean((low <= true) & (true <= high)))


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_interval_of_an_error_holds_its_mean(seeds):
    """χ² over its degrees of freedom has the mean 1; so has a sum of such with weights 0.6^i, as a residual is one."""
    rng = np.random.default_rng(seeds)
    weights = 0.6 ** np.arange(10)
    samples = {k: rng.chisquare(k, (seeds, TIMES)) / k for k in FREEDOM}
    samples["sum"] = rng.chisquare(1, (seeds, TIMES, 10)) @ (weights / weights.sum())
    for law, values in samples.items():
        _, low, high = error_interval(values)
        assert 0.935 < holds(low, high, 1.0) < 0.97, law
        assert (low > 0).all(), "so that a logarithmic axis has a place for it"
    skewed = samples[1]
    assert holds(*mean_interval(skewed)[1:], 1.0) < 0.91, "Student's t does not"


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_seeds_that_chose_make_the_chosen_look_better_than_it_is(seeds):
    """Six settings of one mean and independent noise, χ² of 5 degrees of freedom: the lowest mean is chosen."""
    values = np.random.default_rng(seeds).chisquare(5, (2, seeds, TIMES, 6)) / 5
    chosen = values[0].mean(axis=0).argmin(axis=1)
    same, fresh = (np.take_along_axis(one, chosen[None, :, None], axis=2)[..., 0] for one in values)
    assert holds(*error_interval(same)[1:], 1.0) < 0.93
    assert holds(*error_interval(fresh)[1:], 1.0) > 0.935


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("shared", [0.0, 0.9, 0.999])
def test_the_interval_of_a_difference_holds_it(seeds, shared):
    """Errors |z|²/k and 1.5 |y|²/m, where z and y correlate: the logarithms of their means differ by −ln 1.5."""
    rng = np.random.default_rng(seeds)
    for k, m in ((5, 5), (10, 10), (5, 50)):
        z = rng.standard_normal((TIMES, seeds, max(k, m)))
        y = shared * z + np.sqrt(1 - shared**2) * rng.standard_normal(z.shape)
        first, second = (z[..., :k] ** 2).mean(axis=-1), 1.5 * (y[..., :m] ** 2).mean(axis=-1)
        some = [difference_interval(a, b, paired=True, errors=True) for a, b in zip(first[:1500], second, strict=False)]
        assert 0.93 < holds(*np.transpose(some), -np.log(1.5)) < 0.97, (k, m)


def test_a_small_spread_is_students_case():
    """3 values 1 ± 0.001: the ends are t(2) standard errors away."""
    values = np.array([0.999, 1.0, 1.001])
    half = t.ppf(0.975, 2) * 0.001 / np.sqrt(3)
    for found in (error_interval(values), mean_interval(values)):
        np.testing.assert_allclose(found, [1.0, 1 - half, 1 + half], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e200])
def test_an_interval_scales_with_the_values(scale):
    values = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    np.testing.assert_allclose(error_interval(scale * values), scale * np.array(error_interval(values)), rtol=1e-12)
    assert [one[1] for one in error_interval(values)] == [5.0, 5.0, 5.0]


def test_what_has_no_spread_no_sign_or_no_number():
    np.testing.assert_array_equal(error_interval(np.zeros((4, 2))), np.zeros((3, 2)))
    below = np.array([-1e-9, 1.0, 2.0])  # a loss that rounding took below its minimum
    np.testing.assert_array_equal(error_interval(below), mean_interval(below))
    assert np.isnan(error_interval(np.array([1.0]))[1:]).all()
    assert np.isnan(error_interval(np.array([1.0, np.nan]))).all()
    accuracy = np.array([0.1, 0.5, 0.9])
    np.testing.assert_array_equal(over_seeds("accuracy", accuracy), mean_interval(accuracy))
    np.testing.assert_array_equal(over_seeds("residual", accuracy), error_interval(accuracy))


def test_differences_of_what_has_no_logarithm_are_by_students_t():
    """1 − 0, 2 − 0, 3 − 0: 2 ± t(2)/√3; unpaired, Welch's with the same one variance."""
    half = t.ppf(0.975, 2) / np.sqrt(3)
    for paired in (True, False):
        found = difference_interval(np.array([1.0, 2.0, 3.0]), np.zeros(3), paired=paired, errors=True)
        np.testing.assert_allclose(found, [2 - half, 2 + half])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0.01318, 0.01191, 0.01577), "0.0132 [0.0119, 0.0158]"),
        ((0.01300, 0.01191, 0.01577), "0.0130 [0.0119, 0.0158]"),
        ((1.2, 0.3, 41.7), "1.20 [0.30, 41.70]"),
        ((1234.0, 900.0, 1700.0), "1234 [900, 1700]"),
        ((1.2e-9, 1.1e-9, 1.3e-9), "1.20e-09 [1.10e-09, 1.30e-09]"),
        ((1.0, 1.0, 1.0), "1 [1, 1]"),
        ((3.14159, np.nan, np.nan), "3.14"),
        ((np.nan, 1.0, 2.0), "not finite"),
    ],
)
def test_an_interval_in_words(numbers, words):
    assert interval(*numbers) == words


GAMMAS = [0.2, 0.205, 0.21]
METHODS = {"ST-GT": stgt.STGT, "D-PSGD": stgt.DPSGD}


@pytest.fixture(scope="module")
def runs():
    """Ridge on a ring, stepsizes so near that noise chooses: the last rounds of many seeds, and E‖x̄ − x*‖² exactly."""
    problem, ring = stgt.problems.ridge(n=4, p=2, noise=0.5), stgt.topology.ring(4)
    found = {}
    for name, method in METHODS.items():
        options = {"grid": {"gamma": GAMMAS}, "metrics": ["residual"], "x0": problem.optimum}
        for trace in stgt.sweep(method(tau=2), problem, ring, 60, 6000, **options):
            exact = steady_state(trace.algorithm, problem, ring).residual
            found[name, trace.algorithm.gamma] = trace, trace.residual[:, -20:], exact
    return found


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", SEEDS)
def test_what_a_comparison_prints_holds_the_exact_error(runs, seeds):
    """Each comparison draws its seeds from a long list, whose runs are independent: half choose, half are fresh."""
    rule, rng = Rule("residual"), np.random.default_rng(seeds)
    held = {"not chosen": [], "chosen": [], "chosen, on the same seeds": [], "difference": []}
    for _ in range(1000):
        some, others = np.split(rng.choice(6000, 2 * seeds, replace=False), 2)

        def cut(name, gamma, part):
            trace, residual, _ = runs[name, gamma]
            return with_values(trace, residual=residual[part])

        tried = {name: [cut(name, gamma, some) for gamma in GAMMAS] for name in METHODS}
        same = Comparison.of(rule, tried)
        chosen = {name: same.best[name].algorithm.gamma for name in METHODS}
        found = Comparison.of(rule, tried, {name: cut(name, chosen[name], others) for name in METHODS})
        exact = {name: runs[name, chosen[name]][2] for name in METHODS}
        for kind, one in (("chosen", found), ("chosen, on the same seeds", same)):
            held[kind] += [row["low"] <= exact[row["method"]] <= row["high"] for row in one.table]
        _, low, high = rule.interval(tried["ST-GT"][0])
        held["not chosen"].append(low <= runs["ST-GT", GAMMAS[0]][2] <= high)
        errors = [rule.error(found.best[name]) for name in METHODS]
        low, high = difference_interval(*errors, paired=True, errors=True)
        held["difference"].append(low <= np.log(exact["ST-GT"] / exact["D-PSGD"]) <= high)
    share = {kind: float(np.mean(one)) for kind, one in held.items()}
    print(f"{seeds} seeds:", ", ".join(f"{kind} {value:.1%}" for kind, value in share.items()))
    for kind in ("not chosen", "chosen", "difference"):
        assert share[kind] > 0.92, share
