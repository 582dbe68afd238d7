"""Equivalences among the transcriptions (sheet, section 3), with shared noise on a nonlinear problem.

A check on the transcriptions themselves: two of them were written from different equations, so equal runs mean that
both are right. The library is not involved.
"""

import numpy as np
import pytest
import recursions as ref
from recursions_problem import (
    SAME_START,
    SPREAD_START,
    N,
    average,
    directed,
    distance,
    everyone,
    exact,
    noisy,
    ring,
    some,
)

EQUAL = 1e-10
DIFFERENT = 1e-2
LOCAL = {"gamma": 0.05, "rounds": 25}
taus = pytest.mark.parametrize("tau", [1, 2, 7])


def st_gt(tau, X0=SPREAD_START, W=directed, **options):
    return ref.st_gt(X0, noisy, W, tau=tau, **LOCAL, **options)


@taus
def test_fixed_algorithm1_is_st_gt(tau):
    assert distance(ref.st_gt_algorithm1_fixed(SPREAD_START, noisy, directed, tau=tau, **LOCAL), st_gt(tau)) < EQUAL


@taus
@pytest.mark.parametrize("reading", ["A", "B"])
def test_printed_algorithm1_is_not_st_gt(tau, reading):
    printed = ref.st_gt_algorithm1_printed(SPREAD_START, noisy, directed, tau=tau, reading=reading, **LOCAL)
    assert distance(printed, st_gt(tau)) > DIFFERENT


@taus
def test_four_buffers_are_st_gt(tau):
    assert distance(ref.st_gt_four_buffers(SPREAD_START, noisy, directed, tau=tau, **LOCAL), st_gt(tau)) < EQUAL


@taus
def test_k_gt_with_unit_server_stepsize_is_st_gt(tau):
    assert distance(ref.k_gt(SPREAD_START, noisy, directed, tau=tau, eta_s=1.0, **LOCAL), st_gt(tau)) < EQUAL
    assert distance(ref.k_gt(SPREAD_START, noisy, directed, tau=tau, eta_s=0.7, **LOCAL), st_gt(tau)) > DIFFERENT


@taus
def test_warm_k_gt_is_st_gt_from_the_same_correction(tau):
    def extra(X, k):
        return noisy(X, 10_000 + k)

    G = extra(SPREAD_START, 0)
    warm = ref.k_gt(SPREAD_START, noisy, directed, tau=tau, warm_start=True, extra=extra, **LOCAL)
    assert distance(warm, st_gt(tau, c0=G.mean(axis=0) - G)) < EQUAL
    assert distance(warm, st_gt(tau)) > DIFFERENT


@pytest.mark.parametrize("snapshot", ["first", "last"])
def test_one_local_step_makes_st_gt_dsgt_and_flexgt(snapshot):
    dsgt = ref.dsgt(SPREAD_START, noisy, directed, **LOCAL)
    assert distance(st_gt(1), dsgt) < EQUAL
    assert distance(ref.flexgt(SPREAD_START, noisy, directed, tau=1, snapshot=snapshot, **LOCAL), dsgt) < EQUAL


@pytest.mark.parametrize("tau", [2, 7])
def test_flexgt_variants_and_st_gt_differ_with_local_steps(tau):
    first, last = (
        ref.flexgt(SPREAD_START, noisy, directed, tau=tau, snapshot=snapshot, **LOCAL) for snapshot in ("first", "last")
    )
    assert distance(first, last) > DIFFERENT
    assert distance(first, st_gt(tau)) > DIFFERENT
    assert distance(last, st_gt(tau)) > DIFFERENT


@taus
def test_lu_gt_that_mixes_the_tracker_only_is_flexgt_last(tau):
    # Effective gamma = eta alpha = 0.05. With atc_y the gradient difference is mixed too: a different method.
    options = {"eta": 0.1, "alpha": 0.5, "tau": tau, "rounds": 25}
    flexgt = ref.flexgt(SPREAD_START, noisy, directed, tau=tau, snapshot="last", **LOCAL)
    assert distance(ref.lu_gt(SPREAD_START, noisy, directed, atc_y=False, **options), flexgt) < EQUAL
    assert distance(ref.lu_gt(SPREAD_START, noisy, directed, atc_y=True, **options), flexgt) > DIFFERENT


def test_lu_gt_in_one_step_is_aug_dgm_with_equal_stepsizes():
    lu_gt = ref.lu_gt(SPREAD_START, noisy, directed, eta=0.1, alpha=0.5, tau=1, rounds=25, atc_y=True)
    assert distance(lu_gt, ref.aug_dgm(SPREAD_START, noisy, directed, D=np.full(N, 0.05), rounds=25)) < EQUAL


def test_next_with_a_linear_surrogate_is_dsgt():
    # gamma = alpha t n.
    alpha, t = 0.2, 0.05 / (0.2 * N)
    linear = ref.next_linear(SPREAD_START, noisy, directed, t=t, alpha=lambda k: alpha, rounds=25)
    assert distance(linear, ref.dsgt(SPREAD_START, noisy, directed, gamma=alpha * t * N, rounds=25)) < EQUAL


def test_one_step_trackers_without_their_tracker():
    # Fixed W, Y eliminated: X_{k+2} = 2 W X_{k+1} - W^2 X_k - gamma K (G_{k+1} - G_k), where K = I for DIGing,
    # W for DSGT and W^2 for Aug-DGM with equal stepsizes.
    w, gamma = ring(), 0.05
    runs = [
        (ref.diging(SPREAD_START, noisy, ring, **LOCAL), np.eye(N)),
        (ref.dsgt(SPREAD_START, noisy, ring, **LOCAL), w),
        (ref.aug_dgm(SPREAD_START, noisy, ring, D=np.full(N, gamma), rounds=25), w @ w),
    ]
    for X, K in runs:
        G = [noisy(x, k) for k, x in enumerate(X)]
        for k in range(24):
            expected = 2 * w @ X[k + 1] - w @ w @ X[k] - gamma * K @ (G[k + 1] - G[k])
            np.testing.assert_allclose(X[k + 2], expected, rtol=0, atol=EQUAL)


