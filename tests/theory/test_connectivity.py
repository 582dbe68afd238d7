"""ρ and the spectral gap against closed forms."""

import itertools
import math
import pickle

import numpy as np
import pytest

from stgt import topology as topo
from stgt.theory import Rho, period_contraction, rho, spectral_gap
from stgt.topology import Topology
from stgt.topology.structure import NeighbourLists


def lossy_ring(n, q):
    ell = (2 - 2 * np.cos(2 * math.pi * np.arange(1, n) / n)) / 3
    return float((1 - 2 * q * ell + q**2 * ell**2 + (q - q**2) * 2 / 3 * ell).max())


def lossy_torus(rows, cols, q):
    """Weights 1/5: ℓ is the sum over both directions, and E[L²] = q²L² + (q − q²)(2/5)L as on the ring."""
    side = [2 - 2 * np.cos(2 * math.pi * np.arange(size) / size) for size in (rows, cols)]
    ell = (side[0][:, None] + side[1]).ravel()[1:] / 5
    return float((1 - 2 * q * ell + q**2 * ell**2 + (q - q**2) * 2 / 5 * ell).max())


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (topo.complete(7), 0.0),
        (topo.server(7), 0.0),
        (topo.random_matching(2), 0.0),
        (topo.ring(9), ((1 + 2 * math.cos(2 * math.pi / 9)) / 3) ** 2),  # eigenvalues (1 + 2 cos(2πk/n))/3
        (topo.ring(8, directed=True), math.cos(math.pi / 8) ** 2),  # |1 + e^{2πik/n}|/2
        (topo.exponential(32), (1 - 2 / 6) ** 2),  # 1 − 2/(t + 1), t = log₂ n
        (topo.star(10), (1 - 1 / 10) ** 2),
        # One round of the five connects: hop 1, cos²(π/32). The others leave parts that do not meet.
        (topo.one_peer_exponential(32), (math.cos(math.pi / 32) ** 2 + 4) / 5),
        (topo.hypercuboid(12), 1.0),
        (topo.de_bruijn(8), 1.0),
    ],
    ids=str,
)
def test_rho_in_closed_form(topology, expected):
    found = rho(topology)
    assert found == pytest.approx(expected, abs=1e-12)
    assert found.exact
    assert found.low == found.high == found
    assert found.draws == 0


def test_a_schedule_is_as_good_as_its_worst_round_to_the_theorems():
    """Assumption 1 asks for ρ < 1 in every round; the mean over a period may be below 1 where that fails."""
    found = rho(topo.one_peer_exponential(32))
    assert found < 0.999
    assert found.worst == pytest.approx(1, abs=1e-12)
    assert rho(topo.ring(9)).worst == rho(topo.ring(9))
    W = topo.ring(5).matrix(0)
    failing = rho(topo.unreliable(topo.sequence([W, np.eye(5)]), link=0.01))
    assert failing.worst == pytest.approx(1, abs=1e-12)
    assert failing == pytest.approx((1 + rho(topo.unreliable(topo.ring(5), link=0.01))) / 2)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        # W² = W for matchings and servers, so that ρ is λ₂ of E[W].
        (topo.random_matching(8), 3 / 7),
        (topo.random_matching(9), 1 / 2),
        (topo.random_matching(100_000), 49_999 / 99_999),
        (topo.server(32, sampled=4), 28 / 31),
        (topo.unreliable(topo.random_matching(8), 0.3), 0.3 + 0.7 * 3 / 7),
        # ℓ = (2 − 2 cos φ)/3 of the ring: 1 − 2qℓ + q²ℓ² + (q − q²)(2/3)ℓ at the longest wave, q = 0.7.
        (topo.unreliable(topo.ring(8), 0.3), lossy_ring(8, 0.7)),
        (topo.unreliable(topo.ring(100_000), 0.3), lossy_ring(100_000, 0.7)),
        (topo.unreliable(topo.torus(25, 40), 0.3), lossy_torus(25, 40, 0.7)),
        # |1 + ω^(kh)|²/4 = cos²(πkh/n): the mean over hops is the larger the fewer of them see k.
        (topo.any_of(topo.one_peer_exponential(32)), 4 / 5),
        (topo.any_of(topo.hypercuboid(32)), 4 / 5),
        (topo.any_of(topo.one_peer_exponential(1024)), 9 / 10),
        (topo.any_of(topo.de_bruijn(8)), 1.0),
    ],
    ids=str,
)
def test_rho_of_random_graphs_in_closed_form(topology, expected):
    found = rho(topology)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found.exact
    assert found.low == found.high == found.worst == found
    assert period_contraction(topology) == found  # all rounds are alike


def test_the_larger_of_both_sides():
    """E[WᵀW] and E[WWᵀ] of a random one of two directed matrices: what mixes one way need not the other way."""
    A = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    B = A[[0, 2, 1, 3]]
    sides = [np.linalg.norm((M(A) + M(B)) / 2 - 1 / 4, 2) for M in (lambda W: W.T @ W, lambda W: W @ W.T)]
    assert sides[0] > sides[1] + 0.1
    for matrices in ([A, B], [A.T, B.T]):
        assert rho(topo.any_of(matrices)) == pytest.approx(max(sides), abs=1e-12)


def test_relay_is_refused_but_not_its_norms():
    with pytest.raises(ValueError, match=r"use server\(32, sampled=4\)"):
        rho(topo.relay(32, 4))
    assert rho(topo.relay(5, 5)) == pytest.approx(0, abs=1e-12)


