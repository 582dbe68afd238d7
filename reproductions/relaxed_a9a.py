"""Relaxed tracking and LED on a9a with one label a node: minibatches, six graphs, over rounds and over bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.options import check_choice
from reproductions.outcome import Claim, finite
from reproductions.simulated import AT_ONCE, as_matrices, beyond
from stgt.simulator import METRICS, Trace, sweep
from stgt.study import Progress, RunSpec, build_run, error_interval, parallel_map, split_progress
from stgt.study.report import Figure, Line, Panel, long_band

NODES, TAU, BATCH, ROWS, ROUNDS, SEEDS = 16, 10, 16, 1600, 400, 5
PENALTIES: dict[str, dict[str, float]] = {"l2": {"l2": 0.02}, "nonconvex": {"nonconvex": 0.1}}
GRAPHS: dict[str, dict[str, Any]] = {
    "one-peer": {"name": "one_peer_exponential"},
    "ring": {"name": "ring"},
    "exponential": {"name": "exponential"},
    "matchings": {"name": "random_matching"},
    "lossy ring": {"name": "unreliable", "topology": {"name": "ring"}, "link": 0.3},
    "server, 4 called": {"name": "server", "sampled": 4},
}
METHODS: dict[str, dict[str, Any]] = {
    "ST-GT": {"name": "STGT"},
    "ST-GT, β = ¼": {"name": "STGT", "beta": 0.25},
    "LED, β = ½": {"name": "LED", "beta": 0.5},
    "LED, β = ¼": {"name": "LED", "beta": 0.25},
    "outer ST-GT, β = ¼": {"name": "Outer", "method": {"name": "STGT", "beta": 0.25}, "lr": 0.7, "momentum": 0.6},
    "no tracking": {"name": "DPSGD", "atc": True},  # with a server, FedAvg
}
PLAIN, QUARTER, OUTER, BIASED = "ST-GT", "ST-GT, β = ¼", "outer ST-GT, β = ¼", "no tracking"
LEDS = ("LED, β = ½", "LED, β = ¼")
STYLES = {"ST-GT": 0, "ST-GT, β = ¼": 6, "LED, β = ½": 5, "LED, β = ¼": 1, OUTER: 2, BIASED: 3}
AT = 0.5  # the common stepsize of all methods
GAMMAS = (*(2.0**-k for k in range(9, 2, -1)), AT)  # 1/512 to 1/8, and ½: the same number of runs for each method
TIMES = 5.0  # LED must be this many times below ST-GT on one-peer
CLOSE = 0.05  # and this close on other graphs
BYTES = 4  # per float that is sent


@dataclass(frozen=True, eq=False)
class Grid:
    """A method on a graph over its stepsizes; `ends` are means of ‖∇f(x̄)‖² over the last quarter, for each seed."""

    ends: dict[float, np.ndarray]  # after all rounds
    early: dict[float, np.ndarray]  # after the rounds that send as many bytes as LED in total
    traces: dict[float, Trace]

    def best(self, what: str = "ends") -> float:
        """The stepsize with the lowest mean; values that are not finite come last."""
        means = {gamma: float(values.mean()) for gamma, values in getattr(self, what).items()}
        return min(means, key=lambda gamma: means[gamma] if np.isfinite(means[gamma]) else np.inf)

    def at_best(self, what: str = "ends") -> np.ndarray:
        return getattr(self, what)[self.best(what)]


Grids = dict[str, dict[str, Grid]]  # of one penalty, by graph and method


def a9a_grids(
    data_dir: Path | None,
    progress: Progress | None = None,
    penalties: Iterable[str] = tuple(PENALTIES),
    graphs: Iterable[str] = tuple(GRAPHS),
    gammas: Sequence[float] = GAMMAS,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
) -> tuple[dict[str, Grids], list[RunSpec]]:
    """All runs: each method with each of the stepsizes, on each graph and with each penalty."""
    penalties = [check_choice(name, "penalties", PENALTIES) for name in penalties]
    graphs = [check_choice(name, "graphs", GRAPHS) for name in graphs]
    cases = list(product(penalties, graphs, METHODS))
    size = {"rows": rows, "rounds": rounds, "seeds": seeds}
    plan = [[_run(*case, gamma, **size) for gamma in gammas] for case in cases]

    def study(runs: list[RunSpec], tick: Progress) -> list[Trace]:
        made = build_run(runs[0], data_dir)
        where, grid = as_matrices(made.topology), {"gamma": list(gammas)}
        found = sweep(made.algorithm, made.problem, where, rounds, seeds, grid=grid, metrics=["squared_gradient_norm"])
        tick(1, 1)
        return [replace(trace, topology=made.topology) for trace in found]

    studied = parallel_map(study, plan, split_progress(progress, [1.0] * len(plan)), at_once=AT_ONCE)
    found: dict[str, Grids] = {}
    traces = dict(zip(cases, studied, strict=True))
    for (penalty, graph, method), of in traces.items():
        budget = traces[penalty, graph, LEDS[1]][0]["floats"][:, -1].mean()
        grid = _grid(dict(zip(gammas, of, strict=True)), float(budget))
        found.setdefault(penalty, {}).setdefault(graph, {})[method] = grid
    return found, [run for runs in plan for run in runs]


def _run(penalty: str, graph: str, method: str, gamma: float, rows: int, rounds: int, seeds: int) -> RunSpec:
    algorithm = METHODS[method]
    if method == BIASED and GRAPHS[graph]["name"] == "server":
        algorithm = {"name": "FedAvg"}
    problem = {"name": "logistic", "data": "a9a", "rows": rows, "n": NODES, "partition": "label", "batch": BATCH}
    return RunSpec.model_validate(
        {
            "label": method,
            "reading": f"a9a, {penalty}",
            "algorithm": {**algorithm, "gamma": gamma, "tau": TAU},
            "problem": {**problem, **PENALTIES[penalty]},
            "topology": GRAPHS[graph],
            "rounds": rounds,
            "seeds": seeds,
        }
    )


def _grid(traces: dict[float, Trace], budget: float) -> Grid:
    ends, early = {}, {}
    for gamma, trace in traces.items():
        sent = float(trace["floats"][:, -1].mean())
        until = round(trace.rounds * min(1.0, budget / sent)) if sent else trace.rounds
        ends[gamma] = _tail(trace, trace.rounds)
        early[gamma] = _tail(trace, until)
    return Grid(ends, early, traces)


def _tail(trace: Trace, until: int) -> np.ndarray:
    """The mean of the last quarter of the rounds up to `until`, for each seed; infinite if it diverged."""
    values = trace["squared_gradient_norm"][:, : until + 1].astype(np.float64)
    mean = values[:, -max(1, round(0.25 * values.shape[1])) :].mean(axis=1)
    return np.where(np.isfinite(mean), mean, np.inf)


def a9a_rows(found: dict[str, Grids]) -> list[dict[str, Any]]:
    """A row for each seed."""
    rows = []
    for penalty, graph, method, grid in _each(found):
        for gamma, trace in grid.traces.items():
            shared = {"part": "a9a", "setting": penalty, "graph": graph, "method": method, "gamma": gamma, "tau": TAU}
            sent = BYTES * trace["floats"][:, -1] / trace.problem.n
            for k, (seed, at) in enumerate(zip(trace.seeds, trace.diverged_at, strict=True)):
                ends = {
                    "squared_gradient_norm": grid.ends[gamma][k],
                    "squared_gradient_norm_at_equal_bytes": grid.early[gamma][k],
                }
                last = {"bytes_a_node": float(sent[k]), "diverged_at": int(at) if at >= 0 else None}
                rows.append({**shared, "seed": seed, **{name: finite(one) for name, one in ends.items()}, **last})
    return rows


def a9a_curves(found: dict[str, Grids], every: int = 10) -> list[dict[str, Any]]:
    """A row for every tenth round of the runs at γ = 0.5 and at the best stepsize."""
    rows = []
    for penalty, graph, method, grid in _each(found):
        for gamma in dict.fromkeys((_at(grid), grid.best())):
            trace = grid.traces[gamma]
            mean, low, high = error_interval(trace["squared_gradient_norm"])
            sent = BYTES * trace["floats"].mean(axis=0) / trace.problem.n
            shared = {"setting": penalty, "graph": graph, "method": method, "gamma": gamma}
            for r in range(0, trace.rounds + 1, every):
                values = {"mean": mean[r], "low": low[r], "high": high[r], "bytes": sent[r]}
                rows.append({**shared, "round": r, **{name: finite(value) for name, value in values.items()}})
    return rows


def _each(found: dict[str, Grids]) -> Iterable[tuple[str, str, str, Grid]]:
    for penalty, grids in found.items():
        for graph, by in grids.items():
            for method, grid in by.items():
                yield penalty, graph, method, grid


def _at(grid: Grid) -> float:
    """The common stepsize, or the nearest one of the grid."""
    return min(grid.ends, key=lambda gamma: abs(np.log(gamma / AT)))


# -- claims ------------------------------------------------------------------------------------------------------------


def a9a_claims(penalty: str, grids: Grids) -> list[Claim]:
    """X11 to X17."""
    curves, grid, sent = "relaxed-a9a.png", "relaxed-a9a-stepsizes.png", "relaxed-a9a-bytes.png"
    judged = (
        ("X11", f"One-peer, γ = {AT:g}: ST-GT's ‖∇f(x̄)‖² is at least {TIMES:g} times that of LED with β = ½ and with "
         "¼, by more than the 95 % interval.", _far(grids), curves),
        ("X12", f"On the other graphs, at γ = {AT:g}, LED is within {CLOSE:.0%} of ST-GT.", _close(grids), curves),
        ("X13", f"β = ¼ reduces ST-GT's error on one-peer at γ = {AT:g}, by more than the interval.",
         _relaxed(grids), curves),
        ("X14", "At its own best stepsize each, LED with β = ¼ is on no graph above ST-GT by more than the interval.",
         _compared(grids, LEDS[1], PLAIN, "ends", above=False), grid),
        ("X15", "At equal bytes, with the best stepsize for each, LED with β = ¼ is below ST-GT on every graph, "
         "by more than the interval.", _compared(grids, PLAIN, LEDS[1], "early", above=True), sent),
        ("X16", "At its own best stepsize each, D-PSGD (with a server, FedAvg) is above LED (β = ¼) on every graph, "
         "by more than the interval.", _compared(grids, BIASED, LEDS[1], "ends", above=True), grid),
        ("X17", "At its own best stepsize each, outer momentum makes ST-GT with β = ¼ worse on no graph "
         "by more than the interval.", _compared(grids, OUTER, QUARTER, "ends", above=False), grid),
    )  # fmt: skip
    return [Claim(id, words, f"a9a, {penalty}", bool(holds), of, png) for id, words, (holds, of), png in judged]


def _interval(values: np.ndarray, gamma: float | None = None) -> dict[str, Any]:
    mean, low, high = map(finite, error_interval(values))
    found = {"mean": mean, "low": low, "high": high}
    return found if gamma is None else {"gamma": gamma, **found}


def _shared(by: dict[str, Grid]) -> dict[str, np.ndarray]:
    return {method: grid.ends[_at(grid)] for method, grid in by.items()}


def _far(grids: Grids) -> tuple[bool, dict[str, Any]]:
    ends = _shared(grids["one-peer"])
    ratios = {method: finite(ends[PLAIN].mean() / ends[method].mean()) for method in LEDS}
    holds = all(beyond(ends[PLAIN], ends[method]) for method in LEDS)
    holds = holds and all(value is None or value >= TIMES for value in ratios.values())
    return holds, {"ST-GT's/LED's": ratios, **{method: _interval(values) for method, values in ends.items()}}


def _close(grids: Grids) -> tuple[bool, dict[str, Any]]:
    figures, ratios = {}, []
    for graph, by in grids.items():
        if graph != "one-peer":
            ends = _shared(by)
            of = {method: float(ends[method].mean() / ends[PLAIN].mean()) for method in LEDS}
            ratios += of.values()
            numbers = {method: _interval(values) for method, values in ends.items()}
            figures[graph] = {"LED's/ST-GT's": {method: finite(value) for method, value in of.items()}, **numbers}
    return bool(ratios) and all(abs(value - 1) <= CLOSE for value in ratios), figures


def _relaxed(grids: Grids) -> tuple[bool, dict[str, Any]]:
    ends = _shared(grids["one-peer"])
    return beyond(ends[PLAIN], ends[QUARTER]), {method: _interval(ends[method]) for method in (PLAIN, QUARTER)}


def _compared(grids: Grids, high: str, low: str, what: str, above: bool) -> tuple[bool, dict[str, Any]]:
    """Is `high` above `low` on every graph, or, if `above` is false, on none?"""
    figures, found = {}, []
    for graph, by in grids.items():
        a, b = by[high], by[low]
        found.append(beyond(a.at_best(what), b.at_best(what)))
        ratio = finite(a.at_best(what).mean() / b.at_best(what).mean())
        numbers = {method: _interval(grid.at_best(what), grid.best(what)) for method, grid in by.items()}
        figures[graph] = {f"{high}/{low}": ratio, "beyond the interval": found[-1], **numbers}
    return (all(found) if above else not any(found)), figures


# -- figures -----------------------------------------------------------------------------------------------------------


def a9a_figures(found: dict[str, Grids]) -> list[Figure]:
    """Over rounds at γ = 0.5, over bytes at the best stepsizes, and the ends over the stepsizes."""
    words = f"a9a, one label a node, {NODES} nodes, τ = {TAU}, minibatches of {BATCH}"
    gradient = METRICS["squared_gradient_norm"].formula
    rounds, sent, ends = [], [], []
    for penalty, grids in found.items():
        for graph, by in grids.items():
            title = f"{graph}, {penalty}"
            lines = [_curve(method, grid, _at(grid)) for method, grid in by.items()]
            rounds.append(Panel(title, "communication round", gradient, tuple(lines), xlog=True))
            lines = [_curve(method, grid, grid.best("early"), over="floats") for method, grid in by.items()]
            sent.append(Panel(title, "kB sent by a node", gradient, tuple(lines), xlog=True))
            lines = [_levels(method, grid) for method, grid in by.items()]
            ends.append(Panel(title, "γ", gradient, tuple(lines), xlog=True))
    columns = max(1, len(next(iter(found.values()))) // 2) if found else 1
    notes = ("no tracking: D-PSGD, and FedAvg with the server",)
    named = (
        ("relaxed-a9a", rounds, f"{words}, γ = {AT:g} for all"),
        ("relaxed-a9a-bytes", sent, f"{words}, each at its best stepsize for LED's bytes"),
        ("relaxed-a9a-stepsizes", ends, f"{words}, last quarter of the rounds"),
    )
    return [
        Figure(name, tuple(panels), columns=columns, title=title, notes=notes, shared=False)
        for name, panels, title in named
    ]


def _curve(method: str, grid: Grid, gamma: float, over: str = "rounds") -> Line:
    line = long_band(method, grid.traces[gamma], "squared_gradient_norm", over, per_node=True, style=STYLES[method])
    return line if over == "rounds" else replace(line, x=line.x * BYTES / 1e3)


def _levels(method: str, grid: Grid) -> Line:
    found = np.array([error_interval(values) for values in grid.ends.values()], dtype=np.float64)
    seen = np.isfinite(found[:, 0])
    x, y = np.array(list(grid.ends))[seen], found[seen, 0]
    low, high = (np.where(np.isfinite(end), end, y) for end in found[seen, 1:].T)
    return Line(method, x, y, low, high, style=STYLES[method], marked=True)
