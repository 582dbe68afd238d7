"""The effect of the graph: ST-GT, FlexGT and K-GT from the ring to the complete graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, finite
from reproductions.simulated import Prediction, SimulatedRun, simulate_runs
from stgt.simulator import METRICS
from stgt.study import Progress, RunSpec, Spec, error_interval, mean_interval
from stgt.study.report import Figure, Line, Panel
from stgt.topology import Topology, contraction

NODES, TAU = 32, 50
REGIMES = {"paper": 0.4, "moderate": 0.01}  # γ
GRAPHS: dict[str, dict[str, Any]] = {  # base_graph(32, k=1) is hypercuboid(32)
    "ring": {"name": "ring"},
    "grid": {"name": "grid", "rows": 4, "cols": 8},
    "exponential": {"name": "exponential"},
    "one-peer": {"name": "one_peer_exponential"},
    "hypercuboid": {"name": "hypercuboid"},
    "base, k = 3": {"name": "base_graph", "k": 3},
    "complete": {"name": "complete"},
}
METHODS: dict[str, tuple[dict[str, Any], float]] = {  # the algorithm, and its stepsize in multiples of γ
    "ST-GT": ({"name": "STGT"}, 1.0),
    "FlexGT (first)": ({"name": "FlexGT", "snapshot": "first"}, 1.0),
    "FlexGT (last)": ({"name": "FlexGT", "snapshot": "last"}, 1.0),
    "K-GT (½, 2γ)": ({"name": "KGT", "eta_s": 0.5}, 2.0),  # with η_s = 1 it equals ST-GT; here γη_s is that of ST-GT
}
FLEXGT = ("FlexGT (first)", "FlexGT (last)")
AROUND = 2.0  # up to this factor above or below, a value counts as about 1/τ

Found = dict[str, dict[str, SimulatedRun]]  # by graph, worst connected first, and by method
Judged = tuple[str, str, bool, dict[str, Any]]


def topology(
    progress: Progress | None = None,
    graphs: Iterable[str] | None = None,
    rounds: int = 700,
    seeds: int = 20,
    p: int = 10,
) -> Outcome:
    """The steady-state error of ST-GT, FlexGT and K-GT on seven graphs, at two stepsizes; claims T1 to T3, T5, T6.

    K-GT is drawn but not compared: at the same stepsize its rate differs from ST-GT's, see `frontier`. Runs start at
    x*, so they show only noise. Graphs are in the order of the rounds that they take to average.
    """
    names = [check_choice(name, "graphs", GRAPHS) for name in graphs or GRAPHS]
    runs = {
        (graph, method, regime): _run(graph, method, regime, rounds, seeds, p)
        for graph in names
        for method in METHODS
        for regime in REGIMES
    }
    found = dict(zip(runs, simulate_runs(list(runs.values()), progress), strict=True))
    by_name = {graph: found[graph, "ST-GT", "paper"].made.topology for graph in names}
    names.sort(key=lambda graph: -mixing_rounds(by_name[graph]))
    rows, claims, ordered = [], [], {}
    for regime in REGIMES:
        of = {graph: {method: found[graph, method, regime] for method in METHODS} for graph in names}
        ordered[regime] = of
        for graph, by_method in of.items():
            numbers = {"mixing_rounds": mixing_rounds(by_name[graph]), "rho": contraction(by_name[graph])}
            for one in by_method.values():
                consensus = finite(exact(one).consensus)
                rows += [{**row, **numbers, "exact_consensus": consensus} for row in one.rows()]
        claims += _claims(regime, of)
    spec = Spec(experiment="topology", runs=tuple(runs.values()))
    return Outcome(spec, rows, claims, _figures(ordered))


def mixing_rounds(topology: Topology, left: float = 0.01) -> int:
    """The number of rounds until ‖W_{k−1} ⋯ W_0 − J‖₂² ≤ left, for any schedule with a period."""
    product, J = np.eye(topology.n), 1.0 / topology.n
    for k in range(10_000):
        if np.linalg.norm(product - J, 2) ** 2 <= left:
            return k
        product = topology.matrix(k) @ product
    raise ValueError(f"{topology.name} does not average in 10000 rounds: give a connected topology.")


def _run(graph: str, method: str, regime: str, rounds: int, seeds: int, p: int) -> RunSpec:
    algorithm, times = METHODS[method]
    problem = {"name": "ridge", "n": NODES, "p": p, "mu": 0.5, "scale": "sqrt_p", "noise": 0.1, "seed": 0}
    return RunSpec.model_validate(
        {
            "label": method,
            "reading": regime,
            "algorithm": {**algorithm, "gamma": times * REGIMES[regime], "tau": TAU},
            "problem": problem,
            "topology": GRAPHS[graph],
            "rounds": rounds,
            "seeds": seeds,
            "x0": "optimum",
        }
    )


def exact(one: SimulatedRun) -> Prediction:
    """The theory's prediction for a run on a graph that is not random."""
    assert one.predicted is not None
    return one.predicted


def _level(one: SimulatedRun) -> float:
    """The exact error; if there is none, the simulated one."""
    return exact(one).error if exact(one).stable else float(one.errors.mean())


def _claims(regime: str, of: Found) -> list[Claim]:
    judged = (_lowest(of), _spread(of), _part_of_graph(of), _stable(of), _schedules(of))
    return [Claim(id, claim, regime, holds, figures, "topology.png") for id, claim, holds, figures in judged]


