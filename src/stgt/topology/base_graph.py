"""The Base-(k+1) graph: the exact mean of any number of nodes after few rounds with few neighbours."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from stgt._internal.checks import check_count
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.schedules import cuboid_steps, prime_factors
from stgt.topology.structure import check_room, gather_from_steps, structure_from_lists

Step = tuple[np.ndarray, np.ndarray]  # (index, weight) of one round, each (n, d)


@register
def base_graph(n: int, k: int) -> Topology:
    """At most k neighbours a round, and the exact mean after a cycle, for every n.

    The product of the cycle is J; its length is at most 2 log_{k+1} n + 2. A hyper-cuboid where n splits into numbers
    up to k + 1; otherwise n = Σ_l a_l (k+1)^{p_l} nodes average in parts V_l, part after part passes its mean to the
    later ones, and the blocks of every part spread what they got in return. Or n = p·q with p the largest divisor
    without prime factors above k + 1: q nodes so in p groups, then a hyper-cuboid across. The shorter is taken.

    Args:
        n: number of nodes.
        k: the most neighbours of a node in a round.

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
    lists = gather_from_steps(steps)
    degree = int((lists.weight[:, :, 1:] > 0).sum(axis=2).max(initial=0))
    return Topology(name, n, structure_from_lists(lists), period=len(steps), degree=degree)


def _grouped(p: int, q: int, k: int) -> list[Step]:
    """The mean within each of p groups of q nodes, then across the groups."""
    group, member = np.divmod(np.arange(p * q), q)
    within = [(index[member] + group[:, None] * q, weight[member]) for index, weight in _simple(q, k)]
    if p == 1:
        return within
    across = [(index[group] * q + member[:, None], weight[group]) for index, weight in _smooth(p, k)]
    return within + across if q > 1 else across


def _simple(n: int, k: int) -> list[Step]:
    """The Simple Base-(k+1) graph: a hyper-cuboid, or the parts V_1, V_2, … of the digits of n in base k + 1."""
    if all(p <= k + 1 for p in prime_factors(n)):
        return _smooth(n, k)
    digits = _digits(n, k + 1)
    sizes = [a * (k + 1) ** p for a, p in digits]
    starts = [sum(sizes[:part]) for part in range(len(sizes))]

    # (i) every part finds its own mean; V_1 takes longest, the others start again meanwhile.
    inside = [_smooth(size, k) for size in sizes]
    steps = []
    for m in range(len(inside[0])):
        step = _idle(n, k)
        for start, own in zip(starts, inside, strict=True):
            _place(step, start, own[m % len(own)])
        steps.append(step)

    # (ii) V_m meets all later parts, whereupon each of its blocks has the mean of V_m and all later parts;
    # (iii) the blocks of the parts before it spread theirs, until those of V_1 are done.
    spread = [_smooth((k + 1) ** p, k) for _, p in digits]
    for m in range(digits[0][1] + 1):
        step = _idle(n, k)
        if m < len(digits) - 1:
            _meet(step, starts[m], sizes[m], digits[m][0])
        for part in range(min(m, len(digits) - 1)):
            a, p = digits[part]
            for block in range(a):
                _place(step, starts[part] + block * (k + 1) ** p, spread[part][(m - part - 1) % len(spread[part])])
        steps.append(step)
    return steps


def _meet(step: Step, start: int, size: int, blocks: int) -> None:
    """Each node after V_j = [start, start + size) meets one node of each block of V_j."""
    index, weight = step
    later = np.arange(start + size, len(index))
    share = size / (size + len(later))  # n_j / N_j
    weight[later, 0] = 1.0 - share
    for block in range(blocks):
        partner = start + block * (size // blocks) + np.arange(len(later))
        index[later, 1 + block], weight[later, 1 + block] = partner, share / blocks
        index[partner, 1], weight[partner, 1] = later, share / blocks
        weight[partner, 0] = 1.0 - share / blocks


def _idle(n: int, k: int) -> Step:
    index = np.tile(np.arange(n)[:, None], (1, k + 1))
    weight = np.zeros(index.shape)
    weight[:, 0] = 1.0
    return index, weight


def _place(step: Step, start: int, part: Step) -> None:
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


def _smooth(n: int, k: int) -> list[Step]:
    factors = _fewest_factors(n, k + 1)
    assert factors is not None
    return cuboid_steps(factors)


@lru_cache(maxsize=4096)
def _fewest_factors(n: int, most: int) -> tuple[int, ...] | None:
    """As few numbers from 2 to `most` as multiply to n; None if there are none."""
    if n <= most:
        return (n,) if n > 1 else ()
    splits = ((d, _fewest_factors(n // d, most)) for d in range(most, 1, -1) if n % d == 0)
    return min(((d, *rest) for d, rest in splits if rest is not None), key=len, default=None)
