"""MNIST, two classes a client, a server that calls a few of them each round: Scaffold⁺ against FedAvg, on Flower."""

from __future__ import annotations

from pathlib import Path

from stgt.checks import check_choice
from stgt.experiments.outcome import Claim, Outcome, TableRow, finite
from stgt.experiments.training.comparison import Curves, judged, names_of, written
from stgt.experiments.training.spec import Data, Training
from stgt.problems.images import load_images
from stgt.progress import Progress, split_progress
from stgt.specs import Named
from stgt.statistics import mean_interval

CLIENTS, CALLED, TAU, BATCH = 20, 4, 20, 32
PLUS, SCAFFOLD, FEDAVG = "Scaffold⁺", "Scaffold", "FedAvg"
METHODS = {PLUS: {"name": "ScaffoldPlus"}, SCAFFOLD: {"name": "Scaffold"}, FEDAVG: {"name": "FedAvg"}}
# Stepsizes tried: by factors of two, until the best is not at an end.
GRID = {
    "mlp": {PLUS: (0.0125, 0.025, 0.05, 0.1), SCAFFOLD: (0.025, 0.05, 0.1, 0.2), FEDAVG: (0.05, 0.1, 0.2, 0.4)},
    "lenet": {PLUS: (0.005, 0.01, 0.02, 0.04), SCAFFOLD: (0.005, 0.01, 0.02, 0.04), FEDAVG: (0.05, 0.1, 0.2)},
}
# The lowest training loss, a mean over the last five measurements.
CHOSEN = {
    "mlp": {PLUS: 0.025, SCAFFOLD: 0.1, FEDAVG: 0.1},
    "lenet": {PLUS: 0.02, SCAFFOLD: 0.02, FEDAVG: 0.1},
}
# the model, rounds, rounds between two measurements, seeds
SCALES = {
    "small": ("mlp", 100, 4, 8),
    "grid": ("mlp", 100, 4, 1),
    "lenet": ("lenet", 100, 4, 4),
    "lenet-grid": ("lenet", 100, 4, 1),
}
ENDS = 5  # measurements at the end that count: whom the server called last shakes each of them
NAMES = {"mlp": "A perceptron", "lenet": "LeNet"}


def federated(
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each method at its best stepsize, its clients called by Flower's strategy in this process.

    Args:
        scale: "small" for a perceptron, "lenet"; "grid" and "lenet-grid" for the stepsizes to choose from.
        rounds: instead of the scale's own.
        data_dir: a folder with MNIST's four files.
        progress: called with the rounds done and in all.
    """
    model, length, every, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    length, grid = rounds or length, scale.endswith("grid")
    runs = [
        _run(model, method, rate, length, min(every, length), seed)
        for method, chosen in CHOSEN[model].items()
        for rate in (GRID[model][method] if grid else (chosen,))
        for seed in range(seeds)
    ]
    rows = _train(runs, data_dir, progress)
    title = (
        f"{NAMES[model]} on MNIST: {CLIENTS} clients, 2 classes each, {CALLED} called a round; bands span {seeds} seeds"
    )
    name = "federated" if model == "mlp" else f"federated-{model}"
    return judged(name, runs, rows, TAU, title, _claims, grid=grid, ends=ENDS)


def _train(runs: list[Training], data_dir: Path | None, progress: Progress | None) -> list[TableRow]:
    from stgt.experiments.training.federate import federate

    images, rows = load_images("mnist", data_dir), []
    ticks = split_progress(progress, [run.rounds for run in runs])
    for run, tick in zip(runs, ticks, strict=True):
        try:
            rows += [names_of(run) | row for row in federate(run, images, CLIENTS, tick)]
        except ValueError as error:
            raise ValueError(f"{run.label}: {error}") from error
    return rows


def _run(model: str, method: str, rate: float, rounds: int, every: int, seed: int) -> Training:
    return Training(
        label=f"{method} · lr {rate:g} · seed {seed}",
        data=Data(name="mnist", partition="label", classes=2),
        model=Named(name=model),
        optimizer=Named.model_validate({"name": "SGD", "lr": rate}),
        algorithm=Named.model_validate({**METHODS[method], "tau": TAU}),
        topology=Named.model_validate({"name": "server", "sampled": CALLED}),
        batch=BATCH,
        rounds=rounds,
        evaluate_every=every,
        seed=seed,
    )


def _claims(curves: dict[str, Curves]) -> list[Claim]:
    """Seeds are paired: the same ones draw the same clients and batches for all methods."""
    ends = {method: one["test_accuracy"][:, -ENDS:].mean(axis=1) for method, one in curves.items()}
    claims = []
    for number, other in enumerate((FEDAVG, SCAFFOLD), 1):
        lead, half = mean_interval(ends[PLUS] - ends[other])
        claims.append(
            Claim(
                f"F{number}",
                f"Scaffold⁺'s test accuracy lies above {other}'s at equal rounds, beyond the lead's 95 % interval.",
                "two classes a client, 4 of 20 called, best stepsizes; means over the last five measurements",
                bool(lead - half > 0),
                {
                    "test_accuracy": written({method: float(one.mean()) for method, one in ends.items()}),
                    "lead": finite(lead),
                    "interval": finite(half),
                },
                "federated",
            )
        )
    return claims
