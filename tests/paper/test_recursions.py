"""The transcriptions alone: which of them reach x*, where the others stop. The library is not involved."""

import numpy as np
import pytest
import recursions as ref
from recursions_problem import (
    SAME_START,
    SPREAD_START,
    X_STAR,
    A,
    Ab,
    B,
    M,
    N,
    P,
    average,
    component,
    directed,
    draw,
    error,
    everyone,
    exact,
    mean_gradient,
    ring,
    some,
)

GOSSIP = {
    "st_gt": lambda X, W: ref.st_gt(X, exact, W, gamma=0.02, tau=5, rounds=500),
    "algorithm1_fixed": lambda X, W: ref.st_gt_algorithm1_fixed(X, exact, W, gamma=0.02, tau=5, rounds=500),
    "four_buffers": lambda X, W: ref.st_gt_four_buffers(X, exact, W, gamma=0.02, tau=5, rounds=500),
    "k_gt": lambda X, W: ref.k_gt(X, exact, W, gamma=0.02, tau=5, rounds=600, eta_s=0.7),
    "k_gt_warm": lambda X, W: ref.k_gt(X, exact, W, gamma=0.02, tau=5, rounds=500, warm_start=True, extra=exact),
    "flexgt_first": lambda X, W: ref.flexgt(X, exact, W, gamma=0.02, tau=5, rounds=500, snapshot="first"),
    "flexgt_last": lambda X, W: ref.flexgt(X, exact, W, gamma=0.02, tau=5, rounds=500, snapshot="last"),
    "lu_gt": lambda X, W: ref.lu_gt(X, exact, W, eta=0.04, alpha=0.5, tau=5, rounds=500, atc_y=False),
    "lu_gt_atc": lambda X, W: ref.lu_gt(X, exact, W, eta=0.04, alpha=0.5, tau=5, rounds=500, atc_y=True),
    "dsgt": lambda X, W: ref.dsgt(X, exact, W, gamma=0.05, rounds=1000),
    "diging": lambda X, W: ref.diging(X, exact, W, gamma=0.05, rounds=1000),
    "aug_dgm": lambda X, W: ref.aug_dgm(X, exact, W, D=np.linspace(0.03, 0.08, N), rounds=1000),
    "next": lambda X, W: ref.next_linear(X, exact, W, t=0.1, alpha=lambda k: 0.2 / (1 + k) ** 0.1, rounds=1000),
    "gt_saga": lambda X, W: ref.gt_saga(X, W, component=component, full=exact, draw=draw, m=M, gamma=0.03, rounds=1500),
    "gt_svrg": lambda X, W: ref.gt_svrg(
        X, W, component=component, full=exact, draw=draw, T=2 * M, gamma=0.03, rounds=1500
    ),
}

SERVER = {
    "scaffold_1": lambda S: ref.scaffold(SAME_START, exact, S, gamma=0.02, tau=5, rounds=1000, option=1, extra=exact),
    "scaffold_2": lambda S: ref.scaffold(SAME_START, exact, S, gamma=0.02, tau=5, rounds=1000, gamma_g=1.5),
    "scaffold_plus": lambda S: ref.scaffold_plus(SAME_START, exact, S, gamma=0.01, tau=5, rounds=1500),
    "scaffold_plus_tracking": lambda S: ref.scaffold_plus_tracking(
        SAME_START, exact, S, gamma=0.01, tau=5, rounds=1500
    ),
    "uplink_only": lambda S: ref.scaffold_uplink_only(
        SAME_START, exact, S, gamma=0.02, tau=5, rounds=1000, gamma_c=0.5
    ),
}


@pytest.mark.parametrize("W", [ring, directed])
@pytest.mark.parametrize("method", GOSSIP)
def test_exact_gossip_methods_reach_the_minimum(method, W):
    assert error(GOSSIP[method](SPREAD_START, W)[-1]) < 1e-8


@pytest.mark.parametrize("S", [everyone, some(2)], ids=["all", "two"])
@pytest.mark.parametrize("method", SERVER)
def test_exact_server_methods_reach_the_minimum(method, S):
    assert error(SERVER[method](S)[-1]) < 1e-8


def test_scaffnew_reaches_the_minimum():
    # Theory: gamma <= 1/L = 0.5; random coins with p = 0.3, and periodic ones.
    def coin(k):
        return np.random.default_rng((5, k)).random() < 0.3

    assert error(ref.scaffnew(SPREAD_START, exact, gamma=0.1, p=0.3, coin=coin, iterations=1500)[-1]) < 1e-8
    assert error(ref.scaffnew_periodic(SPREAD_START, exact, gamma=0.05, tau=4, rounds=500)[-1]) < 1e-8


def test_the_start_is_not_already_the_minimum():
    assert error(SPREAD_START) > 0.5
    assert error(SAME_START) > 0.5


