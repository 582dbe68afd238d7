"""The paper's two figures on ridge regression, under every reading: `convergence` and `local-updates`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reproductions.outcome import Outcome
from reproductions.paper_claims import METHODS, Runs, convergence_claims, local_updates_claim
from reproductions.readings import NODES, Reading, choose_readings
from reproductions.simulated import SimulatedRun, first_rounds, simulate_runs
from stgt.simulator import METRICS
from stgt.study import Progress, RunSpec, Spec
from stgt.study.report import Figure, Line, Panel, long_band

SAMPLED = (4, 16)
TAU = 50
TAUS = (25, 50, 100)
ERROR = METRICS["residual"].formula
EXACT = "Dotted lines in a curve's colour: its exact steady-state error."
DIVERGES = (
    "No run stays finite. These are the first rounds of one seed in double precision, while errors are below 1e200."
)
SHOWN_UP_TO = 1e200  # the largest error shown of a diverging run: the ticks of a higher axis overflow
OVER = {
    "rounds": "communication round",
    "gradients": "gradients computed per node",
    "floats": "floats sent per node",
}


def convergence(
    readings: Iterable[str] | None = None, progress: Progress | None = None, rounds: int = 700, seeds: int = 20
) -> Outcome:
    """ST-GT, FlexGT and Scaffold with s = 4 and s = 16, and the centralised line (W = J); claims C1 to C3."""
    chosen = choose_readings(readings)
    runs = {
        (reading.name, s): _convergence_runs(reading, s, graph, rounds, seeds)
        for reading in chosen
        for s, graph in zip(SAMPLED, reading.graphs, strict=True)
    }
    found = dict(zip(runs, _grouped(list(runs.values()), progress), strict=True))
    rows, curves, claims, figures = [], [], [], []
    for reading in chosen:
        name = f"convergence-{reading.name}"
        by_s = {s: found[reading.name, s] for s in SAMPLED}
        for s, of in by_s.items():
            for one in of.values():
                rows += one.rows(s=s)
                curves += one.curve_rows(s=s)
        figures.append(_convergence_figure(name, reading, by_s, TAU))
        costs = _costs_figure(f"convergence-costs-{reading.name}", reading, by_s, TAU)
        figures += [] if costs is None else [costs]
        claims += convergence_claims(reading, by_s, f"{name}.png")
    spec = Spec(experiment="convergence", runs=tuple(run for group in runs.values() for run in group))
    return Outcome(spec, rows, claims, figures, curves)


def local_updates(
    readings: Iterable[str] | None = None, progress: Progress | None = None, rounds: int = 700, seeds: int = 20
) -> Outcome:
    """ST-GT with τ = 25, 50, 100 and γτ fixed, on both graphs; claim C4."""
    chosen = choose_readings(readings)
    runs = {
        (reading.name, which): [
            reading.run(
                f"τ = {tau}",
                {"name": "STGT", "gamma": reading.gamma(tau), "tau": tau},
                graph,
                rounds=rounds,
                seeds=seeds,
            )
            for tau in TAUS
        ]
        for reading in chosen
        for which, graph in zip(SAMPLED, reading.graphs, strict=True)
    }
    found = dict(zip(runs, _grouped(list(runs.values()), progress), strict=True))
    rows, curves, claims, figures = [], [], [], []
    for reading in chosen:
        name = f"local-updates-{reading.name}"
        groups = [found[reading.name, s] for s in SAMPLED]
        by_graph = {next(iter(of.values())).made.topology.name: of for of in groups}
        for graph, of in by_graph.items():
            for one in of.values():
                rows += one.rows()
                curves += one.curve_rows(graph=graph)
        figures.append(_local_updates_figure(name, reading, by_graph))
        claims.append(local_updates_claim(reading, by_graph, f"{name}.png"))
    spec = Spec(experiment="local-updates", runs=tuple(run for group in runs.values() for run in group))
    return Outcome(spec, rows, claims, figures, curves)


def _convergence_runs(reading: Reading, s: int, graph: Any, rounds: int, seeds: int) -> list[RunSpec]:
    hyper = {"gamma": reading.gamma(TAU), "tau": TAU}
    size = {"rounds": rounds, "seeds": seeds}
    return [
        reading.run("ST-GT", {"name": "STGT", **hyper}, graph, **size),
        reading.run("FlexGT", {"name": "FlexGT", "snapshot": reading.snapshot, **hyper}, graph, **size),
        reading.run("Scaffold", {"name": "Scaffold", **hyper}, {"name": "server", "sampled": s}, **size),
        reading.run("centralised", {"name": "STGT", **hyper}, {"name": "complete"}, **size),
    ]


def _grouped(groups: Sequence[Sequence[RunSpec]], progress: Progress | None) -> list[Runs]:
    """All runs, by group and label."""
    found = iter(simulate_runs([run for group in groups for run in group], progress))
    return [{run.label: next(found) for run in group} for group in groups]


# -- pictures ----------------------------------------------------------------------------------------------------------


def _convergence_figure(name: str, reading: Reading, by_s: dict[int, Runs], tau: int) -> Figure:
    """The residual over the rounds, for each s: the paper's first figure."""
    panels, notes = [], []
    for s, of in by_s.items():
        neighbours = of["ST-GT"].made.topology.degree
        title = f"s = {s} of {NODES} workers, or {neighbours} neighbours"
        panels.append(_panel(title, of, {label: label for label in of}))
        notes += _unsettled(of, f"s = {s}")
    words = f"ST-GT, FlexGT and Scaffold on ridge regression, n = {NODES}, τ = {tau}, γ = {reading.gamma(tau):.4g}"
    return _noted(name, panels, words, reading, by_s, notes)


