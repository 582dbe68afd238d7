"""Moments of a round's matrix against the mean over all that can happen, and against draws of the real structure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

import stgt.topology as topo
from stgt.topology import Topology
from test_structures import PAIRS

Outcomes = list[tuple[float, np.ndarray]]  # (chance, W)
SIDES = list(itertools.product((False, True), repeat=2))


def pairings(nodes: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All perfect matchings; of an odd number of nodes, all that leave one alone."""
    if len(nodes) % 2:
        for alone in nodes:
            yield from pairings([node for node in nodes if node != alone])
        return
    if not nodes:
        yield []
        return
    first, *others = nodes
    for partner in others:
        for rest in pairings([node for node in others if node != partner]):
            yield [(first, partner), *rest]


def with_links(n: int, links: list[tuple[int, int, float]]) -> np.ndarray:
    W = np.eye(n)
    for i, j, w in links:
        W[[i, j], [i, j]] -= w
        W[[i, j], [j, i]] += w
    return W


def matchings(n: int) -> Outcomes:
    every = list(pairings(list(range(n))))
    return [(1 / len(every), with_links(n, [(i, j, 0.5) for i, j in pairs])) for pairs in every]


def calls(n: int, s: int) -> Outcomes:
    found = []
    for called in itertools.combinations(range(n), s):
        W = np.eye(n)
        W[np.ix_(called, called)] = 1 / s
        found.append((1 / math.comb(n, s), W))
    return found


def failures(W: np.ndarray, link: float, node: float) -> Outcomes:
    """Every pattern of failing links and nodes, with its chance."""
    n, found = len(W), []
    links = [(i, j, W[i, j]) for i in range(n) for j in range(i) if W[i, j]]
    for up in itertools.product((0, 1), repeat=len(links)):
        for here in itertools.product((0, 1), repeat=n):
            chance = (1 - link) ** sum(up) * link ** (len(up) - sum(up))
            chance *= (1 - node) ** sum(here) * node ** (n - sum(here))
            kept = [(i, j, w) for (i, j, w), there in zip(links, up, strict=True) if there and here[i] and here[j]]
            if chance:
                found.append((chance, with_links(n, kept)))
    return found


def lossy_matchings(n: int, link: float, node: float) -> Outcomes:
    return [(p * q, W) for p, M in matchings(n) for q, W in failures(M, link, node)]


def each(topology: Topology) -> Outcomes:
    assert topology.period is not None
    return [(1 / topology.period, topology.matrix(r)) for r in range(topology.period)]