@pytest.mark.parametrize("atc", [False, True])
def test_d_psgd_stops_at_its_biased_fixed_point(atc):
    # (I - W) X + gamma G(X) = 0, or with ATC (I - W) X + gamma W G(X) = 0: linear in X for quadratics.
    gamma = 0.05
    last = ref.d_psgd(SPREAD_START, exact, ring, gamma=gamma, rounds=1000, atc=atc)[-1]
    K = ring() if atc else np.eye(N)
    expected = _solve(np.eye(N) - ring(), gamma * K)
    np.testing.assert_allclose(last, expected, rtol=0, atol=1e-8)
    assert error(last) > 0.05


@pytest.mark.parametrize("mu_p", [None, 0.0, 0.1])
def test_fedavg_and_fedprox_stop_at_their_biased_fixed_point(mu_p):
    # The local map is x_i -> x_i - gamma (A_i x_i - (Ab)_i + mu (x_i - x)), affine with the fixed point
    # q_i = (A_i + mu)^-1 ((Ab)_i + mu x) and factor F_i = I - gamma (A_i + mu): after tau steps from x it is at
    # q_i + F_i^tau (x - q_i). Full participation stops where the mean of these is x:
    # sum_i (I - F_i^tau) (x - q_i) = 0, with x - q_i = (A_i + mu)^-1 (A_i x - (Ab)_i).
    gamma, tau, eye = 0.05, 10, np.eye(P)
    if mu_p is None:
        last = ref.fedavg(SAME_START, exact, everyone, gamma=gamma, tau=tau, rounds=300)[-1]
    else:
        last = ref.fedprox(SAME_START, exact, everyone, gamma=gamma, tau=tau, rounds=300, mu_p=mu_p)[-1]
    mu = mu_p or 0.0
    K = [(eye - np.linalg.matrix_power(eye - gamma * (a + mu * eye), tau)) @ np.linalg.inv(a + mu * eye) for a in A]
    x = np.linalg.solve(sum(k @ a for k, a in zip(K, A, strict=True)), sum(k @ v for k, v in zip(K, Ab, strict=True)))
    np.testing.assert_allclose(last, np.tile(x, (N, 1)), rtol=0, atol=1e-8)
    assert error(last) > 0.01


def test_partial_fedavg_and_fedprox_do_not_converge():
    runs = [
        ref.fedavg(SAME_START, exact, some(2), gamma=0.02, tau=5, rounds=500),
        ref.fedprox(SAME_START, exact, some(2), gamma=0.02, tau=5, rounds=500, mu_p=0.1),
    ]
    for run in runs:
        assert min(error(X) for X in run[-100:]) > 0.01


@pytest.mark.parametrize("tau", [2, 5])
def test_algorithm1_reading_a_stops_at_a_wrong_point(tau):
    # Reading A gives C+ = W Z - Z + C + G_{r tau}/tau. A fixed point has Z - W Z = G/tau and X = W (X - gamma tau Z);
    # W times the first, with W Z = -(I - W) X / (gamma tau) from the second: (I - W)^2 X + gamma W G(X) = 0.
    gamma = 0.1 / tau
    run = ref.st_gt_algorithm1_printed(SAME_START, exact, ring, gamma=gamma, tau=tau, rounds=2000, reading="A")
    expected = _solve(np.linalg.matrix_power(np.eye(N) - ring(), 2), gamma * ring())
    np.testing.assert_allclose(run[-1], expected, rtol=0, atol=1e-8)
    assert error(run[-1]) > 0.05
    assert np.abs(run[-1].mean(axis=0) - run[-1]).max() > 0.05


