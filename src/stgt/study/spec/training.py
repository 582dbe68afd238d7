"""A training run as data: what is trained on what, by which method over which graph; and the data it is trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stgt.algorithms import Algorithm
from stgt.problems import partition
from stgt.study.spec import Named, build_algorithm, build_topology, read_spec
from stgt.topology import Topology


@dataclass(frozen=True)
class LabelledData:
    """Labelled samples for training and for testing: what a registered data set is.

    Attributes:
        x_train, x_test: the samples, stacked along the first axis. Images are (samples, channels, height, width).
        y_train, y_test: a label for each sample, a whole number in [0, classes).
        classes: how many labels there are.
        mean, deviation: of all samples, or of each channel; a model gets (x − mean) / deviation.
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
                raise ValueError(
                    f"x_{part} has shape {x.shape} and y_{part} has {y.shape}: give samples (samples, …), alike for "
                    "training and testing, and a label for each."
                )
            if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= self.classes:
                raise ValueError(
                    f"y_{part} holds labels from {y.min()} to {y.max()} of type {y.dtype}: give whole numbers in "
                    f"[0, {self.classes})."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.x_train.shape[1:]

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Samples as a model gets them: (x − mean) / deviation in float32."""
        along_channels = (-1, *[1] * (x.ndim - 2))
        found = x.astype(np.float32)
        found -= np.asarray(self.mean, np.float32).reshape(along_channels)
        found /= np.asarray(self.deviation, np.float32).reshape(along_channels)
        return found


class Data(BaseModel):
    """The name of a registered data set, and which node holds which part of it; see `stgt.problems.partition`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    partition: Literal["iid", "label", "dirichlet"] = "iid"
    classes: int = Field(default=1, ge=1)
    concentration: float | None = Field(default=None, gt=0)
    alpha: float = Field(default=0.5, gt=0)
    augment: bool = False
    seed: int = Field(default=0, ge=0)

    @property
    def words(self) -> str:
        """How the samples are shared out."""
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


class Training(BaseModel):
    """One run. `optimizer` names a class of torch.optim, and its lr is the algorithm's gamma."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: str = ""
    data: Data
    model: Named
    optimizer: Named
    algorithm: Named
    topology: Named
    batch: int = Field(default=32, ge=1)
    rounds: int = Field(ge=1)
    evaluate_every: int = Field(default=5, ge=1)
    checkpoint_every: int = Field(default=0, ge=0)  # rounds between two checkpoints; 0 for none
    buffers: Literal["average", "local", "none"] = "average"
    message_dtype: Literal["float16", "bfloat16"] | None = None
    early: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"
    seed: int = Field(default=0, ge=0)

    @property
    def name(self) -> str:
        """What the run is called in tables and legends."""
        return self.label or f"{self.algorithm.name}, lr {self.optimizer.arguments.get('lr')}"

    @property
    def folder(self) -> str:
        """A name for the run's folder."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-").lower() or "run"

    def build_algorithm(self) -> Algorithm:
        """The method."""
        return build_algorithm(self.algorithm)

    def build_topology(self, nodes: int) -> Topology:
        """The graph of so many nodes."""
        return build_topology(self.topology.model_dump(), nodes)


class TrainingSpec(BaseModel):
    """Runs that one world of processes makes one after the other."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    runs: tuple[Training, ...] = Field(min_length=1)


def load_training(path: Path, sets: Iterable[str] = ()) -> TrainingSpec:
    """Reads a TOML file: one run, or several as [[runs]]; `sets` as for `stgt.study.spec.read_spec`."""
    spec = read_spec(path, TrainingSpec, sets)
    folders = [run.folder for run in spec.runs]
    for run in spec.runs:
        if folders.count(run.folder) > 1:
            raise ValueError(f"spec {path}: two runs are called {run.name!r}; give each a label of its own.")
    return spec
