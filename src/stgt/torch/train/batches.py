"""Training batches of one node: which samples, and how they are cropped and flipped, is looked up by the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reproductions.images import Images
from stgt._internal.checks import check_choice, check_count, check_flag, check_seed
from stgt._internal.randomness import STREAM_AUGMENT, STREAM_LOCAL
from stgt.torch.data import sample_indices

# Mean and standard deviation of each channel over the training images, with pixels in [0, 1].
NORMALISATION = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
}
PADDING = 4  # pixels of black on each side, before an image is cropped to its size again


def normalised(images: np.ndarray, name: str) -> torch.Tensor:
    """uint8 images (samples, channels, height, width) as float32, less the data set's mean, over its deviation."""
    check_choice(name, "data", NORMALISATION)
    mean, deviation = (255 * torch.tensor(values).reshape(-1, 1, 1) for values in NORMALISATION[name])
    return torch.from_numpy(images.astype(np.float32)).sub_(mean).div_(deviation)


class Batches:
    """An endless source of batches, drawn with replacement from one node's part of the training images.

    The batch of a step is a pure function of (seed, node, step), and holds the samples which the reference engine and
    the simulator draw for that node: nothing has to be stored to resume a run.

    Args:
        images: the data set.
        part: the indices of this node's training images.
        batch: images in a batch.
        seed: the run's seed.
        node: this node's number.
        augment: crops each image at random from itself with four black pixels around it, and flips it by a coin.
    """

    def __init__(self, images: Images, part: Any, batch: int, seed: int, node: int, augment: bool = False):
        check_choice(images.name, "data", NORMALISATION)
        part = np.asarray(part)
        if part.ndim != 1 or len(part) == 0 or not np.issubdtype(part.dtype, np.integer):
            raise ValueError(f"part has shape {part.shape} and type {part.dtype}: give a node's indices, at least one.")
        if part.min() < 0 or part.max() >= len(images.x_train):
            raise ValueError(
                f"part holds indices from {part.min()} to {part.max()}: give some in [0, {len(images.x_train)})."
            )
        self.name = images.name
        self.images, self.labels = images.x_train[part], images.y_train[part]
        self.batch, self.seed = check_count(batch, "batch"), check_seed(seed)
        self.node, self.augment = check_count(node, "node", 0), check_flag(augment, "augment")

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of a step: float32 images (batch, channels, height, width) and int64 labels (batch,)."""
        rows = self._draw(step, STREAM_LOCAL, len(self.images))
        images = self.images[rows]
        if self.augment:
            places = 2 * PADDING + 1
            choice = self._draw(step, STREAM_AUGMENT, places * places * 2)
            top, left, flip = np.unravel_index(choice, (places, places, 2))
            images = cropped(images, top, left, flip == 1)
        return normalised(images, self.name), torch.from_numpy(self.labels[rows])

    def _draw(self, step: int, stream: int, below: int) -> np.ndarray:
        return sample_indices(self.seed, self.node, check_count(step, "step", 0), self.batch, below, stream)


def cropped(images: np.ndarray, top: np.ndarray, left: np.ndarray, flip: np.ndarray) -> np.ndarray:
    """Image i, padded with PADDING zeros, from row top_i and column left_i on, and mirrored where flip_i holds."""
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), images.dtype)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    chosen = windows[np.arange(count), :, top, left]
    chosen[flip] = chosen[flip][..., ::-1]
    return chosen