def test_what_a_period_of_random_rounds_leaves():
    """Hypercuboid rounds whose links fail: W² = W, so E[W²] = I − q(I − W) leaves 1 of all but the waves it sees."""
    q = 0.7
    failing = topo.unreliable(topo.hypercuboid(8), link=1 - q)
    assert rho(failing).worst == pytest.approx(1, abs=1e-12)
    # A wave that only the last round sees is left with 1 − q. One that only an earlier round sees is made into others
    # by the links that fail, which later rounds see, and less than 1 − q is left.
    assert period_contraction(failing) == pytest.approx(1 - q, abs=1e-12)


class OwnRing(NeighbourLists):
    """An unreliable ring that does not know its moments."""

    def __init__(self, link):
        self.inner = topo.unreliable(topo.ring(3), link).structure

    def lists(self, xp, seed, r, back=False):
        return self.inner.lists(xp, seed, r)


def test_intervals_cover():
    """Three nodes, each link of weight 1/3 down with probability 1/2: ρ over the eight graphs, and 30 intervals."""
    square = np.zeros((3, 3))
    for up in itertools.product((0, 1), repeat=3):
        W = np.eye(3)
        for (i, j), there in zip(((0, 1), (1, 2), (0, 2)), up, strict=True):
            W[i, j] = W[j, i] = there / 3
            W[i, i] -= there / 3
            W[j, j] -= there / 3
        square += W @ W / 8
    exact = np.linalg.norm(square - 1 / 3, 2)
    assert rho(topo.unreliable(topo.ring(3), link=0.5)) == pytest.approx(exact, abs=1e-12)

    def drawn(seed, **options):
        return rho(Topology("own", 3, OwnRing(0.5), period=None, degree=2, seed=seed), draws=40, **options)

    intervals = [drawn(1000 * seed) for seed in range(30)]
    covered = np.mean([found.low <= exact <= found.high for found in intervals])
    assert covered > 0.83  # 95 % of 30 is 28.5, give or take 1.2; more, since the upper end is safe
    assert np.mean([exact <= found.high for found in intervals]) > 0.93
    wider = drawn(0, confidence=0.999)
    assert wider.low < intervals[0].low < wider < intervals[0].high < wider.high
    assert not wider.exact
    assert wider.draws == 40


def test_rho_computes_like_the_number():
    found = rho(Topology("own", 3, OwnRing(0.5), period=None, degree=2), draws=10)
    assert isinstance(found, float)
    assert isinstance(1 - found, float)
    assert f"{found:.3f}" == f"{float(found):.3f}"
    assert str(found) == str(float(found))
    assert "10 draws" in repr(found)
    assert repr(Rho(0.25)) == "Rho(0.25, exact)"
    for value in (found, rho(topo.ring(5))):
        again = pickle.loads(pickle.dumps(value))
        assert (again, again.low, again.high, again.exact, again.draws, again.worst) == (
            (value, value.low, value.high, value.exact, value.draws, value.worst)
        )


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (topo.complete(6), 1.0),
        (topo.ring(9), 1 - (1 + 2 * math.cos(2 * math.pi / 9)) / 3),
        (topo.ring(8, directed=True), 1 - math.cos(math.pi / 8)),
        (topo.exponential(32), 2 / 6),
        (topo.star(10), 1 / 10),
        (topo.hypercuboid(12), 1.0),  # the product of a period is J
        (topo.base_graph(7, 2), 1.0),
        (topo.one_peer_exponential(16), 1.0),
        (topo.de_bruijn(32), 1.0),  # W⁵ = J
        (topo.sequence([topo.ring(5).matrix(0)] * 3), 1 - (1 + 2 * math.cos(2 * math.pi / 5)) / 3),
        (topo.server(32, sampled=4), 3 / 31),
        (topo.server(5, sampled=1), 0.0),
        (topo.relay(32, 4), 4 / 32),
        (topo.random_matching(8), 8 / 14),
        (topo.random_matching(9), 1 / 2),
        # λ₂ of the ring is cos(2π/5)·2/3 + 1/3; a link gets through with probability 0.7 · 0.9².
        (topo.unreliable(topo.ring(5), 0.3, 0.1), 0.7 * 0.81 * (2 - 2 * math.cos(2 * math.pi / 5)) / 3),
        (topo.unreliable(topo.random_matching(8), 0.3), 0.7 * 8 / 14),
    ],
    ids=str,
)
def test_spectral_gap_in_closed_form(topology, expected):
    assert spectral_gap(topology) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "topology",
    [
        topo.server(6, 3),
        topo.relay(6, 2),
        topo.random_matching(6),
        topo.random_matching(7),
        topo.unreliable(topo.ring(6), 0.4),
    ],
    ids=str,
)
def test_the_gap_of_a_random_topology_is_that_of_its_mean(topology):
    draws = 1000
    mean = sum(topology.matrix(r) for r in range(draws)) / draws
    second = np.abs(np.linalg.eigvals(mean - 1 / topology.n)).max()
    # Entries have a standard deviation of at most 1/2; Weyl moves an eigenvalue by at most the error's norm.
    assert abs(1 - second - spectral_gap(topology)) < 3 * topology.n * 0.5 / math.sqrt(draws)


def test_a_row_stochastic_matrix():
    """Of [[1 − a, a], [b, 1 − b]] the second eigenvalue is 1 − a − b."""
    topology = topo.from_matrix([[0.7, 0.3], [0.1, 0.9]], row_stochastic=True)
    assert spectral_gap(topology) == pytest.approx(0.4)


def test_period_contraction_is_here_too():
    assert period_contraction is topo.period_contraction
    assert period_contraction(topo.hypercuboid(12)) < 1e-26


def test_bad_input():
    for attempt, words in (
        (lambda: rho(topo.ring(4), draws=1), "draws=1"),
        (lambda: rho(topo.ring(4), confidence=1.0), "confidence=1"),
        (lambda: spectral_gap(topo.one_peer_exponential(2001)), "at most 2000 nodes"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")
