"""Two matrices a round: R row-stochastic for what is pulled, C column-stochastic for what is pushed."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stgt
from catalogue import instances, logistic, quadratic, two_matrices
from stgt.testing import check_topology
from stgt.testing.engines import torch_difference
from stgt.theory import spectral_radius, steady_state
from stgt.topology import push_pull

N, P = 6, 3
PUSHING = [
    name
    for name, algorithm in instances().items()
    if any(sent.pushed for sent in (*algorithm.spec().messages, *algorithm.spec().second_messages))
]
# All pull from node 0 and all push to it: the paper's graph with a leader.
R = 0.5 * np.eye(N) + 0.5 * np.eye(N)[[0] * N]
LEADER = push_pull(R, R.T)


def test_the_trackers_push():
    assert set(PUSHING) == {
        "STGT", "FlexGT-first", "FlexGT-last", "KGT", "KGT-warm", "DSGT", "PushPull", "LUGT", "LUGT-cta", "AugDGM",
        "DIGing", "NEXT", "GTSAGA", "GTSVRG", "STGT-relaxed", "KGT-relaxed", "FlexGT-relaxed", "FlexGT-mixing_steps",
        "LUGT-relaxed", "MomentumTracking", "GTAdam", "Outer-STGT", "Adaptive-STGT",
    }  # fmt: skip


@pytest.mark.parametrize("name", PUSHING)
@settings(max_examples=5, deadline=None)
@given(n=st.integers(2, 8), period=st.integers(1, 3), seed=st.integers(0, 1000))
def test_corrections_sum_to_zero(name, n, period, seed):
    algorithm = instances()[name]
    problem = logistic(n, P, seed) if algorithm.spec().oracle else quadratic(n, P, noise=0.1, seed=seed)
    trace = stgt.simulate(algorithm, problem, two_matrices(n, period, seed), 10, seeds=[seed], engine="numpy")
    size = sum(np.abs(value).sum() for value in trace.state.values())
    assert trace["sum_c"].max() <= 1e-12 * size * 10


@pytest.mark.parametrize(
    "graph", [two_matrices(N), two_matrices(N, period=2, seed=4), LEADER], ids=["a", "b", "leader"]
)
@pytest.mark.parametrize(
    "algorithm",
    [stgt.PushPull(gamma=0.02), stgt.STGT(gamma=0.01, tau=4), stgt.LUGT(gamma=0.01, tau=2), stgt.DIGing(gamma=0.02)],
    ids=str,
)
def test_the_fixed_point_is_the_minimum(algorithm, graph):
    for W in (graph.matrix(0), graph.matrix(0, pushed=True)):
        assert max(np.abs(W.sum(axis=axis) - 1).max() for axis in (0, 1)) > 0.1, "one of them is doubly stochastic"
    problem = quadratic(N, P)
    assert spectral_radius(algorithm, problem, graph) < 1
    assert steady_state(algorithm, problem, graph).bias <= 1e-15


def test_by_one_row_stochastic_matrix_the_fixed_point_is_another():
    """What C is there for: FedAvg ends where R's own weights of the nodes put it, however small γ is."""
    problem, graph = quadratic(N, P), two_matrices(N)
    weights = np.linalg.matrix_power(graph.matrix(0), 10_000)[0]
    H = np.stack([problem.gradients(one) - problem.gradients(np.zeros(P)) for one in np.eye(P)], axis=2)
    there = np.linalg.solve(np.einsum("i,iab->ab", weights, H), -weights @ problem.gradients(np.zeros(P)))
    bias = steady_state(stgt.FedAvg(gamma=1e-5), problem, graph).bias
    assert bias == pytest.approx(((there - problem.optimum) ** 2).sum(), rel=1e-2)
    assert bias > 1e-3


