"""How the matrices of a topology are stored, so that every engine can mix with its fastest kernel.

A structure is data: the matrices W_r of all rounds r of a run, independent of any engine. Its `matrix` is the
definition, its `product` the kernel; they must agree. Random structures compute their draws from (seed, r), with the
same code on NumPy and JAX. This module has the interface and the two layouts of fixed schedules. The other layouts are
in the modules of the topologies that use them.

Convention: row i of W holds the weights of what node i receives, and the weight of its own value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from stgt._internal.hyper import ShortRepr
from stgt._internal.ops import Array, Ops
from stgt.topology.moments import MeanOverRounds, Moments

DENSE_UP_TO = 64  # up to this many nodes a dense product is faster than neighbour lists
DENSE_NORM_UP_TO = 400  # nodes; for more, the norm of a sparse matrix is computed by iteration
DOUBLY_STOCHASTIC = 1e-10  # how far a column sum may be from one
MOST_ENTRIES = 10**8  # longer neighbour lists would fill an ordinary machine's memory
Lists = tuple[np.ndarray, np.ndarray]  # (index, weight) of one round, each (n, d): see `NeighbourLists.lists`
Pairs = tuple[np.ndarray, np.ndarray]  # receivers, and the sender of each


class Structure(ShortRepr, ABC):
    """How the matrices W_0, W_1, … of a topology are stored. A subclass is a frozen dataclass.

    A subclass must define `matrix`, `product` and `links`; then every engine can run it. The other methods have
    defaults. `seed` is the run's: a random structure looks its draws up by (seed, r), see `randomness.words`. A method
    with an argument `xp` (numpy or jax.numpy) or `ops` must use only these for its computations, as a compiler may
    trace r and seed. A structure with a server is a subclass of `Server`.

    Attributes:
        arrays: the fields that are numbers, arrays or structures. All others are constants of a compiled program, and
            must be hashable.
        random: does W_r depend on the seed of the run?
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = True

    @abstractmethod
    def matrix(self, r: int, seed: int) -> np.ndarray:
        """W_r as a dense (n, n) array."""

    @abstractmethod
    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        """W_r v for v (n, p), or W_rᵀ v with `back`."""

    @abstractmethod
    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        """The number of directed links that carry a message in round r. For a server: uploads plus downloads."""

    def held_matrix(self, r: int, seed: int) -> np.ndarray:
        """The matrix that mixes the server's variables; W_r without a server."""
        return self.matrix(r, seed)

    @property
    def pushing(self) -> Structure:
        """The structure that mixes a `MessageVar(…, pushed=True)`: this one, unless a round has two matrices."""
        return self

    def norm(self, r: int, seed: int) -> float:
        """‖W_r − J‖₂."""
        return dense_norm(self.matrix(r, seed))

    def moments(self, n: int, phase: int, seed: int, draws: int) -> Moments:
        """E[W] and E[W A Wᵀ] of the n nodes' matrix in rounds r ≡ phase (mod phases).

        For a random structure without a closed form they are estimated from `draws` rounds of the run `seed`.
        """
        if not self.random:
            return MeanOverRounds(self, n, [(phase, seed)], exact=True)
        return MeanOverRounds(self, n, [(phase + k * self.phases, seed) for k in range(draws)], exact=False)

    def pairs(self) -> Pairs | None:
        """The links of all rounds. None if their union is connected by construction, or if the links are not known."""
        return None

    def neighbour_lists(self, name: str) -> NeighbourLists:
        """The same matrices as neighbour lists; a ValueError that names the topology if there are none."""
        raise ValueError(f"{name}: {type(self).__name__} has no neighbour lists; give a topology such as ring(8).")

    def queue(self, xp: ModuleType, seed: Array, r: Array) -> Array | None:
        """All workers in the order in which a server would sample them in round r; None without a server."""
        return None

    def active(self, xp: ModuleType, seed: Array, r: Array) -> Array | None:
        """The nodes that compute in round r, as sorted indices; None if all do."""
        return None

    def listening(self, xp: ModuleType, seed: Array, r: Array) -> Array | None:
        """The nodes that receive the server's variables after round r, as indices; None if all do."""
        return None

    @property
    def sampled(self) -> int | None:
        """The number of workers that a server samples per round; None without a server."""
        return None

    @property
    def phases(self) -> int:
        """W_{r+phases} equals W_r, or has the same distribution."""
        return 1


