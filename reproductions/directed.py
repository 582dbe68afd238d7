"""The stability of ST-GT on directed graphs: plain, and with the tracker mixed by the transpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, finite, lost_at
from reproductions.simulated import AT_ONCE, Prediction, SimulatedRun, as_matrices, predict, simulate_run
from stgt import theory
from stgt.study import Progress, RunSpec, Spec, build_run, error_interval, parallel_map, split_progress
from stgt.study.report import Figure, Line, Panel
from stgt.topology import Topology, one_peer_exponential, sequence

TAU, MU = 50, 0.1
GRID = tuple(float(value) for value in np.geomspace(0.03, 90.0, 12))  # γτL; γL stays below 2
SIMULATED = (5, 9)  # indices in the grid that are also simulated, γτL = 1.1 and 21
SPARSE: dict[str, dict[str, Any]] = {
    "directed ring": {"name": "ring", "directed": True},
    "hops {1, 2}": {"name": "circulant", "hops": [1, 2]},
    "hops {1, 2, 4}": {"name": "circulant", "hops": [1, 2, 4]},
    "hops {1, 4, 16}": {"name": "circulant", "hops": [1, 4, 16]},
}
GRAPHS: dict[str, dict[str, Any]] = {
    **SPARSE,
    "exponential": {"name": "exponential"},
    "de Bruijn": {"name": "de_bruijn"},
    "one-peer": {"name": "one_peer_exponential"},
    "ring": {"name": "ring"},
}
FORMS = {"plain": False, "adjoint": True}
GROWN = 10.0  # an error counts as grown from this factor on
LARGER = 1.01  # an error counts as larger only above this factor
UNSTABLE_AT = (0.88, 0.91)  # the heights of the marks for unstable forms in a panel of errors
SLOWER = 0.95  # a rate counts as slower only below this factor


@dataclass(frozen=True, eq=False)
class Point:
    """ST-GT on one graph with one stepsize: the exact values, and the simulation if there was one."""

    run: RunSpec
    reach: float  # γτL
    exact: Prediction
    simulated: SimulatedRun | None

    @property
    def growth(self) -> float:
        """The error of the last quarter of the rounds divided by that of the second; infinite if a run diverged."""
        if self.simulated is None:
            return np.nan
        values, quarter = self.simulated.trace.residual.astype(np.float64), self.simulated.trace.rounds // 4
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
            ratio = values[:, 3 * quarter :].mean() / values[:, quarter : 2 * quarter].mean()
        return float(ratio) if np.isfinite(ratio) else np.inf


Found = dict[str, dict[str, list[Point]]]  # by graph and form, over the grid
Limits = dict[tuple[str, str], float | None]  # the γτL above which it is unstable, by graph and form
Judged = tuple[str, bool, dict[str, Any]]


def directed(
    progress: Progress | None = None,
    graphs: Iterable[str] | None = None,
    rounds: int = 700,
    seeds: int = 20,
    n: int = 32,
    p: int = 4,
    grid: Iterable[float] = GRID,
    simulated: Iterable[int] = SIMULATED,
) -> Outcome:
    """The spectral radius and the error of ST-GT, plain and adjoint, on directed graphs as γτL grows; claims D1 to D8.

    It is exact at every γτL of the grid. The indices `simulated` are also simulated, from x*.
    """
    names = [check_choice(name, "graphs", GRAPHS) for name in graphs or GRAPHS]
    reaches, places = list(grid), set(simulated)
    problem = {"name": "ridge", "n": n, "p": p, "mu": MU, "scale": "sqrt_p", "noise": 0.1, "seed": 0}
    L = build_run(_run({"name": "ring"}, "plain", 1.0, problem)).problem.L or np.nan

    def over_grid(graph: dict[str, Any], form: str, rounds: int = 0) -> list[RunSpec]:
        sizes = [{"rounds": rounds if i in places else 0, "seeds": seeds} for i in range(len(reaches))]
        gammas = [reach / (TAU * L) for reach in reaches]
        return [_run(graph, form, gamma, problem, **size) for gamma, size in zip(gammas, sizes, strict=True)]

    runs = {(graph, form): over_grid(GRAPHS[graph], form, rounds) for graph in names for form in FORMS}
    runs["complete", "plain"] = over_grid({"name": "complete"}, "plain")

    def study(group: list[RunSpec], tick: Progress) -> list[Point]:
        points = []
        for run, reach in zip(group, reaches, strict=True):
            points.append(_point(run, reach))
            tick(len(points), len(group))
        return points

    ticks = split_progress(progress, [len(reaches)] * len(runs))
    studied = dict(zip(runs, parallel_map(study, runs.values(), ticks, at_once=AT_ONCE), strict=True))
    limits = dict(zip(runs, parallel_map(_limit, studied.values(), at_once=AT_ONCE), strict=True))
    best = np.array([point.exact.error for point in studied["complete", "plain"]])
    found: Found = {graph: {form: studied[graph, form] for form in FORMS} for graph in names}
    held = _held_twice(runs["complete", "plain"])
    rows = [
        _row(graph, form, point, error)
        for graph, by_form in found.items()
        for form, points in by_form.items()
        for point, error in zip(points, best, strict=True)
    ]
    spec = Spec(experiment="directed", runs=tuple(run for group in runs.values() for run in group))
    return Outcome(spec, rows, _claims(found, limits, held), _figures(found, best, held))


def widest_angle(topology: Topology) -> float:
    """The largest |arg(1 − λ)| in degrees over the eigenvalues λ ≠ 1: above 45 plain ST-GT is unstable at large γτL."""
    away = 1.0 - np.linalg.eigvals(topology.matrix(0))
    return float(np.degrees(np.abs(np.angle(away[np.abs(away) > 1e-9])).max()))


def _run(topology: dict[str, Any], form: str, gamma: float, problem: dict[str, Any], **size: int) -> RunSpec:
    """A run; with 0 rounds it is only predicted."""
    algorithm = {"name": "STGT", "gamma": gamma, "tau": TAU, "adjoint": FORMS[form]}
    parts = {"algorithm": algorithm, "problem": problem, "topology": topology}
    return RunSpec.model_validate({"label": form, **parts, "x0": "optimum", "rounds": 0, **size})


def _point(run: RunSpec, reach: float) -> Point:
    simulated = simulate_run(run) if run.rounds else None
    exact = predict(build_run(run)) if simulated is None else simulated.predicted
    assert exact is not None
    return Point(run, reach, exact, simulated)


def _limit(points: list[Point]) -> float | None:
    """The γτL at which a form becomes unstable; None if it does not on the grid."""
    above = next((point for point in points if not point.exact.stable), None)
    if above is None:
        return None
    made, gamma = build_run(above.run), above.run.algorithm.arguments["gamma"]
    where = as_matrices(made.topology)
    limit = theory.largest_stable_stepsize(made.algorithm, made.problem, where, below=gamma, precision=0.03)
    return above.reach * limit / gamma


def _held_twice(runs: list[RunSpec]) -> list[float]:
    """The spectral radii on the one-peer schedule with every matrix used for two rounds."""
    problem = build_run(runs[0]).problem
    peers = one_peer_exponential(problem.n)
    schedule = sequence([peers.matrix(r // 2) for r in range(2 * (peers.period or 1))])
    return [theory.spectral_radius(build_run(run).algorithm, problem, schedule) for run in runs]


def _claims(found: Found, limits: Limits, held: list[float]) -> list[Claim]:
    static = {graph: by for graph, by in found.items() if build_run(by["plain"][0].run).topology.period == 1}
    moving = {graph: by for graph, by in found.items() if graph not in static}
    judged = [
        ("D1", *_plain_unstable(found, limits)),
        ("D2", "With adjoint tracking, ST-GT is stable on every static graph.", *_stable(static, limits)),
        ("D3", "With adjoint tracking, ST-GT is also stable on the one-peer schedule.", *_stable(moving, limits)),
        ("D4", *_error(found)),
        ("D5", *_rate(found)),
        ("D6", *_angle(static)),
        ("D7", *_simulated(found)),
        ("D8", *_twice(held)),
    ]
    picture = {"D4": "directed-error.png", "D7": "directed-error.png"}
    return [Claim(id, claim, "", bool(holds), of, picture.get(id, "directed.png")) for id, claim, holds, of in judged]


def _plain_unstable(found: Found, limits: Limits) -> Judged:
    sparse = [graph for graph in found if graph in SPARSE]
    holds = all(not found[graph]["plain"][-1].exact.stable for graph in sparse)
    words = f"Plain ST-GT becomes unstable as γτL grows on {', '.join(sparse)}."
    return words, holds, {graph: _stability(found[graph]["plain"], limits[graph, "plain"]) for graph in sparse}


def _stable(found: Found, limits: Limits) -> tuple[bool, dict[str, Any]]:
    holds = all(point.exact.stable for by in found.values() for point in by["adjoint"])
    figures = {
        graph: {form: _stability(points, limits[graph, form]) for form, points in by.items()}
        for graph, by in found.items()
    }
    return holds, figures


def _stability(points: list[Point], limit: float | None) -> dict[str, Any]:
    return {"unstable above γτL": limit, "largest radius": max(point.exact.radius for point in points)}


def _error(found: Found) -> Judged:
    """The ratio of the adjoint form's error and disagreement to the plain form's, over the grid."""
    figures = {}
    for graph, by in found.items():
        both = [(a.exact, b.exact) for a, b in zip(*by.values(), strict=True) if a.exact.stable and b.exact.stable]
        if both:
            error, apart = ([b[k] / a[k] for a, b in both] for k in (1, 2))
            figures[graph] = {"error": [min(error), max(error)], "disagreement": [min(apart), max(apart)]}
    holds = all(one["error"][1] <= LARGER for one in figures.values())
    words = "If both are stable, the adjoint form's error is nowhere more than 1 % above the plain form's."
    return words, holds, {"adjoint/plain, least and most": figures}


def _rate(found: Found) -> Judged:
    """The smallest ratio over the grid of 1 − radius of the adjoint form to the plain form's; negative if unstable."""
    figures = {}
    for graph, by in found.items():
        both = [(a, b) for a, b in zip(*by.values(), strict=True) if a.exact.stable]
        if both:
            ratio, reach = min(((1 - b.exact.radius) / (1 - a.exact.radius), a.reach) for a, b in both)
            figures[graph] = {"adjoint/plain rate, least": ratio, "at γτL": reach}
    holds = all(one["adjoint/plain rate, least"] >= SLOWER for one in figures.values())
    return "If the plain form is stable, the adjoint form is also stable, and nowhere slower.", holds, figures