def test_aug_dgm_without_mixing_is_gradient_descent_with_the_stepsize_of_each_node():
    D = np.linspace(0.02, 0.07, N)
    run = ref.aug_dgm(SPREAD_START, noisy, lambda r: np.eye(N), D=D, rounds=10)
    X = SPREAD_START
    for k in range(10):
        X = X - D[:, None] * noisy(X, k)
        np.testing.assert_allclose(run[k + 1], X, rtol=0, atol=EQUAL)


@taus
def test_full_scaffold_plus_is_st_gt_on_the_average(tau):
    full = ref.scaffold_plus(SAME_START, noisy, everyone, tau=tau, gamma_g=1.0, gamma_c=1.0, **LOCAL)
    assert distance(full, st_gt(tau, SAME_START, average)) < EQUAL


@taus
def test_periodic_scaffnew_is_st_gt_on_the_average(tau):
    periodic = ref.scaffnew_periodic(SAME_START, noisy, tau=tau, **LOCAL)
    assert distance(periodic, st_gt(tau, SAME_START, average)) < EQUAL


def test_periodic_scaffnew_is_st_gt_from_equal_rows_only():
    # -H+ = -H + (X^ - J X^)/(gamma tau), but C+ = C + (X^ - J X^)/(gamma tau) - (X_0 - J X_0)/(gamma tau) in round 0.
    # (At tau = 1 and W = J the correction never reaches the mean, so nothing shows.)
    periodic = ref.scaffnew_periodic(SPREAD_START, noisy, tau=2, **LOCAL)
    assert distance(periodic, st_gt(2, SPREAD_START, average)) > DIFFERENT


@taus
@pytest.mark.parametrize("s", [1, 2, 4])
@pytest.mark.parametrize("gamma_g", [1.0, 1.5])
def test_scaffold_plus_with_gamma_c_s_over_n_is_scaffold(tau, s, gamma_g):
    plus = ref.scaffold_plus(SAME_START, noisy, some(s), tau=tau, gamma_g=gamma_g, gamma_c=s / N, **LOCAL)
    assert distance(plus, ref.scaffold(SAME_START, noisy, some(s), tau=tau, gamma_g=gamma_g, **LOCAL)) < EQUAL


def test_one_local_step_makes_the_options_of_scaffold_one():
    # tau = 1: c_i - c + (x - x_i)/gamma = g_i(x). With more steps option 2 averages gradients along the way.
    def options(tau):
        return (
            ref.scaffold(SAME_START, noisy, some(2), tau=tau, option=option, extra=noisy, **LOCAL) for option in (1, 2)
        )

    assert distance(*options(1)) < EQUAL
    assert distance(*options(3)) > DIFFERENT


def test_option_1_asks_for_the_gradient_at_the_server_model_of_every_round():
    calls = []

    def extra(X, k):
        calls.append((X.copy(), k))
        return noisy(X, k)

    run = ref.scaffold(SAME_START, noisy, some(2), tau=3, option=1, extra=extra, **LOCAL)
    assert [k for _, k in calls] == list(range(0, 75, 3))
    assert distance([X for X, _ in calls], run[:-1]) == 0


@taus
@pytest.mark.parametrize("s", [2, 6])
@pytest.mark.parametrize("gamma_c", [0.4, 1.0])
def test_three_forms_of_scaffold_plus_agree_from_any_control_variables(tau, s, gamma_c):
    rng = np.random.default_rng(6)
    options = {"tau": tau, "gamma_g": 1.2, "gamma_c": gamma_c, "c0": rng.standard_normal(3), **LOCAL}
    options["ci0"] = rng.standard_normal(SAME_START.shape)
    plus = ref.scaffold_plus(SAME_START, noisy, some(s), **options)
    assert distance(ref.scaffold_plus_tracking(SAME_START, noisy, some(s), **options), plus) < EQUAL
    assert distance(ref.scaffold_uplink_only(SAME_START, noisy, some(s), **options), plus) < EQUAL


def test_fedprox_without_its_term_is_fedavg_and_one_step_of_all_is_sgd():
    fedavg = ref.fedavg(SAME_START, noisy, some(3), tau=4, **LOCAL)
    assert distance(ref.fedprox(SAME_START, noisy, some(3), tau=4, mu_p=0.0, **LOCAL), fedavg) < EQUAL
    assert distance(ref.fedprox(SAME_START, noisy, some(3), tau=4, mu_p=1.0, **LOCAL), fedavg) > DIFFERENT
    sgd = ref.d_psgd(SAME_START, noisy, average, atc=True, **LOCAL)
    assert distance(ref.fedavg(SAME_START, noisy, everyone, tau=1, **LOCAL), sgd) < EQUAL


def test_one_component_a_node_makes_the_variance_reduced_methods_diging():
    # m = 1: fresh - T + mean(T) = fresh, and the same for SVRG.
    options = {"component": lambda X, J: exact(X), "full": exact, "draw": lambda k: np.zeros(N, dtype=int), **LOCAL}
    diging = ref.diging(SPREAD_START, exact, directed, **LOCAL)
    assert distance(ref.gt_saga(SPREAD_START, directed, m=1, **options), diging) < EQUAL
    assert distance(ref.gt_svrg(SPREAD_START, directed, T=3, **options), diging) < EQUAL
