"""Every algorithm of the library against the literal transcription of its paper's recursion, noise shared, to 1e-10.

The transcriptions (`recursions*.py`) never import the library; here they are given its gradients: the exact gradient
plus the noise, or the samples, that the clock of randomness yields at (seed, node, step).
"""

import numpy as np
import pytest
import recursions as paper
from shared_noise import GAMMA, ONE, ROUNDS, SEED, X0, N, P, assert_equal, clock, gradients, library, sampled

import stgt
from catalogue import quadratic, two_matrices
from stgt._internal.randomness import STREAM_COIN, STREAM_INITIAL, STREAM_START_GRADIENT, unit, words


def test_stgt(problem, topology, tau):
    ours = library(stgt.STGT(gamma=GAMMA, tau=tau), problem, topology, ROUNDS)
    arguments = {"gamma": GAMMA, "tau": tau, "rounds": ROUNDS}
    assert_equal(ours, paper.st_gt(X0, gradients(problem), topology.matrix, **arguments))
    assert_equal(ours, paper.st_gt_algorithm1_fixed(X0, gradients(problem), topology.matrix, **arguments))
    assert_equal(ours, paper.st_gt_four_buffers(X0, gradients(problem), topology.matrix, **arguments))


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize("eta_s", [1.0, 0.7])
def test_kgt(problem, topology, tau, eta_s, warm_start):
    algorithm = stgt.KGT(gamma=GAMMA, tau=tau, eta_s=eta_s, warm_start=warm_start)
    theirs = paper.k_gt(
        X0,
        gradients(problem),
        topology.matrix,
        gamma=GAMMA,
        tau=tau,
        rounds=ROUNDS,
        eta_s=eta_s,
        warm_start=warm_start,
        extra=gradients(problem, STREAM_INITIAL),
    )
    assert_equal(library(algorithm, problem, topology, ROUNDS), theirs)


@pytest.mark.parametrize("snapshot", ["first", "last"])
def test_flexgt(problem, topology, tau, snapshot):
    algorithm = stgt.FlexGT(gamma=GAMMA, tau=tau, snapshot=snapshot)
    theirs = paper.flexgt(
        X0, gradients(problem), topology.matrix, gamma=GAMMA, tau=tau, rounds=ROUNDS, snapshot=snapshot
    )
    assert_equal(library(algorithm, problem, topology, ROUNDS), theirs)


@pytest.mark.parametrize("atc_y", [True, False])
def test_lugt(problem, topology, tau, atc_y):
    theirs = paper.lu_gt(
        X0, gradients(problem), topology.matrix, eta=0.3, alpha=GAMMA / 0.3, tau=tau, rounds=ROUNDS, atc_y=atc_y
    )
    assert_equal(library(stgt.LUGT(gamma=GAMMA, tau=tau, atc_y=atc_y), problem, topology, ROUNDS), theirs)


@pytest.mark.parametrize(
    ("algorithm", "recursion"), [(stgt.DSGT(gamma=GAMMA), paper.dsgt), (stgt.DIGing(gamma=GAMMA), paper.diging)]
)
def test_dsgt_and_diging(problem, topology, algorithm, recursion):
    theirs = recursion(X0, gradients(problem), topology.matrix, gamma=GAMMA, rounds=20)
    assert_equal(library(algorithm, problem, topology, 20), theirs)


def test_augdgm(problem, topology):
    D = np.linspace(0.5, 1.5, N) * GAMMA
    theirs = paper.aug_dgm(X0, gradients(problem), topology.matrix, D=D, rounds=20)
    assert_equal(library(stgt.AugDGM(gamma=D), problem, topology, 20), theirs)
    same = paper.aug_dgm(X0, gradients(problem), topology.matrix, D=np.full(N, GAMMA), rounds=20)
    assert_equal(library(stgt.AugDGM(gamma=GAMMA), problem, topology, 20), same)


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_next(problem, topology, decay):
    # Our gamma is t·n, as the paper's objective is the sum of the f_i.
    theirs = paper.next_linear(
        X0, gradients(problem), topology.matrix, t=GAMMA / N, alpha=lambda k: 0.8 / (k + 1) ** decay, rounds=20
    )
    assert_equal(library(stgt.NEXT(gamma=GAMMA, alpha=0.8, decay=decay), problem, topology, 20), theirs)


