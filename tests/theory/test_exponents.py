"""Exponents: of exact power laws, of a case with a closed form, and of ST-GT."""

import numpy as np
import pytest

import stgt
from stgt import theory


def test_a_power_law_is_found():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    found = theory.fit_power_law(x, 3 * x**-1.5)
    assert found.value == pytest.approx(-1.5)
    assert found.high - found.low == pytest.approx(0, abs=1e-12)
    two = theory.fit_power_law(x, [x**2.0, x**4.0])
    # Slopes 2 and 4: mean 3, and Student's t with one degree of freedom is 12.706, times the standard error 1.
    assert (two.value, two.high) == (pytest.approx(3), pytest.approx(3 + 12.7062, rel=1e-5))
    np.testing.assert_allclose(two.y, x**3)


def test_the_interval_of_a_regression():
    """log y = 0, 1, 0 over log x = 0, 1, 2: slope 0, residual variance 2/3 on one degree of freedom, Σ(x − x̄)² = 2."""
    found = theory.fit_power_law(np.exp([0.0, 1.0, 2.0]), np.exp([0.0, 1.0, 0.0]))
    assert found.value == pytest.approx(0, abs=1e-12)
    assert found.high == pytest.approx(12.7062 * np.sqrt(2 / 3 / 2), rel=1e-5)


@pytest.mark.thorough
def test_plain_sgd_has_the_exponents_of_its_closed_form():
    """f_i = x²/2 and one step: E‖x̄ − x*‖² = γσ²/(n(2 − γ)) whatever the graph, W being doubly stochastic."""

    def problem(n, noise, seed):
        return stgt.problems.Quadratic(np.ones((n, 1, 1)), np.full((n, 1), float(seed)), noise=noise)

    found = theory.fit_exponents(stgt.DPSGD(gamma=0.1, atc=True), problem, over=["n", "sigma2", "gap"], seeds=2)
    for name, exponent in (("n", -1), ("sigma2", 1), ("gap", 0)):
        assert found[name].value == pytest.approx(exponent, abs=1e-6)
        assert found[name].theory is None
    assert found["n"].y[0] == pytest.approx(0.1 * 0.1 / (4 * 1.9))


@pytest.mark.thorough
def test_local_steps_pay_almost_linearly():
    """ST-GT's error falls as 1/τ at γτ fixed, as both of the theory's terms say."""
    found = theory.fit_exponents(stgt.STGT(gamma=0.02, tau=5), over=["tau"], seeds=3)["tau"]
    assert found.theory == (-1, -1)
    assert -1.05 < found.low <= found.value <= found.high < -0.95


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: theory.fit_power_law([1.0], [1.0]), "at least two points"),
        (lambda: theory.fit_power_law([1.0, 2.0], [1.0, 0.0]), "not positive"),
        (lambda: theory.fit_power_law([2.0, 2.0], [1.0, 1.0]), "one value only"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), over=["rho"]), "over='rho'"),
        (lambda: theory.fit_exponents(stgt.STGT()), "gamma was left out"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), gap=1.5), "gap=1.5"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), seeds=1), "seeds=1"),
    ],
)
def test_bad_input(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()
