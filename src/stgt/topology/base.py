"""The topology: which nodes exchange messages in which round, with which weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, NotCovered, check_count, check_seed
from stgt._internal.digest import digest
from stgt._internal.ops import NUMPY
from stgt.topology.moments import DRAWS, MeanOverRounds, Moments
from stgt.topology.structure import Gather, Structure, structure_from_lists

TOLERANCE = 1e-6  # how far a row or column sum may be from one: the rounding of single precision
EXACT = 1e-13  # sums closer to one than this are not corrected
ASKED_OF_STRUCTURE = ("matrix", "active", "listening", "called")


@dataclass(frozen=True, eq=False)
class Topology:
    """A schedule of mixing matrices W_0, W_1, …

    Attributes:
        name: the call that made it, for tables and legends.
        n: number of nodes.
        structure: the layout of its matrices, with the kernels of all engines.
        doubly_stochastic: do the columns sum to one, as the rows do? False if a round has two matrices.
        symmetric: is every W_r symmetric?
        period: W_{r+period} = W_r; None for a random schedule, or one that never repeats.
        degree: the largest number of nodes that a node receives from in a round.
        seed: the seed of a random schedule. Run number j of a simulation uses seed + j.
    """

    name: str
    n: int
    structure: Structure
    doubly_stochastic: bool = True
    symmetric: bool = True
    period: int | None = 1
    degree: int = 0
    seed: int = 0

    def matrix(self, r: int, seed: int = 0, *, held: bool = False, pushed: bool = False) -> np.ndarray:
        """W_r as a dense (n, n) array; `seed` is the number of the run, which only random schedules use.

        `held=True` gives the rows that mix a quantity held by a server: with `server(n, sampled=s)` every node would
        receive the mean over the sampled workers. Without a server it is W_r. `pushed=True` gives C_r, the matrix that
        mixes a `MessageVar(…, pushed=True)` on `push_pull`. On other topologies it is W_r.
        """
        if r < 0:
            raise InputError("r", r, "rounds are counted from 0.")
        structure = self.structure.pushing if pushed else self.structure
        return (structure.held_matrix if held else structure.matrix)(r, self._run_seed(seed))

    def active(self, r: int, seed: int = 0) -> np.ndarray:
        """Which nodes work in round r, (n,) booleans: all, unless a server samples."""
        return self._flags(self.structure.active(np, self._run_seed(seed), r))

    def called(self, r: int, seed: int, present: Iterable[int]) -> list[int]:
        """The nodes that a server samples in round r if only some are present, sorted. If all are, the active ones."""
        line = self.structure.queue(np, self._run_seed(seed), r)
        if line is None:
            raise ValueError(f"{self} has no server: use server(n, sampled=s).")
        here = set(present)
        return sorted([int(node) for node in line if node in here][: self.sampled])

    def listening(self, r: int, seed: int = 0) -> np.ndarray:
        """Which nodes receive the server's variables after round r, (n,) booleans."""
        receiving = self._flags(self.structure.listening(np, self._run_seed(seed), r))
        return receiving | self.active(r, seed)

    def links(self, r: int, seed: int = 0, *, pushed: bool = False) -> float:
        """The number of directed links that carry a message in round r. For a server: uploads plus downloads.

        `pushed=True` counts the links of C_r on `push_pull`.
        """
        structure = self.structure.pushing if pushed else self.structure
        return float(structure.links(NUMPY, self._run_seed(seed), r))

    def moments(self, phase: int = 0, draws: int = DRAWS) -> Moments:
        """E[W_r] and E[W_r A W_rᵀ] over the draws of round r = phase, phase + phases, …

        They are exact for a schedule with a period, `any_of`, `random_matching`, `server`, `unreliable`, and sequences
        of these. For a structure without closed forms they are means over drawn rounds.

        Args:
            phase: the number of the round, modulo the number of rounds that differ in law (`structure.phases`).
            draws: rounds to draw for an estimate.

        Returns:
            An object with `mean`, `second(A)`, `exact` and `draws`.
        """
        phase, draws = check_count(phase, "phase", 0), check_count(draws, "draws", 2)
        check_repeats(self)
        if self.period is not None:
            return MeanOverRounds(self.structure, self.n, [(phase % self.period, self.seed)], exact=True)
        return self.structure.moments(self.n, phase % self.structure.phases, self.seed, draws)

    @property
    def sampled(self) -> int:
        """The number of nodes that work in a round."""
        called = self.structure.sampled
        return self.n if called is None else called

    @property
    def participation(self) -> float:
        """The share of nodes that work in a round, s/n."""
        return self.sampled / self.n

    @property
    def has_server(self) -> bool:
        return self.structure.sampled is not None

    @property
    def has_push(self) -> bool:
        """Does a separate, column-stochastic matrix mix pushed messages?"""
        return self.structure.pushing is not self.structure

    @property
    def random(self) -> bool:
        """Is W_r drawn at random each round? A topology that is neither random nor periodic never repeats."""
        return self.period is None and self.structure.random

    @cached_property
    def strangers(self) -> tuple[int, int] | None:
        """Two nodes that never exchange anything, in any round or through others. None if there are none, or if the
        links are not known."""
        pairs = self.structure.pairs()
        if pairs is None:
            return None
        closed = closed_parts(self.n, *pairs)
        _, first = np.unique(closed, return_index=True)
        alone = sorted(first[-closed.max() - 1 :].tolist())
        return (alone[0], alone[1]) if len(alone) > 1 else None

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of its layout and seed. A resumed run compares it."""
        return digest(self.n, self.structure, self.seed)

    def with_seed(self, seed: int) -> Topology:
        """The same random schedule, drawn with another seed."""
        return replace(self, seed=check_seed(seed))

    def __init_subclass__(cls) -> None:
        changed = [name for name in ASKED_OF_STRUCTURE if getattr(cls, name) is not getattr(Topology, name)]
        if changed:
            raise ValueError(
                f"class {cls.__name__} overrides Topology.{changed[0]}, which some engines would ignore: give "
                "topology.schedule(n, function), or write a Structure with its own matrix and product."
            )

    def _flags(self, nodes: np.ndarray | None) -> np.ndarray:
        """(n,) booleans from indices; None means all nodes."""
        flags = np.full(self.n, nodes is None)
        if nodes is not None:
            flags[nodes] = True
        return flags

    def _run_seed(self, seed: int) -> int:
        return (self.seed + seed) % 2**32

    def __repr__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        from stgt.topology.html import topology_html

        return topology_html(self)


def periodic(name: str, lists: Gather) -> Topology:
    """A topology with doubly stochastic W_r, given as neighbour lists; its flags are computed from them."""
    period, n, _ = lists.index.shape
    degree = int((lists.weight[:, :, 1:] > 0).sum(axis=2).max(initial=0))
    structure, symmetric = structure_from_lists(lists), lists.back_index is None
    return Topology(name, n, structure, symmetric=symmetric, period=period, degree=degree)


def never_repeats(name: str) -> str:
    """The error text for a topology that is neither periodic nor random."""
    return (
        f"{name} has no period, so it cannot be compiled, and no prediction covers all its rounds: give period=… to "
        'topology.schedule, or run it with engine="numpy".'
    )


def check_repeats(topology: Topology) -> None:
    """Raises NotCovered for a topology without a period that is not random: its later rounds are not known."""
    if topology.period is None and not topology.random:
        raise NotCovered(never_repeats(topology.name))


def closed_parts(n: int, receiver: np.ndarray, sender: np.ndarray) -> np.ndarray:
    """(n,): the number 0, 1, … of the node's closed part, or −1. A closed part is a strongly connected set of nodes
    that receives from no node outside it.

    There is exactly one closed part if and only if some node reaches all others along the links.
    """
    from scipy import sparse
    from scipy.sparse import csgraph

    links: Any = sparse.csr_array((np.ones(len(receiver), dtype=bool), (receiver, sender)), shape=(n, n))
    count, part = csgraph.connected_components(links, directed=True, connection="strong")
    closed = np.ones(count, dtype=bool)
    closed[part[receiver][part[receiver] != part[sender]]] = False
    return np.where(closed, np.cumsum(closed) - 1, -1)[part]


def check_matrix(
    W: np.ndarray, name: str = "W", *, row_stochastic: bool = False, column_stochastic: bool = False
) -> np.ndarray:
    """W as a float64 array if it is square, finite, non-negative and (doubly) stochastic, else a ValueError.

    `row_stochastic=True` leaves the column sums unchecked, `column_stochastic=True` the row sums. Sums that differ from
    one by rounding are corrected.
    """
    try:
        W = np.array(W, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(name, hint=" is not an array of numbers: give a square matrix.") from None
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise InputError(name, hint=f" has shape {W.shape}: give a square matrix (n, n), one row per node.")
    if not np.isfinite(W).all():
        raise InputError(name, hint=" has entries that are not finite: all weights must be numbers in [0, 1].")
    if W.min() < 0:
        i, j = np.unravel_index(W.argmin(), W.shape)
        raise ValueError(f"{name}[{i}, {j}]={W[i, j]:.6g} is negative: all weights must be in [0, 1].")
    for kind, sums in (("row", W.sum(axis=1)), ("column", W.sum(axis=0))):
        if (kind == "column" and row_stochastic) or (kind == "row" and column_stochastic):
            continue
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) > TOLERANCE:
            hint = (
                ""
                if kind == "row" or column_stochastic
                else " (row_stochastic=True allows it, for algorithms with a server)"
            )
            raise InputError(
                name,
                hint=f"{kind} {worst} sums to {sums[worst]:.6g}, {abs(sums[worst] - 1):.1g} off, but each {kind} must "
                f"sum to 1{hint}.",
            )
    return _put_right(W.T, True).T if column_stochastic else _put_right(W, row_stochastic)


def check_matrices(matrices: Iterable[Any], name: str, **stochastic: bool) -> np.ndarray:
    """Matrices as one array (T, n, n), each checked by `check_matrix`. Errors call them NAME_0, NAME_1, …, or NAME."""
    given = list(matrices)
    names = [f"{name}_{t}" for t in range(len(given))] if len(given) > 1 else [name]
    stack = [check_matrix(W, one, **stochastic) for W, one in zip(given, names, strict=True)]
    for W, one in zip(stack, names, strict=True):
        if len(W) != len(stack[0]):
            raise ValueError(f"{one} has {len(W)} nodes but {names[0]} has {len(stack[0])}: give matrices of one size.")
    return np.stack(stack)


def degree_of(stack: np.ndarray) -> int:
    """The largest number of nodes that a node receives from in a round of the matrices (T, n, n)."""
    return int(((stack != 0).sum(axis=2) - (np.diagonal(stack, axis1=1, axis2=2) != 0)).max())


def _put_right(W: np.ndarray, row_stochastic: bool) -> np.ndarray:
    """W with sums of one up to rounding, by scaling rows and columns in turn (Sinkhorn). Keeps W symmetric if it is."""
    symmetric = np.array_equal(W, W.T)
    for _ in range(100):
        columns = 1.0 if row_stochastic else W.sum(axis=0)
        if max(np.abs(W.sum(axis=1) - 1).max(), np.abs(columns - 1).max()) <= EXACT:
            break
        W = W / columns
        W = W / W.sum(axis=1, keepdims=True)
        if symmetric and not row_stochastic:
            W = (W + W.T) / 2
    return W
