"""The clock of randomness: known answers, the same bits on NumPy and JAX, and the laws the draws should follow.

Statistical tolerances are five standard errors, derived beside each test; the draws themselves are fixed by the seed.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stgt._internal.randomness import STREAM_SAMPLING, STREAM_START_GRADIENT, Clock, choose, coin, threefry, unit, words
from stgt.simulator.jax_ops import OPS as JAX
from stgt.simulator.reference import OPS

ONES = 0xFFFFFFFF


def clock(seed: int = 0, step: Any = 0, nodes: Any = (0, 1, 2), **options: Any) -> Clock:
    return Clock(OPS, np.float64, seed, np.array(nodes), step, **options)


# Random123's kat_vectors, threefry2x32 with 20 rounds: counter, key, expected.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(xp: Any, counter: tuple, key: tuple, expected: tuple) -> None:
    out = threefry(*(xp.asarray(np.array([word], dtype=np.uint32)) for word in (*key, *counter)))
    assert tuple(int(word[0]) for word in out) == expected


U32 = st.integers(0, ONES)


@settings(deadline=None, max_examples=25)
@given(seed=U32, step=U32, node=U32, column=st.integers(0, 2**28 - 1), stream=st.integers(0, 15))
def test_same_words_on_numpy_and_jax(seed: int, step: int, node: int, column: int, stream: int) -> None:
    for ours, theirs in zip(
        words(np, seed, step, node, column, stream), words(jnp, seed, step, node, column, stream), strict=True
    ):
        assert int(ours[0]) == int(theirs[0])


def test_same_words_for_arrays_on_numpy_and_jax() -> None:
    steps, nodes = np.arange(3)[:, None], np.arange(5)
    for ours, theirs in zip(words(np, 7, steps, nodes, 2, 1), words(jnp, 7, steps, nodes, 2, 1), strict=True):
        assert ours.shape == (3, 5)
        assert np.array_equal(ours, np.asarray(theirs))


def test_words_are_threefry_at_seed_step_and_node_column_stream() -> None:
    # The layout: key = (seed, step), counter = (a, b + stream·2^28).
    expected = threefry(*(np.array([word], dtype=np.uint32) for word in (9, 8, 7, 6 + (5 << 28))))
    assert [int(word[0]) for word in words(np, 9, 8, 7, 6, 5)] == [int(word[0]) for word in expected]


def test_unit_is_inside_zero_one_and_equal_in_both_precisions() -> None:
    ends = np.array([0, 511, 512, ONES], dtype=np.uint32)
    assert np.array_equal(unit(ends, np.float32), unit(ends, np.float64))
    # (m + ½)·2^-23 with m the top 23 bits: 0, 0, 1, 2^23 − 1.
    assert np.array_equal(unit(ends, np.float64), np.array([0.5, 0.5, 1.5, 2**23 - 0.5]) * 2.0**-23)


def test_normals_have_the_moments_of_a_normal() -> None:
    z = clock(seed=3, step=np.arange(100), nodes=np.arange(20)).normal(100).ravel()
    count = z.size
    assert count == 200_000
    # Var z = 1, Var z² = 3 − 1, Var z⁴ = E z⁸ − (E z⁴)² = 105 − 9.
    assert abs(z.mean()) < 5 * math.sqrt(1 / count)
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / count)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / count)


def test_normals_of_neighbouring_columns_steps_and_nodes_are_uncorrelated() -> None:
    z = clock(seed=4, step=np.arange(50), nodes=np.arange(40)).normal(50)
    for ours, theirs in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[..., 1:], z[..., :-1])):
        # The product of two independent standard normals has mean 0 and variance 1.
        assert abs((ours * theirs).mean()) < 5 / math.sqrt(ours.size)


def test_integers_are_uniform_below_each_nodes_limit() -> None:
    limits = np.array([1, 7, 32])
    draws = clock(seed=5, step=np.arange(200)).integers(100, limits)
    assert draws.shape == (200, 3, 100)
    for node, limit in enumerate(limits):
        counts = np.bincount(draws[:, node].ravel(), minlength=limit)
        assert len(counts) == limit
        expected = 200 * 100 / limit
        # Chi-square with m = limit − 1 degrees of freedom has mean m and variance 2m.
        m = limit - 1
        assert ((counts - expected) ** 2 / expected).sum() <= m + 5 * math.sqrt(2 * m)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_pass_holds_each_sample_once(width: int) -> None:
    """A pass has ⌊m / width⌋ steps, so it holds all m samples where the width divides m, and each at most once."""
    limits = np.array([5, 10, 37])
    for node, limit in enumerate(limits):
        steps = limit // width
        for turn in range(3):
            draws = clock(seed=6, step=turn * steps + np.arange(steps)).shuffled(width, limits)[:, node].ravel()
            assert len(set(draws)) == steps * width
            assert 0 <= draws.min() <= draws.max() < limit


def test_all_orders_of_a_pass_are_equally_likely() -> None:
    passes, orders = 4800, list(itertools.permutations(range(4)))
    draws = clock(seed=7, step=np.arange(passes), nodes=[0]).shuffled(4, np.array([4]))[:, 0]
    counts = np.array([(draws == order).all(axis=1).sum() for order in orders])
    expected = passes / math.factorial(4)
    m = len(orders) - 1  # chi-square, as above
    assert counts.sum() == passes
    assert ((counts - expected) ** 2 / expected).sum() <= m + 5 * math.sqrt(2 * m)


def test_each_sample_of_a_large_set_is_as_likely_at_each_place() -> None:
    size, passes = 1000, 4000
    draws = clock(seed=8, step=np.arange(passes) * (size // 2), nodes=[0]).shuffled(2, np.array([size]))[:, 0]
    for place in (0, 1):
        counts, expected = np.bincount(draws[:, place], minlength=size), passes / size
        assert ((counts - expected) ** 2 / expected).sum() <= size - 1 + 5 * math.sqrt(2 * (size - 1))
    # Two samples next to each other are uncorrelated, but for one difference: they are never equal.
    r = np.corrcoef(draws.T)[0, 1]
    assert abs(r + 1 / (size - 1)) < 5 / math.sqrt(passes)


def test_the_same_orders_on_numpy_and_jax() -> None:
    steps, limits = np.arange(9), np.array([4, 7, 600])
    theirs = Clock(JAX, np.float32, jnp.uint32(3), jnp.arange(3), jnp.asarray(steps)).shuffled(2, jnp.asarray(limits))
    assert np.array_equal(clock(seed=3, step=steps).shuffled(2, limits), theirs)


def test_a_vector_of_steps_gives_the_draws_of_one_step_at_a_time() -> None:
    steps = np.array([0, 3, 4, 1000])
    together = clock(step=steps)
    for t, step in enumerate(steps):
        alone = clock(step=int(step))
        assert np.array_equal(together.bits(5)[t], alone.bits(5))
        assert np.array_equal(together.normal(5)[t], alone.normal(5))
        assert np.array_equal(together.shuffled(5, np.full(3, 9))[t], alone.shuffled(5, np.full(3, 9)))
        assert np.array_equal(together.integers(5, np.full(3, 9))[t], alone.integers(5, np.full(3, 9)))


def test_a_node_draws_the_same_whoever_draws_beside_it() -> None:
    assert np.array_equal(clock(nodes=(0, 1, 2)).bits(6)[2], clock(nodes=(2,)).bits(6)[0])


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_width_is_what_was_asked_for(width: int) -> None:
    assert clock().bits(width).shape == (3, width)


def test_seeds_steps_nodes_and_streams_all_matter() -> None:
    first = clock().bits(4)
    others = [clock(seed=1), clock(step=1), clock(nodes=(3, 4, 5)), clock(stream=STREAM_START_GRADIENT)]
    for other in others:
        # Equal words by chance: probability 12·2^-32 each.
        assert not (other.bits(4) == first).any()


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_choose_gives_sorted_different_nodes(xp: Any) -> None:
    for step in range(5):
        chosen = np.asarray(choose(xp, 11, step, 20, 6, STREAM_SAMPLING))
        assert np.array_equal(chosen, np.asarray(choose(np, 11, step, 20, 6, STREAM_SAMPLING)))
        assert len(set(chosen.tolist())) == 6
        assert (np.diff(chosen) > 0).all()
        assert chosen.min() >= 0
        assert chosen.max() < 20


def test_choose_is_uniform() -> None:
    n, size, rounds = 12, 5, 4000
    hits = np.zeros(n)
    for step in range(rounds):
        hits[choose(np, 2, step, n, size, STREAM_SAMPLING)] += 1
    # Each node is a Bernoulli(s/n) a round, independent over rounds.
    p = size / n
    assert np.abs(hits / rounds - p).max() < 5 * math.sqrt(p * (1 - p) / rounds)


def test_coin_falls_with_its_probability_and_is_one_for_all() -> None:
    flips = [bool(coin(np, 6, step, 0.2, np.float64)) for step in range(5000)]
    assert abs(np.mean(flips) - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 5000)
    assert flips[:50] == [bool(coin(jnp, 6, step, 0.2, np.float32)) for step in range(50)]
    assert not coin(np, 6, 0, 0.0, np.float64)
    assert coin(np, 6, 0, 1.0, np.float64)