def _angle(static: Found) -> Judged:
    figures = {}
    for graph, by in static.items():
        last = by["plain"][-1]
        angle = widest_angle(build_run(last.run).topology)
        figures[graph] = {"|arg(1 − λ)|": angle, "radius": last.exact.radius, "stable": last.exact.stable}
    holds = all((one["|arg(1 − λ)|"] > 45) != one["stable"] for one in figures.values())
    words = "At the largest γτL, plain ST-GT is unstable exactly if some |arg(1 − λ)| > 45°."
    return words, holds, figures


def _simulated(found: Found) -> Judged:
    """Runs must grow if their radius is clearly above 1; else their 99.9 % interval must contain the exact error."""
    figures, right = {}, []
    runs = [(graph, form, point) for graph, by in found.items() for form, of in by.items() for point in of]
    for graph, form, point in runs:
        if point.simulated is None:
            continue
        numbers = {"radius": point.exact.radius, "growth": finite(point.growth)}
        if point.exact.stable:
            found_at = error_interval(point.simulated.errors / point.exact.error, 0.999)
            numbers |= dict(zip(("simulated/exact", "low", "high"), map(finite, found_at), strict=True))
            right.append(found_at[1] <= 1 <= found_at[2])
        elif point.exact.radius**point.run.rounds > GROWN**2:
            right.append(point.growth > GROWN)
        figures[f"{graph}, {form}, γτL = {point.reach:.3g}"] = numbers
    words = "Simulated runs grow if the radius is above 1, and have the exact error if it is below 1."
    return words, bool(right) and all(right), figures