def test_the_theory_predicts_the_error_under_noise():
    """The exact operator, whose transpose goes back through Rᵀ and Cᵀ, against its own matrix written out."""
    problem, graph = quadratic(N, P, noise=0.3), two_matrices(N)
    algorithm = stgt.PushPull(gamma=0.05)
    R, C = graph.matrix(0), graph.matrix(0, pushed=True)
    g0 = problem.gradients(np.zeros(P))
    H = np.zeros((N * P, N * P))
    for i in range(N):
        for k, one in enumerate(np.eye(P)):
            H[i * P : (i + 1) * P, i * P + k] = problem.gradients(one)[i] - g0[i]
    pull, push, eye = np.kron(R, np.eye(P)), np.kron(C, np.eye(P)), np.eye(N * P)
    # (x, c) → (R(x − γ(Hx + c + ξ)), c + (C − I)(Hx + c + ξ)), with ξ of variance 0.3 in each coordinate.
    M = np.block([[pull @ (eye - 0.05 * H), -0.05 * pull], [(push - eye) @ H, push]])
    B = np.concatenate([-0.05 * pull, push - eye])
    covariance, power = 0.3 * B @ B.T, M
    for _ in range(14):  # doubling: Σ_{t<2^k} M^t Q M^tᵀ
        covariance, power = covariance + power @ covariance @ power.T, power @ power
    mean = np.concatenate([np.tile(np.eye(P), N) / N, np.zeros((P, N * P))], axis=1)
    expected = np.trace(mean @ covariance @ mean.T)
    assert steady_state(algorithm, problem, graph).residual == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", ["PushPull", "STGT", "LUGT"])
@pytest.mark.sampled
def test_jax_equals_the_reference(name):
    algorithm, problem, graph = instances()[name], quadratic(N, P, noise=0.1), two_matrices(N, period=2)
    plain, fast = (
        stgt.simulate(algorithm, problem, graph, 12, seeds=[0, 7], engine=engine, dtype="float64")
        for engine in ("numpy", "jax")
    )
    for field in ("gradients", "messages", "floats", "sum_c", "residual"):
        np.testing.assert_allclose(fast[field], plain[field], rtol=1e-10, atol=1e-10, err_msg=field)
    for field, value in plain.state.items():
        np.testing.assert_allclose(fast.state[field], value, rtol=0, atol=1e-10, err_msg=field)


def test_jax_equals_the_reference_by_neighbour_lists():
    n = 70
    graph = push_pull(nx.DiGraph([(i, (i + hop) % n) for i in range(n) for hop in (1, 2 + i % 3)]))
    algorithm, problem = stgt.STGT(gamma=0.02, tau=2), quadratic(n, 2)
    plain, fast = (
        stgt.simulate(algorithm, problem, graph, 8, engine=engine, dtype="float64").state for engine in ("numpy", "jax")
    )
    for field, value in plain.items():
        np.testing.assert_allclose(fast[field], value, rtol=0, atol=1e-10, err_msg=field)


def test_the_sum_does_not_drift_in_single_precision():
    problem = quadratic(N, P, noise=1.0)
    trace = stgt.simulate(stgt.STGT(gamma=0.02, tau=2), problem, two_matrices(N), 2000, dtype="float32")
    assert trace["sum_c"].max() <= 1e-4


@pytest.mark.parametrize("algorithm", [stgt.PushPull(gamma=0.05), stgt.STGT(gamma=0.03, tau=3)], ids=str)
def test_the_trainers_parts_equal_the_reference(algorithm):
    pytest.importorskip("torch")
    assert torch_difference(algorithm, quadratic(N, P), two_matrices(N, period=2), 10) <= 1e-10


def test_on_one_matrix_it_is_dsgt():
    problem, graph = quadratic(N, P, noise=0.1), stgt.topology.exponential(N)
    one, other = (
        stgt.simulate(kind(gamma=0.05), problem, graph, 9, engine="numpy") for kind in (stgt.PushPull, stgt.DSGT)
    )
    assert np.array_equal(one.x, other.x)
    both = push_pull(graph, graph)
    again = stgt.simulate(stgt.PushPull(gamma=0.05), problem, both, 9, engine="numpy")
    np.testing.assert_allclose(again.x, one.x, rtol=0, atol=1e-14)


def test_costs():
    """A vector by each link of R, and one by each of C, which are fewer."""
    pull = np.eye(N)
    pull[:, 0] += 1
    pull += np.roll(np.eye(N), 1, axis=1)
    graph = push_pull(pull / pull.sum(axis=1, keepdims=True), R.T)
    links = int(np.count_nonzero(pull - np.diag(np.diag(pull)))), N - 1
    assert (graph.links(0), graph.links(0, pushed=True)) == links
    assert graph.degree == N - 1
    for engine in ("numpy", "jax"):
        trace = stgt.simulate(stgt.PushPull(gamma=0.01), quadratic(N, P), graph, 4, engine=engine)
        assert trace["floats"][0, -1] == 4 * sum(links) * P
        alone = stgt.simulate(stgt.FedAvg(gamma=0.01), quadratic(N, P), graph, 4, engine=engine)
        assert alone["floats"][0, -1] == 4 * links[0] * P
    assert stgt.PushPull(gamma=0.1).cost() == stgt.DSGT(gamma=0.1).cost()


