"""What equals what in the family (docs/algorithms.md), to 1e-10, with noise shared."""

import numpy as np
import pytest

import stgt
from catalogue import directed_schedule, logistic, quadratic, suited

N, P, ROUNDS = 6, 3, 12
TAUS = (1, 2, 7)
X0 = np.random.default_rng(2).normal(size=(N, P))
PROBLEMS = {
    "quadratic": quadratic(N, P, noise=0.25),
    "nonlinear": logistic(N, P, l2=0.0, nonconvex=0.2, batch=None),
}
J = stgt.topology.complete(N)


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]


@pytest.fixture(params=["ring", "directed, time-varying"])
def topology(request):
    return stgt.topology.ring(N) if request.param == "ring" else directed_schedule(N, period=5)


def last(algorithm, problem, topology, rounds=ROUNDS, x0=X0, **options):
    options = {"oracle": stgt.oracles.Noisy(0.25), **options}
    return stgt.simulate(algorithm, problem, topology, rounds, [3], x0=x0, engine="numpy", **options).x[0]


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert np.abs(one - X0).max() > 1e-2


@pytest.mark.parametrize("tau", TAUS)
def test_kgt_is_stgt(problem, topology, tau):
    stgt_x = last(stgt.STGT(gamma=0.05, tau=tau), problem, topology)
    same(last(stgt.KGT(gamma=0.05, tau=tau), problem, topology), stgt_x)
    other = last(stgt.KGT(gamma=0.05, tau=tau, eta_s=0.7), problem, topology)
    assert np.abs(other - stgt_x).max() > 1e-3, "eta_s != 1 is another algorithm"


@pytest.mark.parametrize("tau", TAUS)
def test_a_warm_kgt_is_stgt_with_that_start(problem, topology, tau):
    exact = {"oracle": stgt.oracles.Exact()}
    g = problem.gradients(X0)
    warm = last(stgt.KGT(gamma=0.05, tau=tau, warm_start=True), problem, topology, **exact)
    same(warm, last(stgt.STGT(gamma=0.05, tau=tau), problem, topology, state0={"c": g.mean(axis=0) - g}, **exact))


def test_the_start_of_c_is_forgotten():
    """Two starts of c differ after a round and agree in the end: both converge to the same optimum."""
    problem, ring = quadratic(N, P), stgt.topology.ring(N)
    runs = {
        rounds: [
            last(stgt.KGT(gamma=0.05, tau=5, warm_start=warm), problem, ring, rounds, oracle=None)
            for warm in (True, False)
        ]
        for rounds in (2, 400)
    }
    assert np.abs(runs[2][0] - runs[2][1]).max() > 1e-2
    assert np.abs(runs[400][0] - runs[400][1]).max() < 1e-9


def test_one_local_step_is_dsgt(problem, topology):
    dsgt = last(stgt.DSGT(gamma=0.05), problem, topology)
    for algorithm in (
        stgt.STGT(gamma=0.05),
        stgt.FlexGT(gamma=0.05, snapshot="first"),
        stgt.FlexGT(gamma=0.05, snapshot="last"),
        stgt.NEXT(gamma=0.1, alpha=0.5),
    ):
        same(last(algorithm, problem, topology), dsgt)


def test_the_two_snapshots_of_flexgt_differ_beyond_one_step(problem, topology):
    runs = [last(stgt.FlexGT(gamma=0.05, tau=4, snapshot=word), problem, topology) for word in ("first", "last")]
    assert np.abs(runs[0] - runs[1]).max() > 1e-3


@pytest.mark.parametrize("tau", [1, 4, 10])
def test_scaffold_plus_with_all_workers_is_stgt(problem, tau):
    x0 = X0[0]
    stgt_x = last(stgt.STGT(gamma=0.05, tau=tau), problem, J, x0=x0)
    same(last(stgt.ScaffoldPlus(gamma=0.05, tau=tau), problem, stgt.topology.server(N), x0=x0), stgt_x)
    same(last(stgt.Scaffold(gamma=0.05, tau=tau), problem, stgt.topology.server(N), x0=x0), stgt_x)
    same(last(stgt.STGT(gamma=0.05, tau=tau), problem, stgt.topology.server(N), x0=x0), stgt_x)


