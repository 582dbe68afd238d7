"""FedAvg and D-PSGD stall if nodes hold different data, and trackers do not: `heterogeneity`.

Each method without tracking is compared with a tracker. D-PSGD is ST-GT with c = 0 on the same graph; FedAvg is
Scaffold without control variates. FedAvg uses all workers, so only its bias can stop it; Scaffold uses half of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.cell import Cell
from reproductions.outcome import Claim, Outcome, finite
from reproductions.simulated import AT_ONCE, beyond
from stgt.simulator import METRICS, Trace, simulate
from stgt.study import Progress, RunSpec, Spec, build_run, error_interval, parallel_map, split_progress
from stgt.study.report import Figure, Line, Panel, long_band

NODES, TAU, ROUNDS, ROWS = 10, 5, 700, 1200
DATA = ("a9a", "w8a", "mushrooms")
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "α = 10": {"partition": "dirichlet", "alpha": 10.0},
    "α = 1": {"partition": "dirichlet", "alpha": 1.0},
    "α = 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "one class": {"partition": "label", "classes": 1},
}
ALIKE, APART = "iid", "one class"
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FedAvg": ({"name": "FedAvg"}, {"name": "server"}),
    "D-PSGD": ({"name": "DPSGD", "atc": True}, {"name": "exponential"}),
    "ST-GT": ({"name": "STGT"}, {"name": "exponential"}),
    "Scaffold": ({"name": "Scaffold"}, {"name": "server", "sampled": NODES // 2}),
}
PLAIN, TRACKERS = ("FedAvg", "D-PSGD"), ("ST-GT", "Scaffold")
STYLES = {"ST-GT": 0, "Scaffold": 2, "FedAvg": 3, "D-PSGD": 4}
DTYPE = "float64"
FACTOR = 100.0
ROUNDING = 1e-12  # an f(x̄) − f* up to this counts as 0
LEAST = 1e-16  # the smallest f(x̄) − f* on a logarithmic axis


@dataclass(frozen=True)
class Setting:
    """The nodes' objective and their gradients; the number of draws of each partition, and of seeds of each draw."""

    name: str
    problem: dict[str, Any]
    draws: int = 1
    seeds: int = 1
    partitions: tuple[str, ...] = tuple(PARTITIONS)


Cells = dict[tuple[str, str], Cell]  # by partition and method


def heterogeneity(
    data_dir: Path | None = None,
    progress: Progress | None = None,
    data: Iterable[str] = DATA,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    draws: int = 3,
    seeds: int = 20,
) -> Outcome:
    """FedAvg, D-PSGD, ST-GT and Scaffold with the same γ and τ, from iid data to one class a node; claims H1 to H6.

    Logistic regression on `rows` rows of each data set, half of them of each label. There are three settings: exact
    gradients with l2, in which a stall is only bias, over `draws` draws of each partition; the same with the nonconvex
    penalty; and minibatches of 8, over `seeds` seeds. γ = 1/L, with the largest L of any partition of the data set.
    """
    settings = (
        Setting("exact", {"l2": 0.02}, draws=draws),
        Setting("nonconvex", {"nonconvex": 0.1}),
        Setting("minibatch", {"l2": 0.02, "batch": 8}, seeds=seeds, partitions=(ALIKE, APART)),
    )
    data, plan = tuple(data), []
    for name in data:
        shared = {**_shared(name, rows, settings, data_dir), "rounds": rounds}
        for setting in settings:
            for partition, draw in product(setting.partitions, range(setting.draws)):
                for method in METHODS:
                    key = (setting.name, name), (partition, method)
                    plan.append((*key, _run(setting, shared, partition, draw, method)))
    found: dict[tuple[str, str], Cells] = {}
    runs = tuple(run for *_, run in plan)
    for (where, key, run), trace in zip(plan, _simulate(runs, data_dir, progress), strict=True):
        cell = found.setdefault(where, {}).setdefault(key, Cell([], []))
        cell.runs.append(run)
        cell.traces.append(trace)
    every = [
        ({"setting": setting, "data": name, "partition": partition}, cell)
        for (setting, name), cells in found.items()
        for (partition, _), cell in cells.items()
    ]
    return Outcome(
        Spec(experiment="heterogeneity", options={"dtype": DTYPE}, runs=runs),
        [row for names, cell in every for row in cell.rows(**names)],
        [claim for name in data for claim in _claims(name, *(found[setting.name, name] for setting in settings))],
        _figures(data, found),
        [row for names, cell in every for row in cell.curve_rows(**names)],
    )