def test_weights_of_a_graph():
    graph = push_pull(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    np.testing.assert_allclose(graph.matrix(0), [[1 / 2, 0, 1 / 2], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(
        graph.matrix(0, pushed=True), [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]]
    )
    assert "column-stochastic" in graph._repr_html_()


@pytest.mark.parametrize("graph", [two_matrices(N, period=2), LEADER], ids=["sparse", "leader"])
def test_it_is_checked(graph):
    text = str(check_topology(graph))
    assert "R_r row-stochastic, C_r column-stochastic" in text
    assert "and C_r" in text


def test_a_wrong_one_fails_its_check():
    swapped = replace(LEADER, structure=replace(LEADER.structure, push=LEADER.structure.pull))
    with pytest.raises(stgt.testing.CheckError, match="each column must sum to 1"):
        check_topology(swapped)


CHAIN = 0.5 * np.eye(3) + 0.5 * np.eye(3)[[0, 0, 1]]  # 0 → 1 → 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((R, R), "C: column 0 sums to 3.5, 2 off, but each column must sum to 1"),
        ((R.T, R.T), "R: row 0 sums to 3.5, 2 off, but each row must sum to 1"),
        ((R, np.eye(3)), "R has 6 nodes and C has 3"),
        (([R, np.eye(3)], R.T), "R_1 has 3 nodes but R_0 has 6"),
        ((R, [[1.5, 0], [-0.5, 1]]), r"C\[1, 0\]=-0.5 is negative"),
        ((R,), "C is missing"),
        ((nx.DiGraph([(0, 1), (1, 0)]), R.T), "R is a graph: give push_pull"),
        ((stgt.topology.random_matching(N), R.T), "R is random_matching.*, which has no period"),
        ((LEADER, R.T), "R is push_pull"),
        ((np.eye(3), np.eye(3)), "R: no node reaches all others"),
        ((CHAIN, np.eye(3)), "C: no node is reached by all others"),
        ((CHAIN, CHAIN[::-1, ::-1].T.copy()), None),
        ((CHAIN, CHAIN.T), None),
        ((nx.DiGraph([(0, 1), (1, 2)]),), r"R: only the nodes \[0\] reach all others, .* reach only the nodes \[2\]"),
    ],
)
def test_what_is_refused(arguments, words):
    if words is None:
        shared = arguments[1][0, 1] > 0  # is node 0, which R spreads from, the one that C gathers at?
        if shared:
            assert push_pull(*arguments).n == 3
            return
        words = "Add links so that one node does both"
    with pytest.raises(ValueError, match=words):
        push_pull(*arguments)


@pytest.mark.parametrize(
    "algorithm",
    [
        stgt.LED(gamma=0.1),
        stgt.EXTRA(gamma=0.1),
        stgt.ProxSkip(gamma=0.1),
        stgt.DPSGD(gamma=0.1),
        stgt.Scaffold(gamma=0.1),
        stgt.STGT(gamma=0.1, adjoint=True),
    ],
    ids=lambda algorithm: algorithm.label,
)
def test_methods_that_push_nothing(algorithm):
    with pytest.raises(ValueError, match=r"sends no message for .* matrix of push_pull\(6 nodes\).*use PushPull, STGT"):
        stgt.simulate(algorithm, quadratic(N, P), LEADER, 2)


def test_elsewhere():
    with pytest.raises(ValueError, match=r"such as push_pull\(R, C\)"):
        stgt.simulate(stgt.STGT(gamma=0.1), quadratic(N, P), stgt.topology.from_matrix(R, row_stochastic=True), 2)
    with pytest.raises(ValueError, match="give lists of matrices to push_pull"):
        stgt.topology.sequence([LEADER, LEADER], row_stochastic=True)
    with pytest.raises(ValueError, match="give lists of matrices to push_pull"):
        stgt.topology.schedule(N, lambda r: LEADER, row_stochastic=True).matrix(0)
    with pytest.raises(ValueError, match="no neighbour lists"):
        stgt.topology.unreliable(LEADER, link=0.1)
    with pytest.raises(ValueError, match=r"^pushed=True: 'z' is transposed too: a message can be only one"):
        stgt.MessageVar("z", transposed=True, pushed=True)