@pytest.mark.parametrize("tau", TAUS)
def test_scaffold_plus_is_stgt_on_any_graph(problem, topology, tau):
    """With γ_g = γ_c = 1, c − own is ST-GT's c: own is the round's mean gradient ḡ, c is W z, and c⁺ = W z − ḡ."""
    same(
        last(stgt.ScaffoldPlus(gamma=0.05, tau=tau), problem, topology),
        last(stgt.STGT(gamma=0.05, tau=tau), problem, topology),
    )


@pytest.mark.parametrize("s", [1, 2, 4])
@pytest.mark.parametrize("gamma_g", [1.0, 1.5])
def test_scaffold_plus_with_gamma_c_s_over_n_is_scaffold(problem, s, gamma_g):
    server = stgt.topology.server(N, sampled=s)
    same(
        last(stgt.ScaffoldPlus(gamma=0.05, tau=4, gamma_g=gamma_g, gamma_c=s / N), problem, server, x0=X0[0]),
        last(stgt.Scaffold(gamma=0.05, tau=4, gamma_g=gamma_g), problem, server, x0=X0[0]),
    )


@pytest.mark.parametrize("tau", TAUS)
def test_periodic_proxskip_is_stgt_with_the_mean(problem, tau):
    """p = 1/τ. The rows of x_0 must be equal: otherwise ST-GT's first z carries (X_0 − J X_0)/(γτ)."""
    same(
        last(stgt.ProxSkip(gamma=0.05, tau=tau), problem, J, x0=X0[0]),
        last(stgt.STGT(gamma=0.05, tau=tau), problem, J, x0=X0[0]),
    )


@pytest.mark.parametrize("tau", TAUS)
def test_lugt(problem, topology, tau):
    same(
        last(stgt.LUGT(gamma=0.05, tau=tau, atc_y=False), problem, topology),
        last(stgt.FlexGT(gamma=0.05, tau=tau, snapshot="last"), problem, topology),
    )
    same(last(stgt.AugDGM(gamma=0.05), problem, topology), last(stgt.LUGT(gamma=0.05), problem, topology))


@pytest.mark.parametrize("tau", TAUS)
def test_fedavg_with_all_workers_is_local_sgd(problem, tau):
    same(
        last(stgt.FedAvg(gamma=0.05, tau=tau), problem, stgt.topology.server(N), x0=X0[0]),
        last(stgt.DPSGD(gamma=0.05, tau=tau, atc=True), problem, J, x0=X0[0]),
    )
    same(
        last(stgt.FedProx(gamma=0.05, tau=tau, mu_prox=0.0), problem, stgt.topology.server(N, sampled=2), x0=X0[0]),
        last(stgt.FedAvg(gamma=0.05, tau=tau), problem, stgt.topology.server(N, sampled=2), x0=X0[0]),
    )


@pytest.mark.parametrize("gamma_c", [1.0, 0.5])
def test_the_server_is_a_relay(problem, gamma_c):
    """Eq_Wr: along the paper's relay matrix the workers about to work hold what a server would hand them."""
    algorithm = stgt.ScaffoldPlus(gamma=0.05, tau=3, gamma_g=1.2, gamma_c=gamma_c)
    relay, server = stgt.topology.relay(N, sampled=2), stgt.topology.server(N, sampled=2)
    for rounds in range(1, ROUNDS):
        held = last(algorithm, problem, server, rounds, x0=X0[0])
        relayed = last(algorithm, problem, relay, rounds, x0=X0[0])
        about_to_work = relay.active(rounds, 3)
        np.testing.assert_allclose(relayed[about_to_work], held[about_to_work], rtol=0, atol=1e-10)


def test_variance_reduction_with_one_sample_is_diging(topology):
    """With one sample a node, or a problem that is not made of samples, SAGA and SVRG return the exact gradient."""
    rng = np.random.default_rng(0)
    problem = stgt.problems.logistic(
        rng.normal(size=(N, P)), np.arange(N) % 2, partition=[[i] for i in range(N)], l2=0.1
    )
    diging = last(stgt.DIGing(gamma=0.05), problem, topology, oracle=stgt.oracles.Exact())
    same(last(stgt.GTSAGA(gamma=0.05), problem, topology, oracle=None), diging)
    same(last(stgt.GTSVRG(gamma=0.05, period=3), problem, topology, oracle=None), diging)
    plain = quadratic(N, P)
    diging = last(stgt.DIGing(gamma=0.05), plain, topology, oracle=None)
    same(last(stgt.GTSAGA(gamma=0.05), plain, topology, oracle=None), diging)
    same(last(stgt.GTSVRG(gamma=0.05), plain, topology, oracle=None), diging)


