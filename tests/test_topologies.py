"""The constructors one by one: hand-made matrices, closed forms, large sizes, and bad inputs."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest

import stgt.topology as topo
from stgt.topology import Topology, contraction, period_contraction
from stgt.topology.circulant import Average, Rolls
from stgt.topology.sampled import Matching, Relayed, Sampled, Unreliable
from stgt.topology.structure import Dense, Gather


def hops_of(topology: Topology) -> set[int]:
    assert isinstance(topology.structure, Rolls)
    return {hop % topology.n for hop in topology.structure.hops if hop}


# ---------------------------------------------------------------------------------------------------- circulants


def test_circulant_row_i_weighs_what_node_i_hears() -> None:
    W = topo.circulant(4, [1, -2], [0.5, 0.2]).matrix(0)
    expected = np.array([[0.3, 0.5, 0.2, 0], [0, 0.3, 0.5, 0.2], [0.2, 0, 0.3, 0.5], [0.5, 0.2, 0, 0.3]])
    assert np.allclose(W, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("n", "hops", "weights", "symmetric"),
    [
        (5, [1, -1], None, True),
        (5, [1, 4], [0.3, 0.3], True),
        (5, [1, 4], [0.3, 0.2], False),
        (6, [3], [1.0], True),
        (6, [2], None, False),
        (7, [], None, True),
    ],
)
def test_circulant_knows_whether_it_is_symmetric(n: int, hops: list, weights: list | None, symmetric: bool) -> None:
    assert topo.circulant(n, hops, weights).symmetric == symmetric


def test_ring_and_its_small_cases() -> None:
    third = 1 / 3
    expected = [[third, third, 0, third], [third, third, third, 0], [0, third, third, third], [third, 0, third, third]]
    assert topo.ring(4).matrix(0) == pytest.approx(np.array(expected))
    assert topo.ring(3, directed=True).matrix(0) == pytest.approx(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]]) / 2)
    for directed in (False, True):
        assert topo.ring(1, directed).matrix(0) == pytest.approx(np.ones((1, 1)))
        assert topo.ring(2, directed).matrix(0) == pytest.approx(np.full((2, 2), 0.5))


@pytest.mark.parametrize("n", [3, 8, 33, 100_000])
def test_ring_contraction_is_the_second_eigenvalue_squared(n: int) -> None:
    # Eigenvalues (1 + 2 cos 2πk/n)/3; the largest in size but for k = 0 is at k = 1 (n = 3: 0).
    assert contraction(topo.ring(n)) == pytest.approx(((1 + 2 * math.cos(2 * math.pi / n)) / 3) ** 2, abs=1e-12)
    # Directed: |1 + ω|/2 = cos(π/n).
    assert contraction(topo.ring(n, directed=True)) == pytest.approx(math.cos(math.pi / n) ** 2, abs=1e-12)


@pytest.mark.parametrize("n", [4, 6, 8, 12, 16, 24, 32, 64, 100, 1000, 100_000])
def test_exponential_contraction_of_even_n(n: int) -> None:
    # Ying et al.: for even n, ‖W − J‖ = 1 − 2/(t+1), attained at k = n/2, where hop 1 counts −1 and all others +1.
    t = math.ceil(math.log2(n))
    assert contraction(topo.exponential(n)) == pytest.approx((1 - 2 / (t + 1)) ** 2, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "neighbors", "symmetric", "hops"),
    [
        (32, None, False, {1, 2, 4, 8, 16}),
        (33, None, False, {1, 2, 4, 8, 16, 32}),
        (32, 3, False, {1, 2, 4}),
        (32, 7, False, {1, 2, 4, 8, 16, 3, 5}),
        (32, None, True, {1, -1, 2, -2, 4, -4, 8, -8, 16}),
        (11, None, True, {1, -1, 2, -2, 4, -4, 3, -3}),  # 8 ≡ −3
        (32, 3, True, {1, -1, 16}),
        (32, 4, True, {1, -1, 2, -2}),
        (32, 15, True, {16, 1, -1, 2, -2, 4, -4, 8, -8, 3, -3, 5, -5, 6, -6}),
        (9, 8, True, {1, 2, 3, 4, 5, 6, 7, 8}),
        (1, None, False, set()),
        (2, None, True, {1}),
    ],
)
def test_exponential_hops(n: int, neighbors: int | None, symmetric: bool, hops: set[int]) -> None:
    topology = topo.exponential(n, neighbors, symmetric)
    assert hops_of(topology) == {hop % n for hop in hops}
    assert topology.degree == len(hops)
    assert topology.matrix(0)[0, 0] == pytest.approx(1 / (len(hops) + 1))


def test_exponential_names() -> None:
    names = [topo.exponential(32).name, topo.exponential(32, 3, True).name, topo.exponential(32, symmetric=True).name]
    assert names == ["exponential(32)", "exponential(32, 3 neighbours, symmetric)", "exponential(32, symmetric)"]


def test_complete_is_the_mean() -> None:
    assert isinstance(topo.complete(5).structure, Average)
    assert np.array_equal(topo.complete(5).matrix(3), np.full((5, 5), 0.2))
    assert contraction(topo.complete(100_000)) == 0


# -------------------------------------------------------------------------------------------------------- graphs

PATH = nx.path_graph(3)  # degrees 1, 2, 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("metropolis", [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]),
        ("uniform", [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]),
        ("lazy", [[5 / 6, 1 / 6, 0], [1 / 6, 2 / 3, 1 / 6], [0, 1 / 6, 5 / 6]]),
    ],
)
def test_weights_on_a_path(weights: str, expected: list) -> None:
    assert topo.from_networkx(PATH, weights).matrix(0) == pytest.approx(np.array(expected))


def test_metropolis_and_uniform_differ_away_from_the_busiest_node() -> None:
    # A path of 3 hung on a triangle: degrees 2, 2, 3, 2, 1.
    graph = nx.Graph([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)])
    metropolis, uniform = (topo.from_networkx(graph, rule).matrix(0) for rule in ("metropolis", "uniform"))
    assert [metropolis[edge] for edge in ((0, 1), (0, 2), (2, 3), (3, 4))] == pytest.approx(
        [1 / 3, 1 / 4, 1 / 4, 1 / 3]
    )
    assert [uniform[edge] for edge in ((0, 1), (0, 2), (2, 3), (3, 4))] == pytest.approx([1 / 4] * 4)


def test_digraph_edges_say_who_hears_whom() -> None:
    # The cycles 0 → 1 → 2 → 0 and 0 → 3 → 0: node 1 hears 0, and d_max = 2 at node 0.
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 3), (3, 0)])
    expected = np.array([[1, 0, 1, 1], [1, 2, 0, 0], [0, 1, 2, 0], [1, 0, 0, 2]]) / 3
    assert topo.from_networkx(graph, "uniform").matrix(0) == pytest.approx(expected)
    assert topo.from_networkx(graph, "lazy").matrix(0) == pytest.approx((np.eye(4) + expected) / 2)
    assert not topo.from_networkx(graph, "uniform").symmetric
    assert topo.from_networkx(PATH.to_directed(), "uniform").symmetric


def test_nodes_keep_the_graphs_order_and_self_loops_count_for_nothing() -> None:
    graph = nx.Graph()
    graph.add_nodes_from("cab")
    graph.add_edges_from([("a", "b"), ("a", "c"), ("a", "a"), ("c", "c")], weight=7.0)
    # In the order c, a, b the middle node is the busy one, as in PATH.
    assert topo.from_networkx(graph).matrix(0) == pytest.approx(topo.from_networkx(PATH).matrix(0))
    parallel = nx.MultiGraph([(0, 1), (0, 1), (1, 2)])
    assert topo.from_networkx(parallel).matrix(0) == pytest.approx(topo.from_networkx(PATH).matrix(0))


def test_grid_star_and_torus() -> None:
    # 2 × 3 grid: corners have 2 neighbours, the middles 3; node (a, b) is 3a + b.
    W = topo.grid(2, 3).matrix(0)
    assert [W[0, 1], W[0, 3], W[1, 4], W[0, 0], W[0, 4]] == pytest.approx([1 / 4, 1 / 3, 1 / 4, 5 / 12, 0])
    assert np.array_equal(topo.torus(3, 4).matrix(0), topo.grid(3, 4, torus=True).matrix(0))
    assert topo.torus(3, 4).degree == 4
    star = topo.star(4).matrix(0)
    assert star == pytest.approx(np.array([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4)
    assert topo.star(1).matrix(0) == pytest.approx(np.ones((1, 1)))


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (4, 7), (25, 30), (40, 50)])
def test_torus_contraction(rows: int, cols: int) -> None:
    # Eigenvalues (1 + 2 cos 2πa/rows + 2 cos 2πb/cols)/5.
    a, b = np.arange(rows)[:, None] / rows, np.arange(cols) / cols
    values = np.abs(1 + 2 * np.cos(2 * np.pi * a) + 2 * np.cos(2 * np.pi * b)).ravel()[1:] / 5
    assert contraction(topo.torus(rows, cols)) == pytest.approx(values.max() ** 2, abs=1e-9)


def test_random_graphs_depend_on_their_seed_only() -> None:
    for make in (lambda seed: topo.erdos_renyi(20, 0.5, seed), lambda seed: topo.random_regular(20, 3, seed)):
        assert np.array_equal(make(4).matrix(0), make(4).matrix(0))
        assert not np.array_equal(make(4).matrix(0), make(5).matrix(0))
    W = topo.random_regular(20, 3, 4).matrix(0)
    assert ((np.abs(W - 0.25) < 1e-15).sum(axis=1) == 4).all()


def test_erdos_renyi_has_its_share_of_links() -> None:
    n, p = 200, 0.3
    links = np.count_nonzero(np.triu(topo.erdos_renyi(n, p).matrix(0), 1))
    pairs = n * (n - 1) / 2
    assert abs(links - p * pairs) < 5 * math.sqrt(pairs * p * (1 - p))


# ----------------------------------------------------------------------------------------------------- schedules


def test_one_peer_exponential_matrices() -> None:
    topology = topo.one_peer_exponential(6)
    shift = np.roll(np.eye(6), 1, axis=1)  # node i hears i + 1
    assert topology.period == 3
    for r in range(7):
        expected = (np.eye(6) + np.linalg.matrix_power(shift, 2 ** (r % 3))) / 2
        assert np.array_equal(topology.matrix(r), expected)


def test_hypercuboid_averages_along_one_digit() -> None:
    # n = 6 = 2·3: first the pairs {0,1}, {2,3}, {4,5}, then the triples {0,2,4}, {1,3,5}.
    topology = topo.hypercuboid(6)
    assert np.array_equal(topology.matrix(0), np.kron(np.eye(3), np.full((2, 2), 1 / 2)))
    assert topology.matrix(1) == pytest.approx(np.kron(np.full((3, 3), 1 / 3), np.eye(2)))
    assert (topology.period, topology.degree) == (2, 2)
    assert topo.hypercuboid(6, [6]).matrix(0) == pytest.approx(np.full((6, 6), 1 / 6))


def test_de_bruijn_appends_a_digit() -> None:
    expected = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]]) / 2
    assert np.array_equal(topo.de_bruijn(4).matrix(0), expected)


def test_base_graph_is_a_hypercuboid_where_it_can_be() -> None:
    assert topo.base_graph(8, 1).period == 3
    assert topo.base_graph(16, 3).period == 2  # 4·4, not 2·2·2·2
    assert topo.base_graph(12, 3).period == 2
    assert topo.base_graph(7, 6).period == 1


def test_base_graph_of_three_with_one_peer() -> None:
    # 3 = 2 + 1: {0,1} average; 2 meets 0 with weight n_1/(a_1 n) = 2/3; {0,1} average again.
    topology = topo.base_graph(3, 1)
    pair = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    assert [topology.matrix(r) for r in range(3)] == [
        pytest.approx(pair),
        pytest.approx(np.array([[1 / 3, 0, 2 / 3], [0, 1, 0], [2 / 3, 0, 1 / 3]])),
        pytest.approx(pair),
    ]
    assert topology.period == 3


def test_matrices_given_are_matrices_returned() -> None:
    one_way = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    assert np.array_equal(topo.from_matrix(one_way).matrix(5), one_way)
    assert topo.from_matrix(one_way).degree == 1
    both = topo.sequence([one_way, np.full((3, 3), 1 / 3)])
    assert np.array_equal(both.matrix(2), one_way)
    assert (both.period, both.degree, both.symmetric) == (2, 2, False)
    broadcast = np.array([[1, 0], [1, 0]])
    assert not topo.from_matrix(broadcast, row_stochastic=True).doubly_stochastic
    assert topo.from_matrix(np.eye(2), row_stochastic=True).doubly_stochastic


def test_rounding_does_not_make_a_matrix_directed() -> None:
    W = topo.grid(3, 3).matrix(0)
    skewed = W @ W
    skewed[0, 1] = np.nextafter(skewed[0, 1], 1)
    topology = topo.from_matrix(skewed)
    assert topology.symmetric
    assert np.array_equal(topology.matrix(0), topology.matrix(0).T)


# ---------------------------------------------------------------------------------------------------- structures


def test_structures() -> None:
    assert isinstance(topo.server(5).structure, Sampled)
    assert topo.server(5).period == 1
    assert topo.server(5, 2).period is None
    assert isinstance(topo.relay(5, 2).structure, Relayed)
    assert isinstance(topo.random_matching(5).structure, Matching)
    assert isinstance(topo.grid(8, 8).structure, Dense)
    assert isinstance(topo.grid(8, 9).structure, Gather)
    bases = (topo.ring(5), topo.complete(5), topo.grid(2, 3), topo.grid(9, 9))
    for base in bases:
        structure = topo.unreliable(base).structure
        assert isinstance(structure, Unreliable)
        assert isinstance(structure.base, Gather)
        assert np.allclose(topo.unreliable(base).matrix(3), base.matrix(3), rtol=0, atol=1e-15)


# ----------------------------------------------------------------------------------------------- a hundred thousand

N = 100_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: topo.one_peer_exponential(N),
        lambda: topo.hypercuboid(N),
        lambda: topo.de_bruijn(2**17),
        lambda: topo.base_graph(N - 1, 1),
        lambda: topo.unreliable(topo.ring(N), 0.1),
        lambda: topo.random_matching(N),
        lambda: topo.grid(250, 400),
    ],
)
@pytest.mark.sampled
def test_a_hundred_thousand_nodes_fit_in_neighbour_lists(make: Callable[[], Topology]) -> None:
    topology = make()
    structure = topology.structure
    assert isinstance(structure, Gather | Matching | Unreliable)
    last = 5 if topology.period is None else topology.period - 1
    for back in (False, True):
        index, weight = structure.lists(np, 0, last, back)
        assert index.nbytes + weight.nbytes < 20e6
        columns = np.bincount(index.ravel(), weight.ravel(), topology.n)
        assert np.abs(weight.sum(axis=1) - 1).max() < 1e-12
        assert np.abs(columns - 1).max() < 1e-12
        assert np.array_equal(index[:, 0], np.arange(topology.n))


@pytest.mark.parametrize(
    "make", [topo.exponential, topo.ring, topo.complete, topo.server, lambda n: topo.exponential(n, symmetric=True)]
)
def test_regular_topologies_take_no_memory(make: Callable[[int], Topology]) -> None:
    tracemalloc.start()
    topology = make(N)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e5
    assert contraction(topology) <= 1


def test_contraction_of_large_lists_agrees_with_closed_forms() -> None:
    # Hops 1, 2, 4, …: |1 + ω^(kh)|/2 = |cos(πkh/n)|, at most cos(π/n) for odd h, 1 for h sharing a factor with n.
    n = 1001
    assert contraction(topo.one_peer_exponential(n)) == pytest.approx(math.cos(math.pi / n) ** 2, abs=1e-12)
    assert contraction(topo.hypercuboid(1000)) == 1  # undirected and not connected, whatever the size
    # W² = W, and E[W] = (I + J)/2 for odd n.
    assert contraction(topo.random_matching(n)) == pytest.approx(1 / 2, abs=1e-12)
    # A star with Metropolis weights 1/n: eigenvalues 1, 1 − 1/n (n − 2 times) and 0.
    assert contraction(topo.star(500)) == pytest.approx((1 - 1 / 500) ** 2, abs=1e-9)


# ---------------------------------------------------------------------------------------------------- bad inputs

EYE = np.eye(3)
TWO_PARTS = nx.Graph([(0, 1), (2, 3)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topo.ring(0), "n=0: give a whole number of at least 1"),
        (lambda: topo.complete(2.5), r"n=2\.5: give a whole number"),
        (lambda: topo.circulant(5, [0]), r"hops=\[0\]: a multiple of n=5"),
        (lambda: topo.circulant(5, [1, -4]), r"hops=\[1, -4\]: two of them reach the same node"),
        (lambda: topo.circulant(5, [1.5]), r"hops=\[1\.5\]: give a list of nonzero whole numbers"),
        (lambda: topo.circulant(5, 1), "hops=1: give a list"),
        (lambda: topo.circulant(5, [1], [0.2, 0.3]), "weights has 2 entries for 1 hops"),
        (lambda: topo.circulant(5, [1, 2], [0.7, 0.7]), "weights sum to 1.4"),
        (lambda: topo.circulant(5, [1], [-0.1]), r"weights=-0\.1"),
        (lambda: topo.circulant(5, [1], 0.5), r"weights=0\.5: give a list"),
        (lambda: topo.exponential(8, 8), "neighbors=8: a node of 8 has at most 7"),
        (lambda: topo.exponential(8, 0), "neighbors=0"),
        (lambda: topo.exponential(9, 3, True), "neighbors=3: with symmetric=True and an odd n=9"),
        (lambda: topo.from_networkx(np.eye(3)), "graph is a ndarray: give a networkx Graph"),
        (lambda: topo.from_networkx(nx.Graph()), "graph has no nodes"),
        (lambda: topo.from_networkx(TWO_PARTS), "2 components"),
        (lambda: topo.from_networkx(PATH, "heavy"), "weights='heavy': choose from 'metropolis'"),
        (lambda: topo.from_networkx(PATH.to_directed()), "a DiGraph takes weights='uniform' or 'lazy'"),
        (lambda: topo.from_networkx(nx.DiGraph([("a", "b")]), "lazy"), "node 'a' receives from 0 nodes but sends to 1"),
        (lambda: topo.from_networkx(TWO_PARTS.to_directed(), "uniform"), "2 components"),
        (lambda: topo.grid(0, 3), "rows=0"),
        (lambda: topo.grid(3, -1), "cols=-1"),
        (lambda: topo.star(N), "neighbour lists of 1e"),
        (lambda: topo.star(3, "heavy"), "weights='heavy'"),
        (lambda: topo.erdos_renyi(50, 0.01), "components .* larger probability or another seed"),
        (lambda: topo.erdos_renyi(50, 0.0), "probability=0"),
        (lambda: topo.erdos_renyi(50, 1.1), r"probability=1\.1"),
        (lambda: topo.erdos_renyi(50, 0.5, seed=-1), "seed=-1"),
        (lambda: topo.random_regular(5, 5), "degree=5: a node of 5 has at most 4"),
        (lambda: topo.random_regular(5, 3), "degree=3: with an odd n=5 give an even degree"),
        (lambda: topo.random_regular(8, 1), "4 components .* another seed"),
        (lambda: topo.one_peer_exponential(0), "n=0"),
        (lambda: topo.hypercuboid(12, [3, 3]), r"factors=\[3, 3\] multiply to 9: .* n=12"),
        (lambda: topo.hypercuboid(12, [12, 1]), "factors=1: give a whole number of at least 2"),
        (lambda: topo.hypercuboid(12, 12), "factors=12: give a list"),
        (lambda: topo.hypercuboid(99_991), "neighbour lists"),
        (lambda: topo.de_bruijn(12), "n=12: give a power of p=2"),
        (lambda: topo.de_bruijn(9, 1), "p=1"),
        (lambda: topo.from_matrix([[1, 2]]), r"shape \(1, 2\)"),
        (lambda: topo.from_matrix([["W"]]), "W is not an array of numbers"),
        (lambda: topo.from_matrix("W"), "W W: give a file that ends in"),
        (lambda: topo.from_matrix([[1.5, -0.5], [-0.5, 1.5]]), r"W\[0, 1\]=-0\.5 is negative"),
        (lambda: topo.from_matrix([[np.nan, 1], [1, 0]]), "not finite"),
        (lambda: topo.from_matrix([[1, 0], [1, 0]]), "column 0 sums to 2.*row_stochastic=True"),
        (lambda: topo.from_matrix([[1, 1], [1, 0]], row_stochastic=True), "row 0 sums to 2"),
        (lambda: topo.sequence([]), "matrices is empty"),
        (lambda: topo.sequence(3), "matrices is a int"),
        (lambda: topo.sequence([EYE, EYE, EYE * 2]), "W_2: row 0 sums to 2"),
        (lambda: topo.sequence([EYE, np.eye(4)]), "W_1 has 4 nodes but W_0 has 3: give matrices of one size"),
        (lambda: topo.base_graph(5, 0), "k=0"),
        (lambda: topo.base_graph(0, 1), "n=0"),
        (lambda: topo.random_matching(0), "n=0"),
        (lambda: topo.random_matching(4, seed=2**32), "seed=4294967296"),
        (lambda: topo.server(4, 5), "sampled=5: a round can sample at most all n=4"),
        (lambda: topo.server(4, 0), "sampled=0"),
        (lambda: topo.relay(4, 5), "sampled=5"),
        (lambda: topo.relay(4, None), "sampled=None"),
        (lambda: topo.unreliable("ring"), "topology is a str"),
        (lambda: topo.unreliable(topo.ring(5), link=1.0), "link=1"),
        (lambda: topo.unreliable(topo.ring(5), link=-0.1), r"link=-0\.1"),
        (lambda: topo.unreliable(topo.ring(5), node=1.0), "node=1"),
        (lambda: topo.unreliable(topo.ring(5, directed=True), 0.1), "directed: a lost one-way link .* column sums"),
        (lambda: topo.unreliable(topo.server(5, 2), 0.1), "has a server"),
        (lambda: topo.unreliable(topo.unreliable(topo.ring(5), 0.1), 0.1), "unreliable already"),
        (lambda: topo.unreliable(topo.complete(N), 0.1), "neighbour lists"),
        (lambda: contraction(topo.random_matching(4), draws=0), "draws=0"),
        (lambda: period_contraction(topo.one_peer_exponential(2001)), "at most 2000 nodes"),
        (lambda: topo.ring(4).matrix(-1), "r=-1"),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_public_names_exist_and_are_documented() -> None:
    for name in topo.__all__:
        assert getattr(topo, name).__doc__
    assert topo.list_topologies() == sorted(topo.list_topologies())
    assert "list_topologies" not in topo.list_topologies()


def test_sums_that_rounding_left_off_one_are_put_right():
    """A matrix in single precision has sums off by some 1e-8; the topology's are one to rounding, and it is as near."""
    rng = np.random.default_rng(0)
    directed = sum(w * np.eye(6)[rng.permutation(6)] for w in (0.2, 0.3, 0.5)).astype(np.float32)
    for W in (topo.ring(6).matrix(0).astype(np.float32), directed):
        mended = topo.from_matrix(W)
        M = mended.matrix(0)
        assert np.abs(W.astype(np.float64).sum(axis=1) - 1).max() > 1e-9
        np.testing.assert_allclose(M.sum(axis=0), 1, rtol=0, atol=1e-10)
        np.testing.assert_allclose(M.sum(axis=1), 1, rtol=0, atol=1e-10)
        np.testing.assert_allclose(M, W, rtol=0, atol=1e-7)
        assert mended.doubly_stochastic
        assert mended.symmetric == np.array_equal(W, W.T)
    with pytest.raises(ValueError, match="1e-05 off"):
        topo.from_matrix(np.eye(3) * (1 - 1e-5))