def _shared(data: str, rows: int, settings: Sequence[Setting], data_dir: Path | None) -> dict[str, Any]:
    """The common parts of all runs on a data set: γ = 1/L, and one width per partition, so its draws compile once."""
    shared: dict[str, Any] = {"data": data, "rows": rows, "gamma": 1.0, "widths": {}, "rounds": 0}
    smoothness, widths = [], dict.fromkeys(PARTITIONS, 1)
    for setting in settings:
        for partition, draw in product(setting.partitions, range(setting.draws)):
            problem = build_run(_run(setting, shared, partition, draw, "FedAvg"), data_dir).problem
            smoothness.append(problem.L)
            widths[partition] = max(widths[partition], problem.data["weight"].shape[1])
    return {**shared, "gamma": 1.0 / max(smoothness), "widths": widths}


def _run(setting: Setting, shared: dict[str, Any], partition: str, draw: int, method: str) -> RunSpec:
    algorithm, topology = METHODS[method]
    width = {"width": shared["widths"][partition]} if shared["widths"] else {}
    problem = {"name": "logistic", "data": shared["data"], "rows": shared["rows"], "n": NODES, "seed": draw}
    return RunSpec.model_validate(
        {
            "label": method,
            "reading": f"{shared['data']}, {setting.name}, {partition}",
            "algorithm": {**algorithm, "gamma": shared["gamma"], "tau": TAU},
            "problem": {**problem, **setting.problem, **PARTITIONS[partition], **width},
            "topology": {**topology, "seed": draw} if "sampled" in topology else topology,
            "rounds": shared["rounds"],
            "seeds": setting.seeds,
        }
    )


def _simulate(runs: Sequence[RunSpec], data_dir: Path | None, progress: Progress | None) -> list[Trace]:
    """All runs, two at a time, because compilation takes most of the time and uses one core."""

    def one(run: RunSpec, tick: Progress) -> Trace:
        made = build_run(run, data_dir)
        metrics = ["squared_gradient_norm"] if made.problem.batch is None else ["squared_gradient_norm", "loss"]
        trace = simulate(*made.objects, run.rounds, run.seeds, metrics=metrics, dtype=DTYPE)
        tick(1, 1)
        return trace

    return parallel_map(one, runs, split_progress(progress, [1] * len(runs)), at_once=AT_ONCE)


def _claims(data: str, exact: Cells, nonconvex: Cells, minibatch: Cells) -> list[Claim]:
    words = (
        ("H1", "exact", f"Exact gradients, {APART} a node: the final ‖∇f(x̄)‖² of FedAvg and D-PSGD is at least "
         f"{FACTOR:g} times that of ST-GT and of Scaffold.", _far(exact)),
        ("H2", "exact", f"The stall of FedAvg and of D-PSGD grows from {ALIKE} to {APART} a node: no step goes "
         "down in every draw of the partitions, and the total goes up by more than the 95 % interval.", _grows(exact)),
        ("H3", "exact", f"ST-GT and Scaffold end with f(x̄) − f* within {ROUNDING:g} on every partition.",
         _level(exact)),
        ("H4", "nonconvex", f"H1 with the nonconvex penalty: at least {FACTOR:g} times.", _far(nonconvex)),
        ("H5", "minibatch", f"Minibatches of 8, {APART} a node: the ‖∇f(x̄)‖² of FedAvg and D-PSGD is above ST-GT's, "
         "by more than the 95 % interval.", _above(minibatch)),
        ("H6", "minibatch", f"Minibatches of 8: ST-GT's and Scaffold's ‖∇f(x̄)‖² on {APART} a node is not above that "
         f"on {ALIKE} data by more than the 95 % interval.", _floor(minibatch)),
    )  # fmt: skip
    return [
        Claim(id, claim, f"{data}, {setting}", holds, figures, f"heterogeneity-{setting}.png")
        for id, setting, claim, (holds, figures) in words
    ]


def _far(cells: Cells) -> tuple[bool, dict[str, Any]]:
    """The ratio of the smallest stall to the largest error of a tracker, over all draws."""
    stall = np.concatenate([cells[APART, method].gradients for method in PLAIN]).min()  # NaN, if there is one
    error = np.concatenate([cells[APART, method].gradients for method in TRACKERS]).max()
    factor = float(stall / error) if np.isfinite(error) and error > 0 else 0.0
    return factor >= FACTOR, {"factor": finite(factor), **_summaries(cells, [APART])}


def _grows(cells: Cells) -> tuple[bool, dict[str, Any]]:
    falls = [
        f"{method}: {before} to {after}"
        for method in PLAIN
        for before, after in pairwise(PARTITIONS)
        if (cells[after, method].losses < cells[before, method].losses).all()
    ]
    rises = all(beyond(cells[APART, method].losses, cells[ALIKE, method].losses) for method in PLAIN)
    return rises and not falls, {"steps down": falls, **_summaries(cells, PARTITIONS, PLAIN)}


