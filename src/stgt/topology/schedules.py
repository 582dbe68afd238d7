"""Topologies that change from round to round in a fixed cycle, and those given by their matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stgt.checks import check_count
from stgt.topology.base import Topology, check_matrix
from stgt.topology.structure import (
    Gather,
    check_room,
    gather_from_steps,
    structure_from_lists,
    structure_from_matrices,
)

ROUNDING = 1e-10  # a matrix this close to its transpose is meant to be symmetric, a sum this close to one to be one


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


def from_matrix(W: Any, row_stochastic: bool = False) -> Topology:
    """A static topology with the given weights: node i applies w_ij to what it hears from node j.

    Args:
        W: a square, non-negative matrix whose rows and columns sum to one.
        row_stochastic: leave the column sums unchecked.

    Returns:
        A static topology; its flags are found from W.
    """
    matrix = check_matrix(W, row_stochastic=row_stochastic)
    return _from_stack(f"from_matrix({len(matrix)} nodes)", matrix[None])


def sequence(matrices: Iterable[Any], row_stochastic: bool = False) -> Topology:
    """The given matrices in turn, again and again: W_r = matrices[r mod T].

    Args:
        matrices: T square, non-negative matrices of one size whose rows and columns sum to one.
        row_stochastic: leave the column sums unchecked.

    Returns:
        A topology of period T; its flags are found from the matrices.
    """
    try:
        given = list(matrices)
    except TypeError:
        raise ValueError(f"matrices is a {type(matrices).__name__}: give a list of square matrices.") from None
    if not given:
        raise ValueError("matrices is empty: give a list of at least one square matrix.")
    stack = [check_matrix(W, f"W_{t}", row_stochastic=row_stochastic) for t, W in enumerate(given)]
    for t, W in enumerate(stack):
        if W.shape != stack[0].shape:
            raise ValueError(f"W_{t} has shape {W.shape} but W_0 has {stack[0].shape}: give matrices of one size.")
    return _from_stack(f"sequence({len(stack)} matrices, {len(stack[0])} nodes)", np.stack(stack))


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


def _from_stack(name: str, stack: np.ndarray) -> Topology:
    mirrored = stack.transpose(0, 2, 1)
    symmetric = np.allclose(stack, mirrored, rtol=0.0, atol=ROUNDING)
    if symmetric:
        stack = (stack + mirrored) / 2
    heard = (stack != 0).sum(axis=2) - (np.diagonal(stack, axis1=1, axis2=2) != 0)
    return Topology(
        name,
        stack.shape[1],
        structure_from_matrices(stack),
        doubly_stochastic=bool((np.abs(stack.sum(axis=1) - 1.0) <= ROUNDING).all()),
        symmetric=symmetric,
        period=len(stack),
        degree=int(heard.max()),
    )
