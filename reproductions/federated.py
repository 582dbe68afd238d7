"""MNIST on Flower, two classes a client, with a server that calls some clients in each round: Scaffold⁺ against
Scaffold and FedAvg.

The steps of Scaffold⁺ with γ_c = 1 are n/s times as long as those of Scaffold, whose γ_c is s/n (erratum 5 in
docs/theorems.md). So the two are compared twice: at equal effective lr, lr·γ_c·n/s, and each at its best lr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reproductions.images import load_images
from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, TableRow, finite, write_table
from reproductions.training.comparison import (
    Curves,
    a_run,
    at_end,
    by_method,
    last,
    names_of,
    read_table,
    summary,
    written,
)
from stgt.study import Progress, mean_interval, split_progress
from stgt.study.report import Figure, Line, Panel
from stgt.torch.train import Training, TrainingSpec, create_run_folder

CLIENTS, CALLED, TAU, BATCH, ROUNDS, EVERY = 20, 4, 20, 32, 100, 4
PLUS, SCAFFOLD, FEDAVG = "Scaffold⁺", "Scaffold", "FedAvg"
METHODS = {PLUS: {"name": "ScaffoldPlus"}, SCAFFOLD: {"name": "Scaffold"}, FEDAVG: {"name": "FedAvg"}}
# γ_c n/s: the length of a method's step divided by lr times the mean gradient. For FedAvg it is that of SGD.
STRETCH = {PLUS: CLIENTS / CALLED, SCAFFOLD: 1.0, FEDAVG: 1.0}
# Effective lrs, by factors of two, as far as needed for a best one inside the grid.
GRID = {
    "mlp": {
        PLUS: (0.025, 0.05, 0.1, 0.2, 0.4),
        SCAFFOLD: (0.025, 0.05, 0.1, 0.2, 0.4),
        FEDAVG: (0.05, 0.1, 0.2, 0.4),
    },
    "lenet": {PLUS: (0.01, 0.02, 0.04, 0.08), SCAFFOLD: (0.005, 0.01, 0.02, 0.04)},
}
SCALES = {"small": ("mlp", 3), "full": ("mlp", 8), "lenet": ("lenet", 8)}  # the model and the number of seeds
ENDS = 5  # the final measurements that count, several because each depends on the clients of its last round
NAMES = {"mlp": "A perceptron", "lenet": "LeNet"}

Grid = dict[str, dict[float, Curves]]  # by method and effective lr


def federated(
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Each method at each lr of its grid, with Flower's strategy and the clients in this process.

    Args:
        scale: "small" for a perceptron and three seeds, "full" for eight, "lenet" for LeNet and eight.
        rounds: instead of 100.
        data_dir: the folder with MNIST's four files.
        folder: the folder of the finished runs; an interrupted experiment continues there. By default nothing is saved.
        progress: called with the finished and the total rounds.
    """
    model, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    length = rounds or ROUNDS
    runs = [
        _run(model, method, rate, length, min(EVERY, length), seed)
        for seed in range(seeds)
        for method, rates in GRID[model].items()
        for rate in rates
    ]
    return _judged(model, runs, _train(runs, data_dir, folder, progress))


def _run(model: str, method: str, effective: float, rounds: int, every: int, seed: int) -> Training:
    """The seed decides the partition, the initial model, the called clients and the batches of all methods."""
    return a_run(
        method,
        effective / STRETCH[method],
        seed,
        data={"name": "mnist", "partition": "label", "classes": 2, "seed": seed},
        model={"name": model},
        algorithm={**METHODS[method], "tau": TAU},
        topology={"name": "server", "sampled": CALLED},
        batch=BATCH,
        rounds=rounds,
        evaluate_every=every,
    )


def _train(
    runs: Sequence[Training], data_dir: Path | None, folder: Path | None, progress: Progress | None
) -> list[TableRow]:
    from reproductions.training.federate import federate

    if folder is not None:
        create_run_folder(folder, TrainingSpec(runs=tuple(runs)))
    images, rows = load_images("mnist", data_dir), []
    ticks = split_progress(progress, [run.rounds for run in runs])
    for number, (run, tick) in enumerate(zip(runs, ticks, strict=True)):
        path = None if folder is None else folder / f"{number}.csv"  # written when the run is finished
        if path is not None and path.exists():
            found = read_table(path)
            tick(run.rounds, run.rounds)
        else:
            found = federate(run, images, CLIENTS, tick)
            if path is not None:
                write_table(path, found)
        names = names_of(run)
        names |= {"effective_lr": round(names["lr"] * STRETCH[names["method"]], 9)}  # 0.02 · 5 is 0.1
        rows += [names | {name: float(row[name]) for name in row if name != "label"} for row in found]
    return rows


def _judged(model: str, runs: Sequence[Training], rows: list[TableRow]) -> Outcome:
    grid = _by_rate(rows)
    best = {method: _best(of) for method, of in grid.items()}
    table = [
        {"effective_lr": rate, "best": rate == best[method], "diverged": _diverged(curves)} | row
        for method, of in grid.items()
        for rate, curves in of.items()
        for row in summary({method: curves}, ENDS)
    ]
    name = "federated" if model == "mlp" else f"federated-{model}"
    return Outcome(
        TrainingSpec(runs=tuple(runs)), table, _claims(grid, best, name), [_figure(model, name, grid, best)], rows
    )


