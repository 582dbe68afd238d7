"""Topologies that look the same from every node: circulants, the ring, the exponential graph, the complete graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stgt._internal.checks import InputError, check_count, check_number
from stgt._internal.ops import Array, Ops
from stgt._internal.registry import register
from stgt.topology.base import TOLERANCE, Topology
from stgt.topology.structure import Gather, NeighbourLists, Pairs, Structure, check_room, circulant_norm


@dataclass(frozen=True)
class Average(Structure):
    """W = J, the mean over all nodes."""

    random = False

    n: int

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.full((self.n, self.n), 1.0 / self.n)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return ops.xp.broadcast_to(v.mean(axis=0), v.shape)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return ops.xp.asarray(self.n * (self.n - 1), float)

    def norm(self, r: int, seed: int) -> float:
        return 0.0

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return Rolls(self.n, tuple(range(self.n)), (1.0 / self.n,) * self.n).neighbour_lists(name)


@dataclass(frozen=True)
class Rolls(Structure):
    """A static circulant W: node i receives from i + hop (mod n) with the hop's weight; hop 0 is the node itself."""

    arrays = ("weights",)
    random = False

    n: int
    hops: tuple[int, ...]
    weights: tuple[float, ...]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        W = np.zeros((self.n, self.n))
        rows = np.arange(self.n)
        for hop, weight in zip(self.hops, self.weights, strict=True):
            W[rows, (rows + hop) % self.n] += weight
        return W

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        parts = zip(self.hops, self.weights, strict=True)
        return sum(weight * ops.xp.roll(v, hop if back else -hop, axis=0) for hop, weight in parts)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return ops.xp.asarray(self.n * sum(hop % self.n != 0 for hop in self.hops), float)

    def norm(self, r: int, seed: int) -> float:
        return circulant_norm(self.n, np.array(self.hops), np.array(self.weights))

    def neighbour_lists(self, name: str) -> NeighbourLists:
        check_room(name, 1, self.n, len(self.hops))
        index = (np.arange(self.n)[:, None] + np.array(self.hops)) % self.n
        return Gather(index.astype(np.int32)[None], np.broadcast_to(np.array(self.weights), (1, *index.shape)))

    def pairs(self) -> Pairs | None:
        step, nodes = math.gcd(self.n, *self.hops), np.arange(self.n)
        return None if step == 1 else (nodes, (nodes + step) % self.n)  # the hops reach multiples of `step` only


@register
def circulant(n: int, hops: Iterable[int], weights: Sequence[float] | None = None) -> Topology:
    """Every node i receives from i + h (mod n) for each hop h.

    W_{i,i+h} = w_h, and w_ii = 1 − Σ_h w_h. By default each of the k hops and the node itself has weight 1/(k+1).

    Args:
        n: number of nodes.
        hops: nonzero whole numbers, different modulo n; a negative hop goes in the other direction.
        weights: one per hop, positive, with a sum of at most 1; the node's own weight is the rest.

    Returns:
        A static topology; symmetric if hops h and −h have the same weight.
    """
    n = check_count(n, "n")
    steps = _check_hops(n, hops)
    return _circulant(f"circulant({n}, {steps})", n, steps, None if weights is None else _check_weights(steps, weights))


@register
def ring(n: int, directed: bool = False) -> Topology:
    """A circle: every node receives from both neighbours, or only from the next one.

    w_ij = 1/3 for j ∈ {i−1, i, i+1}; directed: w_ij = 1/2 for j ∈ {i, i+1} (mod n).

    Args:
        n: number of nodes. Two nodes have one neighbour each, a single node none.
        directed: receive only from node i + 1.

    Returns:
        A static topology.
    """
    n = check_count(n, "n")
    hops = [hop for hop, exists in ((1, n > 1), (-1, n > 2 and not directed)) if exists]
    return _circulant(f"ring({n}, directed)" if directed else f"ring({n})", n, hops)


