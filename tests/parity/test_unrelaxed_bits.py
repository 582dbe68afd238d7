"""β = 1 changes no bit: the trackers against their rules written without any β, on both engines.

On the compiled engine FlexGT, LU-GT and Scaffold (option I) are left out: their c ← (1 − β)c + β(…), or β(g − own), is
another sum of products, which XLA may contract in another way, so that their last bit may differ there.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import stgt
from catalogue import quadratic

N, P, ROUNDS = 8, 3, 7


def plain(kind):
    """Registers nothing: a frozen dataclass beside the method that it is a copy of."""
    return dataclass(frozen=True, kw_only=True)(kind)


@plain
class PlainSTGT(stgt.STGT):
    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "c": state["c"] + (mixed["z"] - local.direction)}


@plain
class PlainKGT(stgt.KGT):
    merge = PlainSTGT.merge


@plain
class PlainDIGing(stgt.DIGing):
    def merge(self, state, local, mixed):
        c = state["c"] + (mixed["z"] - local.direction)
        return {"x": mixed["x"] + (local.end - local.start), "c": c}


@plain
class PlainScaffold(stgt.Scaffold):
    def change_of_own(self, state, local):
        return local.direction - state["c"] if self.option == "II" else local.anchor - state["own"]


@plain
class PlainScaffoldPlus(stgt.ScaffoldPlus):
    def change_of_own(self, state, local):
        return local.direction - state["c"]


@plain
class PlainFlexGT(stgt.FlexGT):
    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "c": mixed["y"] - self._snapshot(local)}


@plain
class PlainLUGT(stgt.LUGT):
    def second_merge(self, state, gradient, mixed):
        return {"x": state["x"], "c": mixed["y"] - gradient}


LOCAL = {"gamma": 0.05, "tau": 3}
PAIRS = {
    "ST-GT": (stgt.STGT, PlainSTGT, LOCAL),
    "K-GT": (stgt.KGT, PlainKGT, {**LOCAL, "eta_s": 0.8, "warm_start": True}),
    "DIGing": (stgt.DIGing, PlainDIGing, {"gamma": 0.05}),
    "Scaffold II": (stgt.Scaffold, PlainScaffold, {**LOCAL, "gamma_g": 1.2}),
    "Scaffold⁺": (stgt.ScaffoldPlus, PlainScaffoldPlus, {**LOCAL, "gamma_g": 1.2, "gamma_c": 0.7}),
    "Scaffold I": (stgt.Scaffold, PlainScaffold, {**LOCAL, "option": "I"}),
    "FlexGT first": (stgt.FlexGT, PlainFlexGT, LOCAL),
    "FlexGT last": (stgt.FlexGT, PlainFlexGT, {**LOCAL, "snapshot": "last"}),
    "LU-GT": (stgt.LUGT, PlainLUGT, LOCAL),
}
COMPILED = ["ST-GT", "K-GT", "DIGing", "Scaffold II", "Scaffold⁺"]
GRAPHS = {
    "ring": stgt.topology.ring(N),
    "exponential": stgt.topology.exponential(N),
    "one-peer": stgt.topology.one_peer_exponential(N),
    "server": stgt.topology.server(N, sampled=4),
    "matching": stgt.topology.random_matching(N),
}


def assert_same_bits(name: str, graph: str, engine: str, dtype: str) -> None:
    ours, plain, options = PAIRS[name]
    assert ours(**options).beta == 1.0
    problem = quadratic(N, P, noise=0.1)
    one, other = (
        stgt.simulate(kind(**options), problem, GRAPHS[graph], ROUNDS, [0, 7], engine=engine, dtype=dtype).state
        for kind in (ours, plain)
    )
    assert one.keys() == other.keys()
    for field in other:
        assert np.isfinite(one[field]).all()
        assert np.array_equal(one[field], other[field]), field


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", PAIRS)
def test_the_reference(name, graph, dtype):
    assert_same_bits(name, graph, "numpy", dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.sampled(each="name")
def test_the_compiled_engine(name, graph, dtype):
    assert_same_bits(name, graph, "jax", dtype)