@pytest.mark.parametrize("tau", TAUS)
def test_adjoint_tracking_is_the_same_on_symmetric_graphs(problem, tau):
    for graph in (stgt.topology.ring(N), stgt.topology.random_matching(N), stgt.topology.hypercuboid(N)):
        same(
            last(stgt.STGT(gamma=0.05, tau=tau, adjoint=True), problem, graph),
            last(stgt.STGT(gamma=0.05, tau=tau), problem, graph),
        )


# -- beyond the paper ---------------------------------------------------------------------------------------------

LAZY = stgt.topology.from_matrix((np.eye(N) + stgt.topology.ring(N).matrix(0)) / 2)


@pytest.mark.parametrize("tau", TAUS)
def test_led_with_a_whole_dual_step_is_periodic_proxskip(problem, topology, tau):
    proxskip = stgt.ProxSkip(gamma=0.05, tau=tau)
    graph = suited(proxskip, topology)
    same(last(stgt.LED(gamma=0.05, tau=tau, beta=1.0), problem, graph), last(proxskip, problem, graph))


def test_led_in_one_step_is_exact_diffusion_and_d_squared(problem):
    """On (I + W)/2 it is exact diffusion on W; on a W with eigenvalues above −1/3 it is D² on W."""
    led = last(stgt.LED(gamma=0.05, beta=1.0), problem, LAZY)
    same(last(stgt.ExactDiffusion(gamma=0.05), problem, stgt.topology.ring(N)), led)
    same(last(stgt.ExactDiffusion(gamma=0.05, lazy=False), problem, LAZY), led)


@pytest.mark.parametrize("beta", [1.0, 0.25])
@pytest.mark.parametrize("tau", TAUS)
def test_led_is_relaxed_stgt_with_the_mean(problem, tau, beta):
    """From equal x_0 all start a round alike, a = J a, and then (h − J h)/(γτ) is J z − z."""
    same(
        last(stgt.LED(gamma=0.05, tau=tau, beta=beta), problem, J, x0=X0[0]),
        last(stgt.STGT(gamma=0.05, tau=tau, beta=beta), problem, J, x0=X0[0]),
    )


@pytest.mark.parametrize("tau", TAUS)
def test_relaxed_scaffold_plus_with_all_workers_is_relaxed_stgt(problem, tau):
    """c − own: c ← c + β mean(z − c), own ← own + β(z − c), so c − own moves by β(mean z − z)."""
    same(
        last(stgt.ScaffoldPlus(gamma=0.05, tau=tau, beta=0.25), problem, stgt.topology.server(N), x0=X0[0]),
        last(stgt.STGT(gamma=0.05, tau=tau, beta=0.25), problem, J, x0=X0[0]),
    )