def _by_rate(rows: Sequence[TableRow]) -> Grid:
    grid: Grid = {}
    for rate in sorted({row["effective_lr"] for row in rows}):
        for method, curves in by_method(row for row in rows if row["effective_lr"] == rate).items():
            grid.setdefault(method, {})[rate] = curves | {"test_error": 1 - curves["test_accuracy"]}
    return {method: grid[method] for method in METHODS if method in grid}


def _best(of: Mapping[float, Curves]) -> float:
    """The effective lr with the lowest final training loss, a mean over the seeds; all of them must be finite."""
    loss = {rate: last(curves, "train_loss", ENDS)[0] for rate, curves in of.items()}
    return min(loss, key=lambda rate: (not np.isfinite(loss[rate]), loss[rate]))


def _diverged(curves: Curves) -> int:
    """The number of seeds that diverged."""
    return int((~np.isfinite(curves["train_loss"]).all(axis=1)).sum())


def _claims(grid: Grid, best: Mapping[str, float], name: str) -> list[Claim]:
    """F1 and F3 at the best lrs, F2 at each effective lr that both have."""
    asked = [("F1", FEDAVG, best[PLUS], best[FEDAVG], "each at its best lr")] if FEDAVG in grid else []
    asked += [
        ("F2", SCAFFOLD, rate, rate, f"equal lr·γ_c·n/s = {rate:g}") for rate in grid[PLUS] if rate in grid[SCAFFOLD]
    ]
    asked += [("F3", SCAFFOLD, best[PLUS], best[SCAFFOLD], "each at its best lr")]
    return [
        _lead(id, name, words, {PLUS: (mine, grid[PLUS][mine]), other: (theirs, grid[other][theirs])})
        for id, other, mine, theirs, words in asked
    ]


def _lead(id: str, name: str, words: str, of: Mapping[str, tuple[float, Curves]]) -> Claim:
    """Is Scaffold⁺ above another method? Seeds are paired. If a run diverged, the answer is no."""
    ends = {method: at_end(curves, "test_accuracy", ENDS) for method, (_, curves) in of.items()}
    losses = {method: at_end(curves, "train_loss", ENDS) for method, (_, curves) in of.items()}
    other = next(method for method in of if method != PLUS)
    lead, low, high = mean_interval(ends[PLUS] - ends[other])
    loss_lead, loss_low, loss_high = mean_interval(losses[PLUS] - losses[other])
    rates = {method: rate / STRETCH[method] for method, (rate, _) in of.items()}
    return Claim(
        id,
        f"Scaffold⁺'s test accuracy is above {other}'s at equal rounds, by more than the difference's 95 % interval.",
        f"{words}: {', '.join(f'{method} {rate:g}' for method, rate in rates.items())}; {len(ends[PLUS])} paired seeds",
        bool(low > 0),
        {
            "lr": rates,
            "test_accuracy": written({method: float(one.mean()) for method, one in ends.items()}),
            "lead": finite(lead),
            "interval": [finite(low), finite(high)],
            "train_loss": written({method: float(one.mean()) for method, one in losses.items()}),
            "train_loss_lead": finite(loss_lead),
            "train_loss_interval": [finite(loss_low), finite(loss_high)],
            "diverged": {method: _diverged(curves) for method, (_, curves) in of.items()},
        },
        name,
    )


def _figure(model: str, name: str, grid: Grid, best: Mapping[str, float]) -> Figure:
    """The final values of each method over its effective lrs, and its best curves. Bytes per round are equal."""
    seeds = len(grid[PLUS][best[PLUS]]["steps"])
    rates = sorted({rate for of in grid.values() for rate in of})
    over, curves = [], []
    for column, words in (("train_loss", "training loss"), ("test_error", "test error")):
        lines = [_over_rates(method, of, column, rates, i) for i, (method, of) in enumerate(grid.items())]
        title, names = f"final values; 95 % intervals over {seeds} seeds", tuple(f"{rate:g}" for rate in rates)
        over.append(Panel(title, "effective lr, lr·γ_c·n/s", words, tuple(lines), ticks=names))
        lines = [_over_rounds(method, grid[method][rate], column, i) for i, (method, rate) in enumerate(best.items())]
        title = "each at its best lr; bands span the seeds"
        curves.append(Panel(title, f"round of {TAU} steps", words, tuple(lines)))
    lost = [
        f"{method} at {rate:g}: {_diverged(curves)} of {seeds} seeds diverged; not drawn"
        for method, of in grid.items()
        for rate, curves in of.items()
        if _diverged(curves)
    ]
    title = f"{NAMES[model]} on MNIST: {CLIENTS} clients, 2 classes each, {CALLED} called per round"
    return Figure(name, (*over, *curves), columns=2, title=title, shared=False, notes=tuple(lost))


def _over_rates(method: str, of: Mapping[float, Curves], column: str, rates: Sequence[float], style: int) -> Line:
    """A position for each effective lr, slightly shifted for each method."""
    found = {rate: last(curves, column, ENDS) for rate, curves in of.items() if not _diverged(curves)}
    places = np.array([rates.index(rate) + 0.06 * (style - 1) for rate in found])
    mean, low, high = (np.array([one[k] for one in found.values()]) for k in range(3))
    return Line(method, places, mean, low, high, style=style, marked=True)


def _over_rounds(method: str, curves: Curves, column: str, style: int) -> Line:
    x, y = curves["steps"][0] / TAU, curves[column]
    return Line(method, x, y.mean(axis=0), y.min(axis=0), y.max(axis=0), style=style)
