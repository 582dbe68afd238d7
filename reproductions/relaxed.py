"""Relaxed ST-GT and LED, which sends one vector per round: their stability and their errors. `relaxed`.

The exact part is `relaxed_exact`, the part with data `relaxed_a9a`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproductions.outcome import Outcome
from reproductions.relaxed_a9a import a9a_claims, a9a_curves, a9a_figures, a9a_grids, a9a_rows
from reproductions.relaxed_exact import METHODS, Point, Points, exact_claims, exact_points, exact_rows
from stgt.study import Progress, Spec, split_progress
from stgt.study.report import Figure, Line, Panel

DATA = "a9a"
STYLES = dict(zip(METHODS, (0, 4, 6, 3, 5, 1, 2), strict=True))
UNSTABLE = 1e5  # the height of the marks for unstable methods in a panel of rounds
SHOWN = 3e4  # a method that needs more rounds for an e-fold is not drawn


def relaxed(
    data_dir: Path | None = None,
    progress: Progress | None = None,
    exact: dict[str, Any] | None = None,
    a9a: dict[str, Any] | None = None,
) -> Outcome:
    """ST-GT and LED with β from 1 to ¼: exact radii and errors over γτL, and runs on a9a; claims X1 to X17.

    `exact` and `a9a` are options of `exact_points` and of `a9a_grids`.
    """
    first, second = split_progress(progress, [1.0, 2.0])
    points, predicted = exact_points(first, **(exact or {}))
    found, runs = a9a_grids(data_dir, second, **(a9a or {}))
    return outcome_of(points, found, (*predicted, *runs))


def outcome_of(points: Points, found: dict[str, Any], runs: tuple[Any, ...]) -> Outcome:
    """The outcome of the exact points and of the runs on a9a together."""
    draws = max((one.draw for one in points), default=0) + 1
    return Outcome(
        Spec(experiment="relaxed", options={"draws": draws}, runs=runs),
        [*exact_rows(points), *a9a_rows(found)],
        [*exact_claims(points), *(claim for name, grids in found.items() for claim in a9a_claims(name, grids))],
        [*exact_figures(points), *a9a_figures(found)],
        a9a_curves(found),
    )


def exact_figures(points: Points) -> list[Figure]:
    """Rounds for an e-fold, the error of the mean and the disagreement, over γτL; of drawn schedules, the first."""
    first = [one for one in points if one.draw == 0]
    graphs = dict.fromkeys(one.graph for one in first)
    rates, errors, apart = [], [], []
    for graph in graphs:
        by: dict[str, Points] = {}
        for one in first:
            if one.graph == graph:
                by.setdefault(one.method, []).append(one)
        rates.append(_rates(graph, by))
        errors.append(Panel(graph, "γτL", "E‖x̄ − x*‖² / γτL", _values(by, "error"), xlog=True, ylog=False))
        apart.append(Panel(graph, "γτL", "E‖X − 1x̄‖² / (γτL)²", _values(by, "consensus", power=2), xlog=True))
    note = "of graphs that are drawn once and repeated, the first draw is shown; over 30,000 rounds count as unstable"
    named = (
        ("relaxed-rate", rates, "Exact: rounds to shrink the distance by e"),
        ("relaxed-error", errors, "Exact: steady-state error of the mean, if stable"),
        ("relaxed-consensus", apart, "Exact: steady-state disagreement, if stable"),
    )
    return [
        Figure(name, tuple(panels), columns=4, title=title, shared=False, notes=(note,))
        for name, panels, title in named
    ]


def _rates(graph: str, by: dict[str, Points]) -> Panel:
    lines = []
    for i, (method, of) in enumerate(by.items()):
        x, y = (np.array([value(one) for one in of]) for value in (lambda one: one.reach, lambda one: one.rounds))
        seen = np.isfinite(y) & (y <= SHOWN)
        lines.append(Line(method, x, np.where(seen, y, np.nan), style=STYLES[method], marked=True))
        if not seen.all():
            height = np.where(seen, np.nan, UNSTABLE * 1.7**i)
            lines.append(Line("", x, height, style=STYLES[method], marked=True, joined=False))
    lost = any(not one.stable or one.rounds > SHOWN for of in by.values() for one in of)
    levels = {"above: unstable, or over 30,000 rounds": UNSTABLE / 1.7} if lost else {}
    return Panel(graph, "γτL", "rounds for an e-fold", tuple(lines), xlog=True, levels=levels)


def _values(by: dict[str, Points], what: str, power: int = 1) -> tuple[Line, ...]:
    def value(one: Point) -> float:
        return getattr(one, what) / one.reach**power if one.rounds <= SHOWN else np.nan

    return tuple(
        Line(
            method,
            np.array([one.reach for one in of]),
            np.array([value(one) for one in of]),
            style=STYLES[method],
            marked=True,
        )
        for method, of in by.items()
    )
