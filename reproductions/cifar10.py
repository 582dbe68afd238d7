"""The paper's third experiment: ResNet-18 on CIFAR-10, eight nodes with eight of the ten classes each.

The paper leaves several choices open. The graph and Scaffold's s are taken from its first experiment: the exponential
graph with three neighbours, and s = 4. The meaning of "learning rate 1" is unknown: each method gets its best stepsize
of a grid, and in a second reading all get one stepsize that the grid chooses for them together. There is no momentum,
the norm layers are BatchNorm, the augmentation is crop and flip. FlexGT has the first snapshot, as its equation prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, TableRow, finite
from reproductions.training.comparison import (
    Curves,
    a_run,
    at_bytes,
    at_end,
    by_method,
    by_seed,
    by_stepsize,
    equal_bytes,
    figure_of_readings,
    summary,
    train_all,
)
from stgt.study import Progress
from stgt.torch.train import Training, TrainingSpec

NODES, TAU = 8, 25
METHODS = {  # in the order of the paper's figure, best first
    "ST-GT": ("STGT", {"name": "exponential"}),
    "Scaffold": ("Scaffold", {"name": "server", "sampled": 4}),
    "FlexGT": ("FlexGT", {"name": "exponential"}),
}
# The tried stepsizes, by factors of two in both directions, as far as needed for a best one inside the grid.
GRID = {
    "ST-GT": (0.025, 0.05, 0.1, 0.2, 0.4),
    "Scaffold": (0.025, 0.05, 0.1, 0.2, 0.4),
    "FlexGT": (0.0125, 0.025, 0.05, 0.1, 0.2),
}
CHOSEN = {"ST-GT": 0.2, "Scaffold": 0.1, "FlexGT": 0.025}  # the lowest training loss after the grid's rounds
SHARED = 0.025  # the lowest training loss of the worst of the three after the grid's rounds
READINGS = {"best stepsizes": CHOSEN, f"one stepsize, {SHARED:g}": dict.fromkeys(CHOSEN, SHARED)}
# width of the network, images per batch, rounds, rounds between two measurements, seeds
SCALES = {"paper": (64, 200, 200, 5, 1), "small": (8, 32, 40, 5, 2), "grid": (8, 32, 12, 4, 1)}


def cifar10(
    *,
    scale: str = "small",
    rounds: int | None = None,
    batch: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """ST-GT, Scaffold and FlexGT, each at its best stepsize and all at one, trained in eight processes over gloo.

    Args:
        scale: "small" for two cores, "paper" for the paper's setting, "grid" for the choice of the stepsizes.
        rounds, batch: instead of those of the scale.
        data_dir: the folder with cifar-10-batches-py.
        folder: the folder of the runs; an interrupted training continues from it.
        progress: called with the finished and the total rounds.
    """
    width, images, length, every, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    runs = [
        _run(method, rate, width, batch or images, rounds or length, min(every, rounds or length), seed)
        for seed in range(seeds)
        for method, rate in _rates(scale)
    ]
    rows = train_all(runs, NODES, folder, data_dir, progress)
    title = f"ResNet-18 (width {width}) on CIFAR-10: {NODES} nodes, 8 classes each, batch {batch or images}"
    if seeds > 1:
        title += f"; bands span {seeds} seeds"
    return _judged(runs, rows, title, grid=scale == "grid")


def _judged(runs: Sequence[Training], rows: list[TableRow], title: str, *, grid: bool) -> Outcome:
    spec = TrainingSpec(runs=tuple(runs))
    if grid:
        return Outcome(spec, by_stepsize(rows), [], [], rows)
    curves = {
        reading: by_method(row for pair in rates.items() for row in rows if (row["method"], row["lr"]) == pair)
        for reading, rates in READINGS.items()
    }
    table = [{"reading": reading} | row for reading, of in curves.items() for row in summary(of)]
    claims = [claim for reading, of in curves.items() for claim in _claims(of, reading)]
    picture = figure_of_readings("cifar10", curves, title, f"round of {TAU} steps", TAU)
    return Outcome(spec, table, claims, [picture], rows)


def _rates(scale: str) -> list[tuple[str, float]]:
    """The methods with their stepsizes, each once, although several readings may use it."""
    if scale == "grid":
        return [(method, rate) for method, rates in GRID.items() for rate in rates]
    return list(dict.fromkeys(pair for rates in READINGS.values() for pair in rates.items()))


def _run(method: str, rate: float, width: int, batch: int, rounds: int, every: int, seed: int) -> Training:
    algorithm, topology = METHODS[method]
    return a_run(
        method,
        rate,
        seed,
        data={"name": "cifar10", "partition": "label", "classes": 8, "concentration": 1.0, "augment": True},
        model={"name": "resnet18", "width": width},
        algorithm={"name": algorithm, "tau": TAU},
        topology=topology,
        batch=batch,
        rounds=rounds,
        evaluate_every=every,
        checkpoint_every=10,
    )


def _claims(curves: dict[str, Curves], reading: str) -> list[Claim]:
    """The claims, tested in each seed separately: a 95 % interval from two is 6.4 times their distance each way."""
    loss = {method: at_end(one, "train_loss") for method, one in curves.items()}  # a NaN makes a claim false
    accuracy = {method: at_end(one, "test_accuracy") for method, one in curves.items()}
    others = ("Scaffold", "FlexGT")
    judged = [
        (
            "K1",
            "ST-GT has the lowest final training loss.",
            [loss["ST-GT"] < loss[other] for other in others],
            {"train_loss": by_seed(loss), **_at_equal_bytes(curves, "train_loss")},
        ),
        (
            "K2",
            "ST-GT has the highest final test accuracy.",
            [accuracy["ST-GT"] > accuracy[other] for other in others],
            {"test_accuracy": by_seed(accuracy), **_at_equal_bytes(curves, "test_accuracy")},
        ),
        (
            "K3",
            "Scaffold is second and FlexGT last, in training loss and in test accuracy.",
            [
                *(loss[first] < loss[second] for first, second in pairwise(METHODS)),
                *(accuracy[first] > accuracy[second] for first, second in pairwise(METHODS)),
            ],
            {"train_loss": by_seed(loss), "test_accuracy": by_seed(accuracy)},
        ),
    ]
    words = f"three neighbours, s = 4, {reading}; in every seed"
    return [Claim(id, claim, words, bool(np.all(holds)), of, "cifar10") for id, claim, holds, of in judged]


def _at_equal_bytes(curves: dict[str, Curves], name: str) -> dict[str, Any]:
    """The column at equal bytes: the total of the method that sends least."""
    sent = equal_bytes(curves)
    values = {method: at_bytes(one, name, sent) for method, one in curves.items()}
    return {"megabytes": finite(sent / 1e6), f"{name}_at_these": by_seed(values)}
