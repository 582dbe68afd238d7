"""Topologies that are given: items that take turns, functions of the round, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import stgt
import stgt.topology as topo
from catalogue import quadratic
from stgt import theory
from stgt.simulator.instance import check_runs
from stgt.study.spec import build_topology
from stgt.topology import Topology, contraction, period_contraction
from stgt.topology.given import Cyclic
from stgt.topology.structure import Dense, Gather

ONE_WAY = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
BROADCAST = np.array([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])


# ------------------------------------------------------------------------------------------------------ taking turns


def test_a_periodic_item_goes_on_by_one_each_time_it_is_its_turn() -> None:
    cube, peers = topo.hypercuboid(6), topo.one_peer_exponential(6)  # of periods 2 and 3
    both = topo.sequence([cube, peers, np.eye(6)])
    for r in range(40):
        expected = (cube.matrix(r // 3), peers.matrix(r // 3), np.eye(6))[r % 3]
        assert np.array_equal(both.matrix(r), expected)
    assert both.period == 3 * 6
    assert isinstance(both.structure, Dense)
    assert (both.symmetric, both.doubly_stochastic, both.degree, both.random) == (False, True, 2, False)
    assert topo.sequence([cube, topo.ring(6)]).symmetric


def test_a_sequence_of_topologies_is_a_sequence_of_their_matrices() -> None:
    items = [topo.ring(5), topo.complete(5)]
    one, other = topo.sequence(items), topo.sequence([item.matrix(0) for item in items])
    for r in range(4):
        assert np.array_equal(one.matrix(r), other.matrix(r))
    assert [one.period, one.degree, one.symmetric] == [other.period, other.degree, other.symmetric]


def test_random_items_are_drawn_by_the_round() -> None:
    matching = topo.random_matching(8, seed=3)
    twice = topo.sequence([matching, matching, np.eye(8)])
    for r in range(30):
        assert np.array_equal(twice.matrix(r, 4), np.eye(8) if r % 3 == 2 else matching.matrix(r, 4))
    drawn = [twice.matrix(r) for r in range(30) if r % 3 < 2]
    assert any(not np.array_equal(a, b) for a, b in pairwise(drawn))
    assert (twice.period, twice.random, twice.degree, twice.symmetric) == (None, True, 1, True)
    assert not topo.sequence([topo.ring(8, directed=True), matching]).symmetric


def test_a_failing_schedule_goes_through_its_cycle_too() -> None:
    # With nothing failing, unreliable(…) is what it was made from: periods 2 and 2 would otherwise never meet.
    cube = topo.hypercuboid(6)
    turns = topo.sequence([topo.unreliable(cube), topo.random_matching(6)])
    for r in range(0, 12, 2):
        assert np.allclose(turns.matrix(r), cube.matrix(r // 2), rtol=0, atol=1e-15)
    failing = topo.sequence([topo.unreliable(cube, link=0.5)] * 2)
    draws = [failing.matrix(r).tobytes() for r in range(40)]
    assert len(set(draws)) > 10  # 8 and 64 graphs are possible: 40 draws hardly ever show fewer than 11 of them


def test_seeds_of_items_and_runs_add_up() -> None:
    # 2^32 − 1 + 2 wraps to 1, and with_seed(5) adds 5 more.
    turns = topo.sequence([topo.random_matching(8, seed=2**32 - 1), np.eye(8)])
    assert np.array_equal(turns.matrix(6, 2), topo.random_matching(8, seed=1).matrix(6))
    assert np.array_equal(turns.with_seed(5).matrix(6, 2), topo.random_matching(8, seed=6).matrix(6))


def test_sequences_within_sequences() -> None:
    matching, cube = topo.random_matching(6), topo.hypercuboid(6)
    inner = topo.sequence([cube, matching])
    outer = topo.sequence([inner, np.eye(6)])
    # Its turns are the even rounds; of them every second one is the cube's, which goes on by one each time.
    for r in range(0, 16, 4):
        assert np.array_equal(outer.matrix(r), cube.matrix(r // 4))
        assert np.count_nonzero(outer.matrix(r + 2)) == 12  # three pairs
        assert np.array_equal(outer.matrix(r + 1), np.eye(6))


def test_large_periodic_sequences_are_not_written_out() -> None:
    n = 4000
    turns = topo.sequence([topo.ring(n), topo.complete(n)])
    assert isinstance(turns.structure, Cyclic)
    assert (turns.period, turns.random, turns.symmetric, turns.degree) == (2, False, True, n - 1)
    # The ring's second eigenvalue is (1 + 2 cos 2π/n)/3, and J leaves nothing.
    expected = ((1 + 2 * math.cos(2 * math.pi / n)) / 3) ** 2 / 2
    assert contraction(turns) == pytest.approx(expected, abs=1e-12)


def test_what_is_said_of_a_random_sequence() -> None:
    # The ring's ‖W − J‖² is ((1 + 2 cos 2π/8)/3)² in every even round; a matching has ρ = (n − 2)/(2(n − 1)) = 3/7.
    turns = topo.sequence([topo.ring(8), topo.random_matching(8)])
    ring = ((1 + 2 * math.cos(2 * math.pi / 8)) / 3) ** 2
    found = theory.rho(turns)
    assert found == contraction(turns) == pytest.approx((ring + 3 / 7) / 2, abs=1e-12)
    assert found.worst == pytest.approx(ring, abs=1e-12)
    assert found.exact
    # E[M] = I − (4/7)(I − J) does the same to every disagreement, so that the two together leave their product.
    assert period_contraction(turns) == pytest.approx(ring * 3 / 7, abs=1e-12)


def test_unreliable_sequences() -> None:
    failing = topo.unreliable(topo.sequence([topo.ring(5), topo.complete(5)]), link=0.2)
    assert isinstance(failing.structure.base, Gather)
    for r in range(6):
        assert np.array_equal(failing.matrix(r), failing.matrix(r).T)


# ------------------------------------------------------------------------------------------- a function of the round


def halves(r: int) -> np.ndarray:
    """One pair of four nodes averages, (0, 1), (1, 2), (2, 3) or (3, 0) in turn."""
    W, i, j = np.eye(4), r % 4, (r + 1) % 4
    W[i, i] = W[j, j] = W[i, j] = W[j, i] = 0.5
    return W


def test_schedule_with_a_period_is_a_sequence() -> None:
    topology, same = topo.schedule(4, halves, period=4), topo.sequence([halves(r) for r in range(4)])
    for r in range(9):
        assert np.array_equal(topology.matrix(r), halves(r))
    for flag in ("period", "degree", "symmetric", "doubly_stochastic", "random"):
        assert getattr(topology, flag) == getattr(same, flag)
    assert topology.name == "schedule(4, period=4)"


def test_schedule_of_topologies() -> None:
    # Round 3 of the hyper-cuboid of period 2 is its second matrix.
    cube, matching = topo.hypercuboid(6), topo.random_matching(6, seed=2)
    topology = topo.schedule(6, lambda r: cube if r % 2 else topo.complete(6), period=2)
    assert np.array_equal(topology.matrix(3), cube.matrix(1))
    drawn = topo.schedule(6, lambda r: matching if r > 2 else np.eye(6))
    assert np.array_equal(drawn.matrix(2), np.eye(6))
    assert np.array_equal(drawn.matrix(5, 3), matching.matrix(5, 3))


def growing(r: int) -> np.ndarray:
    """Weight 1/(r + 2) on the other of two nodes: no two rounds are alike."""
    share = 1 / (r + 2)
    return np.array([[1 - share, share], [share, 1 - share]])


def test_schedule_that_never_repeats() -> None:
    topology = topo.schedule(2, growing)
    assert (topology.period, topology.random, topology.has_server) == (None, False, False)
    assert (topology.doubly_stochastic, topology.symmetric, topology.degree) == (True, False, 1)
    assert not topo.schedule(2, growing, row_stochastic=True).doubly_stochastic
    problem = quadratic(2, 3)
    trace = stgt.simulate(stgt.DPSGD(gamma=0.1), problem, topology, 5, engine="numpy", x0=np.ones(3))
    # DPSGD: x ← W_r x − γ∇f(x), by hand.
    x = np.ones((2, 3))
    for r in range(5):
        x = growing(r) @ x - 0.1 * (np.einsum("ijk,ik->ij", problem.data["A"], x) - problem.data["b"])
    np.testing.assert_allclose(trace.x[0], x, rtol=0, atol=1e-12)
    assert trace["messages"][0, -1] == 5 * 2


def test_a_schedule_that_never_repeats_needs_no_compiler() -> None:
    """On the reference it is the graph that the function gives; the compiled engine and the theory say what to do."""
    problem, endless, algorithm = quadratic(4, 2), topo.schedule(4, lambda r: topo.ring(4)), stgt.STGT(gamma=0.05)
    plain, same = (
        stgt.simulate(algorithm, problem, graph, 6, engine="numpy", x0=np.ones(2)) for graph in (endless, topo.ring(4))
    )
    np.testing.assert_array_equal(plain.x, same.x)
    attempts: list[Callable[[], object]] = [
        lambda: stgt.simulate(algorithm, problem, endless, 3),
        lambda: contraction(endless),
        lambda: period_contraction(endless),
        lambda: theory.rho(endless),
        lambda: theory.spectral_gap(endless),
        lambda: theory.spectral_radius(algorithm, problem, endless),
        lambda: theory.check(algorithm, problem, endless),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r'schedule\(4\) has no period.*give period=….*engine="numpy"\.') as caught:
            attempt()
        assert "random" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------- bad input


def raising(r: int) -> np.ndarray:
    raise KeyError("edge")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topo.sequence([topo.ring(4), topo.server(4, 2)]),
            r"W_1 is server\(4, 2 sampled\), which has",
        ),
        (lambda: topo.sequence([topo.ring(4), topo.server(4)]), r"W_1 is server\(4\), which has a server"),
        (lambda: topo.sequence([topo.ring(4), topo.ring(5)]), "W_1 has 5 nodes but W_0 has 4: give items of one size"),
        (lambda: topo.sequence([topo.ring(4), np.eye(5)]), "W_1 has 5 nodes but W_0 has 4"),
        (lambda: topo.sequence([topo.ring(3), "ring"]), "W_1 is not an array of numbers"),
        (lambda: topo.sequence(topo.ring(3)), "matrices is a Topology: give a list"),
        (
            lambda: topo.sequence([topo.ring(3), topo.from_matrix(BROADCAST, row_stochastic=True)]),
            "W_1 is .* only row-stochastic: give row_stochastic=True",
        ),
        (lambda: topo.sequence([topo.ring(3), BROADCAST]), "W_1: column 0 sums to 3"),
        (
            lambda: topo.sequence([topo.ring(2), topo.schedule(2, growing)]),
            r"W_1 is schedule\(2\), .* no period",
        ),
        (
            lambda: topo.unreliable(topo.sequence([topo.ring(4), topo.random_matching(4)]), 0.1),
            "cannot be written as one cycle .* apply unreliable to its items instead",
        ),
        (lambda: topo.unreliable(topo.schedule(2, growing), 0.1), r"schedule\(2\) has no period: give period=…"),
        (lambda: topo.schedule(0, halves), "n=0"),
        (lambda: topo.schedule(4, halves(0)), "function is a ndarray: give a function of the round r"),
        (lambda: topo.schedule(4, halves, period=0), "period=0"),
        (lambda: topo.schedule(4, halves, period=3), r"period=3, but function\(3\) differs from function\(0\) by 0.5"),
        (lambda: topo.schedule(5, halves, period=4), r"W_0 has shape \(4, 4\): give a matrix of n=5 nodes"),
        (lambda: topo.schedule(4, raising, period=4), r"function\(0\) raised KeyError: 'edge'; it must return W_0"),
        (lambda: topo.schedule(4, raising).matrix(7), r"function\(7\) raised KeyError: 'edge'; it must return W_7"),
        (lambda: topo.schedule(4, lambda r: None).matrix(2), "W_2 has entries that are not finite|W_2 has shape"),
        (lambda: topo.schedule(4, lambda r: np.eye(4)[:3]).matrix(2), r"W_2 has shape \(3, 4\): give a square matrix"),
        (lambda: topo.schedule(4, lambda r: np.eye(4) * np.nan).matrix(2), "W_2 has entries that are not finite"),
        (lambda: topo.schedule(3, lambda r: BROADCAST).matrix(2), "W_2: column 0 sums to 3"),
        (lambda: topo.schedule(4, lambda r: np.eye(3)).matrix(9), r"W_9 has shape \(3, 3\): give a matrix of n=4"),
        (lambda: topo.schedule(4, lambda r: topo.ring(5)).matrix(9), r"function\(9\) gave ring\(5\) of 5 nodes"),
        (lambda: topo.schedule(4, lambda r: topo.server(4)).matrix(9), r"function\(9\) gave server\(4\), which has a"),
        (
            lambda: topo.schedule(4, lambda r: topo.random_matching(4), period=2),
            r"function\(0\) gave random_matching\(4\), which is random and has no period: leave period out",
        ),
        (
            lambda: build_topology({"name": "schedule"}, 4),
            "topology.name='schedule' takes what a file cannot hold: register",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert str(caught.value).endswith(".")


def test_row_stochastic_items_and_functions_are_admitted_on_request() -> None:
    broadcast = topo.from_matrix(BROADCAST, row_stochastic=True)
    items = topo.sequence([topo.ring(3), broadcast], row_stochastic=True)
    assert (items.doubly_stochastic, items.symmetric, items.period) == (False, False, 2)
    drawn = topo.sequence([topo.random_matching(3), broadcast], row_stochastic=True)
    assert (drawn.doubly_stochastic, drawn.symmetric, drawn.period) == (False, False, None)
    assert not topo.schedule(3, lambda r: BROADCAST, period=1, row_stochastic=True).doubly_stochastic
    assert np.array_equal(topo.schedule(3, lambda r: BROADCAST, row_stochastic=True).matrix(4), BROADCAST)


@pytest.mark.parametrize("name", ["matrix", "active", "listening", "called"])
def test_a_topology_that_overrides_what_its_structure_knows_is_refused(name: str) -> None:
    """An override would be seen by the engines that call it, and silently not by the compiled one."""
    words = rf"class Mine overrides Topology.{name}, .* give topology.schedule\(n, function\), or write a Structure"
    with pytest.raises(ValueError, match=words):
        type("Mine", (Topology,), {name: lambda self, r, seed=0: np.eye(self.n)})
    with pytest.raises(ValueError, match=words):
        type("Mine", (type("Mixin", (), {name: None}), Topology), {})
    type("Named", (Topology,), {"__repr__": lambda self: "mine"})


# ------------------------------------------------------------------------------------------- nodes that never meet

BLOCKS, SWAPPED = np.kron(np.eye(2), np.full((2, 2), 0.5)), np.eye(4)[[2, 1, 0, 3]]
LEADERS = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0]])
APART = {  # two nodes that never exchange anything
    "two blocks": (lambda: topo.from_matrix(BLOCKS), (0, 2)),
    "in turn": (lambda: topo.sequence([BLOCKS, np.eye(4)]), (0, 2)),
    "drawn": (lambda: topo.any_of([BLOCKS, np.eye(4)]), (0, 2)),
    "failing": (lambda: topo.unreliable(topo.from_matrix(BLOCKS), link=0.5), (0, 2)),
    "failing in turn": (lambda: topo.sequence([topo.unreliable(topo.from_matrix(BLOCKS), 0.5), BLOCKS]), (0, 2)),
    "a function's": (lambda: topo.schedule(4, lambda r: BLOCKS, period=2), (0, 2)),
    "even hops": (lambda: topo.circulant(6, [2, -2]), (0, 1)),
    "called alone": (lambda: topo.server(4, sampled=1), (0, 1)),
    "neighbour lists": (lambda: topo.from_matrix(np.kron(np.eye(2), topo.ring(70).matrix(0))), (0, 70)),
}


@pytest.mark.parametrize("name", APART)
def test_nodes_that_never_hear_of_each_other_are_refused(name: str) -> None:
    make, (one, other) = APART[name]
    graph = make()
    problem, words = quadratic(graph.n, 1), rf"nodes {one} and {other} of .* never exchange anything, .*: (connect|let)"
    with pytest.raises(ValueError, match=words):
        stgt.simulate(stgt.STGT(gamma=0.1), problem, graph, 1)
    with pytest.raises(ValueError, match=words):
        theory.spectral_radius(stgt.STGT(gamma=0.1), problem, graph)
    with pytest.raises(ValueError, match=words):
        check_runs(stgt.STGT(), graph, "trainer")


def test_leaders_of_whom_neither_hears_the_other() -> None:
    """Followers hear both of them; with one leader all follow it."""
    with pytest.raises(ValueError, match=r"nodes 0 and 1 of .* never exchange"):
        stgt.simulate(stgt.FedAvg(gamma=0.1), quadratic(4, 1), topo.from_matrix(LEADERS, row_stochastic=True), 1)
    one = np.vstack([LEADERS[:1], [0.5, 0.5, 0, 0], LEADERS[2:]])
    assert topo.from_matrix(one, row_stochastic=True).strangers is None


@pytest.mark.parametrize(
    "graph",
    [
        topo.sequence([BLOCKS, SWAPPED]),
        topo.any_of([BLOCKS, SWAPPED]),
        topo.sequence([topo.unreliable(topo.from_matrix(BLOCKS), 0.5), SWAPPED]),
        topo.circulant(6, [2, 3]),
        topo.relay(4, sampled=1),
        topo.from_matrix(np.eye(1)),
        *(made(66) for made in (topo.one_peer_exponential, topo.hypercuboid, topo.random_matching)),
        topo.base_graph(67, 2),
        topo.de_bruijn(81, 3),
    ],
    ids=str,
)
def test_rounds_that_join_them_are_enough(graph: Topology) -> None:
    assert graph.strangers is None


def test_a_server_that_holds_the_model_may_call_one() -> None:
    stgt.simulate(stgt.FedAvg(gamma=0.1), quadratic(4, 1), topo.server(4, sampled=1), 1, engine="numpy")


@pytest.mark.parametrize("edges", [[(0, 1), (2, 3)], [(0, 1, 0.5), (2, 3, 0.5)]])
def test_edges_that_leave_two_parts_name_them(edges: list) -> None:
    with pytest.raises(ValueError, match=r"has 2 components .* of nodes 0 and 2; connect them"):
        topo.from_edges(edges)