@register
def exponential(n: int, neighbors: int | None = None, symmetric: bool = False) -> Topology:
    """The static exponential graph: node i receives from nodes i + 1, i + 2, i + 4, …

    w_ij = 1/(t+1) for j = i and (j−i) mod n ∈ {2^0, …, 2^(t−1)}, t = ⌈log2 n⌉. For even n, ‖W − J‖ = 1 − 2/(t+1).

    Args:
        n: number of nodes.
        neighbors: the number of nodes to receive from, if not t; weights 1/(neighbors+1). Powers of two come first,
            then the smallest unused hops. With `symmetric`, hops come as pairs ±h in the same order; an odd number
            includes n/2, which then comes first.
        symmetric: receive from ±h for every hop h; without `neighbors` these are all ±2^j, each node once.

    Returns:
        A static topology.

    Reference: Ying et al., "Exponential graph is provably efficient for decentralized deep training", 2110.13363.
    """
    n = check_count(n, "n")
    powers = [1 << j for j in range((n - 1).bit_length())]
    words = [str(n)]
    count = None
    if neighbors is not None:
        count = check_count(neighbors, "neighbors")
        if count >= n:
            raise InputError("neighbors", count, f"a node of {n} has at most {n - 1} neighbours.")
        words.append(f"{count} neighbours")
    if symmetric:
        words.append("symmetric")
        hops = _pairs(n, powers, count)
    else:
        hops = powers if count is None else list(dict.fromkeys([*powers, *range(1, n)]))[:count]
    return _circulant(f"exponential({', '.join(words)})", n, hops)


@register
def complete(n: int) -> Topology:
    """Every node receives from all others: W = J, w_ij = 1/n.

    Args:
        n: number of nodes.

    Returns:
        A static topology; one round gives the exact mean.
    """
    n = check_count(n, "n")
    return Topology(f"complete({n})", n, Average(n), degree=n - 1)


def _pairs(n: int, powers: list[int], count: int | None) -> list[int]:
    """±h for h in `powers`, each node once; or `count` such hops, beyond the powers if necessary."""
    order = dict.fromkeys(min(hop, n - hop) for hop in (powers if count is None else [*powers, *range(1, n)]))
    if count is None:
        return [signed for hop in order for signed in ((hop,) if 2 * hop == n else (hop, -hop))]
    if count % 2 and n % 2:
        raise InputError("neighbors", count, f"with symmetric=True and an odd n={n} give an even number of neighbours.")
    antipode = [n // 2] if count % 2 else []
    pairs = [signed for hop in order if 2 * hop != n for signed in (hop, -hop)]
    return antipode + pairs[: count - len(antipode)]


def _circulant(name: str, n: int, hops: list[int], weights: list[float] | None = None) -> Topology:
    if weights is None:
        own = 1.0 / (len(hops) + 1)
        weights = [own] * len(hops)
    else:
        weights = [weight / max(1.0, sum(weights)) for weight in weights]
        own = max(0.0, 1.0 - sum(weights))
    by_hop = {hop % n: weight for hop, weight in zip(hops, weights, strict=True)}
    symmetric = all(by_hop.get(-hop % n) == weight for hop, weight in by_hop.items())
    return Topology(name, n, Rolls(n, (0, *hops), (own, *weights)), symmetric=symmetric, degree=len(hops))


def _check_hops(n: int, hops: Iterable[int]) -> list[int]:
    try:
        steps = [operator.index(hop) for hop in hops]
    except TypeError:
        raise InputError("hops", hops, "give a list of nonzero whole numbers.") from None
    if any(hop % n == 0 for hop in steps):
        raise InputError("hops", steps, f"a multiple of n={n} leads back to the node itself; give nonzero hops mod n.")
    if len({hop % n for hop in steps}) < len(steps):
        raise InputError("hops", steps, f"two of them reach the same node of n={n}; give hops that differ mod n.")
    return steps


def _check_weights(hops: list[int], weights: Sequence[float]) -> list[float]:
    try:
        given = list(weights)
    except TypeError:
        raise InputError("weights", weights, "give a list with one number for each hop.") from None
    if len(given) != len(hops):
        raise InputError("weights", hint=f" has {len(given)} entries for {len(hops)} hops: give one for each hop.")
    values = [check_number(weight, "weights", above=0.0, most=1.0) for weight in given]
    if sum(values) > 1.0 + TOLERANCE:
        raise InputError(
            "weights", hint=f" sum to {sum(values):.6g}: give a sum of at most 1; the node's own weight is the rest."
        )
    return values
