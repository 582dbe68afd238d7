"""The methods that the paper does not have against literal transcriptions of their own papers, noise shared, to 1e-10.

The relaxed forms are written in the variables of the method that is relaxed. The problem is the nonlinear one of
`test_library_equals_paper.py`, and the graphs are its graphs, where the method allows them.
"""

import numpy as np
import pytest
import recursions as paper
from shared_noise import (
    GAMMA,
    ONE,
    PROBLEMS,
    ROUNDS,
    SEED,
    TOPOLOGIES,
    X0,
    N,
    assert_equal,
    gradients,
    library,
    sampled,
)

import stgt
from catalogue import suited
from stgt._internal.randomness import STREAM_START_GRADIENT

PROBLEM = PROBLEMS["nonconvex"]
GRADIENTS = gradients(PROBLEM)
LONG = 12  # rounds of the methods with one gradient a round
LAZY = stgt.topology.from_matrix((np.eye(N) + stgt.topology.ring(N).matrix(0)) / 2)


def ours(algorithm, topology, rounds=ROUNDS, x0=X0):
    return library(algorithm, PROBLEM, topology, rounds, x0)


@pytest.mark.parametrize(("beta", "adjoint"), [(0.25, False), (0.8, False), (0.25, True)])
def test_relaxed_stgt(topology, tau, beta, adjoint):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": beta, "adjoint": adjoint}
    theirs = paper.relaxed_st_gt(X0, GRADIENTS, topology.matrix, rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.STGT(**arguments), topology), theirs)


def test_relaxed_kgt(topology, tau):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": 0.3, "eta_s": 0.7}
    theirs = paper.relaxed_k_gt(X0, GRADIENTS, topology.matrix, rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.KGT(**arguments), topology), theirs)


@pytest.mark.parametrize("snapshot", ["first", "last"])
@pytest.mark.parametrize(("beta", "d"), [(0.3, 1), (1.0, 3), (0.3, 2)])
def test_relaxed_flexgt_with_several_exchanges(topology, tau, snapshot, beta, d):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": beta, "snapshot": snapshot}
    theirs = paper.relaxed_flexgt(X0, GRADIENTS, topology.matrix, d=d, rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.FlexGT(mixing_steps=d, **arguments), topology), theirs)


@pytest.mark.parametrize("atc_y", [True, False])
def test_relaxed_lugt(topology, tau, atc_y):
    arguments = {"tau": tau, "beta": 0.3, "atc_y": atc_y}
    theirs = paper.relaxed_lu_gt(X0, GRADIENTS, topology.matrix, eta=0.3, alpha=GAMMA / 0.3, rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.LUGT(gamma=GAMMA, **arguments), topology), theirs)


@pytest.mark.parametrize("option", [1, 2])
def test_relaxed_scaffold(server, tau, option):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": 0.3, "gamma_g": 1.3, "option": option}
    anchors = gradients(PROBLEM, STREAM_START_GRADIENT)
    theirs = paper.relaxed_scaffold(ONE, GRADIENTS, sampled(server), extra=anchors, rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.Scaffold(**arguments), server, x0=ONE), theirs)


@pytest.mark.parametrize("gamma_c", [1.0, 0.6])
def test_relaxed_scaffold_plus(server, tau, gamma_c):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": 0.3, "gamma_g": 1.3, "gamma_c": gamma_c}
    theirs = paper.relaxed_scaffold(ONE, GRADIENTS, sampled(server), rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.ScaffoldPlus(**arguments), server, x0=ONE), theirs)


@pytest.mark.parametrize("beta", [0.25, 1.0])
def test_led(topology, tau, beta):
    """The paper's dual step is β/τ, and its y is γτ/β times our c."""
    models, duals = paper.led(X0, GRADIENTS, topology.matrix, alpha=GAMMA, beta=beta / tau, tau=tau, rounds=ROUNDS)
    algorithm = stgt.LED(gamma=GAMMA, tau=tau, beta=beta)
    assert_equal(ours(algorithm, topology), models)
    options = {"x0": X0, "engine": "numpy", "oracle": stgt.oracles.Noisy(0.25)}
    c = stgt.simulate(algorithm, PROBLEM, topology, ROUNDS, [SEED], **options).state["c"][0]
    np.testing.assert_allclose(c * GAMMA * tau / beta, duals[-1], rtol=0, atol=1e-10)


