"""LeNet on MNIST, two classes a client, a server that calls a few of them: Scaffold⁺ against FedAvg, on Flower."""

from __future__ import annotations

from pathlib import Path

from stgt.checks import check_choice
from stgt.experiments.outcome import Claim, Outcome, Progress
from stgt.experiments.training import Curves, Row, judged, last, written
from stgt.parts import Part
from stgt.problems.images import load_images
from stgt.train.spec import Data, Training

CLIENTS, CALLED, TAU, BATCH = 20, 4, 20, 32
PLUS, SCAFFOLD, FEDAVG = "Scaffold⁺", "Scaffold", "FedAvg"
METHODS = {PLUS: {"name": "ScaffoldPlus"}, SCAFFOLD: {"name": "Scaffold"}, FEDAVG: {"name": "FedAvg"}}
# Stepsizes tried: by factors of two, until the best is not at an end.
GRID = {PLUS: (0.01, 0.02, 0.04), SCAFFOLD: (0.01, 0.02, 0.04), FEDAVG: (0.02, 0.04, 0.08)}
CHOSEN = {PLUS: 0.02, SCAFFOLD: 0.02, FEDAVG: 0.04}  # the lowest training loss after the grid's rounds
# rounds, rounds between two measurements, seeds
SCALES = {"small": (100, 5, 3), "grid": (100, 10, 1)}


def federated(
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each method at its best stepsize, its clients called by Flower's strategy in this process.

    Args:
        scale: "small", or "grid" for the stepsizes to choose from.
        rounds: instead of the scale's own.
        data_dir: a folder with MNIST's four files.
        progress: called with the rounds done and in all.
    """
    length, every, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    length = rounds or length
    runs = [
        _run(method, rate, length, min(every, length), seed)
        for method, chosen in CHOSEN.items()
        for rate in (GRID[method] if scale == "grid" else (chosen,))
        for seed in range(seeds)
    ]
    rows = _train(runs, data_dir, progress)
    title = (
        f"LeNet on MNIST, federated: {CLIENTS} clients with 2 classes each, {CALLED} called a round, "
        f"{TAU} local steps; {seeds} seeds"
    )
    return judged("federated", runs, rows, TAU, title, _claims, grid=scale == "grid")


def _train(runs: list[Training], data_dir: Path | None, progress: Progress | None) -> list[Row]:
    from stgt.flower.training import federate

    images, rows = load_images("mnist", data_dir), []
    total = sum(run.rounds for run in runs)
    for number, run in enumerate(runs):

        def tick(r: int, before: int = number * runs[0].rounds) -> None:
            if progress is not None:
                progress(before + r, total)

        named = {"method": run.label.split(" · ")[0], "lr": run.optimizer.arguments["lr"], "seed": run.seed}
        rows += [named | row for row in federate(run, images, CLIENTS, tick)]
    return rows


def _run(method: str, rate: float, rounds: int, every: int, seed: int) -> Training:
    return Training(
        label=f"{method} · lr {rate:g} · seed {seed}",
        data=Data(name="mnist", partition="label", classes=2),
        model=Part(name="lenet"),
        optimizer=Part.model_validate({"name": "SGD", "lr": rate}),
        algorithm=Part.model_validate({**METHODS[method], "tau": TAU}),
        topology=Part.model_validate({"name": "server", "sampled": CALLED}),
        batch=BATCH,
        rounds=rounds,
        evaluate_every=every,
        seed=seed,
    )


def _claims(curves: dict[str, Curves]) -> list[Claim]:
    accuracy = {method: last(one, "test_accuracy")[0] for method, one in curves.items()}
    half = {method: last(one, "test_accuracy")[1] for method, one in curves.items()}
    numbers = {"test_accuracy": written(accuracy), "interval": written(half)}
    reading = "two classes a client, 4 of 20 called, best stepsizes"
    return [
        Claim(
            f"F{number}",
            f"Scaffold⁺'s test accuracy lies above {other}'s at equal rounds, beyond the 95 % intervals.",
            reading,
            accuracy[PLUS] - half[PLUS] > accuracy[other] + half[other],
            numbers,
            "federated",
        )
        for number, other in enumerate((FEDAVG, SCAFFOLD), 1)
    ]
