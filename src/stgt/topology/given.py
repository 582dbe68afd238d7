"""Topologies given by matrices, by other topologies in turn, or by a function of the round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count, check_seed
from stgt._internal.ops import Array, Ops
from stgt._internal.randomness import STREAM_CHOICE, words
from stgt._internal.registry import register
from stgt.topology.base import Topology, check_matrices, check_matrix, degree_of, never_repeats
from stgt.topology.graphs import read_matrix
from stgt.topology.moments import MeanOverRounds, Moments
from stgt.topology.structure import NeighbourLists, Pairs, Structure, structure_from_matrices

ROUNDING = 1e-10  # a matrix this close to its transpose counts as symmetric, a sum this close to one as one
WRITTEN_OUT = 10**7  # up to this many matrix entries per period, a sequence of topologies becomes one schedule


@dataclass(frozen=True, eq=False)
class Cyclic(Structure):
    """Item r mod T in round r. `seeds` (T,) are the items' seeds, `cycles` their numbers of `phases`.

    In round r the item uses its own round r·c + (r div T) mod c, where c is its number of phases. So it advances by one
    phase each time it is used, for any T, and never draws twice for the same round number.
    """

    arrays = ("items", "seeds")

    items: tuple[Structure, ...]
    seeds: Array
    cycles: tuple[int, ...]

    @property
    def phases(self) -> int:
        return len(self.items) * math.lcm(*self.cycles)

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self._now(r).matrix(*self._numbers(r, seed))

    def norm(self, r: int, seed: int) -> float:
        return self._now(r).norm(*self._numbers(r, seed))

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        r, own_seed = self._numbers(phase, seed)
        return self._now(phase).moments(n, r % self.cycles[phase % len(self.items)], own_seed, draws)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        def turn(k: int, v: Array) -> Array:
            return self.items[k].product(ops, self._seed(ops.xp, k, seed), self._round(k, r), v, back).astype(v.dtype)

        return self._switch(ops, r, turn, v)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        def turn(k: int) -> Array:
            links = self.items[k].links(ops, self._seed(ops.xp, k, seed), self._round(k, r))
            return ops.xp.asarray(links, float)

        return self._switch(ops, r, turn)

    def pairs(self) -> Pairs | None:
        found = [item.pairs() for item in self.items]
        known = [pairs for pairs in found if pairs is not None]
        if len(known) < len(found):
            return None
        receivers, senders = (np.concatenate(side) for side in zip(*known, strict=True))
        return receivers, senders

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(
            f"{name} cannot be written as one cycle of neighbour lists: apply unreliable to its items instead, as in "
            "sequence([unreliable(ring(8), link=0.1), random_matching(8)])."
        )

    def _switch(self, ops: Ops, r: Array, turn: Callable[..., Array], *operands: Array) -> Array:
        return ops.switch(r % len(self.items), [partial(turn, k) for k in range(len(self.items))], *operands)

    def _now(self, r: int) -> Structure:
        return self.items[r % len(self.items)]

    def _numbers(self, r: int, seed: int) -> tuple[int, int]:
        k = r % len(self.items)
        return self._round(k, r), (int(self.seeds[k]) + seed) % 2**32

    def _round(self, k: int, r: Array) -> Array:
        return r * self.cycles[k] + r // len(self.items) % self.cycles[k]

    def _seed(self, xp: ModuleType, k: int, seed: Array) -> Array:
        # As arrays: the sum of two NumPy scalars would warn when it wraps at 2**32, which is intended.
        return (xp.asarray(self.seeds)[k : k + 1] + xp.asarray(seed, np.uint32))[0]


@dataclass(frozen=True, eq=False)
class RandomChoice(Structure):
    """One of the first `count` rounds of `base`, whose period is `count`; each is equally likely."""

    arrays = ("base",)

    base: Structure
    count: int

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.base.matrix(int(self._which(np, seed, r)), seed)

    def norm(self, r: int, seed: int) -> float:
        return self.base.norm(int(self._which(np, seed, r)), seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return self.base.product(ops, seed, self._which(ops.xp, seed, r), v, back)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return self.base.links(ops, seed, self._which(ops.xp, seed, r))

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        return MeanOverRounds(self.base, n, [(k, seed) for k in range(self.count)], exact=True)

    def pairs(self) -> Pairs | None:
        return self.base.pairs()

    def _which(self, xp: ModuleType, seed: Array, r: Array) -> Array:
        word, _ = words(xp, seed, r, 0, 0, STREAM_CHOICE)
        return (word[0] % np.uint32(self.count)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Computed(Structure):
    """W_r = function(r, seed), computed by Python and NumPy whenever it is needed. It may have no period."""

    random = False

    name: str
    function: Callable[[int, int], np.ndarray]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.function(r, seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        if ops.xp is not np:
            raise ValueError(never_repeats(self.name))
        W = self.matrix(r, seed).astype(v.dtype)
        return (W.T if back else W) @ v

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        W = self.matrix(r, seed)
        return ops.xp.asarray(np.count_nonzero(W) - np.count_nonzero(np.diag(W)), float)

    def neighbour_lists(self, name: str) -> NeighbourLists:
        raise ValueError(
            f"{name} has no period: give period=… to topology.schedule, or let its function drop the links."
        )


@register
def from_matrix(W: Any, row_stochastic: bool = False) -> Topology:
    """A static topology with the given weights: node i applies w_ij to what it receives from node j.

    Args:
        W: a square, non-negative matrix whose rows and columns sum to one; or the path of a file that holds it: .csv,
            .npy, or .npz with one array.
        row_stochastic: do not check the column sums.

    Returns:
        A static topology; its flags are computed from W.
    """
    given = read_matrix(Path(W)) if isinstance(W, str | Path) else W
    matrix = check_matrix(given, row_stochastic=row_stochastic)
    return _from_stack(f"from_matrix({len(matrix)} nodes)", matrix[None])


@register
def sequence(matrices: Iterable[Any], row_stochastic: bool = False) -> Topology:
    """The given matrices or topologies in turn, repeated: W_r comes from item r mod T.

    A topology with a period advances by one round each time it is used: it gives its own round r div T. A random
    topology draws by the round r and its own seed, so that two equal ones draw differently.

    Args:
        matrices: T square, non-negative matrices whose rows and columns sum to one, or topologies without a server; all
            of one size.
        row_stochastic: do not check the column sums.

    Returns:
        A topology whose flags are computed from the items. Its period is T times the least common multiple of theirs.
        It is random if one of them is.
    """
    try:
        given = list(matrices)
    except TypeError:
        raise InputError(
            "matrices", hint=f" is a {type(matrices).__name__}: give a list of square matrices or topologies."
        ) from None
    if not given:
        raise InputError("matrices", hint=" is empty: give a list of at least one square matrix or topology.")
    if not any(isinstance(item, Topology) for item in given):
        stack = check_matrices(given, "W", row_stochastic=row_stochastic)
        return _from_stack(f"sequence({len(stack)} matrices, {stack.shape[1]} nodes)", stack)
    items = [_item(item, t, row_stochastic) for t, item in enumerate(given)]
    for t, item in enumerate(items):
        if item.n != items[0].n:
            raise ValueError(f"W_{t} has {item.n} nodes but W_0 has {items[0].n}: give items of one size.")
    name = f"sequence({len(items)} topologies, {items[0].n} nodes)"
    cycles = [item.period or item.structure.phases for item in items]
    n, whole = items[0].n, len(items) * math.lcm(*cycles)
    periodic = not any(item.random for item in items)
    if periodic and whole * n * n <= WRITTEN_OUT:
        return _from_stack(name, np.stack([items[r % len(items)].matrix(r // len(items)) for r in range(whole)]))
    seeds = np.array([item.seed for item in items], dtype=np.uint32)
    return Topology(
        name,
        n,
        Cyclic(tuple(item.structure for item in items), seeds, tuple(cycles)),
        doubly_stochastic=all(item.doubly_stochastic for item in items),
        symmetric=all(item.symmetric for item in items),
        period=whole if periodic else None,
        degree=max(item.degree for item in items),
    )


@register
def any_of(items: Any, seed: int = 0) -> Topology:
    """One of the given matrices per round, each equally likely, drawn independently of other rounds.

    Args:
        items: a topology with a period, from whose rounds W_r is drawn; or a list of square, non-negative matrices
            whose rows and columns sum to one, and of static topologies without a server, all of one size.
        seed: of the draws.

    Returns:
        A random topology; static if there is only one matrix.

    Example:
        >>> import stgt
        >>> shuffled = stgt.topology.any_of(stgt.topology.one_peer_exponential(8))
        >>> shuffled.random
        True
    """
    seed = check_seed(seed)
    if isinstance(items, Topology):
        base = _item(items, 0, row_stochastic=False)
        if base.period is None:
            raise InputError(
                "items", hint=f" is {base}, which is random already: give a topology with a period, or matrices."
            )
    else:
        try:
            given = list(items)
        except TypeError:
            raise InputError(
                "items", hint=f" is a {type(items).__name__}: give a topology, or a list of matrices."
            ) from None
        if not given:
            raise InputError("items", hint=" is empty: give at least one square matrix or static topology.")
        for t, item in enumerate(given):
            if isinstance(item, Topology) and item.period != 1:
                raise InputError(("items", t), hint=f" is {item}, which is not static: give it alone, or its matrices.")
        base = sequence(given)
    assert base.period is not None
    name, period = f"any_of({base})", 1 if base.period == 1 else None
    return replace(base, name=name, structure=RandomChoice(base.structure, base.period), period=period, seed=seed)


@register
def schedule(
    n: int, function: Callable[[int], Any], period: int | None = None, row_stochastic: bool = False
) -> Topology:
    """The matrices that a function returns: W_r = function(r).

    With a period the matrices are computed at once, and every engine can run them. Without one, each matrix is
    computed and checked when it is used. `simulate(…, engine="numpy")` and training with torch can do that. The
    compiled simulator and the theory need a period.

    Args:
        n: number of nodes.
        function: of the round r = 0, 1, …; returns the matrix W_r, or a topology, whose matrix of round r is used. It
            may be called several times for a round, and by every node of a training. It must return the same each time.
        period: function(r + period) = function(r).
        row_stochastic: do not check the column sums.

    Returns:
        A topology whose flags are computed from the matrices. Without a period they are not known in advance: it counts
        as directed, with n − 1 neighbours.

    Example:
        >>> import stgt
        >>> graphs = [stgt.topology.ring(8), stgt.topology.complete(8)]
        >>> often = stgt.topology.schedule(8, lambda r: graphs[r % 10 == 9], period=10)
        >>> often.degree
        7
    """
    n = check_count(n, "n")
    if not callable(function):
        raise InputError(
            "function", hint=f" is a {type(function).__name__}: give a function of the round r that returns W_r."
        )
    at = partial(_matrix_of_round, n, function, row_stochastic)
    if period is None:
        name = f"schedule({n})"
        structure = Computed(name, at)
        flags = {"doubly_stochastic": not row_stochastic, "symmetric": False, "degree": n - 1}
        return Topology(name, n, structure, period=None, **flags)
    period = check_count(period, "period")
    stack = np.stack([at(r, None) for r in range(period)])
    again = at(period, None)
    if not np.allclose(again, stack[0], rtol=0.0, atol=ROUNDING):
        off = np.abs(again - stack[0]).max()
        raise InputError(
            "period",
            period,
            f", but function({period}) differs from function(0) by {off:.3g}: give its true period, or leave period "
            "out.",
        )
    return _from_stack(f"schedule({n}, period={period})", stack)


def _item(item: Any, t: int, row_stochastic: bool) -> Topology:
    """An item of a sequence, as a topology."""
    if not isinstance(item, Topology):
        return _from_stack(f"W_{t}", check_matrix(item, f"W_{t}", row_stochastic=row_stochastic)[None])
    _check_one_matrix(item, f"W_{t} is")
    if item.period is None and not item.random:
        raise ValueError(f"W_{t} is {item}, which has no period: give period=… to topology.schedule.")
    if not item.doubly_stochastic and not row_stochastic:
        raise ValueError(
            f"W_{t} is {item}, which is only row-stochastic: give row_stochastic=True, or another topology."
        )
    return item


def _matrix_of_round(
    n: int, function: Callable[[int], Any], row_stochastic: bool, r: int, seed: int | None
) -> np.ndarray:
    """function(r), checked; `seed` is the run's, or None if the matrix must not depend on it."""
    try:
        found = function(r)
    except Exception as error:
        raise ValueError(
            f"function({r}) raised {type(error).__name__}: {error}; it must return W_{r} for every round r."
        ) from error
    if isinstance(found, Topology):
        _check_one_matrix(found, f"function({r}) gave")
        if found.random and seed is None:
            raise ValueError(f"function({r}) gave {found}, which is random and has no period: leave period out.")
        if found.n != n:
            raise ValueError(f"function({r}) gave {found} of {found.n} nodes: give one of n={n} nodes.")
        found = found.matrix(r, seed or 0)
    W = check_matrix(found, f"W_{r}", row_stochastic=row_stochastic)
    if len(W) != n:
        raise ValueError(f"W_{r} has shape {W.shape}: give a matrix of n={n} nodes.")
    return W


def _check_one_matrix(topology: Topology, subject: str) -> None:
    if topology.has_server:
        raise ValueError(f"{subject} {topology}, which has a server: give topologies without one.")
    if topology.has_push:
        raise ValueError(f"{subject} {topology}, with two matrices a round: give lists of matrices to push_pull.")


def _from_stack(name: str, stack: np.ndarray) -> Topology:
    mirrored = stack.transpose(0, 2, 1)
    symmetric = np.allclose(stack, mirrored, rtol=0.0, atol=ROUNDING)
    if symmetric:
        stack = (stack + mirrored) / 2
    return Topology(
        name,
        stack.shape[1],
        structure_from_matrices(stack),
        doubly_stochastic=bool((np.abs(stack.sum(axis=1) - 1.0) <= ROUNDING).all()),
        symmetric=symmetric,
        period=len(stack),
        degree=degree_of(stack),
    )