def _local_updates_figure(name: str, reading: Reading, by_graph: dict[str, Runs]) -> Figure:
    """The residual over the rounds for each τ, on both graphs: the paper's second figure."""
    panels, notes = [], []
    for of in by_graph.values():
        one = next(iter(of.values()))
        names = {label: f"{label}, γ = {run.made.algorithm.gamma:.4g}" for label, run in of.items()}
        neighbours = f"{one.made.topology.degree} neighbours"
        panels.append(_panel(neighbours, of, names))
        notes += _unsettled(of, neighbours)
    words = f"ST-GT with more local steps and proportionally smaller stepsizes, ridge regression, n = {NODES}"
    return _noted(name, panels, words, reading, by_graph, notes)


def _costs_figure(name: str, reading: Reading, by_s: dict[int, Runs], tau: int) -> Figure | None:
    """The same runs over rounds, over gradients and over floats; None if no run stays finite.

    In a round, Scaffold's s of n workers compute s/n of the gradients of the other methods.
    """
    if any(_diverges(of) for of in by_s.values()):
        return None
    panels = []
    for s, of in by_s.items():
        central = of["centralised"].level
        levels = {"centralised, at the steady state": central} if np.isfinite(central) else {}
        for over, words in OVER.items():
            lines = tuple(
                long_band(method, of[method].trace, over=over, per_node=True, style=i)
                for i, method in enumerate(METHODS)
            )
            panels.append(Panel(f"s = {s}", words, ERROR, lines, xlog=True, levels=levels, ymax=_frame(of)))
    words = f"The cost of an error: ridge regression, n = {NODES}, τ = {tau}, γ = {reading.gamma(tau):.4g}"
    return Figure(name, tuple(panels), columns=len(OVER), title=_title(words, reading))


def _noted(
    name: str, panels: list[Panel], words: str, reading: Reading, groups: dict[Any, Runs], notes: list[str]
) -> Figure:
    if all(_diverges(of) for of in groups.values()):
        notes = [DIVERGES, *notes]
    elif any(line.thin for panel in panels for line in panel.lines):
        notes = [EXACT, *notes]
    return Figure(name, tuple(panels), title=_title(words, reading), notes=tuple(notes))


def _title(words: str, reading: Reading) -> str:
    return f"{words}\nreading “{reading.name}”: {reading.words}"


def _panel(title: str, of: Runs, names: dict[str, str]) -> Panel:
    """Runs over rounds with their exact errors; if none stays finite, the rounds in which they diverge."""
    if _diverges(of):
        lines = tuple(_divergence(names[label], one, i) for i, (label, one) in enumerate(of.items()))
        return Panel(title, OVER["rounds"], ERROR, lines)
    lines = []
    for i, (label, one) in enumerate(of.items()):
        lines.append(long_band(names[label], one.trace, style=i, backdrop=label == "centralised"))
        if one.exact is not None and np.isfinite(one.exact) and label != "centralised":
            ends = np.array([0, one.trace.rounds])
            lines.append(Line("", ends, np.full(2, one.exact), style=i, thin=True))
    return Panel(title, OVER["rounds"], ERROR, tuple(lines), xlog=True, ymax=_frame(of))


def _divergence(label: str, one: SimulatedRun, style: int) -> Line:
    """The first rounds of a run's first seed in double precision."""
    error = first_rounds(one).residual[0]
    rounds = np.flatnonzero(error < SHOWN_UP_TO)
    return Line(label, rounds, error[rounds], style=style, marked=True, backdrop=label == "centralised")


def _diverges(of: Runs) -> bool:
    """Does every run diverge?"""
    return not any(np.isfinite(one.errors).any() for one in of.values())


def _unsettled(of: Runs, where: str) -> list[str]:
    """A sentence for each run that does not reach its steady state."""
    return [f"{label}, {where}: {_state(one)}." for label, one in of.items() if not one.settled and not _diverges(of)]


def _state(one: SimulatedRun) -> str:
    if not one.growing:
        exact = "" if one.exact is None else f"; the exact steady-state error is {one.exact:.3g}"
        return f"not at the steady state after {one.trace.rounds} rounds{exact}"
    return "diverges" + ("" if one.radius is None else f", spectral radius {one.radius:.6g}")


def _frame(of: Runs) -> float | None:
    """An upper limit of the axis that shows the bounded curves well, whatever the others do."""
    bounded = [max(float(one.errors.max()), one.level) for one in of.values() if not one.growing]
    return 300 * max(bounded) if bounded else None
