"""Errata of the paper that are about an algorithm, not a proof."""

import numpy as np
import pytest

import stgt

N, S, TAU, GAMMA = 6, 2, 3, 0.02
SERVER = stgt.topology.server(N, sampled=S, seed=1)
B = np.random.default_rng(0).normal(size=(N, 2))
LINEAR = stgt.problems.Quadratic(np.tile(1e-13 * np.eye(2), (N, 1, 1)), B)  # ∇f_i = −b_i wherever x is


def _step(algorithm, rounds=60):
    """How the server moves in a round after all workers have been called, and what it holds then."""
    before, after = (
        stgt.simulate(algorithm, LINEAR, SERVER, length, 1, engine="numpy").state for length in (rounds, rounds + 1)
    )
    return after["x"][0][0] - before["x"][0][0], {name: value[0] for name, value in after.items()}


@pytest.mark.parametrize("gamma_c", [1.0, 0.5, S / N])
def test_scaffold_plus_steps_are_n_over_s_as_long(gamma_c):
    """Erratum 5. Where gradients do not change, own_i = g_i once i was called, and y_i = g_i − own_i + c = c."""
    moved, state = _step(stgt.ScaffoldPlus(gamma=GAMMA, tau=TAU, gamma_c=gamma_c))
    stretch = gamma_c * N / S
    np.testing.assert_allclose(state["c"][0], stretch * state["own"].mean(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(state["own"], -B, rtol=0, atol=1e-9)
    np.testing.assert_allclose(moved, GAMMA * TAU * stretch * B.mean(axis=0), rtol=0, atol=1e-9)


def test_equal_steps_hold_gamma_times_gamma_c_times_n_over_s_fixed():
    scaffold, _ = _step(stgt.Scaffold(gamma=GAMMA, tau=TAU))
    plus, _ = _step(stgt.ScaffoldPlus(gamma=GAMMA * S / N, tau=TAU))
    np.testing.assert_allclose(plus, scaffold, rtol=0, atol=1e-9)


@pytest.mark.parametrize("gamma_c", [1.0, 0.5, S / N])
def test_on_a_quadratic_the_rate_is_stretched_as_well(gamma_c):
    """In the limit of small γ a round moves x by −γτ(γ_c n/s) times the mean gradient, ā(x − x*): log radius over that
    is −1, with a remainder of order γ."""
    curvatures = np.array([0.5, 1.0, 2.0, 0.7, 1.3, 0.9])
    problem = stgt.problems.Quadratic(curvatures[:, None, None], B[:, :1])
    remainders = []
    for gamma in (1e-3, 1e-4):
        algorithm = stgt.ScaffoldPlus(gamma=gamma, tau=TAU, gamma_c=gamma_c)
        radius = stgt.theory.spectral_radius(algorithm, problem, SERVER)
        remainders.append(-np.log(radius) / (gamma * TAU * gamma_c * N / S * curvatures.mean()) - 1)
    assert abs(remainders[1]) < 0.003
    assert remainders[1] == pytest.approx(remainders[0] / 10, rel=0.1)
