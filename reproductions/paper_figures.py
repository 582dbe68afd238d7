"""The paper's two figures on ridge regression, under every reading: `convergence` and `local-updates`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reproductions.outcome import Outcome
from reproductions.paper_claims import Runs, convergence_claims, local_updates_claim
from reproductions.paper_panels import convergence_figure, costs_figure, local_updates_figure
from reproductions.readings import Reading, choose_readings
from reproductions.simulated import simulate_runs
from stgt._internal.progress import Progress
from stgt.study.spec.runs import RunSpec, Spec

SAMPLED = (4, 16)
TAU = 50
TAUS = (25, 50, 100)


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
        figures.append(convergence_figure(name, reading, by_s, TAU))
        costs = costs_figure(f"convergence-costs-{reading.name}", reading, by_s, TAU)
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
        figures.append(local_updates_figure(name, reading, by_graph))
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
    """All runs, by label within their group."""
    found = iter(simulate_runs([run for group in groups for run in group], progress))
    return [{run.label: next(found) for run in group} for group in groups]
