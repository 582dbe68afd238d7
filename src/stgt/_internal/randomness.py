"""One clock of randomness: every draw is a pure function of (seed, step, node, stream).

The generator is Threefry-2x32 with 20 rounds (Salmon et al., 2011). It uses integer operators only, so the same lines
run on NumPy and on JAX arrays and give the same bits. The generator has no state that is advanced or split: a draw is
looked up. So a stochastic run is the same in every engine, and a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.ops import Ops

Array = Any

# The purpose of a draw. Two purposes never share a stream, so no draw is used twice.
STREAM_LOCAL = 0  # the gradient of a local step
STREAM_START_GRADIENT = 1  # an additional gradient at a round's start
STREAM_COIN = 2  # does this round end with communication?
STREAM_SAMPLING = 3  # which workers the server calls
STREAM_MATCHING = 4  # the pairs of a matching
STREAM_LINKS = 5  # which links are lost
STREAM_NODES = 6  # which nodes cannot be reached
STREAM_INITIAL = 7  # the gradient of the initialisation
STREAM_AUGMENT = 8  # how the images of a batch are cropped and flipped
STREAM_CHOICE = 9  # one of a few matrices
STREAM_SHUFFLE = 10  # the order of a pass over the samples

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_STREAM_SHIFT = 28
SWAPS = 32  # rounds of a shuffle, one for each bit of a word


def threefry(key0: Array, key1: Array, counter0: Array, counter1: Array) -> tuple[Array, Array]:
    """Threefry-2x32-20: two uint32 words for a 64-bit key and a 64-bit counter (arrays that broadcast)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(_PARITY))
    x0, x1 = counter0 + key0, counter1 + key1
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance))
            x1 = x0 ^ x1
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def words(xp: Any, seed: Array, step: Array, a: Array, b: Array, stream: int) -> tuple[Array, Array]:
    """Two independent uint32 words at (seed, step, a, b, stream); all but `stream` broadcast. Needs b < 2**28."""

    def u32(value: Array) -> Array:
        if isinstance(value, int):
            value = np.uint32(value)  # JAX reads a Python int as int32
        return xp.atleast_1d(xp.asarray(value)).astype(np.uint32)

    tagged = u32(b) + u32(stream << _STREAM_SHIFT)
    seed, step, a, tagged = xp.broadcast_arrays(u32(seed), u32(step), u32(a), tagged)
    return threefry(seed, step, a, tagged)


def unit(word: Array, dtype: Any) -> Array:
    """A number strictly inside (0, 1) from a word's top 23 bits. It is exact, so equal in float32 and float64."""
    return ((word >> np.uint32(9)).astype(dtype) + 0.5) * 2.0**-23


def queue(xp: Any, seed: Array, step: Array, n: int, stream: int) -> Array:
    """All n nodes in a uniformly drawn order, (n,) indices."""
    ticket, _ = words(xp, seed, step, xp.arange(n), 0, stream)
    return xp.argsort(ticket, stable=True)


def choose(xp: Any, seed: Array, step: Array, n: int, size: int, stream: int) -> Array:
    """`size` different nodes of n, drawn uniformly; sorted (size,) indices."""
    return xp.sort(queue(xp, seed, step, n, stream)[:size])


def coin(xp: Any, seed: Array, step: Array, probability: Array, dtype: Any) -> Array:
    """The shared coin of all nodes at `step`: True with the given probability."""
    word, _ = words(xp, seed, step, 0, 0, STREAM_COIN)
    return unit(word, dtype)[0] < probability


@dataclass(frozen=True)
class Clock:
    """The draws of `nodes` at `step`. An array of T steps gives the same draws with a leading axis T."""

    ops: Ops
    dtype: Any
    seed: Array
    nodes: Array
    step: Array
    stream: int = STREAM_LOCAL

    def bits(self, width: int) -> Array:
        """Uniform uint32 words, (..., nodes, width)."""
        xp = self.ops.xp
        step = xp.asarray(self.step)[..., None, None]
        nodes = xp.asarray(self.nodes)[:, None]

        def make(zero: Array) -> Array:
            pair = words(xp, self.seed, step + zero, nodes, xp.arange((width + 1) // 2), self.stream)
            return xp.concatenate(pair, axis=-1)[..., :width]

        shape = (*np.shape(self.step), len(self.nodes), width)
        return self.ops.apart(make, shape, np.uint32, self.step)

    def integers(self, width: int, below: Array) -> Array:
        """Integers in [0, below_i), with replacement, (..., nodes, width)."""
        limit = self.ops.xp.asarray(below).astype(np.uint32)[:, None]
        return (self.bits(width) % limit).astype(np.int32)

    def shuffled(self, width: int, below: Array) -> Array:
        """Integers in [0, below_i), without replacement, (..., nodes, width): consecutive steps are one pass over them.

        A pass has ⌊below_i / width⌋ steps. What is left over is not drawn in this pass, and each pass has a new order.
        """
        xp = self.ops.xp
        nodes, limit = xp.asarray(self.nodes)[:, None], xp.asarray(below).astype(np.uint32)[:, None]
        step = xp.asarray(self.step)[..., None, None].astype(np.uint32)
        turn, place = step // (limit // width), step % (limit // width) * width + xp.arange(width).astype(np.uint32)
        pair = words(xp, self.seed, turn, nodes, xp.arange(SWAPS // 2), self.stream)
        keys = xp.concatenate(pair, axis=-1) % limit

        # Swap-or-not (Hoang, Morris, Rogaway, 2012): the place x and its partner K − x are swapped, or not, by a random
        # bit of the pair. It computes one sample's place without sorting all of them.
        def swap(k: Any, place: Array) -> Array:
            partner = (keys[..., k][..., None] + limit - place) % limit
            higher = np.uint32(SWAPS // 2) + xp.maximum(place, partner)
            bits, _ = words(xp, self.seed, turn, nodes, higher, self.stream)
            return xp.where((bits >> xp.asarray(k).astype(np.uint32)) & np.uint32(1) > 0, partner, place)

        return self.ops.loop(SWAPS, swap, place).astype(np.int32)

    def normal(self, width: int) -> Array:
        """Standard normals by the inverse distribution function, (..., nodes, width)."""
        bits = self.bits(width)
        flat = bits.reshape(-1)  # compilers vectorise a long last axis best

        def make(zero: Array) -> Array:
            return self.ops.erfinv(2.0 * unit(flat + zero, self.dtype) - 1.0) * 2.0**0.5

        return self.ops.apart(make, flat.shape, self.dtype, self.step).reshape(bits.shape)