@pytest.mark.parametrize("atc", [False, True])
def test_dpsgd(problem, topology, atc):
    theirs = paper.d_psgd(X0, gradients(problem), topology.matrix, gamma=GAMMA, rounds=20, atc=atc)
    assert_equal(library(stgt.DPSGD(gamma=GAMMA, atc=atc), problem, topology, 20), theirs)


@pytest.mark.parametrize("directed", [two_matrices(N), two_matrices(N, period=3)], ids=["static", "time-varying"])
def test_push_pull(problem, directed):
    def push(k):
        return directed.matrix(k, pushed=True)

    theirs = paper.push_pull(X0, gradients(problem), directed.matrix, push, gamma=GAMMA, rounds=20)
    assert_equal(library(stgt.PushPull(gamma=GAMMA), problem, directed, 20), theirs)
    assert_equal(library(stgt.DSGT(gamma=GAMMA), problem, directed, 20), theirs)


def test_local_steps_on_push_pull(problem, tau):
    """Literally: tau steps with c, the model by R, the mean direction by C."""
    directed, grad = two_matrices(N), gradients(problem)
    X, c, theirs = X0, np.zeros_like(X0), [X0]
    for r in range(ROUNDS):
        Z, start = 0.0, X
        for t in range(tau):
            Y = grad(X, r * tau + t) + c
            X, Z = X - GAMMA * Y, Z + Y / tau
        assert np.allclose(start - X, GAMMA * tau * Z)
        X, c = directed.matrix(r) @ X, c + 0.5 * (directed.matrix(r, pushed=True) @ Z - Z)
        theirs.append(X)
    assert_equal(library(stgt.STGT(gamma=GAMMA, tau=tau, beta=0.5), problem, directed, ROUNDS), theirs)


@pytest.mark.parametrize("method", ["saga", "svrg"])
def test_variance_reduction(topology, method):
    m = 5
    equal = logistic_with_equal_counts(m)  # as the papers have it

    def component(X, J):
        rows = equal.data["signed"][np.arange(N), J]
        slope = -1 / (1 + np.exp((rows * X).sum(axis=1)))
        return slope[:, None] * rows + 0.1 * X

    def draw(k):
        return clock(k).integers(1, np.full(N, m))[:, 0]

    common = {"component": component, "full": equal.gradients, "draw": draw, "gamma": GAMMA, "rounds": 25}
    if method == "saga":
        theirs = paper.gt_saga(X0, topology.matrix, m=m, **common)
        algorithm = stgt.GTSAGA(gamma=GAMMA)
    else:
        theirs = paper.gt_svrg(X0, topology.matrix, T=4, **common)
        algorithm = stgt.GTSVRG(gamma=GAMMA, period=4)
    assert_equal(library(algorithm, equal, topology, 25, oracle=None), theirs)


def logistic_with_equal_counts(m):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(N * m, P))
    labels = np.arange(N * m) % 2
    return stgt.problems.logistic(features, labels, partition=list(np.arange(N * m).reshape(N, m)), l2=0.1)


def test_fedavg_and_fedprox(problem, server, tau):
    arguments = {"gamma": GAMMA, "tau": tau, "rounds": ROUNDS}
    theirs = paper.fedavg(ONE, gradients(problem), sampled(server), **arguments)
    assert_equal(library(stgt.FedAvg(gamma=GAMMA, tau=tau), problem, server, ROUNDS, ONE), theirs)
    theirs = paper.fedprox(ONE, gradients(problem), sampled(server), mu_p=0.4, **arguments)
    assert_equal(library(stgt.FedProx(gamma=GAMMA, tau=tau, mu_prox=0.4), problem, server, ROUNDS, ONE), theirs)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("warm_start", [False, True])