def _lowest(of: Found) -> Judged:
    holds = all(_below(by["ST-GT"], by[other]) for by in of.values() for other in FLEXGT)
    errors = {graph: {method: by[method].summary() for method in ("ST-GT", *FLEXGT)} for graph, by in of.items()}
    return "T1", "ST-GT's error is below FlexGT's, with either snapshot, on every graph.", holds, errors


def _spread(of: Found) -> Judged:
    """The ratio of the largest to the smallest error over all graphs, and of the worst graph's to the best's."""
    levels = {method: np.array([_level(by[method]) for by in of.values()]) for method in METHODS}
    spread = {method: float(level.max() / level.min()) for method, level in levels.items()}
    ends = {method: float(level[0] / level[-1]) for method, level in levels.items()}
    holds = all(spread["ST-GT"] < spread[other] for other in FLEXGT)
    figures = {
        "largest/smallest": {method: finite(ratio) for method, ratio in spread.items()},
        "/".join((next(iter(of)), next(reversed(of)))): {method: finite(ratio) for method, ratio in ends.items()},
    }
    return "T2", "ST-GT's error changes less from graph to graph than FlexGT's, with either snapshot.", holds, figures


def _part_of_graph(of: Found) -> Judged:
    """The error that a graph adds to that on the best connected one; ST-GT's as a share of FlexGT's."""
    best = next(reversed(of))
    shares = {}
    for graph, by in of.items():
        if graph != best and exact(by["ST-GT"]).stable and exact(by["FlexGT (first)"]).stable:
            st, flex = (
                exact(by[method]).error - exact(of[best][method]).error for method in ("ST-GT", "FlexGT (first)")
            )
            shares[graph] = float(TAU * st / flex)
    holds = bool(shares) and all(1 / AROUND <= share <= AROUND for share in shares.values())
    words = f"A graph adds to ST-GT's error, compared with {best}, about 1/τ of what it adds to FlexGT's (first)."
    return "T3", words, holds, {"τ·(ST-GT's part)/(FlexGT's part)": shares, "about": [1 / AROUND, AROUND]}


def _stable(of: Found) -> Judged:
    radii = {graph: {method: one.radius for method, one in by.items()} for graph, by in of.items()}
    holds = all(exact(by["ST-GT"]).stable for by in of.values())
    return "T5", "ST-GT is stable on every graph: its exact spectral radius is below 1.", holds, radii


def _schedules(of: Found) -> Judged:
    """Schedules that reach the exact mean within a few rounds, compared with the worst connected graph."""
    worst = next(iter(of))
    found = {graph: by["ST-GT"] for graph, by in of.items()}
    moving = [one for one in found.values() if (one.made.topology.period or 0) > 1]
    holds = all(exact(one).stable and exact(one).error <= exact(found[worst]).error for one in moving)
    words = f"On schedules that average exactly in a few rounds, ST-GT is stable, its error at most the {worst}'s."
    return "T6", words, holds, {graph: one.summary() for graph, one in found.items()}


def _below(a: SimulatedRun, b: SimulatedRun) -> bool:
    """Is a's error below b's? By exact errors if both are stable; else simulated, by more than the 95 % interval."""
    if exact(a).stable and exact(b).stable:
        return exact(a).error < exact(b).error
    if not (np.isfinite(a.errors).all() and np.isfinite(b.errors).all()):
        return bool(np.isfinite(a.errors).all())
    return bool(mean_interval(b.errors - a.errors)[1] > 0)  # seeds are shared


def _figures(ordered: dict[str, Found]) -> list[Figure]:
    panels = {"topology": [], "topology-consensus": []}
    for regime, of in ordered.items():
        gamma, L = REGIMES[regime], next(iter(of.values()))["ST-GT"].made.problem.L or np.nan
        title = f"{regime}: γ = {gamma:g}, τ = {TAU}, γτL = {gamma * TAU * L:.2g}"
        ticks = tuple(f"{graph} ({mixing_rounds(by['ST-GT'].made.topology)})" for graph, by in of.items())
        x = "graph (rounds to average to 1 %)"
        errors, apart = [], []
        for i, method in enumerate(METHODS):
            errors += _error_lines(i, method, [by[method] for by in of.values()])
            consensus = np.array([exact(by[method]).consensus for by in of.values()])
            consensus[~np.isfinite(consensus) | (consensus < 1e-12)] = np.nan  # W = J leaves no disagreement
            apart.append(Line(method, np.arange(len(of)), consensus, style=i, marked=True))
        frame = 1e3 * min(float(one.errors.mean()) for by in of.values() for one in by.values())
        panels["topology"].append(
            Panel(title, x, f"E{METRICS['residual'].formula}", tuple(errors), ticks=ticks, ymax=frame)
        )
        panels["topology-consensus"].append(
            Panel(title, x, f"E{METRICS['consensus'].formula}", tuple(apart), ticks=ticks)
        )
    titles = {
        "topology": "Exact if stable (lines) and simulated (bars)",
        "topology-consensus": "Exact, if stable",
    }
    return [Figure(name, tuple(of), title=titles[name], shared=False) for name, of in panels.items()]


def _error_lines(style: int, method: str, of: list[SimulatedRun]) -> list[Line]:
    """The exact errors as a line and the simulated ones with their bars; a gap if there is none."""
    x = np.arange(len(of))
    predicted = np.array([exact(one).error if exact(one).stable else np.nan for one in of])
    seen = [one.errors if np.isfinite(one.errors).all() else np.full_like(one.errors, np.nan) for one in of]
    bars = error_interval(np.transpose(seen))
    return [
        Line(method, x, predicted, style=style),
        Line("", x + 0.1 * (style - 1.5), *bars, style=style, marked=True, joined=False),
    ]
