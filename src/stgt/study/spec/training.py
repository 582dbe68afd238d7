"""A training run as data: model, data, method and graph; and the data that it trains on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from stgt._internal.checks import InputError
from stgt.algorithms import Algorithm
from stgt.problems import partition
from stgt.study.spec.build import build_algorithm, build_topology
from stgt.study.spec.load import Count, CountOrNone, Flag, Named, OneOf, Positive, Table, in_spec, read_spec
from stgt.topology import Topology


@dataclass(frozen=True)
class LabelledData:
    """Labelled samples for training and for testing. A registered data set returns one of these.

    Attributes:
        x_train, x_test: the samples, stacked along the first axis. Images are (samples, channels, height, width).
        y_train, y_test: a label for each sample, a whole number in [0, classes).
        classes: the number of labels.
        mean, deviation: of all samples, or of each channel; the input of a model is (x − mean) / deviation.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    mean: np.ndarray | float = 0.0
    deviation: np.ndarray | float = 1.0

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.ndim < 2 or x.shape[1:] != self.x_train.shape[1:] or y.shape != x.shape[:1] or len(y) == 0:
                raise InputError(
                    f"x_{part}",
                    hint=f" has shape {x.shape} and y_{part} has {y.shape}: give samples of shape (samples, …), the "
                    "same for training and testing, and one label per sample.",
                )
            if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= self.classes:
                labels = f" holds labels from {y.min()} to {y.max()} of type {y.dtype}"
                raise InputError(f"y_{part}", hint=f"{labels}: give whole numbers in [0, {self.classes}).")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.x_train.shape[1:]

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Samples as input of a model: (x − mean) / deviation in float32."""
        along_channels = (-1, *[1] * (x.ndim - 2))
        found = x.astype(np.float32)
        found -= np.asarray(self.mean, np.float32).reshape(along_channels)
        found /= np.asarray(self.deviation, np.float32).reshape(along_channels)
        return found


class Data(Table):
    """The name of a registered data set, and its partition over the nodes; see `stgt.problems.partition`."""

    name: str
    partition: Annotated[str, OneOf("iid", "label", "dirichlet")] = "iid"
    classes: Count = 1
    concentration: Positive | None = None
    alpha: Positive = 0.5
    augment: Flag = False
    seed: CountOrNone = 0

    @property
    def words(self) -> str:
        """A description of the partition."""
        if self.partition == "label":
            return f"{self.classes} classes a node" if self.classes > 1 else "one class a node"
        return f"Dirichlet({self.alpha:g})" if self.partition == "dirichlet" else "iid"

    def parts(self, labels: np.ndarray, nodes: int) -> list[np.ndarray]:
        """The indices of each node's samples."""
        return partition(
            labels,
            nodes,
            self.partition,
            classes=self.classes,
            alpha=self.alpha,
            concentration=self.concentration,
            seed=self.seed,
        )


class Training(Table):
    """One run. `optimizer` names a class of torch.optim; its lr is the algorithm's gamma."""

    label: str = ""
    data: Data
    model: Named
    optimizer: Named
    algorithm: Named
    topology: Named
    batch: Count = 32
    rounds: Count
    evaluate_every: Count = 5
    checkpoint_every: CountOrNone = 0  # rounds between two checkpoints; 0 for none
    buffers: Annotated[str, OneOf("average", "local", "none")] = "average"
    message_dtype: Annotated[str, OneOf("float16", "bfloat16")] | None = None
    early: Flag = False
    on_nonfinite: Annotated[str, OneOf("stop", "skip")] = "stop"
    seed: CountOrNone = 0

    @property
    def name(self) -> str:
        """The name of the run in tables and legends."""
        return self.label or f"{self.algorithm.name}, lr {self.optimizer.arguments.get('lr')}"

    @property
    def folder(self) -> str:
        """A name for the run's folder."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-").lower() or "run"

    def build_algorithm(self) -> Algorithm:
        """The method."""
        return build_algorithm(self.algorithm)

    def build_topology(self, nodes: int) -> Topology:
        """The graph with this number of nodes."""
        return build_topology(self.topology.model_dump(), nodes)


class TrainingSpec(Table):
    """Runs that the same processes make one after the other."""

    runs: tuple[Training, ...] = Field(min_length=1)


def load_training(path: Path, sets: Iterable[str] = ()) -> TrainingSpec:
    """Reads a TOML file: one run, or several as [[runs]]; `sets` as for `stgt.study.spec.read_spec`."""
    spec = read_spec(path, TrainingSpec, sets)
    folders = [run.folder for run in spec.runs]
    for run in spec.runs:
        if folders.count(run.folder) > 1:
            with in_spec(path):
                raise InputError("runs", hint=f" has two with the name {run.name!r}: give each its own label.")
    return spec
