"""The pictures of the home page: their numbers are those of the methods, and they are readable without seeing them."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from docs import drift
from docs import round as one

PATH = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3  # Metropolis weights 1/(1 + max degree) on 1 – 2 – 3


@pytest.fixture(scope="module")
def runs():
    return [drift.simulated(method) for method in drift.METHODS]


def test_fedavg_ends_at_its_fixed_point(runs):
    """τ steps lead from x to x_i* + B_i(x − x_i*), B_i = (I − γA_i)^τ; at the fixed point their mean is x."""
    fedavg = runs[0]
    B = [np.linalg.matrix_power(np.eye(2) - drift.GAMMA * A, drift.TAU) for A in drift.hessians()]
    M = np.eye(2) - B
    fixed = np.linalg.solve(M.sum(axis=0), np.einsum("ijk,ik->j", M, drift.MINIMA))
    optimum = np.linalg.solve(drift.hessians().sum(axis=0), np.einsum("ijk,ik->j", drift.hessians(), drift.MINIMA))
    np.testing.assert_allclose(fedavg.means[-1], fixed, atol=1e-6)
    assert fedavg.distances[-1] == pytest.approx(np.linalg.norm(fixed - optimum), abs=1e-6)
    assert fedavg.distances[-1] > 0.1, "the picture shows that it misses x*"


def test_st_gt_reaches_the_minimum(runs):
    assert runs[1].distances[-1] < 1e-6
    assert np.ptp(runs[1].steps[-1], axis=0).max() < 1e-6, "no node leaves x* any more"


def test_the_local_steps_drawn_are_those_of_the_runs(runs):
    for run in runs:
        assert run.steps.shape == (drift.ROUNDS + 1, drift.TAU + 1, 3, 2)
        np.testing.assert_allclose(run.steps[:-1, -1].mean(axis=1), run.means[1:], atol=1e-12)


def test_the_round_drawn_is_one_of_st_gt():
    found = one.one_round()
    np.testing.assert_allclose(found.x, PATH @ found.steps[-1], atol=1e-12)
    np.testing.assert_allclose(found.mixed_z, PATH @ found.z, atol=1e-12)
    np.testing.assert_allclose(found.z, (found.steps[0] - found.steps[-1]) / (one.GAMMA * one.TAU), atol=1e-12)


@pytest.mark.parametrize(
    ("value", "words"), [(3.064, "3.06"), (0.517, "0.52"), (0.0002, "2·10⁻⁴"), (9.1e-11, "9·10⁻¹¹")]
)
def test_short_numbers(value, words):
    assert drift.short(value) == words


def test_the_drawn_round():
    path = one.IMAGES / "round.svg"
    assert path.read_text(encoding="utf-8") == one.picture(), "make pictures"
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    names = {element.get("id"): element.text for element in root if element.get("id")}
    assert root.get("role") == "img"
    assert [names[name] for name in root.get("aria-labelledby").split()] == [one.TITLE, one.DESCRIPTION]
    assert path.stat().st_size < 40_000


def test_the_animation():
    path = drift.IMAGES / "drift.gif"
    frames = list(drift.frames())
    with Image.open(path) as picture:
        assert (picture.n_frames, picture.info["loop"]) == (len(frames), 0), "make pictures"
        assert picture.width >= 800
    assert 8_000 <= sum(frame.milliseconds for frame in frames) <= 12_000
    assert frames[-1].milliseconds >= 2_000
    assert path.stat().st_size < 800_000