def test_scaffold(problem, server, tau, option, warm_start):
    start = {}
    if warm_start:
        ci0 = gradients(problem, STREAM_INITIAL)(ONE, 0)
        start = {"ci0": ci0, "c0": ci0.mean(axis=0)}
    theirs = paper.scaffold(
        ONE,
        gradients(problem),
        sampled(server),
        gamma=GAMMA,
        tau=tau,
        rounds=ROUNDS,
        gamma_g=1.3,
        option=option,
        extra=gradients(problem, STREAM_START_GRADIENT),
        **start,
    )
    algorithm = stgt.Scaffold(gamma=GAMMA, tau=tau, gamma_g=1.3, option=option, warm_start=warm_start)
    assert_equal(library(algorithm, problem, server, ROUNDS, ONE), theirs)


@pytest.mark.parametrize(("gamma_g", "gamma_c"), [(1.0, 1.0), (1.4, 0.6), (0.8, 0.0)])
def test_scaffold_plus(problem, server, tau, gamma_g, gamma_c):
    arguments = {"gamma": GAMMA, "tau": tau, "rounds": ROUNDS, "gamma_g": gamma_g, "gamma_c": gamma_c}
    ours = library(
        stgt.ScaffoldPlus(**{k: v for k, v in arguments.items() if k != "rounds"}), problem, server, ROUNDS, ONE
    )
    assert_equal(ours, paper.scaffold_plus(ONE, gradients(problem), sampled(server), **arguments))
    assert_equal(ours, paper.scaffold_uplink_only(ONE, gradients(problem), sampled(server), **arguments))
    assert_equal(ours, paper.scaffold_plus_tracking(ONE, gradients(problem), sampled(server), **arguments))


def test_proxskip(problem, tau):
    def coin(k):
        return unit(words(np, SEED, k, 0, 0, STREAM_COIN)[0], np.float64)[0] < 0.4

    theirs = paper.scaffnew(ONE, gradients(problem), gamma=GAMMA, p=0.4, coin=coin, iterations=20)
    ours = library(stgt.ProxSkip(gamma=GAMMA, p=0.4), problem, stgt.topology.complete(N), 20, ONE)
    assert_equal(ours, theirs)
    periodic = paper.scaffnew_periodic(ONE, gradients(problem), gamma=GAMMA, tau=tau, rounds=ROUNDS)
    ours = library(stgt.ProxSkip(gamma=GAMMA, tau=tau), problem, stgt.topology.complete(N), ROUNDS, ONE)
    assert_equal(ours, periodic)


@pytest.mark.parametrize("reading", ["A", "B"])
def test_the_printed_algorithm_fails_and_ours_converges(reading):
    """The erratum of Algorithm 1: as printed it loses g_{rτ}, stalls at a wrong point or diverges."""
    problem, topology = quadratic(N, P), stgt.topology.ring(N)
    arguments = {"gamma": GAMMA, "tau": 5, "rounds": 400}
    exact = lambda X, k: problem.gradients(X)  # noqa: E731
    printed = paper.st_gt_algorithm1_printed(ONE, exact, topology.matrix, reading=reading, **arguments)[-1]
    ours = stgt.simulate(stgt.STGT(gamma=GAMMA, tau=5), problem, topology, 400, x0=ONE, dtype="float64").x[0]
    assert np.abs(ours - problem.optimum).max() < 1e-10
    assert np.abs(printed - problem.optimum).max() > 1e-2
    if reading == "B":
        # Closed form: the lost gradient leaves ∇f(x_∞) = −∇f(x_0)/(τ − 1).
        wrong = problem.gradient(printed.mean(axis=0))
        np.testing.assert_allclose(wrong, -problem.gradient(ONE[0]) / 4, atol=1e-8)
