"""Relaxed tracking, one-vector methods and outer momentum on networks: LeNet on MNIST, ResNet-18 on CIFAR-10.

Every method gets the same number of trial runs for its stepsize and its own parameters (`BUDGET`), made with a seed, and
so with a partition of the data, that is not among those reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stgt.checks import check_choice
from stgt.experiments.outcome import Claim, Outcome, finite
from stgt.experiments.training.comparison import Curves, at_bytes, at_end, equal_bytes, trained
from stgt.experiments.training.spec import Data, Training
from stgt.progress import Progress
from stgt.specs import Named

NODES = 8
TRIAL_SEED = 3  # of the trial runs; the reported ones have 0, 1, …
SPARSE, SERVER = {"name": "exponential"}, {"name": "server"}
ETA, MU = 0.7, 0.6  # outer stepsize and momentum of all methods that have them


@dataclass(frozen=True)
class Method:
    """A method with its own parameters, and where it runs."""

    algorithm: Mapping[str, Any]
    topology: Mapping[str, Any]

    def at(self, tau: int) -> dict[str, Any]:
        """The algorithm's table with so many local steps."""
        inside = self.algorithm.get("method")
        return {**self.algorithm, "tau": tau} if inside is None else {**self.algorithm, "method": {**inside, "tau": tau}}


def _outer(inside: Mapping[str, Any], momentum: float = MU) -> dict[str, Any]:
    return {"name": "Outer", "lr": ETA, "momentum": momentum, "method": dict(inside)}


def _relaxed(name: str, beta: float) -> dict[str, Any]:
    return {"name": name, "beta": beta}


METHODS = {
    "FedAvg": Method({"name": "FedAvg"}, SERVER),
    "D-PSGD": Method({"name": "DPSGD", "atc": True}, SPARSE),
    "Scaffold": Method({"name": "Scaffold"}, SERVER),
    "ST-GT": Method({"name": "STGT"}, SPARSE),
    "DiLoCo, μ = 0.6": Method({"name": "DiLoCo", "lr": ETA, "momentum": 0.6}, SERVER),
    "DiLoCo, μ = 0.9": Method({"name": "DiLoCo", "lr": ETA, "momentum": 0.9}, SERVER),
    **{f"ST-GT, β = {beta:g}": Method(_relaxed("STGT", beta), SPARSE) for beta in (0.25, 0.1)},
    **{f"LED, β = {beta:g}": Method(_relaxed("LED", beta), SPARSE) for beta in (0.25, 0.1)},
    **{f"ST-GT, β = {beta:g}, outer": Method(_outer(_relaxed("STGT", beta)), SPARSE) for beta in (0.25, 0.1)},
    **{f"LED, β = {beta:g}, outer": Method(_outer(_relaxed("LED", beta)), SPARSE) for beta in (0.25, 0.1)},
}


@dataclass(frozen=True)
class Study:
    """One data set and network.

    Attributes:
        name: of the experiment.
        title: of its figure.
        tau, batch: local steps a round, samples a step.
        data: a function of the seed that gives the partition.
        model: its table.
        trials: by the name of a family of methods, its trial runs: (method, stepsize).
        chosen: of each family the trial with the lowest training loss; what is reported.
        scales: (rounds, rounds between two measurements, seeds) of "small" and "grid".
    """

    name: str
    title: str
    tau: int
    batch: int
    data: Callable[[int], Data]
    model: Mapping[str, Any]
    trials: Mapping[str, tuple[tuple[str, float], ...]]
    chosen: Mapping[str, tuple[str, float]]
    scales: Mapping[str, tuple[int, int, int]]

    def runs(self, scale: str, rounds: int | None) -> list[Training]:
        """The trainings of a scale."""
        length, every, seeds = self.scales[check_choice(scale, "scale", self.scales)]
        length = rounds or length
        if scale == "grid":
            asked = [(pair, TRIAL_SEED) for pairs in self.trials.values() for pair in pairs]
        else:
            asked = [(pair, seed) for seed in range(seeds) for pair in self.chosen.values()]
        return [self._run(*pair, length, min(every, length), seed) for pair, seed in asked]

    def _run(self, method: str, rate: float, rounds: int, every: int, seed: int) -> Training:
        what = METHODS[method]
        return Training(
            label=f"{method} · lr {rate:g} · seed {seed}",
            data=self.data(seed),
            model=Named.model_validate(self.model),
            optimizer=Named.model_validate({"name": "SGD", "lr": rate}),
            algorithm=Named.model_validate(what.at(self.tau)),
            topology=Named.model_validate(what.topology),
            batch=self.batch,
            rounds=rounds,
            evaluate_every=every,
            checkpoint_every=0 if rounds < 20 else 10,
            seed=seed,
        )


