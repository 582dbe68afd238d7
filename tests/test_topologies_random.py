"""The random topologies: what each draw is, and the laws the draws follow.

Statistical tolerances are five standard errors, derived beside each test; the draws themselves are fixed by the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import stgt.topology as topo
from stgt.topology import Topology, contraction
from stgt.topology.spectra import norms


@pytest.mark.parametrize("n", [6, 7])
def test_random_matching_is_uniform(n: int) -> None:
    rounds = 4000
    met = np.zeros((n, n))
    for r in range(rounds):
        W = topo.random_matching(n, seed=8).matrix(r)
        assert np.array_equal(W @ W, W)  # pairs: averaging twice is averaging once
        assert (np.diag(W) == 1).sum() == n % 2
        met += W * 2 * (1 - np.eye(n))
    # By symmetry i meets each other node equally often: ⌊n/2⌋ pairs among n(n−1)/2, a Bernoulli draw a round.
    p = (n // 2) / (n * (n - 1) / 2)
    off = met[~np.eye(n, dtype=bool)] / rounds
    assert np.abs(off - p).max() < 5 * math.sqrt(p * (1 - p) / rounds)


def test_server_averages_the_called_and_leaves_the_rest() -> None:
    topology = topo.server(7, 3, seed=1)
    for r in range(20):
        e = topology.active(r).astype(float)
        assert e.sum() == 3
        literal = np.outer(e, e) / 3 + np.eye(7) - np.diag(e)
        assert topology.matrix(r) == pytest.approx(literal)
        assert topology.matrix(r, held=True) == pytest.approx(np.outer(np.ones(7), e) / 3)
    assert contraction(topology) == pytest.approx(4 / 6)  # W² = W, so λ₂ of E[W] = 1 − (s − 1)/(n − 1)
    assert contraction(topo.server(7)) == 0.0
    assert topo.server(7).matrix(2) == pytest.approx(np.full((7, 7), 1 / 7))
    assert (topology.sampled, topology.participation, topology.has_server) == (3, 3 / 7, True)


def test_server_calls_uniformly() -> None:
    n, s, rounds = 10, 4, 4000
    topology = topo.server(n, s, seed=21)
    share = np.mean([topology.active(r) for r in range(rounds)], axis=0)
    p = s / n
    assert np.abs(share - p).max() < 5 * math.sqrt(p * (1 - p) / rounds)


def test_relay_is_eq_wr() -> None:
    topology = topo.relay(9, 4, seed=2)
    for r in range(20):
        now, following = topology.active(r).astype(float), topology.active(r + 1).astype(float)
        # Eq_Wr with the paper's round r + 1: (1/s) e_{S_{r+1}} e_{S_r}ᵀ + I − diag(e_{S_{r+1}}).
        literal = np.outer(following, now) / 4 + np.eye(9) - np.diag(following)
        assert topology.matrix(r) == pytest.approx(literal)
    assert max(int((topology.matrix(r) > 0).sum(axis=1).max()) for r in range(20)) == 4 == topology.degree
    assert not topology.doubly_stochastic
    everybody = topo.relay(9, 9)
    assert everybody.matrix(0) == pytest.approx(np.full((9, 9), 1 / 9))
    assert everybody.doubly_stochastic
    assert everybody.period == 1


def test_relay_mean_matrix() -> None:
    n, s, rounds = 8, 3, 4000
    topology = topo.relay(n, s, seed=3)
    # W_r and W_{r+2} share no sample, so every second round gives independent draws.
    mean = np.mean([topology.matrix(r) for r in range(0, 2 * rounds, 2)], axis=0)
    expected = (s / n) * np.full((n, n), 1 / n) + (n - s) / n * np.eye(n)
    # Off the diagonal an entry is 1/s with probability q = (s/n)², else 0; on it, it lies in [0, 1]: variance ≤ 1/4.
    q = (s / n) ** 2
    off = 5 * math.sqrt(q * (1 - q) / rounds) / s
    on = 5 * math.sqrt(0.25 / rounds)
    tolerance = np.where(np.eye(n, dtype=bool), on, off)
    assert (np.abs(mean - expected) < tolerance).all()
    # The second eigenvalue is 1 − s/n; Weyl: an error E moves it by at most ‖E‖ ≤ ‖E‖_F.
    second = np.linalg.eigvalsh((mean + mean.T) / 2)[-2]
    assert abs(second - (1 - s / n)) < np.linalg.norm(tolerance)


@pytest.mark.parametrize(("s", "stated"), [(4, 1.81), (16, 1.30)])
def test_norms_of_a_relay(s: int, stated: float) -> None:
    # ‖W_r − J‖ depends on the overlap m = |S_r ∩ S_{r+1}| alone, which is hypergeometric: sum over m exactly.
    n, draws = 32, 400
    mean = square = 0.0
    for m in range(max(0, 2 * s - n), s + 1):
        now, following = np.zeros(n), np.zeros(n)
        now[:s] = following[s - m : 2 * s - m] = 1
        W = np.outer(following, now) / s + np.eye(n) - np.diag(following)
        value = np.linalg.norm(W - 1 / n, 2) ** 2
        chance = math.comb(s, m) * math.comb(n - s, s - m) / math.comb(n, s)
        mean, square = mean + chance * value, square + chance * value**2
    assert mean == pytest.approx(stated, abs=0.005)  # the value the reference sheet reports
    # Overlaps of different rounds are independent: given the sample they share, neither law depends on which it is.
    assert abs((norms(topo.relay(n, s), draws) ** 2).mean() - mean) < 5 * math.sqrt((square - mean**2) / draws)


def test_random_rounds_are_a_pure_function_of_round_and_seed() -> None:
    makers: list[Callable[[int], Topology]] = [
        lambda seed: topo.random_matching(9, seed),
        lambda seed: topo.server(9, 4, seed),
        lambda seed: topo.relay(9, 4, seed),
        lambda seed: topo.unreliable(topo.ring(9), 0.3, 0.1, seed),
    ]
    for make in makers:
        topology = make(5)
        forward = [topology.matrix(r) for r in range(10)]
        backward = [make(5).matrix(r) for r in reversed(range(10))][::-1]
        assert np.array_equal(forward, backward)
        # Run j of seed 5 is run 0 of seed 5 + j; seeds wrap at 2^32.
        assert np.array_equal(topology.matrix(3, 2), make(7).matrix(3))
        assert np.array_equal(topology.matrix(3, 2**32 - 5), make(0).matrix(3))
        assert any(not np.array_equal(a, b) for a, b in pairwise(forward))
        assert any(not np.array_equal(W, topology.matrix(r, 1)) for r, W in enumerate(forward))


@pytest.mark.parametrize(("link", "node"), [(0.2, 0.0), (0.0, 0.2), (0.3, 0.1)])
def test_unreliable_loses_the_stated_share_of_links(link: float, node: float) -> None:
    n, rounds = 100, 100
    topology = topo.unreliable(topo.ring(n), link, node, seed=9)
    kept = 0
    for r in range(rounds):
        W = topology.matrix(r)
        assert np.array_equal(W, W.T)
        works = np.diag(W, 1) > 0
        assert np.diag(W, 1)[works] == pytest.approx(1 / 3)  # what gets through keeps its weight
        kept += works.sum()
    p = (1 - link) * (1 - node) ** 2
    # n − 1 links a round on the superdiagonal; a link depends on at most its two neighbours: variance ≤ 3·(n−1)·p(1−p).
    links = (n - 1) * rounds
    assert abs(kept / links - p) < 5 * math.sqrt(3 * p * (1 - p) / links)


def test_unreliable_nodes_keep_what_they_have() -> None:
    # On a complete graph with perfect links the reachable nodes form a complete graph, the others stand alone.
    topology = topo.unreliable(topo.complete(6), node=0.4, seed=3)
    for r in range(10):
        W = topology.matrix(r)
        alone = np.diag(W) > 1 - 1e-12
        assert np.count_nonzero(W[alone]) == alone.sum()
        up = W[np.ix_(~alone, ~alone)]
        assert up - np.diag(np.diag(up)) == pytest.approx(np.full(up.shape, 1 / 6) - np.eye(len(up)) / 6)
