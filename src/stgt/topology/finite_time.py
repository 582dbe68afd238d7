"""Graphs with finite-time consensus: a few rounds, most of them in a fixed cycle, give the exact mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count
from stgt._internal.registry import register
from stgt.topology.base import Topology, periodic
from stgt.topology.structure import Gather, Lists, check_room, lists_from_sparse, pad


@register
def one_peer_exponential(n: int) -> Topology:
    """One neighbour per round: node i receives from i + 1, i + 2, i + 4, … in turn.

    W^(k) = ½(I + P^{2^(k mod t)}), P shifting by one, t = ⌈log2 n⌉. The product over t rounds is J iff n = 2^t.

    Args:
        n: number of nodes.

    Returns:
        A directed topology of period t.

    Reference: Ying et al., "Exponential graph is provably efficient for decentralized deep training", 2110.13363.
    """
    n = check_count(n, "n")
    period = max(1, (n - 1).bit_length())
    check_room(f"one_peer_exponential({n})", period, n, 2)
    node = np.arange(n)[:, None]
    rounds = [_equal_weights(np.hstack([node, (node + (1 << k)) % n])) for k in range(period)]
    return periodic(f"one_peer_exponential({n})", lists_from_sparse(rounds))


@register
def hypercuboid(n: int, factors: Sequence[int] | None = None) -> Topology:
    """Nodes as digits in mixed radix. Each round averages along one digit, so a cycle gives the exact mean.

    n = Π p_l; W^(l): w_ij = 1/p_l iff the digits of i and j agree except in digit l. The product over a cycle is J.

    Args:
        n: number of nodes.
        factors: the p_l, at least 2 each, in the order of the rounds; by default the prime factors, smallest first.

    Returns:
        A symmetric topology of period len(factors) and degree max p_l − 1.

    Reference: Nguyen et al., "On graphs with finite-time consensus and their use in gradient tracking", 2311.01317.
    """
    n = check_count(n, "n")
    sizes = prime_factors(n) if factors is None else _check_factors(n, factors)
    name = f"hypercuboid({n})" if factors is None else f"hypercuboid({n}, {sizes})"
    check_room(name, max(1, len(sizes)), n, max(sizes, default=1))
    return periodic(name, Gather(*pad(cuboid_steps(sizes))))


@register
def de_bruijn(n: int, p: int = 2) -> Topology:
    """The static de Bruijn graph: shift the digits of i in base p and append any digit.

    n = p^t, w_ij = 1/p for j = (i·p mod n) + a, a < p. W^t = J exactly, yet ‖W − J‖ = 1 for t ≥ 2; most w_ii are 0.

    Args:
        n: number of nodes, a power of p.
        p: how many nodes to receive from.

    Returns:
        A static, directed topology.

    Reference: Nguyen et al., "On graphs with finite-time consensus and their use in gradient tracking", 2311.01317.
    """
    n, p = check_count(n, "n"), check_count(p, "p", 2)
    if n != p ** round(math.log(n, p)):
        raise InputError("n", n, f"give a power of p={p}, or another p.")
    name = f"de_bruijn({n}, {p})"
    check_room(name, 1, n, p + 1)
    node, digit = np.arange(n)[:, None], np.arange(p)
    return periodic(name, lists_from_sparse([_equal_weights((node * p + digit) % n)]))


@register
def base_graph(n: int, k: int) -> Topology:
    """At most k neighbours per round, and the exact mean after a cycle, for every n.

    The product of the cycle is J; its length is at most 2 log_{k+1} n + 2. If all prime factors of n are at most k + 1,
    it is a hypercuboid. Otherwise n = Σ_l a_l (k+1)^{p_l}: the nodes average in parts V_l, each part in turn passes its
    mean to the later parts, and the blocks of every part spread what they received in return. There is a second way:
    n = p·q, with p the largest divisor whose prime factors are at most k + 1. Each of p groups of q nodes averages as
    above, then a hypercuboid averages across the groups. The shorter of both is taken.

    Args:
        n: number of nodes.
        k: the largest number of neighbours of a node in a round.

    Returns:
        A symmetric topology whose period is the length of the cycle.

    Reference: Takezawa et al., "Beyond exponential graph: communication-efficient topologies for decentralized
    learning via finite-time convergence", 2305.11420.
    """
    n, k = check_count(n, "n"), check_count(k, "k")
    name = f"base_graph({n}, k={k})"
    check_room(name, 2 * round(math.log(n, k + 1)) + 2, n, min(k + 1, n))
    smooth = math.prod(p for p in prime_factors(n) if p <= k + 1)
    steps = min(_simple(n, k), _grouped(smooth, n // smooth, k), key=len)
    return periodic(name, Gather(*pad(steps)))


def prime_factors(n: int) -> list[int]:
    """The prime factors of n with repetition, smallest first."""
    factors, divisor = [], 2
    while divisor * divisor <= n:
        if n % divisor:
            divisor += 1
        else:
            factors.append(divisor)
            n //= divisor
    return [*factors, n] if n > 1 else factors


def cuboid_steps(factors: Sequence[int]) -> list[Lists]:
    """(index, weight), each (n, p_l), of the rounds that average along one digit; n = Π p_l, or 1 without factors."""
    node, stride, steps = np.arange(math.prod(factors))[:, None], 1, []
    for p in factors or (1,):
        digit = node // stride % p
        index = node + ((digit + np.arange(p)) % p - digit) * stride
        steps.append((index, np.full(index.shape, 1.0 / p)))
        stride *= p
    return steps


def _check_factors(n: int, factors: Sequence[int]) -> list[int]:
    try:
        sizes = [check_count(p, "factors", 2) for p in factors]
    except TypeError:
        raise InputError("factors", factors, "give a list of whole numbers of at least 2.") from None
    if math.prod(sizes) != n:
        raise InputError("factors", sizes, f" multiply to {math.prod(sizes)}: give numbers whose product is n={n}.")
    return sizes


def _equal_weights(senders: np.ndarray) -> Any:
    """The sparse matrix of a round in which each node receives from its `senders` (n, d), each with weight 1/d."""
    from scipy import sparse

    n, d = senders.shape
    entries = np.full(n * d, 1.0 / d), (np.repeat(np.arange(n), d), senders.ravel())
    return sparse.csr_array(entries, shape=(n, n))


def _grouped(p: int, q: int, k: int) -> list[Lists]:
    """The mean within each of p groups of q nodes, then across the groups."""
    group, member = np.divmod(np.arange(p * q), q)
    within = [(index[member] + group[:, None] * q, weight[member]) for index, weight in _simple(q, k)]
    if p == 1:
        return within
    across = [(index[group] * q + member[:, None], weight[group]) for index, weight in _smooth(p, k)]
    return within + across if q > 1 else across


def _simple(n: int, k: int) -> list[Lists]:
    """The Simple Base-(k+1) graph: a hypercuboid, or the parts V_1, V_2, … of the digits of n in base k + 1."""
    if all(p <= k + 1 for p in prime_factors(n)):
        return _smooth(n, k)
    digits = _digits(n, k + 1)
    sizes = [a * (k + 1) ** p for a, p in digits]
    starts = [sum(sizes[:part]) for part in range(len(sizes))]

    # (i) Every part computes its own mean. V_1 takes longest; the other parts repeat their cycle meanwhile.
    inside = [_smooth(size, k) for size in sizes]
    steps = []
    for m in range(len(inside[0])):
        step = _idle(n, k)
        for start, own in zip(starts, inside, strict=True):
            _place(step, start, own[m % len(own)])
        steps.append(step)

    # (ii) V_m exchanges with all later parts. Each of its blocks then has the mean of V_m and all later parts.
    # (iii) The blocks of the parts before V_m spread theirs, until those of V_1 are done.
    spread = [_smooth((k + 1) ** p, k) for _, p in digits]
    for m in range(digits[0][1] + 1):
        step = _idle(n, k)
        if m < len(digits) - 1:
            _pair_with_blocks(step, starts[m], sizes[m], digits[m][0])
        for part in range(min(m, len(digits) - 1)):
            a, p = digits[part]
            for block in range(a):
                _place(step, starts[part] + block * (k + 1) ** p, spread[part][(m - part - 1) % len(spread[part])])
        steps.append(step)
    return steps


def _pair_with_blocks(step: Lists, start: int, size: int, blocks: int) -> None:
    """Each node after V_j = [start, start + size) exchanges with one node of each block of V_j."""
    index, weight = step
    later = np.arange(start + size, len(index))
    share = size / (size + len(later))  # n_j / N_j
    weight[later, 0] = 1.0 - share
    for block in range(blocks):
        partner = start + block * (size // blocks) + np.arange(len(later))
        index[later, 1 + block], weight[later, 1 + block] = partner, share / blocks
        index[partner, 1], weight[partner, 1] = later, share / blocks
        weight[partner, 0] = 1.0 - share / blocks


def _idle(n: int, k: int) -> Lists:
    index = np.tile(np.arange(n)[:, None], (1, k + 1))
    weight = np.zeros(index.shape)
    weight[:, 0] = 1.0
    return index, weight


def _place(step: Lists, start: int, part: Lists) -> None:
    size, width = part[0].shape
    step[0][start : start + size, :width] = part[0] + start
    step[1][start : start + size, :width] = part[1]


def _digits(n: int, base: int) -> list[tuple[int, int]]:
    """(a, p) with n = Σ a·base^p, nonzero digits only, the largest p first."""
    digits, p = [], 0
    while n:
        n, a = divmod(n, base)
        if a:
            digits.insert(0, (a, p))
        p += 1
    return digits


def _smooth(n: int, k: int) -> list[Lists]:
    factors = _fewest_factors(n, k + 1)
    assert factors is not None
    return cuboid_steps(factors)


@lru_cache(maxsize=4096)
def _fewest_factors(n: int, most: int) -> tuple[int, ...] | None:
    """The fewest numbers from 2 to `most` whose product is n; None if there are none."""
    if n <= most:
        return (n,) if n > 1 else ()
    splits = ((d, _fewest_factors(n // d, most)) for d in range(most, 1, -1) if n % d == 0)
    return min(((d, *rest) for d, rest in splits if rest is not None), key=len, default=None)