@dataclass(frozen=True, eq=False)
class Dense(Structure):
    """Any periodic schedule, as matrices (T, n, n)."""

    arrays = ("matrices",)
    random = False

    matrices: Array

    @property
    def phases(self) -> int:
        return self.matrices.shape[0]

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return np.array(self.matrices[r % self.phases], dtype=np.float64)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        W = ops.xp.asarray(self.matrices)[r % self.phases]
        return (W.T if back else W) @ v

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        xp = ops.xp
        W = xp.asarray(self.matrices)[r % self.phases]
        return xp.asarray(xp.count_nonzero(W * (1 - xp.eye(W.shape[0], dtype=W.dtype))), float)

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return lists_from_matrices(self.matrices)

    def pairs(self) -> Pairs:
        receivers, senders = np.nonzero((self.matrices != 0).any(axis=0))
        return receivers, senders


class NeighbourLists(Structure):
    """Base of the sparse structures; a subclass needs to define only `lists`."""

    @abstractmethod
    def lists(self, xp: ModuleType, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        """The senders of each node and their weights, (index, weight), each (n, d). With `back`, those of W_rᵀ.

        Column 0 is the node itself. Padding repeats the node itself with weight 0.
        """

    def matrix(self, r: int, seed: int) -> np.ndarray:
        index, weight = self.lists(np, seed, r)
        W = np.zeros((len(index), len(index)))
        np.add.at(W, (np.arange(len(index))[:, None], index), weight)
        return W

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        index, weight = self.lists(ops.xp, seed, r, back)
        weight = weight.astype(v.dtype)

        def add(k: Array, total: Array) -> Array:
            return total + weight[:, k, None] * v[index[:, k]]

        return ops.loop(index.shape[1], add, ops.xp.zeros_like(v))

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        xp = ops.xp
        index, weight = self.lists(xp, seed, r)
        return xp.asarray(((weight > 0) & (index != xp.arange(index.shape[0])[:, None])).sum(), float)

    def norm(self, r: int, seed: int) -> float:
        return lists_norm(*self.lists(np, seed, r))

    def neighbour_lists(self, name: str) -> NeighbourLists:
        return self


@dataclass(frozen=True, eq=False)
class Gather(NeighbourLists):
    """A periodic schedule as neighbour lists (T, n, d). `back_*` are the lists of W_rᵀ, None if W_r is symmetric."""

    arrays = ("index", "weight", "back_index", "back_weight")
    random = False

    index: Array
    weight: Array
    back_index: Array | None = None
    back_weight: Array | None = None

    def lists(self, xp: ModuleType, seed: Array, r: Array, back: bool = False) -> tuple[Array, Array]:
        index, weight = self.index, self.weight
        if back and self.back_index is not None:
            index, weight = self.back_index, self.back_weight
        phase = r % self.phases
        return xp.asarray(index)[phase], xp.asarray(weight)[phase]

    def pairs(self) -> Pairs:
        _, n, width = self.index.shape
        slots = np.flatnonzero(self.weight[:, :, 1:])  # column 0 is the node itself
        return slots // (width - 1) % n, self.index[:, :, 1:].ravel()[slots]

    @property
    def phases(self) -> int:
        return self.index.shape[0]


# -- the layout of a fixed schedule ------------------------------------------------------------------------------------


def structure_from_lists(lists: Gather) -> Structure:
    """The same schedule; dense if there are few nodes or the matrices are full."""
    period, n, width = lists.index.shape
    if n <= DENSE_UP_TO or width > n // 4:
        return Dense(np.stack([lists.matrix(t, 0) for t in range(period)]))
    return lists


def structure_from_matrices(stack: np.ndarray) -> Structure:
    """The layout with the fastest kernel: dense for few nodes or full matrices, neighbour lists otherwise."""
    n, filled = stack.shape[1], int((stack != 0).sum(axis=2).max(initial=0))
    return Dense(stack) if n <= DENSE_UP_TO or filled > n // 4 else lists_from_matrices(stack)


def lists_from_matrices(stack: np.ndarray) -> Gather:
    """Neighbour lists of matrices (T, n, n), with their transposes if some W_r is not symmetric."""
    from scipy import sparse

    return lists_from_sparse([sparse.csr_array(W) for W in stack])


def lists_from_sparse(matrices: Sequence[Any], rest: bool = False) -> Gather:
    """Neighbour lists of sparse matrices. With `rest`, w_ii is one minus the row's sum, not the diagonal entry."""
    forward = pad([_sparse_lists(W, rest) for W in matrices])
    if all((W != W.T).nnz == 0 for W in matrices):
        return Gather(*forward)
    return Gather(*forward, *pad([_sparse_lists(W.T, rest) for W in matrices]))


def _sparse_lists(W: Any, rest: bool) -> Lists:
    """The lists of one matrix, with senders in ascending order."""
    n, entries = W.shape[0], W.tocsr().tocoo()
    others = (entries.row != entries.col) & (entries.data != 0)
    rows, columns, counts = entries.row[others], entries.col[others], np.bincount(entries.row[others], minlength=n)
    slot = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows] + 1
    index = np.tile(np.arange(n, dtype=np.int32)[:, None], (1, counts.max() + 1))
    weight = np.zeros(index.shape)
    index[rows, slot], weight[rows, slot] = columns, entries.data[others]
    weight[:, 0] = np.maximum(1.0 - weight.sum(axis=1), 0.0) if rest else W.diagonal()  # rounding may give −1e-17
    return index, weight