def test_exact_diffusion(topology):
    algorithm = stgt.ExactDiffusion(gamma=GAMMA)
    graph = suited(algorithm, topology)
    theirs = paper.exact_diffusion(X0, GRADIENTS, graph.matrix, mu=GAMMA, rounds=LONG)
    assert_equal(ours(algorithm, graph, LONG), theirs)


@pytest.mark.parametrize("graph", ["lazy ring", "time-varying"])
def test_d_squared(graph):
    """The plain ring of six has the eigenvalue −1/3, at which D² is not defined: it is refused by name."""

    algorithm = stgt.ExactDiffusion(gamma=GAMMA, lazy=False)
    topology = LAZY if graph == "lazy ring" else suited(algorithm, TOPOLOGIES[graph])
    theirs = paper.d_squared(X0, GRADIENTS, topology.matrix, gamma=GAMMA, rounds=LONG)
    assert_equal(ours(algorithm, topology, LONG), theirs)


def test_extra():
    """Its two steps are written for a fixed W."""
    for topology in (stgt.topology.ring(N), stgt.topology.exponential(N, symmetric=True), LAZY):
        theirs = paper.extra(X0, GRADIENTS, topology.matrix(0), alpha=GAMMA, rounds=LONG)
        assert_equal(ours(stgt.EXTRA(gamma=GAMMA), topology, LONG), theirs)


@pytest.mark.parametrize("alpha", [0.1, 1.5])
def test_feddyn(server, tau, alpha):
    arguments = {"gamma": GAMMA, "tau": tau, "alpha": alpha}
    theirs = paper.feddyn(ONE, GRADIENTS, sampled(server), rounds=ROUNDS, **arguments)
    assert_equal(ours(stgt.FedDyn(**arguments), server, x0=ONE), theirs)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_tracking(topology, momentum):
    theirs = paper.momentum_tracking(X0, GRADIENTS, topology.matrix, eta=GAMMA, beta=momentum, rounds=LONG)
    assert_equal(ours(stgt.MomentumTracking(gamma=GAMMA, momentum=momentum), topology, LONG), theirs)


@pytest.mark.parametrize("bound", [1e6, 0.02])
def test_gtadam(topology, bound):
    """A bound of 0.02 is one that v reaches."""
    theirs = paper.gt_adam(
        X0, GRADIENTS, topology.matrix, alpha=GAMMA, beta1=0.8, beta2=0.9, eps=1e-3, G=bound, rounds=LONG
    )
    algorithm = stgt.GTAdam(gamma=GAMMA, beta_1=0.8, beta_2=0.9, epsilon=1e-3, bound=bound)
    assert_equal(ours(algorithm, topology, LONG), theirs)


OUTER = {"lr": 0.7, "momentum": 0.6}


def test_diloco(server, tau):
    theirs = paper.diloco(ONE, GRADIENTS, sampled(server), gamma=GAMMA, tau=tau, rounds=ROUNDS, lr=0.7, momentum=0.9)
    assert_equal(ours(stgt.DiLoCo(gamma=GAMMA, tau=tau), server, x0=ONE), theirs)


def test_noloco(tau):
    matching = stgt.topology.random_matching(N)

    def pairs(r):
        W = matching.matrix(r, SEED)
        found = [(i, j) for i in range(N) for j in range(i + 1, N) if W[i, j]]
        assert sorted(sum(found, ())) == list(range(N)), "an even number of nodes is matched wholly"
        return found

    theirs = paper.noloco(X0, GRADIENTS, pairs, gamma=GAMMA, tau=tau, rounds=ROUNDS, eta=0.7, mu=0.5)
    assert_equal(ours(stgt.NoLoCo(gamma=GAMMA, tau=tau), matching), theirs)


def test_outer_stgt(topology, tau):
    arguments = {"gamma": GAMMA, "tau": tau, "beta": 0.25}
    theirs = paper.outer_st_gt(X0, GRADIENTS, topology.matrix, rounds=ROUNDS, **OUTER, **arguments)
    assert_equal(ours(stgt.Outer(stgt.STGT(**arguments), **OUTER), topology), theirs)


def test_outer_led(topology, tau):
    theirs = paper.outer_led(
        X0, GRADIENTS, topology.matrix, alpha=GAMMA, beta=0.25 / tau, tau=tau, rounds=ROUNDS, **OUTER
    )
    assert_equal(ours(stgt.Outer(stgt.LED(beta=0.25), gamma=GAMMA, tau=tau, **OUTER), topology), theirs)