def _level(cells: Cells) -> tuple[bool, dict[str, Any]]:
    of = {method: [cells[partition, method] for partition in PARTITIONS] for method in TRACKERS}
    worst = {method: float(np.max([np.abs(cell.losses).max() for cell in some])) for method, some in of.items()}
    spans = {method: np.concatenate([cell.gradients for cell in some]) for method, some in of.items()}
    figures: dict[str, Any] = {f"{method}: largest |f(x̄) − f*|": finite(value) for method, value in worst.items()}
    figures |= {f"{method}: ‖∇f(x̄)‖² up to": finite(values.max()) for method, values in spans.items()}
    figures |= {f"{method}: ‖∇f(x̄)‖² from": finite(values.min()) for method, values in spans.items()}
    return all(value <= ROUNDING for value in worst.values()), figures


def _above(cells: Cells) -> tuple[bool, dict[str, Any]]:
    floor = cells[APART, "ST-GT"].gradients
    holds = all(beyond(cells[APART, method].gradients, floor) for method in PLAIN)
    ratios = {f"{method} / ST-GT": finite(cells[APART, method].gradients.mean() / floor.mean()) for method in PLAIN}
    return holds, {**ratios, **_summaries(cells, [APART])}


def _floor(cells: Cells) -> tuple[bool, dict[str, Any]]:
    ends = [(cells[APART, method].gradients, cells[ALIKE, method].gradients) for method in TRACKERS]
    holds = all(np.isfinite(alike).all() and not beyond(apart, alike) for apart, alike in ends)
    return holds, _summaries(cells, [ALIKE, APART], TRACKERS)


def _summaries(cells: Cells, partitions: Iterable[str], methods: Iterable[str] = tuple(METHODS)) -> dict[str, Any]:
    methods = tuple(methods)
    return {partition: {method: cells[partition, method].summary() for method in methods} for partition in partitions}


def _figures(data: Sequence[str], cells: dict[tuple[str, str], Cells]) -> list[Figure]:
    same = f"{NODES} nodes, τ = {TAU}, one γ for all"
    loss, gradient = METRICS["loss"].formula + ", or 1e-16 if below", METRICS["squared_gradient_norm"].formula
    labels = dict.fromkeys(data, "") | {data[0]: gradient}  # on the left only
    exact = [_levels(name, cells["exact", name], "loss", loss if name == data[0] else "") for name in data]
    exact += [_levels(name, cells["exact", name], "squared_gradient_norm", label) for name, label in labels.items()]
    nonconvex = [
        _levels(name, cells["nonconvex", name], "squared_gradient_norm", label) for name, label in labels.items()
    ]
    minibatch = [_rounds(name, cells["minibatch", name], label) for name, label in labels.items()]
    words = {
        "exact": f"l2, exact gradients: {same}",
        "nonconvex": f"nonconvex penalty, exact gradients: {same}",
        "minibatch": f"l2, minibatches of 8, {APART} a node: {same}",
    }
    return [
        Figure(f"heterogeneity-{name}", tuple(panels), columns=len(data), title=words[name])
        for name, panels in (("exact", exact), ("nonconvex", nonconvex), ("minibatch", minibatch))
    ]


def _levels(data: str, cells: Cells, metric: str, ylabel: str) -> Panel:
    """The final error for each partition."""
    lines = []
    for method in METHODS:
        of = [cells[partition, method] for partition in PARTITIONS]
        values = [error_interval(cell.losses if metric == "loss" else cell.gradients) for cell in of]
        mean, *band = (np.array([float(one) for one in side]) for side in zip(*values, strict=True))
        seen = np.isfinite(mean)
        shown, x = np.maximum(mean, LEAST if metric == "loss" else 0.0), np.arange(len(of))
        known = metric != "loss" or (mean > LEAST).all()
        low, high = (side[seen] if known else None for side in band)
        lines.append(Line(method, x[seen], shown[seen], low, high, style=STYLES[method], marked=True))
    return Panel(data, "", ylabel, tuple(lines), ticks=tuple(PARTITIONS))


def _rounds(data: str, cells: Cells, ylabel: str) -> Panel:
    """The error over the rounds on one class a node, with ST-GT's on iid data as a backdrop."""
    (floor,) = cells[ALIKE, "ST-GT"].traces
    lines = [long_band(f"ST-GT, {ALIKE}", floor, "squared_gradient_norm", backdrop=True)]
    for method in METHODS:
        (trace,) = cells[APART, method].traces
        lines.append(long_band(method, trace, "squared_gradient_norm", style=STYLES[method]))
    return Panel(data, "communication round", ylabel, tuple(lines), xlog=True)
