"""The paper's third experiment: ResNet-18 on CIFAR-10, eight nodes that hold eight of the ten classes each.

The paper leaves open: the graph and Scaffold's s (taken here as in its first experiment: three neighbours, so the
exponential graph, and s = 4), what "learning rate 1" is (each method gets its best of a grid), momentum, norm layers
and augmentation (none, BatchNorm, crop and flip), and FlexGT's snapshot (the first, as its equation prints).
"""

from __future__ import annotations

from pathlib import Path

from stgt.checks import check_choice
from stgt.experiments.outcome import Claim, Outcome
from stgt.experiments.training.comparison import Curves, last, trained, written
from stgt.experiments.training.spec import Data, Training
from stgt.progress import Progress
from stgt.specs import Named

NODES, TAU = 8, 25
METHODS = {
    "ST-GT": ("STGT", {"name": "exponential"}),
    "Scaffold": ("Scaffold", {"name": "server", "sampled": 4}),
    "FlexGT": ("FlexGT", {"name": "exponential"}),
}
# Stepsizes tried: downwards or upwards by factors of two until the best is not at an end.
GRID = {
    "ST-GT": (0.05, 0.1, 0.2, 0.4),
    "Scaffold": (0.05, 0.1, 0.2, 0.4),
    "FlexGT": (0.0125, 0.025, 0.05, 0.1, 0.2),
}
CHOSEN = {"ST-GT": 0.2, "Scaffold": 0.1, "FlexGT": 0.025}  # the lowest training loss after the grid's rounds
# width of the network, images a batch, rounds, rounds between two measurements
SCALES = {"paper": (64, 200, 200, 5), "small": (8, 32, 100, 5), "grid": (8, 32, 12, 4)}


def cifar10(
    *,
    scale: str = "small",
    rounds: int | None = None,
    batch: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """ST-GT, Scaffold and FlexGT, each at its best stepsize, trained in eight processes over gloo.

    Args:
        scale: "small" for two cores, "paper" for its setting, "grid" for the stepsizes to choose from.
        rounds, batch: instead of the scale's own.
        data_dir: a folder with cifar-10-batches-py.
        folder: where a training that was broken off goes on.
        progress: called with the rounds done and in all.
    """
    width, images, length, every = SCALES[check_choice(scale, "scale", SCALES)]
    runs = [
        _run(method, rate, width, batch or images, rounds or length, min(every, rounds or length))
        for method, chosen in CHOSEN.items()
        for rate in (GRID[method] if scale == "grid" else (chosen,))
    ]
    title = f"ResNet-18 (width {width}) on CIFAR-10: 8 nodes, 8 classes each, batch {batch or images}"
    return trained(
        "cifar10",
        runs,
        TAU,
        title,
        _claims,
        grid=scale == "grid",
        nodes=NODES,
        folder=folder,
        data_dir=data_dir,
        progress=progress,
    )


def _run(method: str, rate: float, width: int, batch: int, rounds: int, every: int) -> Training:
    algorithm, topology = METHODS[method]
    return Training(
        label=f"{method} · lr {rate:g}",
        data=Data(name="cifar10", partition="label", classes=8, concentration=1.0, augment=True),
        model=Named.model_validate({"name": "resnet18", "width": width}),
        optimizer=Named.model_validate({"name": "SGD", "lr": rate}),
        algorithm=Named.model_validate({"name": algorithm, "tau": TAU}),
        topology=Named.model_validate(topology),
        batch=batch,
        rounds=rounds,
        evaluate_every=every,
        checkpoint_every=10,
    )


def _claims(curves: dict[str, Curves]) -> list[Claim]:
    loss = {method: last(one, "train_loss")[0] for method, one in curves.items()}  # NaN decides against a claim
    others = ("Scaffold", "FlexGT")
    accuracy = {method: last(one, "test_accuracy")[0] for method, one in curves.items()}
    reading = "three neighbours, s = 4, best stepsizes"
    return [
        Claim(
            "K1",
            "ST-GT ends with the lowest training loss.",
            reading,
            all(loss["ST-GT"] < loss[other] for other in others),
            {"train_loss": written(loss)},
            "cifar10",
        ),
        Claim(
            "K2",
            "ST-GT ends with the highest test accuracy.",
            reading,
            all(accuracy["ST-GT"] > accuracy[other] for other in others),
            {"test_accuracy": written(accuracy)},
            "cifar10",
        ),
        Claim(
            "K3",
            "Scaffold comes second and FlexGT last, in training loss and in test accuracy.",
            reading,
            loss["ST-GT"] < loss["Scaffold"] < loss["FlexGT"]
            and accuracy["ST-GT"] > accuracy["Scaffold"] > accuracy["FlexGT"],
            {"train_loss": written(loss), "test_accuracy": written(accuracy)},
            "cifar10",
        ),
    ]
