"""The draws of `stgt._internal.randomness` on Python's integers: the same bits for the same seed, step and node.

That module needs NumPy. Its generator wraps at 32 bits, which Python's integers do only by a mask.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import product

LOCAL, SAMPLING, LINKS = 0, 3, 5  # the library's streams
PROBLEM = 15  # the playground's own: the nodes' objectives
_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_STREAM_SHIFT = 28
_KEPT = 1 << 16  # draws that are kept, as all methods of a comparison draw the same


@lru_cache(maxsize=_KEPT)
def words(seed: int, step: int, a: int, b: int, stream: int) -> tuple[int, int]:
    """Threefry-2x32-20: two words of 32 bits at (seed, step, a, b, stream)."""
    keys = (seed, step, seed ^ step ^ 0x1BD11BDA)
    x0, x1 = (a + seed) & _MASK, (b + (stream << _STREAM_SHIFT) + step) & _MASK
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = (x0 + x1) & _MASK
            x1 = x0 ^ ((x1 << distance | x1 >> 32 - distance) & _MASK)
        x0 = (x0 + keys[(group + 1) % 3]) & _MASK
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & _MASK
    return x0, x1


def unit(word: int) -> float:
    """A number strictly inside (0, 1) from a word's top 23 bits."""
    return ((word >> 9) + 0.5) * 2.0**-23


@lru_cache(maxsize=_KEPT)
def normals(seed: int, step: int, node: int) -> tuple[float, float]:
    """Two standard normals: the noise of a node's gradient at a local step."""
    from statistics import NormalDist  # takes as long to import as everything else

    x, y = (NormalDist().inv_cdf(unit(word)) for word in words(seed, step, node, 0, LOCAL))
    return x, y


def sampled(seed: int, r: int, n: int, size: int) -> list[int]:
    """The workers that a server samples in round r, sorted."""
    return sorted(sorted(range(n), key=lambda node: words(seed, r, node, 0, SAMPLING)[0])[:size])


def lost(seed: int, r: int, n: int, probability: float) -> set[tuple[int, int]]:
    """The links (i, j), i < j, that fail in round r. Like the library it compares in single precision."""
    (limit,) = array("f", [probability])
    pairs = ((i, j) for i, j in product(range(n), repeat=2) if i < j)
    return {(i, j) for i, j in pairs if unit(words(seed, r, i, j, LINKS)[0]) < limit}