def _twice(held: list[float]) -> Judged:
    words = "Plain ST-GT is stable on the one-peer schedule at every γτL if each matrix is used for two rounds."
    return words, max(held) < 1, {"radii": held}


def _row(graph: str, form: str, point: Point, best: float) -> dict[str, Any]:
    row = {
        "graph": graph,
        "form": form,
        "gamma": build_run(point.run).algorithm.gamma,
        "tau": TAU,
        "gamma_tau_L": point.reach,
        "radius": point.exact.radius,
        "exact": finite(point.exact.error),
        "exact_consensus": finite(point.exact.consensus),
        "exact_complete": best,
        "rounds": point.run.rounds,
    }
    if point.simulated is not None:
        found = error_interval(point.simulated.errors)
        row |= dict(zip(("error", "low", "high"), map(finite, found), strict=True))
        lost = [at for at in lost_at(point.simulated.trace.residual).tolist() if at >= 0]
        row |= {"diverged": len(lost), "diverged_at": min(lost, default=None), "growth": finite(point.growth)}
    return row


def _figures(found: Found, best: np.ndarray, held: list[float]) -> list[Figure]:
    radii, errors = [], []
    for graph, by in found.items():
        x = np.array([point.reach for point in by["plain"]])
        lines = [
            Line(form, x, np.array([point.exact.radius for point in points]), style=i, marked=True)
            for i, (form, points) in enumerate(by.items())
        ]
        if graph == "one-peer":
            lines.append(Line("plain, each matrix twice", x, np.array(held), style=2, marked=True))
        radii.append(
            Panel(
                graph, "γτL", "spectral radius", tuple(lines), xlog=True, ylog=False, levels={"limit of stability": 1.0}
            )
        )
        lines = [line for form, points in by.items() for line in _error_lines(form, points, best)]
        errors.append(Panel(graph, "γτL", "E‖x̄ − x*‖² / that for W = J", tuple(lines), xlog=True, ylog=False, ymax=1.5))
    titles = ("ST-GT, exact", "ST-GT: exact if stable (lines) and simulated (bars)")
    return [
        Figure(name, tuple(panels), columns=4, title=title, shared=False)
        for name, panels, title in zip(("directed", "directed-error"), (radii, errors), titles, strict=True)
    ]


def _error_lines(form: str, points: list[Point], best: np.ndarray) -> list[Line]:
    """Exact and simulated errors, and marks for an unstable form, all as multiples of `best`."""
    style = list(FORMS).index(form)
    x = np.array([point.reach for point in points])
    exact = np.array([point.exact.error for point in points]) / best
    stable = np.isfinite(exact)
    seen = np.full((3, len(points)), np.nan)
    for i, point in enumerate(points):
        if point.simulated is not None and point.exact.stable:
            seen[:, i] = error_interval(point.simulated.errors / best[i])
    low = np.where(stable, np.nan, UNSTABLE_AT[style])
    return [
        Line(form, x, np.where(stable, exact, np.nan), style=style),
        Line("", x, *seen, style=style, marked=True, joined=False),
        Line(f"{form} unstable", x, low, style=3 + style, marked=True, joined=False),
    ]