def test_algorithm1_reading_a_is_undamped_at_tau_1():
    # Identical nodes f_i = a x^2/2: x+ = x - gamma y, y+ = y + a x+ is a rotation of modulus 1, from x_0 = 1, y_0 = a:
    # x_r = cos((r + 1/2) theta) / cos(theta/2), 2 cos(theta) = 2 - a gamma.
    a, gamma, rounds = 1.5, 0.1, 500
    run = ref.st_gt_algorithm1_printed(
        np.ones((N, 1)), lambda X, k: a * X, ring, gamma=gamma, tau=1, rounds=rounds, reading="A"
    )
    theta = np.arccos(1 - a * gamma / 2)
    expected = np.cos((np.arange(rounds + 1) + 0.5) * theta) / np.cos(theta / 2)
    np.testing.assert_allclose(np.array(run)[:, :, 0], np.tile(expected[:, None], (1, N)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("tau", [2, 5, 20])
@pytest.mark.parametrize("W", [ring, directed])
def test_algorithm1_reading_b_stops_where_the_gradient_is_a_multiple_of_the_first(tau, W):
    # Column sums: mean c_r = (mean g_0 - mean g_{r tau})/tau, and a fixed point has g + c = 0 in the mean, so
    # grad f(x_inf) = -grad f(x_0)/(tau - 1).
    run = ref.st_gt_algorithm1_printed(SAME_START, exact, W, gamma=0.1 / tau, tau=tau, rounds=1000, reading="B")
    x = run[-1].mean(axis=0)
    np.testing.assert_allclose(run[-1], np.tile(x, (N, 1)), rtol=0, atol=1e-8)
    np.testing.assert_allclose(mean_gradient(x), -mean_gradient(SAME_START[0]) / (tau - 1), rtol=0, atol=1e-8)


def test_algorithm1_reading_b_runs_away_at_tau_1():
    # y+ = W y, so mean y stays mean g_0 and mean x_r = mean x_0 - r gamma mean g_0.
    run = ref.st_gt_algorithm1_printed(SAME_START, exact, ring, gamma=0.1, tau=1, rounds=500, reading="B")
    expected = SAME_START[0] - 500 * 0.1 * mean_gradient(SAME_START[0])
    np.testing.assert_allclose(run[-1].mean(axis=0), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("s", [2, 3])
def test_scaffold_plus_warm_start_trap(s):
    # Algorithm 2 keeps c_r - c_0 = (n/s)(mean c_i,r - mean c_i,0) for gamma_c = 1; a fixed point has c = 0 and
    # c_i = g_i, so with c_0 = mean c_i,0 = grad f(x_0): grad f(x_inf) = (1 - s/n) grad f(x_0).
    ci0 = exact(SAME_START)
    first = mean_gradient(SAME_START[0])
    arguments = {"gamma": 0.01, "tau": 5, "rounds": 1500, "ci0": ci0}
    run = ref.scaffold_plus(SAME_START, exact, some(s), c0=ci0.mean(axis=0), **arguments)
    np.testing.assert_allclose(mean_gradient(run[-1][0]), (1 - s / N) * first, rtol=0, atol=1e-8)
    # The start the sheet asks for, c_0 = (n/s) mean c_i,0, is exact.
    run = ref.scaffold_plus(SAME_START, exact, some(s), c0=N / s * ci0.mean(axis=0), **arguments)
    assert error(run[-1]) < 1e-8
    # So is the usual warm start of Scaffold itself, gamma_c = s/n.
    run = ref.scaffold(SAME_START, exact, some(s), c0=ci0.mean(axis=0), **arguments)
    assert error(run[-1]) < 1e-8


def test_the_minimum_is_a_fixed_point_in_closed_form():
    # At x*, ST-GT with C = -G(x*) has Y = 0; the mean of A_i (x* - B_i) vanishes.
    at_minimum = np.tile(X_STAR, (N, 1))
    np.testing.assert_allclose(np.einsum("nij,nj->i", A, X_STAR - B), 0, rtol=0, atol=1e-12)
    run = ref.st_gt(at_minimum, exact, average, gamma=0.1, tau=3, rounds=5, c0=-exact(at_minimum))
    np.testing.assert_allclose(run[-1], at_minimum, rtol=0, atol=1e-12)


def test_variance_reduced_methods_on_a_hand_computed_run():
    # One node (W = 1, so Y = V), two components with gradients x and 3x - 3, gamma = 1/2, x_0 = 1, V_0 = 1/2.
    # SAGA, j = 0, 1: T = (1, 0);  x_1 = 3/4, V_1 = 3/4 - 1 + 1/2 = 1/4, T = (3/4, 0);
    #   x_2 = 5/8, V_2 = -9/8 - 0 + 3/8 = -3/4;  x_3 = 1.
    # SVRG, T = 2, j = 0, any, 1: x_1 = 3/4, V_1 = 3/4 - 1 + 1/2 = 1/4;  x_2 = 5/8 = x~, V_2 = (5/8 - 9/8)/2 = -1/4;
    #   x_3 = 3/4, V_3 = -3/4 + 9/8 - 1/4 = 1/8;  x_4 = 11/16.
    slopes, offsets = np.array([1.0, 3.0]), np.array([0.0, 3.0])
    options = {
        "component": lambda X, J: slopes[J, None] * X - offsets[J, None],
        "full": lambda X: 2 * X - 1.5,
        "gamma": 0.5,
    }
    one, start = (lambda r: np.ones((1, 1))), np.ones((1, 1))
    # The last draw forms a V that no returned X uses.
    saga = ref.gt_saga(start, one, draw=lambda k: np.array([[0, 1, 0][k - 1]]), m=2, rounds=3, **options)
    assert [X.item() for X in saga] == [1, 0.75, 0.625, 1]
    svrg = ref.gt_svrg(start, one, draw=lambda k: np.array([[0, 1, 1, 0][k - 1]]), T=2, rounds=4, **options)
    assert [X.item() for X in svrg] == [1, 0.75, 0.625, 0.75, 0.6875]


def _solve(L, K):
    """X with L X + K G(X) = 0, G(X)_i = A_i x_i - (Ab)_i: one (np, np) system."""
    operator = np.kron(L, np.eye(P)) + np.kron(K, np.eye(P)) @ _block_diagonal(A)
    return np.linalg.solve(operator, (K @ Ab).ravel()).reshape(N, P)


def _block_diagonal(blocks):
    out = np.zeros((N * P, N * P))
    for i, block in enumerate(blocks):
        out[i * P : (i + 1) * P, i * P : (i + 1) * P] = block
    return out
