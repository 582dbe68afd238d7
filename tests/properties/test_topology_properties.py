"""What holds for every topology, whichever way it was made: stochastic rows and columns, and true descriptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stgt.topology import (
    Topology,
    any_of,
    base_graph,
    check_matrix,
    circulant,
    complete,
    contraction,
    de_bruijn,
    erdos_renyi,
    exponential,
    from_edges,
    from_matrix,
    from_networkx,
    grid,
    hypercuboid,
    list_topologies,
    one_peer_exponential,
    period_contraction,
    push_pull,
    random_matching,
    random_regular,
    relay,
    ring,
    schedule,
    sequence,
    server,
    star,
    torus,
    unreliable,
)
from stgt.topology.structure import Gather, lists_from_matrices

Draw = Callable[[st.SearchStrategy], Any]
SIZES = st.integers(1, 14)
SEEDS = st.integers(0, 2**32 - 1)
RULES = st.sampled_from(["metropolis", "uniform", "lazy"])


def doubly_stochastic(n: int, seed: int, symmetric: bool = False) -> np.ndarray:
    """A convex combination of permutations (Birkhoff), and of their transposes where it should be symmetric."""
    rng = np.random.default_rng(seed)
    W = sum(share * np.eye(n)[rng.permutation(n)] for share in rng.dirichlet(np.ones(3)))
    return (W + W.T) / 2 if symmetric else np.asarray(W)


def a_circulant(draw: Draw) -> Topology:
    n = draw(SIZES)
    hops = draw(st.lists(st.integers(1, max(1, n - 1)), unique=True, max_size=n - 1)) if n > 1 else []
    shares = draw(st.none() | st.lists(st.integers(1, 9), min_size=len(hops), max_size=len(hops)))
    signed = [hop - n * draw(st.booleans()) for hop in hops]
    return circulant(n, signed, None if shares is None else [share / (sum(shares) + 1) for share in shares])


def an_exponential(draw: Draw) -> Topology:
    n, symmetric = draw(SIZES), draw(st.booleans())
    step = 2 if symmetric and n % 2 else 1
    return exponential(n, draw(st.none() | st.sampled_from(list(range(step, n, step)) or [None])), symmetric)


def a_random_graph(make: Callable[[], Topology]) -> Topology:
    try:
        return make()
    except ValueError as error:
        assume("components" not in str(error))  # a draw that is not connected is refused: draw again
        raise


def an_erdos_renyi(draw: Draw) -> Topology:
    n, probability, seed, rule = draw(SIZES), draw(st.floats(0.5, 1.0)), draw(SEEDS), draw(RULES)
    return a_random_graph(lambda: erdos_renyi(n, probability, seed, rule))


def a_random_regular(draw: Draw) -> Topology:
    n = draw(st.integers(5, 14))
    degree, seed, rule = draw(st.sampled_from([2, 4] if n % 2 else [2, 3, 4])), draw(SEEDS), draw(RULES)
    return a_random_graph(lambda: random_regular(n, degree, seed, rule))


def a_graph(draw: Draw) -> Topology:
    n = draw(SIZES)
    if draw(st.booleans()):
        hops = draw(st.lists(st.integers(1, n), unique=True, max_size=4))
        graph: nx.Graph = nx.DiGraph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from((i, (i + hop) % n) for hop in [1, *hops] for i in range(n))
        return from_networkx(graph, draw(st.sampled_from(["uniform", "lazy"])))
    graph = nx.random_labeled_tree(n, seed=draw(st.integers(0, 99)))
    graph.add_edges_from(draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=9)))
    return from_networkx(graph, draw(RULES))


def a_list_of_edges(draw: Draw) -> Topology:
    """A tree with some more edges, with the weights of a rule or with weights of their own."""
    n = draw(st.integers(2, 12))
    edges = [(draw(st.integers(0, v - 1)), v) for v in range(1, n)]
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    edges += draw(st.lists(pairs, max_size=5))
    if draw(st.booleans()):
        return from_edges(edges, n, draw(RULES))
    return from_edges([(*edge, 1.0 / n) for edge in edges])


def a_sequence(draw: Draw) -> Topology:
    n, seeds = draw(SIZES), draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
    symmetric = draw(st.booleans())
    return sequence([doubly_stochastic(n, seed, symmetric) for seed in seeds])


def an_any_of(draw: Draw) -> Topology:
    if draw(st.booleans()):
        return any_of(draw(st.sampled_from([one_peer_exponential, hypercuboid]))(draw(SIZES)), draw(SEEDS))
    n, seeds, symmetric = draw(SIZES), draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)), draw(st.booleans())
    return any_of([ring(n), *(doubly_stochastic(n, seed, symmetric) for seed in seeds)], draw(SEEDS))


def a_schedule(draw: Draw) -> Topology:
    n, period, seed = draw(SIZES), draw(st.integers(1, 4)), draw(st.integers(0, 99))
    symmetric = draw(st.booleans())
    return schedule(n, lambda r: doubly_stochastic(n, seed + r % period, symmetric), period)


def a_server(draw: Draw, make: Callable[..., Topology]) -> Topology:
    n = draw(SIZES)
    return make(n, draw(st.integers(1, n)), draw(SEEDS))


def a_push_pull(draw: Draw) -> Topology:
    n, rng = draw(st.integers(1, 14)), np.random.default_rng(draw(SEEDS))
    pull, push = (
        [rng.random((n, n)) * (rng.random((n, n)) < 0.5) + np.eye(n) + np.roll(np.eye(n), 1, axis=0) for _ in range(k)]
        for k in (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    )
    return push_pull([W / W.sum(axis=1, keepdims=True) for W in pull], [W / W.sum(axis=0) for W in push])


def an_unreliable(draw: Draw) -> Topology:
    n = draw(SIZES)
    makers = [ring, complete, star, hypercuboid, random_matching, lambda n: exponential(n, symmetric=True)]
    base = draw(st.sampled_from(makers))(n)
    return unreliable(base, draw(st.floats(0, 0.9)), draw(st.floats(0, 0.9)), draw(SEEDS))


MAKERS: dict[str, Callable[[Draw], Topology]] = {
    "any_of": an_any_of,
    "base_graph": lambda draw: base_graph(draw(SIZES), draw(st.integers(1, 6))),
    "circulant": a_circulant,
    "complete": lambda draw: complete(draw(SIZES)),
    "de_bruijn": lambda draw: de_bruijn(*draw(st.sampled_from([(1, 2), (2, 2), (8, 2), (16, 2), (3, 3), (9, 3)]))),
    "erdos_renyi": an_erdos_renyi,
    "exponential": an_exponential,
    "from_edges": a_list_of_edges,
    "from_matrix": lambda draw: from_matrix(doubly_stochastic(draw(SIZES), draw(SEEDS), draw(st.booleans()))),
    "from_networkx": a_graph,
    "grid": lambda draw: grid(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.booleans()), draw(RULES)),
    "hypercuboid": lambda draw: hypercuboid(draw(st.integers(1, 30))),
    "one_peer_exponential": lambda draw: one_peer_exponential(draw(SIZES)),
    "push_pull": a_push_pull,
    "random_matching": lambda draw: random_matching(draw(SIZES), draw(SEEDS)),
    "random_regular": a_random_regular,
    "relay": lambda draw: a_server(draw, relay),
    "ring": lambda draw: ring(draw(SIZES), draw(st.booleans())),
    "schedule": a_schedule,
    "sequence": a_sequence,
    "server": lambda draw: a_server(draw, server),
    "star": lambda draw: star(draw(SIZES), draw(RULES)),
    "torus": lambda draw: torus(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(RULES)),
    "unreliable": an_unreliable,
}


def rounds_of(topology: Topology) -> range:
    return range(12 if topology.period is None else topology.period)


def heard(W: np.ndarray) -> int:
    """The most other nodes that one node hears."""
    return int((W - np.diag(np.diag(W)) > 0).sum(axis=1).max())


def test_every_constructor_is_drawn() -> None:
    assert sorted(MAKERS) == list_topologies()


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_topology_is_what_it_says(name: str, data: st.DataObject) -> None:
    topology = MAKERS[name](data.draw)
    run = 0 if topology.period else data.draw(SEEDS)
    matrices = [topology.matrix(r, run) for r in rounds_of(topology)]
    for W in matrices:
        assert W.shape == (topology.n, topology.n)
        check_matrix(W, row_stochastic=not topology.doubly_stochastic)
    symmetric = all(np.allclose(W, W.T, rtol=0, atol=1e-12) for W in matrices)
    pushed = [topology.matrix(r, run, pushed=True) for r in rounds_of(topology)]
    assert topology.has_push == (name == "push_pull")
    for W, C in zip(matrices, pushed, strict=True):
        assert topology.has_push or np.array_equal(W, C)
        assert not topology.has_push or np.allclose(C.sum(axis=0), 1, rtol=0, atol=1e-12)
    degree = max(heard(W) for W in [*matrices, *pushed])
    if topology.period is not None:
        assert topology.symmetric == (symmetric and not topology.has_push)
        assert topology.degree == degree
        assert np.array_equal(topology.matrix(topology.period), matrices[0])
    else:
        # A few draws need not show every neighbour, but never one too many.
        assert topology.degree >= degree
        assert symmetric or not topology.symmetric
        assert topology.symmetric == (name != "relay") or name == "any_of"
        repeated = topology.with_seed((topology.seed + run) % 2**32)
        assert all(np.array_equal(repeated.matrix(r), W) for r, W in enumerate(matrices))
    assert topology.doubly_stochastic or name in ("relay", "push_pull")
    assert str(topology.n) in topology.name or name in ("grid", "torus")
    assert repr(topology) == topology.name


@settings(deadline=None, max_examples=50)
@given(data=st.data(), n=st.integers(2, 9), run=SEEDS)
def test_topologies_in_turn_are_what_they_say(data: st.DataObject, n: int, run: int) -> None:
    makers = [
        ring,
        hypercuboid,
        one_peer_exponential,
        lambda n: random_matching(n, data.draw(SEEDS)),
        lambda n: unreliable(hypercuboid(n), 0.4, seed=data.draw(SEEDS)),
        lambda n: from_matrix(doubly_stochastic(n, data.draw(SEEDS), data.draw(st.booleans()))),
    ]
    items = [make(n) for make in data.draw(st.lists(st.sampled_from(makers), min_size=1, max_size=4))]
    turns = sequence(items)
    assert turns.random == any(item.random for item in items)
    assert turns.symmetric == all(item.symmetric for item in items)
    assert turns.degree == max(item.degree for item in items)
    cycle = len(items) * math.lcm(*(item.period or 1 for item in items))
    assert turns.period == (None if turns.random else cycle)
    for r in range(12):
        W, item = turns.matrix(r, run), items[r % len(items)]
        check_matrix(W)
        assert np.array_equal(W, turns.matrix(r, run))
        if item.period is not None:
            assert np.allclose(W, item.matrix(r // len(items)), rtol=0, atol=1e-15)
        elif item.structure.phases == 1:
            assert np.array_equal(W, item.matrix(r, run))


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_contraction_of_a_schedule_is_the_mean_of_its_squared_norms(name: str, data: st.DataObject) -> None:
    topology = MAKERS[name](data.draw)
    J = np.full((topology.n, topology.n), 1 / topology.n)
    if topology.period is not None:
        norms = [np.linalg.norm(topology.matrix(r) - J, 2) ** 2 for r in rounds_of(topology)]
        assert contraction(topology) == pytest.approx(np.mean(norms), abs=1e-12)
        product = np.eye(topology.n)
        for r in rounds_of(topology):
            product = topology.matrix(r) @ product
        assert period_contraction(topology) == pytest.approx(np.linalg.norm(product - J, 2) ** 2, abs=1e-12)
    elif topology.doubly_stochastic:
        laws = [topology.moments(phase) for phase in range(topology.structure.phases)]
        sides = [[law.second(np.eye(topology.n), (back, back)) for back in (True, False)] for law in laws]
        norms = [max(np.linalg.norm(square - J, 2) for square in pair) for pair in sides]
        assert contraction(topology) == pytest.approx(np.mean(norms), abs=1e-12)
        assert contraction(topology).worst == pytest.approx(np.max(norms), abs=1e-12)
        assert period_contraction(topology) <= np.prod(norms) + 1e-12


@settings(deadline=None, max_examples=30)
@given(n=SIZES, seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3), symmetric=st.booleans())
def test_neighbour_lists_say_what_their_matrices_say(n: int, seeds: list[int], symmetric: bool) -> None:
    stack = np.stack([doubly_stochastic(n, seed, symmetric) for seed in seeds])
    lists = lists_from_matrices(stack)
    for r, W in enumerate(stack):
        assert np.array_equal(lists.matrix(r, 0), W)
        assert np.array_equal(from_lists(lists, r, back=True), W.T)
        index, _ = lists.lists(np, 0, r)
        assert np.array_equal(index[:, 0], np.arange(n))


def from_lists(lists: Gather, r: int, back: bool = False) -> np.ndarray:
    index, weight = lists.lists(np, 0, r, back)
    W = np.zeros((len(index), len(index)))
    for i in range(len(index)):
        for j, w in zip(index[i], weight[i], strict=True):
            W[i, j] += w
    return W


@pytest.mark.parametrize(
    "make",
    [
        lambda: one_peer_exponential(70),
        lambda: de_bruijn(81, 3),
        lambda: hypercuboid(70),
        lambda: base_graph(71, 2),
        lambda: torus(8, 9),
        lambda: from_networkx(nx.cycle_graph(70, create_using=nx.DiGraph), "uniform"),
        lambda: from_matrix(doubly_stochastic(70, 1)),
    ],
)
def test_more_than_64_nodes_are_lists_whose_back_lists_are_transposes(make: Callable[[], Topology]) -> None:
    topology = make()
    assert isinstance(topology.structure, Gather)
    assert (topology.structure.back_index is None) == topology.symmetric
    for r in rounds_of(topology):
        W = topology.matrix(r)
        check_matrix(W)
        index, _ = topology.structure.lists(np, 0, r, back=True)
        assert np.array_equal(index[:, 0], np.arange(topology.n))
        assert np.allclose(from_lists(topology.structure, r, back=True), W.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("k", range(1, 6))
def test_base_graph_finds_the_mean_of_any_number_of_nodes(k: int) -> None:
    # Takezawa et al.: product J, degree at most k, at most 2 log_{k+1} n + 2 rounds.
    for n in range(2, 101):
        topology = base_graph(n, k)
        assert topology.degree <= k
        assert topology.period is not None
        assert topology.period <= 2 * math.log(n, k + 1) + 2
        product = np.eye(n)
        for r in range(topology.period):
            W = check_matrix(topology.matrix(r))
            assert heard(W) <= k
            assert np.array_equal(W, W.T)
            product = W @ product
        assert np.abs(product - 1 / n).max() < 1e-14


@settings(deadline=None, max_examples=25)
@given(factors=st.lists(st.integers(2, 5), max_size=4))
def test_hypercuboid_finds_the_mean(factors: list[int]) -> None:
    n = math.prod(factors)
    for topology in (hypercuboid(n, factors), hypercuboid(n)):
        assert period_contraction(topology) < 1e-26
    assert hypercuboid(n, factors).period == max(1, len(factors))
    assert hypercuboid(n, factors).degree == max(factors, default=1) - 1


@pytest.mark.parametrize("n", range(1, 34))
def test_one_peer_exponential_finds_the_mean_iff_n_is_a_power_of_two(n: int) -> None:
    left = period_contraction(one_peer_exponential(n))
    assert left < 1e-28 if n & (n - 1) == 0 else left > 1e-6


@pytest.mark.parametrize(("p", "t"), [(2, 0), (2, 1), (2, 5), (3, 3), (5, 2), (7, 1)])
def test_de_bruijn_finds_the_mean_in_t_rounds_though_its_norm_is_one(p: int, t: int) -> None:
    topology = de_bruijn(p**t, p)
    W = topology.matrix(0)
    assert np.abs(np.linalg.matrix_power(W, t) - 1 / p**t).max() < 1e-15
    # W Wᵀ has the blocks of nodes with the same successors: a projection other than J as soon as there are two of them.
    assert contraction(topology) == pytest.approx(1.0 if t >= 2 else 0.0, abs=1e-12)
    assert topology.degree == {0: 0, 1: p - 1}.get(t, p)
