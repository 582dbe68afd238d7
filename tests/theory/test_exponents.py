"""Exponents: of exact power laws, of a case with a closed form, and of ST-GT."""

import numpy as np
import pytest

import stgt
from stgt import theory
from stgt.theory import exponents


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


def two_nodes(mean, apart):
    """f_i = a_i x²/2 with a = mean ± apart: one minimiser, 0, and two curvatures; of n nodes, half have each."""

    def problem(n, noise, seed):
        signs = np.where(np.arange(n) % 2, -1.0, 1.0)
        return stgt.problems.Quadratic((mean + apart * signs).reshape(n, 1, 1), np.zeros((n, 1)), noise=noise)

    return problem


def error_of_two_nodes(gamma, mean, apart, weight, noise):
    """E x̄² of ST-GT with one step on two nodes, where W has the eigenvalue `weight` beside 1.

    With u = x̄, v = (x_1 − x_2)/2 and c = (c_1 − c_2)/2, z = mean·v + apart·u + c + ξ_v is the direction's difference:
    u ← u − γ(mean·u + apart·v + ξ_u), v ← weight·(v − γz), c ← c + (weight − 1) z, both ξ of variance σ²/2.
    """
    z = np.array([apart, mean, 1.0])
    M = np.array([
        [1 - gamma * mean, -gamma * apart, 0.0],
        weight * (np.array([0.0, 1.0, 0.0]) - gamma * z),
        np.array([0.0, 0.0, 1.0]) + (weight - 1) * z,
    ])  # fmt: skip
    B = np.array([[-gamma, 0.0], [0.0, -weight * gamma], [0.0, weight - 1]])
    P = np.linalg.solve(np.eye(9) - np.kron(M, M), (noise / 2 * B @ B.T).ravel())
    return P[0]


def test_the_excess_of_two_nodes():
    gamma, mean, apart, noise = 0.1, 1.0, 0.5, 0.1
    problem, options = two_nodes(mean, apart), {"n": 2, "noise": noise, "gap": 0.8, "seeds": 2}
    found = theory.fit_exponents(stgt.STGT(gamma=gamma), problem, over=["gap", "sigma2"], **options)

    def error(gap):
        return error_of_two_nodes(gamma, mean, apart, np.sqrt(1 - gap), noise)

    gap = found["gap"]
    assert gap.total.x == pytest.approx((0.8, 0.4, 0.2, 0.1))
    np.testing.assert_allclose(gap.total.y, [error(x) for x in gap.total.x])
    excess = np.array([error(x) - error(1.0) for x in gap.total.x])
    assert gap.excess is not None
    np.testing.assert_allclose(gap.excess.y, excess, rtol=1e-6)
    assert (gap.total.theory, gap.excess.theory) == (0, -3)
    # Everything is linear in σ², there being no bias.
    assert found["sigma2"].excess.value == pytest.approx(1)
    assert found["sigma2"].note == ""


def test_one_hessian_for_all_has_no_excess():
    """x̄ ← (1 − γa) x̄ − γ ξ̄ whatever the network, Σ c_i being 0: E x̄² = γσ²/(na(2 − γa)), and no excess at all."""
    problem = two_nodes(2.0, 0.0)
    found = theory.fit_exponents(stgt.STGT(gamma=0.1), problem, over=["gap"], n=2, noise=0.1, seeds=2)["gap"]
    np.testing.assert_allclose(found.total.y, 0.1 * 0.1 / (2 * 2 * 1.8))
    assert found.total.value == pytest.approx(0, abs=1e-9)
    assert found.excess is None
    assert "8 of 8 points" in found.note
    assert "0 up to rounding" in found.note


def test_a_negative_excess_is_said():
    values = [1.0, 2.0]
    total = np.array([[4.0, 2.0], [4.0, 2.0]])
    found = exponents._scaling("tau", values, total, np.array([[1.0, 0.5], [1.0, -0.5]]), exponents.EXCESS)
    assert found.total.value == pytest.approx(-1)
    assert found.excess is None
    assert "1 of 4 points, first at tau=2 with seed 1, where it is -0.25 times the error" in found.note


@pytest.mark.thorough
def test_plain_sgd_has_the_exponents_of_its_closed_form():
    """f_i = x²/2 and one step: E‖x̄ − x*‖² = γσ²/(n(2 − γ)) whatever the graph, W being doubly stochastic."""

    def problem(n, noise, seed):
        return stgt.problems.Quadratic(np.ones((n, 1, 1)), np.full((n, 1), float(seed)), noise=noise)

    found = theory.fit_exponents(stgt.DPSGD(gamma=0.1, atc=True), problem, over=["n", "sigma2", "gap"], seeds=2)
    for name, exponent in (("n", -1), ("sigma2", 1), ("gap", 0)):
        assert found[name].total.value == pytest.approx(exponent, abs=1e-6)
        assert found[name].total.theory is None
        assert found[name].excess is None
    assert found["n"].total.y[0] == pytest.approx(0.1 * 0.1 / (4 * 1.9))


@pytest.mark.thorough
def test_local_steps_take_down_the_network_s_part_of_st_gt_alone():
    """At γτ fixed the total falls as 1/τ for both; the excess does for ST-GT, and stays for FlexGT, as Table 1 says."""
    st, flex = (
        theory.fit_exponents(method, over=["tau"], seeds=2)["tau"]
        for method in (stgt.STGT(gamma=0.02, tau=5), stgt.FlexGT(gamma=0.02, tau=5))
    )
    for found in (st, flex):
        assert found.total.theory == -1
        assert found.total.value == pytest.approx(-1, abs=0.05)
        assert found.excess.value == pytest.approx(found.excess.theory, abs=0.05)
    assert (st.excess.theory, flex.excess.theory) == (-1, 0)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: theory.fit_power_law([1.0], [1.0]), "at least two points"),
        (lambda: theory.fit_power_law([1.0, 2.0], [1.0, 0.0]), "not positive"),
        (lambda: theory.fit_power_law([2.0, 2.0], [1.0, 1.0]), "only one distinct value"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), over=["rho"]), "over='rho'"),
        (lambda: theory.fit_exponents(stgt.STGT()), "gamma was left out"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), gap=1.5), "gap=1.5"),
        (lambda: theory.fit_exponents(stgt.STGT(gamma=0.1), seeds=1), "seeds=1"),
    ],
)
def test_bad_input(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()
