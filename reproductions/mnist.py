"""LeNet on MNIST, two classes a node: ST-GT against FedAvg, D-PSGD and centralised training, at equal rounds.

Centralised training is SGD in which every step uses the mean gradient of all nodes' batches. It shows what a round of
tau steps could reach if communication were free. It is run as D-PSGD (ATC) with tau = 1 on the complete graph; tau of
its rounds count as one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome
from reproductions.training.comparison import Curves, a_run, last, trained, written
from stgt.study import Progress
from stgt.torch.train import Training

NODES, TAU, BATCH = 8, 5, 32
CENTRAL = "centralised"
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ST-GT": ({"name": "STGT", "tau": TAU}, {"name": "exponential"}),
    "FedAvg": ({"name": "FedAvg", "tau": TAU}, {"name": "server"}),
    "D-PSGD": ({"name": "DPSGD", "tau": TAU}, {"name": "exponential"}),
    CENTRAL: ({"name": "DPSGD", "tau": 1, "atc": True}, {"name": "complete"}),
}
# The tried stepsizes, by factors of two, as far as needed for a best one inside the grid.
GRID = {
    "ST-GT": (0.01, 0.02, 0.04, 0.08),
    "FedAvg": (0.05, 0.1, 0.2),
    "D-PSGD": (0.05, 0.1, 0.2),
    CENTRAL: (0.05, 0.1, 0.2, 0.4),
}
CHOSEN = {"ST-GT": 0.02, "FedAvg": 0.1, "D-PSGD": 0.1, CENTRAL: 0.2}  # the lowest training loss after the grid's rounds
# rounds, rounds between two measurements, seeds
SCALES = {"small": (400, 20, 3), "grid": (100, 20, 1)}


def mnist(
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each method at its best stepsize, trained in eight processes over gloo.

    Args:
        scale: "small", or "grid" for the choice of the stepsizes.
        rounds: instead of those of the scale.
        data_dir: the folder with MNIST's four files.
        folder: the folder of the runs; an interrupted training continues from it.
        progress: called with the finished and the total rounds.
    """
    length, every, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    length = rounds or length
    runs = [
        _run(method, rate, length, min(every, length), seed)
        for method, chosen in CHOSEN.items()
        for rate in (GRID[method] if scale == "grid" else (chosen,))
        for seed in range(seeds)
    ]
    title = f"LeNet on MNIST: {NODES} nodes, 2 classes each, {TAU} local steps; bands span {seeds} seeds"
    return trained(
        "mnist",
        runs,
        TAU,
        title,
        partial(_claims, rounds=length),
        grid=scale == "grid",
        nodes=NODES,
        folder=folder,
        data_dir=data_dir,
        progress=progress,
    )


def _run(method: str, rate: float, rounds: int, every: int, seed: int) -> Training:
    algorithm, topology = METHODS[method]
    a_round = TAU if method == CENTRAL else 1
    return a_run(
        method,
        rate,
        seed,
        data={"name": "mnist", "partition": "label", "classes": 2},
        model={"name": "lenet"},
        algorithm=algorithm,
        topology=topology,
        batch=BATCH,
        rounds=rounds * a_round,
        evaluate_every=every * a_round,
    )


def _claims(curves: dict[str, Curves], rounds: int) -> list[Claim]:
    found = {method: last(one, "test_accuracy") for method, one in curves.items()}
    accuracy, low, high = ({method: one[k] for method, one in found.items()} for k in range(3))
    numbers = {
        "test_accuracy": written(accuracy),
        "low": written(low),
        "high": written(high),
        "rounds": rounds,
    }
    reading = "two classes a node, best stepsizes"
    return [
        Claim(
            "M1",
            "ST-GT's test accuracy is within 1 point of centralised training at equal rounds.",
            reading,
            accuracy["ST-GT"] >= accuracy[CENTRAL] - 0.01,
            numbers,
            "mnist",
        ),
        Claim(
            "M2",
            "ST-GT's test accuracy is above that of FedAvg and D-PSGD, by more than the 95 % intervals.",
            reading,
            all(low["ST-GT"] > high[other] for other in ("FedAvg", "D-PSGD")),
            numbers,
            "mnist",
        ),
    ]
