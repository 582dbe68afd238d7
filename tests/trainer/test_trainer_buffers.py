"""BatchNorm's buffers: what the policies make of them, and what the averaged model is."""

import numpy as np
import pytest
import scenarios

NODES = 8
INPUTS = 100.0 * np.arange(NODES)
STEP = 1 - 0.9**2  # BatchNorm moves a tenth of the way to the batch's mean, twice a round


def expected(policy: str, graph: str) -> list[np.ndarray]:
    """running_mean of each node after each of two rounds: m ← 0.9 m + 0.1 input, twice, then m ← W m."""
    mean, found = np.zeros(NODES), []
    for r in range(2):
        mean = (1 - STEP) * mean + STEP * INPUTS
        if policy == "average":
            mean = scenarios.topology(graph, NODES).matrix(r) @ mean
        found.append(mean)
    return found


@pytest.mark.parametrize(
    ("policy", "graph"), [("average", "static"), ("average", "complete"), ("local", "static"), ("none", "static")]
)
def test_running_means(world, policy, graph):
    found = world.run("batch_norm", policy=policy, graph=graph)
    for r, mean in enumerate(expected(policy, graph)):
        got = np.array([node["after"][r] for node in found])
        np.testing.assert_allclose(got, np.stack([mean, mean], axis=1), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("policy", ["average", "local", "none"])
def test_averaged_model(world, policy):
    found = world.run("batch_norm", policy=policy)
    for name in found[0]["own"]:
        own = np.array([node["own"][name] for node in found])
        inside = np.array([node["inside"][name] for node in found])
        kept = name.endswith("tracked") or (policy == "none" and "running" in name)
        want = own if kept else np.broadcast_to(own.mean(axis=0), own.shape)
        np.testing.assert_allclose(inside, want, rtol=1e-12, atol=1e-12, err_msg=name)
    assert all(node["restored"] for node in found)
    weights = [node["own"]["1.weight"][0] for node in found]
    for node in found:
        assert node["evaluated"]["own"] == weights
        assert node["evaluated"]["averaged"] == pytest.approx(np.mean(weights), rel=1e-12)


def test_buffers_travel_in_full_precision(world):
    """700 · 0.19 has more digits than float16, and its square is beyond its range."""
    found = world.run("batch_norm", policy="average", message_dtype="float16")
    for r, mean in enumerate(expected("average", "static")):
        got = np.array([node["after"][r][0] for node in found])
        np.testing.assert_allclose(got, mean, rtol=1e-12, atol=1e-10)