def test_outer_scaffold_plus(server, tau):
    arguments = {"gamma": GAMMA, "tau": tau, "gamma_g": 1.3, "gamma_c": 0.6}
    theirs = paper.outer_scaffold_plus(ONE, GRADIENTS, sampled(server), rounds=ROUNDS, **OUTER, **arguments)
    assert_equal(ours(stgt.Outer(stgt.ScaffoldPlus(**arguments), **OUTER), server, x0=ONE), theirs)


# -- server optimisers --------------------------------------------------------------------------------------------

ADAPTIVE = {"lr": 0.05, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.03}  # an ε of the size of Δ
KINDS = {"adam": "FedAdam", "yogi": "FedYogi", "adagrad": "FedAdagrad"}


def server_opt(rule, shape):
    return paper.ServerOpt(KINDS[rule], eta=0.05, beta1=0.8, beta2=0.9, tau_a=0.03, shape=shape)


def test_fedavgm(server, tau):
    theirs = paper.fedavgm(ONE, GRADIENTS, sampled(server), gamma=GAMMA, tau=tau, rounds=ROUNDS, beta=0.9)
    assert_equal(ours(stgt.FedAvgM(gamma=GAMMA, tau=tau), server, x0=ONE), theirs)


@pytest.mark.parametrize("kind", [stgt.FedAdam, stgt.FedYogi])
def test_fedadam_and_fedyogi(server, tau, kind):
    algorithm = kind(gamma=GAMMA, tau=tau, **ADAPTIVE)
    opt = server_opt(algorithm.rule, ONE[0].shape)
    theirs = paper.fed_opt(ONE, GRADIENTS, sampled(server), opt, eta_l=GAMMA, K=tau, T=ROUNDS)
    assert_equal(ours(algorithm, server, x0=ONE), theirs)


def test_fedyogi_takes_both_of_its_turns():
    """v falls where Δ² is small and rises where it is large, in one run: else half of the rule is not compared."""
    server, opt = stgt.topology.server(N), server_opt("yogi", ONE[0].shape)
    paper.fed_opt(ONE, GRADIENTS, sampled(server), opt, eta_l=GAMMA, K=2, T=ROUNDS)
    assert opt.signs == {-1.0, 1.0}


def test_fedadagrad(server, tau):
    algorithm = stgt.Adaptive(stgt.FedAvg(gamma=GAMMA, tau=tau), rule="adagrad", **ADAPTIVE)
    opt = server_opt("adagrad", ONE[0].shape)
    theirs = paper.fed_opt(ONE, GRADIENTS, sampled(server), opt, eta_l=GAMMA, K=tau, T=ROUNDS)
    assert_equal(ours(algorithm, server, x0=ONE), theirs)


@pytest.mark.parametrize("rule", KINDS)
def test_adaptive_scaffold_plus_and_its_control_variables(server, rule):
    arguments = {"gamma": GAMMA, "tau": 3, "gamma_g": 1.3, "gamma_c": 0.6}
    algorithm = stgt.Adaptive(stgt.ScaffoldPlus(**arguments), rule=rule, **ADAPTIVE)
    opt = server_opt(rule, ONE[0].shape)
    theirs, c, own = paper.adaptive_scaffold_plus(ONE, GRADIENTS, sampled(server), opt, rounds=ROUNDS, **arguments)
    assert_equal(ours(algorithm, server, x0=ONE), theirs)
    options = {"x0": ONE, "engine": "numpy", "oracle": stgt.oracles.Noisy(0.25)}
    state = stgt.simulate(algorithm, PROBLEM, server, ROUNDS, [SEED], **options).state
    for name, expected in {"c": c, "own": own, "m": opt.m, "v": opt.v}.items():
        np.testing.assert_allclose(state[name][0], np.broadcast_to(expected, (N, len(c))), rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", KINDS)
def test_adaptive_stgt(topology, rule):
    opt = server_opt(rule, X0.shape)
    theirs = paper.adaptive_st_gt(X0, GRADIENTS, topology.matrix, opt, gamma=GAMMA, tau=3, rounds=ROUNDS)
    assert_equal(ours(stgt.Adaptive(stgt.STGT(gamma=GAMMA, tau=3), rule=rule, **ADAPTIVE), topology), theirs)