@pytest.mark.parametrize(
    "method",
    [
        stgt.STGT(gamma=0.05, tau=3, beta=0.25),
        stgt.LED(gamma=0.05, tau=3),
        stgt.LUGT(gamma=0.05, tau=3),
        stgt.FlexGT(gamma=0.05, tau=3, mixing_steps=2),
        stgt.KGT(gamma=0.05, tau=3, eta_s=0.7, warm_start=True),
        stgt.EXTRA(gamma=0.05),
        stgt.DPSGD(gamma=0.05, tau=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("nesterov", [True, False])
def test_an_outer_step_of_1_without_momentum_is_the_method(problem, topology, method, nesterov):
    outer = stgt.Outer(method, lr=1.0, momentum=0.0, nesterov=nesterov)
    graph = suited(method, topology)
    same(last(outer, problem, graph), last(method, problem, graph))
    assert outer.same_as(False) == (method.same_as(False) or method.label)


@pytest.mark.parametrize("sampled", [2, N])
def test_an_outer_step_of_1_without_momentum_at_a_server(problem, sampled):
    server = stgt.topology.server(N, sampled=sampled)
    for method in (stgt.ScaffoldPlus(gamma=0.05, tau=3, gamma_g=1.2), stgt.FedDyn(gamma=0.05, tau=3, alpha=0.5)):
        same(
            last(stgt.Outer(method, lr=1.0, momentum=0.0), problem, server, x0=X0[0]),
            last(method, problem, server, x0=X0[0]),
        )


@pytest.mark.parametrize("sampled", [2, N])
def test_outer_fedavg_is_diloco(problem, sampled):
    server = stgt.topology.server(N, sampled=sampled)
    outer = stgt.Outer(stgt.FedAvg(gamma=0.05, tau=4), lr=0.7, momentum=0.9)
    same(last(outer, problem, server, x0=X0[0]), last(stgt.DiLoCo(gamma=0.05, tau=4), problem, server, x0=X0[0]))
    noloco = stgt.Outer(stgt.FedAvg(gamma=0.05, tau=4), lr=0.7, momentum=0.5, nesterov=False)
    matching = stgt.topology.random_matching(N)
    same(last(noloco, problem, matching), last(stgt.NoLoCo(gamma=0.05, tau=4), problem, matching))
    fedavgm = stgt.Outer(stgt.FedAvg(gamma=0.05, tau=4), lr=1.0, momentum=0.9, nesterov=False)
    same(last(fedavgm, problem, server, x0=X0[0]), last(stgt.FedAvgM(gamma=0.05, tau=4), problem, server, x0=X0[0]))


@pytest.mark.parametrize(("kind", "rule"), [(stgt.FedAdam, "adam"), (stgt.FedYogi, "yogi")])
@pytest.mark.parametrize("sampled", [2, N])
def test_adaptive_fedavg_is_fedadam_or_fedyogi(problem, sampled, kind, rule):
    server = stgt.topology.server(N, sampled=sampled)
    adaptive = stgt.Adaptive(stgt.FedAvg(gamma=0.05, tau=4), rule=rule)
    same(last(adaptive, problem, server, x0=X0[0]), last(kind(gamma=0.05, tau=4), problem, server, x0=X0[0]))


@pytest.mark.parametrize("rule", ["yogi", "adagrad"])
@pytest.mark.parametrize("method", [stgt.ScaffoldPlus(gamma=0.05, tau=3, gamma_g=1.2), stgt.FedAvg(gamma=0.05, tau=3)])
def test_an_adaptive_step_with_a_large_epsilon_is_outer_momentum(problem, method, rule):
    """v stays ε² to a part Δ²/ε², so that √v + ε is 2ε; m is (1 − β₁) times that of an outer momentum β₁."""
    server, epsilon, mu, eta = stgt.topology.server(N, sampled=2), 1e6, 0.6, 0.7
    adaptive = stgt.Adaptive(method, lr=eta * 2 * epsilon / (1 - mu), beta_1=mu, epsilon=epsilon, rule=rule)
    outer = stgt.Outer(method, lr=eta, momentum=mu, nesterov=False)
    same(last(adaptive, problem, server, x0=X0[0]), last(outer, problem, server, x0=X0[0]))


def test_momentum_tracking_without_momentum_is_dsgt(problem, topology):
    dsgt = last(stgt.DSGT(gamma=0.05), problem, topology)
    same(last(stgt.MomentumTracking(gamma=0.05, momentum=0.0), problem, topology), dsgt)
    other = last(stgt.MomentumTracking(gamma=0.05, momentum=0.5), problem, topology)
    assert np.abs(other - dsgt).max() > 1e-3, "momentum is another algorithm"


@pytest.mark.parametrize("snapshot", ["first", "last"])
@pytest.mark.parametrize("d", [2, 3])
def test_flexgt_with_d_exchanges_is_flexgt_on_the_power(problem, snapshot, d):
    for graph in (stgt.topology.ring(N), stgt.topology.exponential(N)):
        power = stgt.topology.from_matrix(np.linalg.matrix_power(graph.matrix(0), d))
        arguments = {"gamma": 0.05, "tau": 4, "snapshot": snapshot}
        several = last(stgt.FlexGT(mixing_steps=d, **arguments), problem, graph)
        same(several, last(stgt.FlexGT(**arguments), problem, power))


def test_feddyn_in_one_step_with_alpha_1_over_gamma_is_optimistic_gradient_descent(problem):
    """All sampled: h_i = x − γ(g_i − own_i) makes own_i the g_i of the round before, H its mean, and with it
    x ← mean h − γH⁺ = x − 2γ ∇f(x_k) + γ ∇f(x_{k−1}); H = 0 at first."""
    found = last(
        stgt.FedDyn(gamma=0.05, alpha=1 / 0.05),
        problem,
        stgt.topology.server(N),
        x0=X0[0],
        oracle=stgt.oracles.Exact(),
    )
    x, before = X0[0], 0.0
    for _ in range(ROUNDS):
        g = problem.gradient(x)
        x, before = x - 0.1 * g + 0.05 * before, g
    same(found, np.tile(x, (N, 1)))
