"""Routes without processes: every node's part of a mixing matrix, put together again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stgt
from stgt.torch.exchange import _pushed
from stgt.torch.routes import RouteSchedule, push_route, route


def exchange(W: np.ndarray, messages: np.ndarray, chunk: int, hears: np.ndarray | None) -> dict[int, np.ndarray]:
    """What every node has in the end, if each does what its route says and hears only what it is sent."""
    n = len(W)
    routes = [route(W, node, hears) for node in range(n)]
    sent = {(node, peer): messages[node] for node in range(n) for peer in routes[node].send_to}
    found = {}
    for node, one in enumerate(routes):
        if hears is not None and not hears[node]:
            assert not one.receive_from
            assert one.own_mean is None
            continue
        if one.own_mean is not None:
            mean = one.own_mean
            # The owner and all members know of the mean, or nobody would send.
            assert all(mean in routes[member].means for member in (*mean.members, *mean.receivers))
            assert mean.owner(chunk) in mean.members
            assert node in mean.receivers
            found[node] = np.mean([messages[member] for member in mean.members], axis=0)
            continue
        own = 1.0 - sum(weight for _, weight in one.receive_from)
        found[node] = own * messages[node] + sum(weight * sent.pop((peer, node)) for peer, weight in one.receive_from)
    assert not sent, "a message nobody listens to"
    return found


@st.composite
def matrices(draw) -> np.ndarray:
    """Stochastic matrices: sparse random rows, and rows that are the mean of a set that others may share."""
    n = draw(st.integers(1, 7))
    sets = [
        sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))) for _ in range(draw(st.integers(1, 3)))
    ]  # fmt: skip
    W = np.zeros((n, n))
    for i in range(n):
        if draw(st.booleans()):
            chosen = draw(st.sampled_from(sets))
            W[i, chosen] = 1.0 / len(chosen)
        else:
            row = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=float)
            row[i] += row.sum() == 0
            W[i] = row / row.sum()
    return W


@settings(max_examples=300, deadline=None)
@given(matrices(), st.integers(0, 20), st.data())
def test_all_routes_together_are_the_matrix(W, chunk, data):
    n = len(W)
    hears = None
    if data.draw(st.booleans()):
        hears = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    messages = np.random.default_rng(0).normal(size=(n, 3))
    found = exchange(W, messages, chunk, hears)
    assert set(found) == {i for i in range(n) if hears is None or hears[i]}
    for node, value in found.items():
        np.testing.assert_allclose(value, (W @ messages)[node], rtol=0, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(matrices())
def test_pairs_post_their_messages_in_one_order(W):
    """Messages between two nodes are told apart by their order: both must list the means they share in the same."""
    routes = [route(W, node) for node in range(len(W))]
    for one in routes:
        for other in routes:
            shared = [mean for mean in one.means if mean in other.means]
            assert shared == [mean for mean in other.means if mean in one.means]


def test_a_schedule_that_never_repeats_has_a_route_for_each_round():
    def growing(r):
        share = 1 / (r + 2)  # no two rounds are alike
        return np.array([[1 - share, share], [share, 1 - share]])

    topology, algorithm = stgt.topology.schedule(2, growing), stgt.DPSGD(tau=1)
    mine = RouteSchedule(topology, algorithm, node=0, seed=0)
    for r in (0, 1, 5, 2):
        assert mine.routes(r)["x"].receive_from == ((1, 1 / (r + 2)),)
    assert mine.active(3).all()
    assert mine.digest() == RouteSchedule(topology, algorithm, node=1, seed=0).digest()


@settings(max_examples=100, deadline=None)
@given(matrices())
def test_all_push_routes_together_are_the_matrix(W):
    C = W.T  # column-stochastic
    messages = np.random.default_rng(0).normal(size=(len(C), 3))
    if np.allclose(C.sum(axis=1), 1):
        return  # doubly stochastic: the ordinary routes
    routes = [push_route(C, node) for node in range(len(C))]
    for node, one in enumerate(routes):
        assert set(one.send_to) == {i for i, other in enumerate(routes) if node in dict(other.receive_from)}
        assert [dict(routes[i].receive_from)[node] for i in one.send_to] == list(one.send_weights)
        heard = sum(weight * messages[peer] for peer, weight in one.receive_from)
        np.testing.assert_allclose(
            (1 - sum(one.send_weights)) * messages[node] + heard, (C @ messages)[node], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
def test_what_is_pushed_keeps_its_sum_in_single_precision(wire):
    """2,000 times by a matrix whose weights float32 cannot say: rounding is no more than a random walk."""
    rng = np.random.default_rng(1)
    C = rng.dirichlet(np.ones(5), size=5).T
    routes = [push_route(C, node) for node in range(5)]
    kept = [torch.ones(64) for _ in range(5)]
    for _ in range(2000):
        sent = [value if wire is None else value.to(wire) for value in kept]
        kept = [
            _pushed(kept[i], sent[i], one.send_weights, [(weight, sent[j]) for j, weight in one.receive_from])
            for i, one in enumerate(routes)
        ]
    total = sum(value.double() for value in kept)
    assert abs(total.mean().item() - 5) <= 5 * 2000**0.5 * 2**-24
    if wire is None:
        limit = np.linalg.matrix_power(C, 2000) @ np.ones(5)
        np.testing.assert_allclose([value.mean().item() for value in kept], limit, rtol=0, atol=1e-4)


def test_means_are_used_where_they_save_something():
    complete = route(np.full((8, 8), 1 / 8), 3)
    assert not complete.receive_from
    assert not complete.send_to
    assert complete.own_mean.members == complete.own_mean.receivers == tuple(range(8))
    assert [complete.own_mean.owner(chunk) for chunk in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    pair = route(np.full((2, 2), 0.5), 1)
    assert pair.receive_from == ((0, 0.5),)
    assert pair.send_to == (0,)
    assert not pair.means
