"""Structures: that a kernel is its matrix, on NumPy and JAX, and that one written elsewhere runs on every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stgt
import stgt.topology as topo
from catalogue import instances, quadratic
from stgt._internal.randomness import words
from stgt.simulator.jax_ops import OPS as JAX
from stgt.simulator.jax_ops import as_pytree
from stgt.simulator.reference import OPS as NUMPY
from stgt.topology import Structure, Topology
from stgt.topology.sampled import Sampled
from stgt.topology.structure import NeighbourLists

MANY = 70  # above the size up to which a dense product is used
BUILT_IN = [
    topo.complete(5),
    topo.ring(7, directed=True),
    topo.de_bruijn(9, 3),
    topo.one_peer_exponential(MANY),
    topo.star(MANY),
    topo.random_matching(9, seed=2**32 - 1),
    topo.unreliable(topo.hypercuboid(MANY), link=0.3, node=0.1, seed=4),
    topo.server(9, sampled=4),
    topo.relay(9, sampled=4),
    topo.sequence([topo.random_matching(9, seed=2**32 - 2), topo.ring(9, directed=True), topo.hypercuboid(9)]),
    topo.sequence([topo.unreliable(topo.ring(9), 0.4), topo.sequence([topo.random_matching(9), np.eye(9)])]),
    topo.any_of(topo.one_peer_exponential(MANY), seed=2**32 - 2),
    topo.any_of([topo.ring(9), np.eye(9)[[*range(1, 9), 0]]]),
    topo.sequence([topo.any_of(topo.one_peer_exponential(9)), topo.random_matching(9)]),
    topo.schedule(4, lambda r: np.eye(4)[[1, 2, 3, 0]] if r % 3 else np.eye(4), period=3),
]


@pytest.mark.parametrize("topology", BUILT_IN, ids=str)
@pytest.mark.sampled(8)
def test_a_kernel_is_its_matrix(topology: Topology) -> None:
    v = np.random.default_rng(0).normal(size=(topology.n, 3))
    with jax.enable_x64(True):
        structure = jax.tree.map(jnp.asarray, as_pytree(topology.structure))
        compiled = jax.jit(
            lambda seed, r, back: structure.product(JAX, seed, r, jnp.asarray(v), back), static_argnums=2
        )
        for r in range(7):
            seed = (topology.seed + 3) % 2**32
            W = topology.matrix(r, 3)
            for back in (False, True):
                expected = (W.T if back else W) @ v
                plain = topology.structure.product(NUMPY, seed, r, v, back)
                np.testing.assert_allclose(plain, expected, rtol=0, atol=1e-14)
                fast = compiled(jnp.uint32(seed), jnp.int32(r), back)
                np.testing.assert_allclose(fast, expected, rtol=0, atol=1e-14)
            assert topology.structure.norm(r, seed) == pytest.approx(np.linalg.norm(W - 1 / topology.n, 2), abs=1e-9)
            links = 2 * topology.sampled if topology.has_server else np.count_nonzero(W - np.diag(np.diag(W)))
            assert topology.structure.links(NUMPY, seed, r) == links
            assert structure.links(JAX, jnp.uint32(seed), jnp.int32(r)) == links


@dataclass(frozen=True, eq=False)
class OnePair(Structure):
    """One node, drawn anew each round, and the next one exchange a share of what they have."""

    arrays = ("share",)

    n: int
    share: float

    def pair(self, xp: Any, seed: Any, r: Any) -> tuple[Any, Any]:
        ticket, _ = words(xp, seed, r, 0, 0, 9)
        first = ticket[0] % self.n
        return first, (first + 1) % self.n

    def matrix(self, r: int, seed: int) -> np.ndarray:
        W, (i, j) = np.eye(self.n), self.pair(np, seed, r)
        W[i, i] = W[j, j] = 1 - self.share
        W[i, j] = W[j, i] = self.share
        return W

    def product(self, ops: Any, seed: Any, r: Any, v: Any, back: bool = False) -> Any:
        i, j = self.pair(ops.xp, seed, r)
        nodes = ops.xp.arange(self.n)[:, None]
        return v + self.share * ((nodes == i) * (v[j] - v[i]) + (nodes == j) * (v[i] - v[j]))

    def links(self, ops: Any, seed: Any, r: Any) -> float:
        return 2.0


@dataclass(frozen=True)
class Drift(NeighbourLists):
    """In round r every node averages with the one r + 1 places on: directed, and written as lists only."""

    n: int

    def lists(self, xp: Any, seed: Any, r: Any, back: bool = False) -> tuple[Any, Any]:
        node, hop = xp.arange(self.n), 1 + r % (self.n - 1)
        index = xp.stack([node, (node - hop if back else node + hop) % self.n], axis=1)
        return index, xp.full((self.n, 2), 0.5)


@dataclass(frozen=True)
class RoundRobin(Sampled):
    """A server that calls its workers in a fixed order."""

    def queue(self, xp: Any, seed: Any, r: Any) -> Any:
        return (xp.arange(self.n) + r * self.size) % self.n

    def active(self, xp: Any, seed: Any, r: Any) -> Any:
        return xp.sort(self.queue(xp, seed, r)[: self.size])


N = 8
PAIRS = Topology("pairs", N, OnePair(N, 0.3), period=None, degree=1, seed=5)
DRIFT = Topology("drift", N, Drift(N), symmetric=False, period=N - 1, degree=1)
TURNS = topo.sequence([PAIRS, topo.ring(N), DRIFT])
SERVED = Topology("in a row", N, RoundRobin(N, 3), period=N, degree=2)


@pytest.mark.parametrize(
    ("name", "topology"),
    [("STGT", PAIRS), ("STGT-adjoint", DRIFT), ("STGT-adjoint", TURNS), ("LUGT", TURNS), ("Scaffold-II", SERVED)],
    ids=str,
)
@pytest.mark.sampled
def test_a_structure_written_elsewhere_runs_on_every_engine(name: str, topology: Topology) -> None:
    """The reference takes its matrix, the simulator its kernel."""
    problem = quadratic(N, 3, noise=0.1)
    fast, plain = (
        stgt.simulate(instances()[name], problem, topology, 10, seeds=[0, 3], engine=engine, dtype="float64")
        for engine in ("jax", "numpy")
    )
    for field in plain.state:
        np.testing.assert_allclose(fast.state[field], plain.state[field], rtol=0, atol=1e-10, err_msg=field)
    np.testing.assert_array_equal(fast["messages"], plain["messages"])


def test_what_a_structure_need_not_write() -> None:
    assert PAIRS.random
    assert PAIRS.active(0).all()
    assert (PAIRS.sampled, PAIRS.has_server, PAIRS.structure.phases) == (N, False, 1)
    # W² = I − 2·0.3·0.7 b bᵀ, and the mean of b bᵀ over the pairs is the ring's Laplacian over n.
    expected = 1 - 0.42 * (2 - 2 * np.cos(2 * np.pi / N)) / N
    found = topo.contraction(PAIRS)
    assert found.low < expected < found.high == found.worst
    assert not found.exact
    assert SERVED.called(1, 0, range(N)) == [3, 4, 5]
    assert SERVED.called(1, 0, [0, 1, 3, 5, 7]) == [3, 5, 7]
    assert np.flatnonzero(SERVED.active(1)).tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match=r"pairs: OnePair has no neighbour lists; give a topology such as ring\(8\)\."):
        topo.unreliable(PAIRS, 0.1)


def test_a_structure_that_is_no_dataclass_is_refused() -> None:
    class Bare(Structure):
        matrix = product = links = lambda self, *_: None

    @dataclass(frozen=True)
    class Misnamed(Bare):
        arrays = ("weights",)
        n: int

    for structure, said in ((Bare(), r"Bare has arrays=\(\)"), (Misnamed(3), r"Misnamed has arrays=\('weights',\)")):
        with pytest.raises(ValueError, match=f"{said}.*make it a frozen dataclass, and list only names"):
            as_pytree(structure)
