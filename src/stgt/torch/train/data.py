"""The data sets of a training, and one node's batches, each of them a function of the step."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stgt._internal.checks import InputError, check_count, check_flag, check_seed
from stgt._internal.randomness import STREAM_AUGMENT, STREAM_LOCAL
from stgt._internal.registry import DATASETS
from stgt.study.spec.training import LabelledData, TrainingSpec
from stgt.torch.data import sample_indices

PADDING = 4  # pixels of black on each side, before an image is cropped to its size again


def load_data(runs: TrainingSpec, data_dir: Path | None = None, download: bool = False) -> dict[str, LabelledData]:
    """The data sets of all runs, by the registered names of their functions."""
    return {name: _load(name, data_dir, download) for name in {run.data.name for run in runs.runs}}


def _load(name: str, data_dir: Path | None, download: bool) -> LabelledData:
    """Calls the registered function with `data_dir` and `download`, if it has these arguments."""
    function = DATASETS.find(name, "data.name")
    taken = inspect.signature(function).parameters
    if download and "download" not in taken:
        raise InputError("download", hint=f" means nothing to {name}: leave it out.")
    given = {"data_dir": data_dir, "download": download}
    found = function(**{key: value for key, value in given.items() if key in taken})
    if not isinstance(found, LabelledData):
        hint = f" returned a {type(found).__name__}: return a stgt.torch.train.LabelledData."
        raise InputError("data.name", name, hint)
    return found


class Batches:
    """An endless source of batches, drawn with replacement from one node's part of the training samples.

    The batch of a step is a pure function of (seed, node, step). It has the samples that the reference engine and the
    simulator draw for that node. So nothing has to be stored to resume a run.

    Args:
        data: the data set.
        part: the indices of this node's training samples.
        batch: samples in a batch.
        seed: the run's seed.
        node: this node's number.
        augment: pads each image with four black pixels, crops it at a random place, and flips it with probability 1/2.
    """

    def __init__(self, data: LabelledData, part: Any, batch: int, seed: int, node: int, augment: bool = False):
        part = np.asarray(part)
        if part.ndim != 1 or len(part) == 0 or not np.issubdtype(part.dtype, np.integer):
            raise InputError(
                "part", hint=f" has shape {part.shape} and type {part.dtype}: give a node's indices, at least one."
            )
        if part.min() < 0 or part.max() >= len(data.x_train):
            raise InputError(
                "part", hint=f" has indices from {part.min()} to {part.max()}: give some in [0, {len(data.x_train)})."
            )
        self.data = data
        self.samples, self.labels = data.x_train[part], data.y_train[part].astype(np.int64)
        self.batch, self.seed = check_count(batch, "batch"), check_seed(seed)
        self.node, self.augment = check_count(node, "node", 0), check_flag(augment, "augment")
        check_augment(data, self.augment)

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of a step: float32 samples (batch, …) and int64 labels (batch,)."""
        rows = self._draw(step, STREAM_LOCAL, len(self.samples))
        samples = self.samples[rows]
        if self.augment:
            places = 2 * PADDING + 1
            choice = self._draw(step, STREAM_AUGMENT, places * places * 2)
            top, left, flip = np.unravel_index(choice, (places, places, 2))
            samples = cropped(samples, top, left, flip == 1)
        return torch.from_numpy(self.data.inputs(samples)), torch.from_numpy(self.labels[rows])

    def _draw(self, step: int, stream: int, below: int) -> np.ndarray:
        return sample_indices(self.seed, self.node, check_count(step, "step", 0), self.batch, below, stream)


def check_augment(data: LabelledData, augment: bool) -> None:
    """A ValueError if samples that are not images would be cropped and flipped."""
    if augment and len(data.shape) != 3:
        raise InputError(
            "augment",
            True,
            f" crops and flips images (channels, height, width), and a sample has shape {data.shape}: leave it out.",
        )


def cropped(images: np.ndarray, top: np.ndarray, left: np.ndarray, flip: np.ndarray) -> np.ndarray:
    """Image i, padded with PADDING zeros, from row top_i and column left_i on, and mirrored if flip_i is true."""
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), images.dtype)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    chosen = windows[np.arange(count), :, top, left]
    chosen[flip] = chosen[flip][..., ::-1]
    return chosen
