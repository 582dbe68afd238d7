"""Topologies made for the exact mean after a few rounds, most of them in a fixed cycle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stgt._internal.checks import check_count
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.structure import Gather, check_room, gather_from_steps, structure_from_lists


@register
def one_peer_exponential(n: int) -> Topology:
    """One neighbour a round, 1, 2, 4, … places on in turn.

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
    hops = (1 << np.arange(period))[:, None]
    node = np.broadcast_to(np.arange(n), (period, n))
    weight = np.full((period, n, 2), 0.5)
    lists = [np.stack([node, (node + side) % n], axis=2).astype(np.int32) for side in (hops, -hops)]
    gather = Gather(lists[0], weight) if n <= 2 else Gather(lists[0], weight, lists[1], weight)
    name = f"one_peer_exponential({n})"
    return Topology(name, n, structure_from_lists(gather), symmetric=n <= 2, period=period, degree=min(n - 1, 1))


@register
def hypercuboid(n: int, factors: Sequence[int] | None = None) -> Topology:
    """Nodes as digits in mixed radix; each round averages along one digit, so that a cycle gives the exact mean.

    n = Π p_l; W^(l): w_ij = 1/p_l iff the digits of i and j agree but for digit l. The product over a cycle is J.

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
    widest = max(sizes, default=1)
    check_room(name, max(1, len(sizes)), n, widest)
    lists = gather_from_steps(cuboid_steps(sizes))
    return Topology(name, n, structure_from_lists(lists), period=len(lists.index), degree=widest - 1)


@register
def de_bruijn(n: int, p: int = 2) -> Topology:
    """The static de Bruijn graph: shift the digits of i in base p and append any digit.

    n = p^t, w_ij = 1/p for j = (i·p mod n) + a, a < p. W^t = J exactly, yet ‖W − J‖ = 1 for t ≥ 2; most w_ii are 0.

    Args:
        n: number of nodes, a power of p.
        p: how many nodes to hear.

    Returns:
        A static, directed topology.

    Reference: Nguyen et al., "On graphs with finite-time consensus and their use in gradient tracking", 2311.01317.
    """
    n, p = check_count(n, "n"), check_count(p, "p", 2)
    if n != p ** round(math.log(n, p)):
        raise ValueError(f"n={n}: give a power of p={p}, or another p.")
    name = f"de_bruijn({n}, {p})"
    check_room(name, 1, n, p + 1)
    node, digit = np.arange(n)[:, None], np.arange(p)
    forward = _with_self((node * p + digit) % n, 1.0 / p)
    symmetric = n <= p
    back = () if symmetric else _with_self(node // p + digit * (n // p), 1.0 / p)
    degree = int((forward[1][0, :, 1:] > 0).sum(axis=1).max())
    return Topology(name, n, structure_from_lists(Gather(*forward, *back)), symmetric=symmetric, degree=degree)


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


def cuboid_steps(factors: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(index, weight), each (n, p_l), of the rounds that average along one digit; n = Π p_l, 1 without factors."""
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
        raise ValueError(f"factors={factors!r}: give a list of whole numbers of at least 2.") from None
    if math.prod(sizes) != n:
        raise ValueError(f"factors={sizes} multiply to {math.prod(sizes)}: give numbers whose product is n={n}.")
    return sizes


def _with_self(index: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Neighbour lists (1, n, d+1) of nodes that hear `index` (n, d), each with weight `share`: column 0 is the node."""
    node = np.arange(len(index))[:, None]
    itself = index == node
    weight = np.concatenate([itself.sum(axis=1, keepdims=True), ~itself], axis=1) * share
    return np.concatenate([node, index], axis=1).astype(np.int32)[None], weight[None]