def pad(rounds: Sequence[Lists]) -> tuple[np.ndarray, np.ndarray]:
    """The lists (n, d_r) of each round as arrays (T, n, d), padded to the widest."""
    n, width = len(rounds[0][0]), max(index.shape[1] for index, _ in rounds)
    padded = np.tile(np.arange(n, dtype=np.int32)[:, None], (len(rounds), 1, width)), np.zeros((len(rounds), n, width))
    for t, one in enumerate(rounds):
        for whole, part in zip(padded, one, strict=True):
            whole[t, :, : part.shape[1]] = part
    return padded


def check_room(name: str, period: int, n: int, width: int) -> None:
    """A ValueError if lists (period, n, width) would be too long: a node with many neighbours pads the lists of all."""
    if period * n * width > MOST_ENTRIES:
        raise ValueError(
            f"{name}: a node with {width - 1} neighbours needs neighbour lists of {period * n * width:.2g} entries, "
            f"more than {MOST_ENTRIES:.0e}; use fewer nodes, a sparser graph, complete(n) or server(n)."
        )


# -- ‖W − J‖₂ ----------------------------------------------------------------------------------------------------------


def dense_norm(W: np.ndarray) -> float:
    """‖W − J‖₂ of a matrix."""
    return float(np.linalg.norm(W - 1.0 / len(W), 2))


def circulant_norm(n: int, hops: np.ndarray, weights: np.ndarray) -> float:
    """‖W − J‖₂ of a circulant W. W is normal; its eigenvalues are the transform of its first row, the first is J's."""
    row = np.zeros(n)
    np.add.at(row, hops % n, weights)
    return float(np.abs(np.fft.rfft(row)[1:]).max(initial=0.0))


def lists_norm(index: np.ndarray, weight: np.ndarray) -> float:
    """‖W − J‖₂ of neighbour lists (n, d)."""
    n, width = index.shape
    rows = np.arange(n)[:, None]
    hops = (index - rows) % n
    if (hops == hops[0]).all() and (weight == weight[0]).all():
        return circulant_norm(n, hops[0], weight[0])

    from scipy import sparse
    from scipy.sparse import csgraph
    from scipy.sparse.linalg import LinearOperator, svds

    entries = (weight.ravel(), (np.repeat(rows, width), index.ravel()))
    W: Any = sparse.csr_array(entries, shape=(n, n))
    W.eliminate_zeros()
    # The multiplicity of the singular value 1 of a doubly stochastic W is the number of components of this graph.
    both = sparse.block_array([[None, W], [W.T, None]])
    doubly_stochastic = np.abs(W.sum(axis=0) - 1.0).max() <= DOUBLY_STOCHASTIC
    if doubly_stochastic and csgraph.connected_components(both, directed=False, return_labels=False) > 1:
        return 1.0
    if n <= DENSE_NORM_UP_TO:
        return dense_norm(W.toarray())
    transposed = W.T.tocsr()
    operator: Any = LinearOperator  # the type stub has only the arguments of its subclasses
    deviation = operator(
        W.shape,
        matvec=lambda x: W @ x - x.mean(),
        rmatvec=lambda x: transposed @ x - x.mean(),
        dtype=np.dtype(np.float64),
    )
    start = np.random.default_rng(0).standard_normal(n)
    tolerance: Any = 1e-6  # of the singular vector; the error of the value is of the order of its square
    largest: Any = svds(deviation, k=1, tol=tolerance, v0=start, return_singular_vectors=False)
    return float(largest[0])
