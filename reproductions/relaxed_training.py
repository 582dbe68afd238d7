"""Relaxed tracking, one-vector methods and outer momentum on networks: LeNet on MNIST, ResNet-18 on CIFAR-10.

Every family of methods gets the same number of trial runs for its stepsize and its own parameters
(`TrainingStudy.trials`). The trials use another seed, and so another partition of the data, than the reported runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, finite
from reproductions.training.comparison import Curves, a_run, at_bytes, at_end, by_seed, trained
from stgt.study import Progress
from stgt.torch.train import Training

NODES = 8
TRIAL_SEED = 3  # the seed of the trial runs; the reported runs have seeds 0, 1, …
SPARSE, SERVER = {"name": "exponential"}, {"name": "server"}
ETA = 0.7  # the outer stepsize of all methods with one


def _relaxed(name: str, beta: float) -> dict[str, Any]:
    return {"name": name, "beta": beta}


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the algorithm without tau, the graph
    "FedAvg": ({"name": "FedAvg"}, SERVER),
    "D-PSGD": ({"name": "DPSGD", "atc": True}, SPARSE),
    "Scaffold": ({"name": "Scaffold"}, SERVER),
    "ST-GT": ({"name": "STGT"}, SPARSE),
    "DiLoCo, μ = 0.6": ({"name": "DiLoCo", "lr": ETA, "momentum": 0.6}, SERVER),
    "DiLoCo, μ = 0.9": ({"name": "DiLoCo", "lr": ETA, "momentum": 0.9}, SERVER),
    **{f"ST-GT, β = {beta:g}": (_relaxed("STGT", beta), SPARSE) for beta in (0.25, 0.1)},
    **{f"LED, β = {beta:g}": (_relaxed("LED", beta), SPARSE) for beta in (0.25, 0.1)},
    **{
        f"{label}, β = {beta:g}, outer μ = {mu:g}": (
            {"name": "Outer", "lr": ETA, "momentum": mu, "method": _relaxed(name, beta)},
            SPARSE,
        )
        for label, name in (("ST-GT", "STGT"), ("LED", "LED"))
        for beta, mu in ((0.25, 0.6), (0.25, 0.9), (0.1, 0.9))
    },
    # Momentum 0.9 on LED with β = ¼ is not stable at small stepsizes on the exponential graph, which is directed.
    **{
        f"LED, β = 0.25, outer μ = 0.9, {graph}": (
            {"name": "Outer", "lr": ETA, "momentum": 0.9, "method": _relaxed("LED", 0.25)},
            {"name": name},
        )
        for graph, name in (("ring", "ring"), ("one-peer", "one_peer_exponential"))
    },
}


@dataclass(frozen=True)
class TrainingStudy:
    """One data set and network.

    Attributes:
        name: the name of the experiment.
        title: the title of its figure.
        tau, batch: local steps per round, samples per step.
        data, model: their tables; the seed of a run is also that of its partition.
        trials: the trial runs of each family of methods: (method, stepsize).
        chosen: the reported runs: the trial of each family with the lowest training loss, and the same on other graphs.
        scales: (rounds, rounds between two measurements, seeds) of "small" and "grid".
    """

    name: str
    title: str
    tau: int
    batch: int
    data: Mapping[str, Any]
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
        algorithm, topology = METHODS[method]
        return a_run(
            method,
            rate,
            seed,
            data={**self.data, "seed": seed},
            model=self.model,
            algorithm={**algorithm, "tau": self.tau},
            topology=topology,
            batch=self.batch,
            rounds=rounds,
            evaluate_every=every,
            checkpoint_every=0 if rounds < 20 else 10,
        )


def _grid(methods: Mapping[str, tuple[float, ...]]) -> tuple[tuple[str, float], ...]:
    return tuple((method, rate) for method, rates in methods.items() for rate in rates)


def _outer_grid(label: str) -> tuple[tuple[str, float], ...]:
    return _grid(
        {
            f"{label}, β = 0.25, outer μ = 0.6": (0.05, 0.1),
            f"{label}, β = 0.25, outer μ = 0.9": (0.025, 0.05),
            f"{label}, β = 0.1, outer μ = 0.9": (0.025, 0.05),
        }
    )


SMALL_STEPS, LARGE_STEPS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16), (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
MNIST = TrainingStudy(
    name="relaxed-mnist",
    title=f"LeNet on MNIST: {NODES} nodes, 2 classes each, 5 local steps; bands span 3 seeds",
    tau=5,
    batch=32,
    data={"name": "mnist", "partition": "label", "classes": 2},
    model={"name": "lenet"},
    trials={
        "FedAvg": _grid({"FedAvg": LARGE_STEPS}),
        "D-PSGD": _grid({"D-PSGD": LARGE_STEPS}),
        "Scaffold": _grid({"Scaffold": SMALL_STEPS}),
        "ST-GT": _grid({"ST-GT": SMALL_STEPS}),
        "DiLoCo": _grid({"DiLoCo, μ = 0.6": (0.025, 0.05, 0.1), "DiLoCo, μ = 0.9": (0.025, 0.05, 0.1)}),
        "relaxed ST-GT": _grid({"ST-GT, β = 0.25": (0.05, 0.1, 0.2), "ST-GT, β = 0.1": (0.05, 0.1, 0.2)}),
        "LED": _grid({"LED, β = 0.25": (0.05, 0.1, 0.2), "LED, β = 0.1": (0.05, 0.1, 0.2)}),
        "relaxed ST-GT, outer": _outer_grid("ST-GT"),
        "LED, outer": _outer_grid("LED"),
    },
    chosen={
        "FedAvg": ("FedAvg", 0.1),
        "D-PSGD": ("D-PSGD", 0.1),
        "Scaffold": ("Scaffold", 0.02),
        "ST-GT": ("ST-GT", 0.02),
        "DiLoCo": ("DiLoCo, μ = 0.9", 0.1),
        "relaxed ST-GT": ("ST-GT, β = 0.25", 0.1),
        "LED": ("LED, β = 0.25", 0.1),
        "relaxed ST-GT, outer": ("ST-GT, β = 0.25, outer μ = 0.9", 0.05),
        "LED, outer": ("LED, β = 0.25, outer μ = 0.9", 0.05),
        "LED, outer, ring": ("LED, β = 0.25, outer μ = 0.9, ring", 0.05),
        "LED, outer, one-peer": ("LED, β = 0.25, outer μ = 0.9, one-peer", 0.05),
    },
    scales={"small": (150, 10, 3), "grid": (100, 50, 1)},
)
THREE_STEPS = (0.05, 0.1, 0.2)
CIFAR10 = TrainingStudy(
    name="relaxed-cifar10",
    title=f"ResNet-18 (width 8) on CIFAR-10: {NODES} nodes, 8 classes each, 10 local steps; bands span 2 seeds",
    tau=10,
    batch=16,
    data={"name": "cifar10", "partition": "label", "classes": 8, "concentration": 1.0, "augment": True},
    model={"name": "resnet18", "width": 8},
    trials={
        "FedAvg": _grid({"FedAvg": THREE_STEPS}),
        "Scaffold": _grid({"Scaffold": THREE_STEPS}),
        "ST-GT": _grid({"ST-GT": THREE_STEPS}),
        "DiLoCo": _grid({"DiLoCo, μ = 0.6": (0.1,), "DiLoCo, μ = 0.9": (0.025, 0.05)}),
        "relaxed ST-GT": _grid({"ST-GT, β = 0.25": THREE_STEPS}),
        "LED": _grid({"LED, β = 0.25": THREE_STEPS}),
        "relaxed ST-GT, outer": _grid(
            {"ST-GT, β = 0.25, outer μ = 0.6": (0.1,), "ST-GT, β = 0.25, outer μ = 0.9": (0.025, 0.05)}
        ),
        "LED, outer": _grid({"LED, β = 0.25, outer μ = 0.6": (0.1,), "LED, β = 0.25, outer μ = 0.9": (0.025, 0.05)}),
    },
    chosen={
        "FedAvg": ("FedAvg", 0.1),
        "Scaffold": ("Scaffold", 0.2),
        "ST-GT": ("ST-GT", 0.1),
        "DiLoCo": ("DiLoCo, μ = 0.6", 0.1),
        "relaxed ST-GT": ("ST-GT, β = 0.25", 0.2),
        "LED": ("LED, β = 0.25", 0.1),
        "relaxed ST-GT, outer": ("ST-GT, β = 0.25, outer μ = 0.6", 0.1),
        "LED, outer": ("LED, β = 0.25, outer μ = 0.6", 0.1),
    },
    scales={"small": (30, 6, 2), "grid": (15, 15, 1)},
)


def run_study(
    study: TrainingStudy,
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each family of methods at the best of the same number of trials, trained in eight processes over gloo.

    Args:
        study: the data set and the network.
        scale: "small", or "grid" for the trials.
        rounds: instead of those of the scale.
        data_dir: the folder with the data set.
        folder: the folder of the runs; an interrupted training continues from it.
        progress: called with the finished and the total rounds.
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


def _claims(study: TrainingStudy, curves: dict[str, Curves]) -> list[Claim]:
    """The claims, tested in each seed separately, on the mean of the last three measurements."""
    of = {family: curves[method] for family, (method, _) in study.chosen.items()}
    end = {family: _guessed(at_end(one, "test_accuracy")) for family, one in of.items()}
    early = {family: _guessed(_after(one, "test_accuracy", 1 / 3)) for family, one in of.items()}
    sent = float(np.nanmin([of[family]["bytes_sent"][:, -1].min() for family in study.trials]))
    spent = {family: _guessed(at_bytes(one, "test_accuracy", sent)) for family, one in of.items()}
    tracked = ("relaxed ST-GT", "LED")
    plain = [family for family in ("ST-GT", "FedAvg", "D-PSGD", "Scaffold") if family in of]
    judged = [
        (
            "D1",
            "Relaxed ST-GT and LED reach a higher final test accuracy than ST-GT, FedAvg, D-PSGD and Scaffold.",
            [end[one] > end[other] for one in tracked for other in plain],
            {"test_accuracy": by_seed(end)},
        ),
        (
            "D2",
            "LED is within one point of relaxed ST-GT, with half of its bytes.",
            [end["LED"] > end["relaxed ST-GT"] - 0.01, _ratio_of_bytes(of) < 0.51],
            {"test_accuracy": by_seed(end), "bytes": finite(_ratio_of_bytes(of))},
        ),
        (
            "D3",
            "Outer momentum makes both faster: a higher test accuracy after a third of the rounds.",
            [early[f"{one}, outer"] > early[one] for one in tracked],
            {"test_accuracy": by_seed(early)},
        ),
        (
            "D4",
            "With outer momentum and a tracker, the final test accuracy is higher than with DiLoCo.",
            [end[f"{one}, outer"] > end["DiLoCo"] for one in tracked],
            {"test_accuracy": by_seed(end)},
        ),
        (
            "D5",
            "At equal bytes, LED with outer momentum has the highest test accuracy.",
            [spent["LED, outer"] >= spent[other] for other in study.trials if other != "LED, outer"],
            {"megabytes": finite(sent / 1e6), "test_accuracy": by_seed(spent)},
        ),
    ]
    if "LED, outer, one-peer" in of:
        judged.append(
            (
                "D6",
                "On one-peer, LED with outer momentum is within one point of the best, with a sixth of its bytes.",
                [end["LED, outer, one-peer"] > end["relaxed ST-GT, outer"] - 0.01],
                {"test_accuracy": by_seed(end)},
            )
        )
    rates = {"lr": {family: rate for family, (_, rate) in study.chosen.items()}}
    reading = f"each family at the best of {len(next(iter(study.trials.values())))} trials; in every seed"
    return [
        Claim(id, claim, reading, all(np.all(one) for one in holds), numbers | rates, study.name)
        for id, claim, holds, numbers in judged
    ]


def _guessed(accuracy: np.ndarray) -> np.ndarray:
    """A model that diverged counts as guessing one class of ten."""
    return np.where(np.isfinite(accuracy), accuracy, 0.1)


def _after(curves: Curves, name: str, share: float) -> np.ndarray:
    """A column after this share of the steps, for each seed."""
    pairs = zip(curves["steps"], curves[name], strict=True)
    return np.array([np.interp(share * steps[-1], steps, values) for steps, values in pairs])


def _ratio_of_bytes(of: Mapping[str, Curves]) -> float:
    """The ratio of the bytes that a node sends with LED and with relaxed ST-GT."""
    led, both = (of[family]["bytes_sent"][:, -1].mean() for family in ("LED", "relaxed ST-GT"))
    return float(led / both)
