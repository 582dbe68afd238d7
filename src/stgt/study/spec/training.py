"""A training run as data: what is trained on what, by which method over which graph."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stgt.problems import partition
from stgt.study.spec import Named, read_spec


class Data(BaseModel):
    """The data set and who holds which part of it; see `stgt.problems.partition`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["cifar10", "mnist"]
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
