"""ρ and the spectral gap against closed forms."""

import itertools
import math
import pickle

import numpy as np
import pytest

from stgt import topology as topo
from stgt.theory import Rho, period_contraction, rho, spectral_gap


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
        (topo.random_matching(9), 1.0),
        (topo.server(32, sampled=4), 1.0),
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
    assert failing < 0.9


@pytest.mark.parametrize(("s", "stated"), [(4, 1.81), (16, 1.30)])
def test_relay_is_exact(s, stated):
    """1.81 and 1.30 are the reference sheet's; the mean over rounds agrees with the exact sum over overlaps."""
    found = rho(topo.relay(32, s))
    assert found.exact
    assert found == pytest.approx(stated, abs=0.005)
    squares = np.array([np.linalg.norm(topo.relay(32, s).matrix(r) - 1 / 32, 2) ** 2 for r in range(300)])
    assert abs(squares.mean() - found) < 4 * squares.std(ddof=1) / math.sqrt(300)
    assert rho(topo.relay(50_000, 20_000)) == pytest.approx(rho(topo.relay(500, 200)), rel=2e-2)  # no overflow


def test_intervals_cover():
    """Three nodes, each link of weight 1/3 down with probability 1/2: ρ over the eight graphs, and 60 intervals."""
    exact = 0.0
    for up in itertools.product((0, 1), repeat=3):
        W = np.eye(3)
        for (i, j), there in zip(((0, 1), (1, 2), (0, 2)), up, strict=True):
            W[i, j] = W[j, i] = there / 3
            W[i, i] -= there / 3
            W[j, j] -= there / 3
        exact += np.linalg.norm(W - 1 / 3, 2) ** 2 / 8
    intervals = [rho(topo.unreliable(topo.ring(3), link=0.5, seed=1000 * seed), draws=40) for seed in range(60)]
    covered = np.mean([found.low <= exact <= found.high for found in intervals])
    assert 0.87 < covered <= 1  # 95 % of 60 is 57, give or take 1.7
    wider = rho(topo.unreliable(topo.ring(3), link=0.5), draws=40, confidence=0.999)
    assert wider.low < intervals[0].low < wider < intervals[0].high < wider.high
    assert not wider.exact
    assert wider.draws == 40


def test_rho_computes_like_the_number():
    found = rho(topo.unreliable(topo.ring(4), link=0.2), draws=10)
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
