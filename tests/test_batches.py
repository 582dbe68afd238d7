"""Batches: the reference engine's samples, a function of the step, cropped and flipped as a loop over pixels does."""

import numpy as np
import pytest
import torch

from reproductions.images import NORMALISATION
from stgt._internal.randomness import STREAM_AUGMENT, Clock
from stgt.simulator.reference import OPS
from stgt.torch.train import Batches, LabelledData

COUNT, SIZE, BATCH = 30, 6, 16
PARTS = [np.arange(0, 11), np.arange(11, 18), np.arange(18, 30)]


def data(name="cifar10", channels=3):
    """Images of noise; a sample's label is its own index, so that labels tell which samples were drawn."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, channels, SIZE, SIZE + 1), dtype=np.uint8)
    return LabelledData(pixels, np.arange(COUNT), pixels[:2], np.arange(2), COUNT, *NORMALISATION[name])


def features():
    """Samples that are no images, as they are given."""
    x = np.random.default_rng(0).normal(size=(COUNT, 4))
    return LabelledData(x, np.arange(COUNT), x[:2], np.arange(2), classes=COUNT)


def batches(node=1, seed=5, augment=False, images=None):
    return Batches(images or data(), PARTS[node], BATCH, seed, node, augment)


def test_the_samples_are_those_of_the_reference_engine():
    counts = np.array([len(part) for part in PARTS])
    images = data()
    for seed, step in ((5, 0), (5, 7), (2**32 - 1, 10**6)):
        drawn = Clock(OPS, np.float64, seed, np.arange(3), step).integers(
            BATCH, counts
        )  # all nodes, as the engine does
        for node, part in enumerate(PARTS):
            for augment in (False, True):
                x, y = batches(node, seed, augment).at(step)
                assert y.tolist() == part[drawn[node]].tolist()
            x, y = batches(node, seed).at(step)
            assert torch.equal(x, torch.from_numpy(images.inputs(images.x_train[y.numpy()])))


def test_kinds_and_shapes():
    x, y = batches(augment=True).at(0)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (x.shape, y.shape) == ((BATCH, 3, SIZE, SIZE + 1), (BATCH,))


@pytest.mark.parametrize("augment", [False, True])
def test_a_batch_is_a_function_of_seed_node_and_step(augment):
    source = batches(augment=augment)
    forwards = [source.at(step) for step in range(4)]
    other = batches(augment=augment)
    for step in (3, 1, 1, 2, 0):
        for one, again in zip(forwards[step], other.at(step), strict=True):
            assert torch.equal(one, again)
    assert not torch.equal(forwards[0][1], forwards[1][1])
    assert not torch.equal(forwards[0][1], batches(seed=6, augment=augment).at(0)[1])
    same_part = Batches(data(), PARTS[1], BATCH, 5, 2, augment)
    assert not torch.equal(forwards[0][1], same_part.at(0)[1])


@pytest.mark.parametrize(("name", "channels"), [("cifar10", 3), ("mnist", 1)])
def test_crops_and_flips_are_those_of_a_loop_over_pixels(name, channels):
    mean, deviation = {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "mnist": ((0.1307,), (0.3081,)),
    }[name]
    images, height, width = data(name, channels), SIZE, SIZE + 1
    seen = set()
    for step in range(3):
        x, y = batches(2, 8, True, images).at(step)
        choice = Clock(OPS, np.float64, 8, np.array([2]), step, STREAM_AUGMENT).integers(BATCH, np.array([162]))[0]
        expected = np.empty(x.shape)
        for i in range(BATCH):
            top, left, flip = choice[i] // 18, choice[i] // 2 % 9, choice[i] % 2
            seen.add((top > 4, left > 4, flip))
            image = images.x_train[y[i]]
            for c in range(channels):
                for row in range(height):
                    for column in range(width):
                        source_row = row + top - 4
                        source_column = (width - 1 - column if flip else column) + left - 4
                        inside = 0 <= source_row < height and 0 <= source_column < width
                        pixel = image[c, source_row, source_column] if inside else 0
                        expected[i, c, row, column] = (pixel / 255 - mean[c]) / deviation[c]
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert len(seen) == 8, "up and down, left and right, flipped and not"


def test_normalisation():
    """Black becomes −mean/deviation and white (1 − mean)/deviation, channel by channel."""
    ends = np.stack([np.zeros((3, 2, 2), np.uint8), np.full((3, 2, 2), 255, np.uint8)])
    ends.setflags(write=False)
    x = data().inputs(ends)
    for channel, (mean, deviation) in enumerate(zip((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), strict=True)):
        np.testing.assert_allclose(x[0, channel], -mean / deviation, rtol=1e-6)
        np.testing.assert_allclose(x[1, channel], (1 - mean) / deviation, rtol=1e-6)
    assert ends.max() == 255, "what was given is left as it is"
    np.testing.assert_allclose(data("mnist", 1).inputs(ends[:, :1])[1], (1 - 0.1307) / 0.3081, rtol=1e-6)


def test_samples_that_are_no_images_are_given_as_they_are():
    given = features()
    x, y = Batches(given, PARTS[1], BATCH, 5, 1).at(0)
    assert (x.dtype, x.shape) == (torch.float32, (BATCH, 4))
    np.testing.assert_array_equal(x.numpy(), given.x_train[y].astype(np.float32))


def test_data_that_do_not_fit_together_are_refused():
    x, y = np.zeros((6, 2)), np.arange(6)
    for given, words in (
        ((x, y[:5], x, y, 6), r"x_train has shape \(6, 2\) and y_train has \(5,\): give"),
        ((x, y, x[:, :1], y, 6), r"x_test has shape \(6, 1\)"),
        ((x[:0], y[:0], x, y, 6), r"x_train has shape \(0, 2\)"),
        ((x, y, x, y, 5), r"y_train holds labels from 0 to 5 of type int64: give whole numbers in \[0, 5\)"),
        ((x, y, x, y / 2, 6), "y_test holds labels from 0.0 to 2.5 of type float64"),
    ):
        with pytest.raises(ValueError, match=words):
            LabelledData(*given)


def test_what_is_wrong_is_said():
    good = {"data": data(), "part": PARTS[0], "batch": 2, "seed": 0, "node": 0}
    for wrong, words in (
        ({"part": []}, "part has shape"),
        ({"part": [0.5]}, "part has shape"),
        ({"part": [0, COUNT]}, "part has indices from 0 to 30: give some in"),
        ({"part": [-1]}, "part has indices from -1"),
        ({"batch": 0}, "batch=0"),
        ({"seed": -1}, "seed=-1"),
        ({"node": -1}, "node=-1"),
        ({"augment": 2}, "augment=2"),
        ({"data": features(), "augment": True}, r"augment=True crops .*has shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            Batches(**(good | wrong))
    with pytest.raises(ValueError, match="step=-1"):
        Batches(**good).at(-1)