WEIGHTED = np.array([[0.6, 0.3, 0.1, 0], [0.3, 0.3, 0.2, 0.2], [0.1, 0.2, 0.5, 0.2], [0, 0.2, 0.2, 0.6]])
TWO = topo.sequence([WEIGHTED, topo.ring(4).matrix(0)])
CASES: dict[str, tuple[Topology, int, Outcomes]] = {
    **{f"matching of {n}": (topo.random_matching(n), 0, matchings(n)) for n in range(1, 8)},
    **{f"{s} of {n} called": (topo.server(n, s), 0, calls(n, s)) for n in (1, 2, 3, 4, 6) for s in range(1, n + 1)},
    "failing ring": (topo.unreliable(topo.ring(4), 0.3), 0, failures(topo.ring(4).matrix(0), 0.3, 0)),
    "failing nodes": (topo.unreliable(topo.ring(4), 0, 0.4), 0, failures(topo.ring(4).matrix(0), 0, 0.4)),
    "both": (topo.unreliable(topo.ring(4), 0.3, 0.2), 0, failures(topo.ring(4).matrix(0), 0.3, 0.2)),
    "ring of 2": (topo.unreliable(topo.ring(2), 0.3, 0.2), 0, failures(topo.ring(2).matrix(0), 0.3, 0.2)),
    "one node": (topo.unreliable(topo.ring(1), 0.3, 0.2), 0, [(1.0, np.eye(1))]),
    "weights, first": (topo.unreliable(TWO, 0.3, 0.2), 0, failures(WEIGHTED, 0.3, 0.2)),
    "weights, second": (topo.unreliable(TWO, 0.3, 0.2), 3, failures(TWO.matrix(1), 0.3, 0.2)),
    "complete": (topo.unreliable(topo.complete(4), 0.3, 0.2), 0, failures(topo.complete(4).matrix(0), 0.3, 0.2)),
    **{
        f"failing matching of {n}": (
            topo.unreliable(topo.random_matching(n), 0.3, 0.2),
            0,
            lossy_matchings(n, 0.3, 0.2),
        )
        for n in (2, 3, 4, 5)
    },
    "any round": (topo.any_of(topo.one_peer_exponential(8)), 0, each(topo.one_peer_exponential(8))),
    "any of three": (
        topo.any_of([topo.ring(4), WEIGHTED, np.eye(4)[[1, 2, 3, 0]]]),
        0,
        [(1 / 3, W) for W in (topo.ring(4).matrix(0), WEIGHTED, np.eye(4)[[1, 2, 3, 0]])],
    ),
    "a period's round": (topo.one_peer_exponential(8), 4, [(1.0, topo.one_peer_exponential(8).matrix(1))]),
    "directed, static": (topo.ring(5, directed=True), 0, [(1.0, topo.ring(5, directed=True).matrix(0))]),
    "mean": (topo.complete(5), 0, [(1.0, np.full((5, 5), 0.2))]),
    "more than 64 nodes": (topo.one_peer_exponential(70), 3, [(1.0, topo.one_peer_exponential(70).matrix(3))]),
    **{
        f"turn {phase}": (
            topo.sequence([topo.random_matching(4), topo.unreliable(TWO, 0.3), topo.ring(4), topo.any_of(TWO)]),
            phase,
            outcomes,
        )
        for phase, outcomes in {
            0: matchings(4),
            1: failures(WEIGHTED, 0.3, 0),
            2: each(topo.ring(4)),
            3: each(TWO),
            5: failures(TWO.matrix(1), 0.3, 0),
        }.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_moments_are_the_mean_over_all_that_can_happen(name: str) -> None:
    topology, phase, outcomes = CASES[name]
    n = topology.n
    found = topology.moments(phase)
    assert (found.exact, found.draws, found.n) == (True, 0, n)
    assert sum(chance for chance, _ in outcomes) == pytest.approx(1)
    np.testing.assert_allclose(found.mean, sum(p * W for p, W in outcomes), rtol=0, atol=1e-12)
    A = np.random.default_rng(0).normal(size=(n, n))
    for back in SIDES:
        expected = sum(p * (W.T if back[0] else W) @ A @ (W if back[1] else W.T) for p, W in outcomes)
        np.testing.assert_allclose(found.second(A, back), expected, rtol=0, atol=1e-12)
    J, v = np.full((n, n), 1 / n), np.random.default_rng(1).normal(size=(n, 2))
    for back in (False, True):
        turned = [(p, (W.T if back else W) - J) for p, W in outcomes]
        expected = sum(p * D.T @ D @ v for p, D in turned)
        np.testing.assert_allclose(found.remainder(v, back), expected, rtol=0, atol=1e-12)
    assert found.standard_error(np.trace) == 0


@pytest.mark.parametrize("name", ["matching of 5", "3 of 6 called", "both", "failing matching of 4", "any round"])
def test_blocks_are_multiplied_as_a_whole(name: str) -> None:
    """E[(W ⊗ I) A (W ⊗ I)ᵀ] with blocks (i, j) of A in the first two axes."""
    topology, phase, outcomes = CASES[name]
    A = np.random.default_rng(0).normal(size=(topology.n, topology.n, 2, 3))
    expected = sum(p * np.einsum("ik,klab,jl->ijab", W, A, W) for p, W in outcomes)
    np.testing.assert_allclose(topology.moments(phase).second(A), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "topology",
    [
        topo.random_matching(9),
        topo.server(8, 3),
        topo.unreliable(topo.star(7), 0.2, 0.3),
        topo.unreliable(topo.random_matching(6), 0.2, 0.3),
        topo.any_of(topo.one_peer_exponential(9)),
    ],
    ids=str,
)
def test_draws_of_the_structure_follow_the_law(topology: Topology) -> None:
    """Each entry's mean over 800 rounds lies within five standard errors."""
    draws, n = 800, topology.n
    A = np.random.default_rng(0).normal(size=(n, n))
    matrices = np.array([topology.matrix(r, seed=5) for r in range(draws)])
    law = topology.moments()
    for values, expected in (
        (matrices, law.mean),
        (matrices @ A @ matrices.transpose(0, 2, 1), law.second(A)),
        (matrices.transpose(0, 2, 1) @ A @ matrices, law.second(A, (True, True))),
    ):
        off = np.abs(values.mean(axis=0) - expected)
        error = values.std(axis=0, ddof=1) / math.sqrt(draws)
        assert (off <= 5 * error + 1e-12).all()


def test_a_law_that_is_not_known_is_estimated() -> None:
    """`PAIRS` joins a random node of n with the next one: W = I − share · b bᵀ, each of n such equally likely."""
    n, share = PAIRS.n, PAIRS.structure.share
    outcomes = [(1 / n, with_links(n, [(i, (i + 1) % n, share)])) for i in range(n)]
    found = PAIRS.moments(draws=900)
    assert (found.exact, found.draws) == (False, 900)
    A = np.random.default_rng(0).normal(size=(n, n))
    for functional, estimate in (
        (lambda W: W[0, 1], found.mean[0, 1]),
        (lambda W: float((W @ A @ W.T)[0, 2]), found.second(A)[0, 2]),
    ):
        values = np.array([functional(W) for _, W in outcomes])
        error = found.standard_error(functional)
        assert error == pytest.approx(values.std() / 30, rel=0.2)  # √900 draws
        assert abs(estimate - values.mean()) < 4 * error


def test_large_and_sparse() -> None:
    """E[W²] − J of 100,000 nodes as a map of vectors: on a lossy ring, against its symbol."""
    n, link = 100_000, 0.3
    wave = np.cos(2 * math.pi * 7 / 100 * np.arange(n))[:, None]
    found = topo.unreliable(topo.ring(n), link).moments().remainder(wave)
    # (I − W) of weight 1/3 has the symbol ℓ = (2 − 2 cos φ)/3; E[L²] = q² L² + (q − q²) Σ_e w_e² 2 b bᵀ.
    q, ell = 1 - link, (2 - 2 * math.cos(2 * math.pi * 7 / 100)) / 3
    expected = 1 - 2 * q * ell + q**2 * ell**2 + (q - q**2) * 2 / 3 * ell
    np.testing.assert_allclose(found, expected * wave, rtol=0, atol=1e-10)


def test_any_of_one_matrix_is_static() -> None:
    alone = topo.any_of([topo.ring(5)])
    assert alone.period == 1
    assert np.array_equal(alone.matrix(3), topo.ring(5).matrix(0))


def test_any_of_draws_each_as_often() -> None:
    """Counts of 900 draws of three matrices: 300 ± 14, and 100 ± 9.4 of each pair of rounds."""
    stack = [np.roll(np.eye(3), k, axis=1) for k in range(3)]
    drawn = [int(topo.any_of(stack, seed=4).matrix(r)[0].argmax()) for r in range(900)]
    counts = np.bincount(drawn)
    assert (np.abs(counts - 300) < 5 * 14).all()
    pairs = np.bincount([3 * a + b for a, b in itertools.pairwise(drawn)], minlength=9)
    assert (np.abs(pairs - 100) < 5 * 9.4).all()


def test_bad_input() -> None:
    for attempt, words in (
        (lambda: topo.ring(4).moments(-1), "phase=-1"),
        (lambda: PAIRS.moments(draws=1), "draws=1"),
        (lambda: topo.ring(4).moments().second(np.eye(3)), "n=4 nodes"),
        (lambda: topo.relay(6, 2).moments(), r"server\(6, sampled=2\)"),
        (lambda: topo.schedule(4, lambda r: np.eye(4)).moments(), "has no period"),
        (lambda: topo.any_of([]), "items is empty"),
        (lambda: topo.any_of(3), "items is a int"),
        (lambda: topo.any_of(topo.random_matching(4)), "random already"),
        (lambda: topo.any_of([topo.ring(4), topo.random_matching(4)]), "not static"),
        (lambda: topo.any_of([topo.ring(8), topo.hypercuboid(8)]), "not static"),
        (lambda: topo.any_of([topo.ring(4), topo.ring(5)]), "of one size"),
        (lambda: topo.any_of(topo.server(4)), "has a server"),
        (lambda: topo.any_of(topo.relay(4, 2)), "has a server"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")
