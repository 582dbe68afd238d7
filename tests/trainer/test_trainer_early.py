"""Messages sent early, and messages in half precision."""

import numpy as np
import pytest
from literal import NODES


@pytest.mark.parametrize("graph", ["static", "one-peer", "complete"])
@pytest.mark.parametrize("name", ["STGT", "DPSGD", "KGT", "DIGing", "NEXT"])
@pytest.mark.sampled(each="graph")
def test_early_is_the_same_method(world, name, graph):
    """W(a + b) = W a + W b: it is only another order of the same sums."""
    arguments = {"name": name, "graph": graph, "dtype": "float64", "rounds": 12, "tau": 3}
    late, early = (world.run("train", early=flag, **arguments) for flag in (False, True))
    for one, two in zip(late, early, strict=True):
        for field, value in one["state"].items():
            np.testing.assert_allclose(two["state"][field], value, rtol=0, atol=1e-12, err_msg=field)


def test_early_with_a_schedule_and_momentum_free_groups(world):
    late, early = (world.run("quadratic", rates=[0.1, 0.03], scheduler="base", early=flag) for flag in (False, True))
    for one, two in zip(late, early, strict=True):
        np.testing.assert_allclose(two["x"], one["x"], rtol=0, atol=1e-12)


# What one rounding to the wire's precision may change of a message, relative.
HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("graph", ["static", "complete", "one-peer", "server"])
@pytest.mark.parametrize("wire", list(HALF))
@pytest.mark.sampled(each="wire")
def test_half_precision_keeps_sums(world, wire, graph):
    arguments = {"name": "STGT", "graph": graph, "dtype": "float32", "rounds": 50, "tau": 3}
    exact = world.run("train", **arguments)
    half = world.run("train", message_dtype=wire, **arguments)
    c = np.array([node["state"]["c"] for node in half])
    assert np.linalg.norm(c.sum(axis=0)) < 1e-5 * np.linalg.norm(c, axis=1).sum()
    # The mean model moves with gradients at models that are off by a rounding each: it stays within one of them.
    means = [np.mean([node["state"]["x"] for node in found], axis=0) for found in (exact, half)]
    error = np.linalg.norm(means[1] - means[0]) / np.linalg.norm(means[0])
    assert error < HALF[wire]


def test_half_precision_of_control_variates_without_a_server(world):
    """Σ_i (c_i − own_i) = 0 on a graph, where every node is its own server."""
    for graph in ("complete", "static"):
        found = world.run(
            "measured",
            name="ScaffoldPlus",
            graph=graph,
            base="sgd",
            rounds=30,
            tau=2,
            chunk=4,
            message_dtype="bfloat16",
        )
        c, own = (np.array([node["state"][field] for node in found]) for field in ("c", "own"))
        assert np.linalg.norm((c - own).sum(axis=0)) < 1e-12 * np.linalg.norm(own)
    assert len(found) == NODES