def _grid(methods: Mapping[str, tuple[float, ...]]) -> tuple[tuple[str, float], ...]:
    return tuple((method, rate) for method, rates in methods.items() for rate in rates)


SMALL_STEPS, LARGE_STEPS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16), (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
MNIST = Study(
    name="relaxed-mnist",
    title=f"LeNet on MNIST: {NODES} nodes, 2 classes each, 5 local steps; bands span 3 seeds",
    tau=5,
    batch=32,
    data=lambda seed: Data(name="mnist", partition="label", classes=2, seed=seed),
    model={"name": "lenet"},
    trials={
        "FedAvg": _grid({"FedAvg": LARGE_STEPS}),
        "D-PSGD": _grid({"D-PSGD": LARGE_STEPS}),
        "Scaffold": _grid({"Scaffold": SMALL_STEPS}),
        "ST-GT": _grid({"ST-GT": SMALL_STEPS}),
        "DiLoCo": _grid({"DiLoCo, μ = 0.6": (0.025, 0.05, 0.1), "DiLoCo, μ = 0.9": (0.025, 0.05, 0.1)}),
        "relaxed ST-GT": _grid({"ST-GT, β = 0.25": (0.05, 0.1, 0.2), "ST-GT, β = 0.1": (0.05, 0.1, 0.2)}),
        "LED": _grid({"LED, β = 0.25": (0.05, 0.1, 0.2), "LED, β = 0.1": (0.05, 0.1, 0.2)}),
        "relaxed ST-GT, outer": _grid(
            {"ST-GT, β = 0.25, outer": (0.025, 0.05, 0.1), "ST-GT, β = 0.1, outer": (0.025, 0.05, 0.1)}
        ),
        "LED, outer": _grid(
            {"LED, β = 0.25, outer": (0.025, 0.05, 0.1), "LED, β = 0.1, outer": (0.025, 0.05, 0.1)}
        ),
    },
    chosen={},
    scales={"small": (150, 10, 3), "grid": (100, 50, 1)},
)
FOUR_STEPS = (0.05, 0.1, 0.2, 0.4)
CIFAR10 = Study(
    name="relaxed-cifar10",
    title=f"ResNet-18 (width 8) on CIFAR-10: {NODES} nodes, 8 classes each, 10 local steps; bands span 2 seeds",
    tau=10,
    batch=32,
    data=lambda seed: Data(name="cifar10", partition="label", classes=8, concentration=1.0, augment=True, seed=seed),
    model={"name": "resnet18", "width": 8},
    trials={
        method: _grid({method: FOUR_STEPS})
        for method in (
            "FedAvg", "Scaffold", "ST-GT", "DiLoCo, μ = 0.6", "ST-GT, β = 0.25", "LED, β = 0.25",
            "ST-GT, β = 0.25, outer", "LED, β = 0.25, outer",
        )  # fmt: skip
    },
    chosen={},
    scales={"small": (30, 5, 2), "grid": (6, 6, 1)},
)
BUDGET = {study.name: len(next(iter(study.trials.values()))) for study in (MNIST, CIFAR10)}


def run_study(
    study: Study,
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each family of methods at its best of equally many trials, trained in eight processes over gloo.

    Args:
        study: what is trained on what.
        scale: "small", or "grid" for the trials to choose from.
        rounds: instead of the scale's own.
        data_dir: a folder with the data set.
        folder: where a training that was broken off goes on.
        progress: called with the rounds done and in all.
    """
    return trained(
        study.name,
        study.runs(scale, rounds),
        study.tau,
        study.title,
        partial(_claims, study),
        grid=scale == "grid",
        nodes=NODES,
        folder=folder,
        data_dir=data_dir,
        progress=progress,
    )


def _claims(study: Study, curves: dict[str, Curves]) -> list[Claim]:
    return []
