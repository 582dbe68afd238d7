"""The paper's two figures on ridge regression, under every reading: `convergence` and `local-updates`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stgt.engines.trace import MEANING
from stgt.experiments.outcome import Claim, Outcome, finite
from stgt.experiments.readings import Reading, choose_readings
from stgt.experiments.simulated import TIE, SimulatedRun, lower, simulate_runs
from stgt.experiments.spec import RunSpec, Spec
from stgt.progress import Progress
from stgt.report import Figure, Panel, long_band
from stgt.theory import fit_power_law

SAMPLED = (4, 16)
TAU = 50
TAUS = (25, 50, 100)
METHODS = ("ST-GT", "FlexGT", "Scaffold")
ALMOST = 0.15  # how far from −1 an exponent may be to be called almost linear


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
        panels = []
        for s, of in by_s.items():
            lines = tuple(
                long_band(label, one.trace, style=i, backdrop=label == "centralised")
                for i, (label, one) in enumerate(of.items())
            )
            title = f"s = {s} workers, or {of['ST-GT'].made.topology.degree} neighbours"
            exact = of["ST-GT"].exact
            levels = {"ST-GT in the long run, exact": exact} if exact is not None and np.isfinite(exact) else {}
            axes = {"xlog": True, "levels": levels, "ymax": _frame(of)}
            panels.append(Panel(title, "communication round", MEANING["residual"], lines, **axes))
            for one in of.values():
                rows += one.rows(s=s)
                curves += one.curve_rows(s=s)
        figures.append(Figure(name, tuple(panels), title=f"{reading.name}: {reading.words}"))
        claims += _convergence_claims(reading, by_s, f"{name}.png")
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
        panels, exponents = [], {}
        for s in SAMPLED:
            of = found[reading.name, s]
            graph = next(iter(of.values())).made.topology.name
            lines = tuple(long_band(label, one.trace, style=i) for i, (label, one) in enumerate(of.items()))
            panels.append(Panel(graph, "communication round", MEANING["residual"], lines, xlog=True))
            exponents[graph] = _exponent(list(of.values()))
            for one in of.values():
                rows += one.rows()
                curves += one.curve_rows(graph=graph)
        figures.append(Figure(name, tuple(panels), title=f"{reading.name}: {reading.words}"))
        claims.append(_claim_4(reading, exponents, f"{name}.png"))
    spec = Spec(experiment="local-updates", runs=tuple(run for group in runs.values() for run in group))
    return Outcome(spec, rows, claims, figures, curves)


def _frame(of: dict[str, SimulatedRun]) -> float | None:
    """A top for the axis that shows the bounded curves well, whatever others do."""
    bounded = [float(one.errors.max()) for one in of.values() if not one.growing]
    return 300 * max(bounded) if bounded else None


def _convergence_runs(reading: Reading, s: int, graph: Any, rounds: int, seeds: int) -> list[RunSpec]:
    hyper = {"gamma": reading.gamma(TAU), "tau": TAU}
    size = {"rounds": rounds, "seeds": seeds}
    return [
        reading.run("ST-GT", {"name": "STGT", **hyper}, graph, **size),
        reading.run("FlexGT", {"name": "FlexGT", "snapshot": reading.snapshot, **hyper}, graph, **size),
        reading.run("Scaffold", {"name": "Scaffold", **hyper}, {"name": "server", "sampled": s}, **size),
        reading.run("centralised", {"name": "STGT", **hyper}, {"name": "complete"}, **size),
    ]


def _grouped(groups: Sequence[Sequence[RunSpec]], progress: Progress | None) -> list[dict[str, SimulatedRun]]:
    """All runs, by label within their group."""
    found = iter(simulate_runs([run for group in groups for run in group], progress))
    return [{run.label: next(found) for run in group} for group in groups]


def _convergence_claims(reading: Reading, by_s: dict[int, dict[str, SimulatedRun]], picture: str) -> list[Claim]:
    figures = {f"s={s}": {label: one.summary() for label, one in of.items()} for s, of in by_s.items()}
    lowest = all(lower(of["ST-GT"], of[other]) for of in by_s.values() for other in METHODS[1:])
    below = all(lower(of["Scaffold"], of["FlexGT"]) for of in by_s.values())
    spreads = [_spread(of) for of in by_s.values()]
    few, many = (np.array([_distance(of, method) for method in METHODS]) for of in by_s.values())
    closer = np.isfinite(many).all() and (many <= few).all() and spreads[1] < spreads[0]
    words = (
        ("C1", "ST-GT has the lowest steady-state error of the three, for s = 4 and s = 16.", lowest),
        ("C2", "Scaffold's steady-state error lies below FlexGT's, for s = 4 and s = 16.", below),
        (
            "C3",
            "From s = 4 to s = 16 every method comes closer to the centralised error, and the three to each other.",
            closer,
        ),
    )
    spread = {f"largest/smallest error, s={s}": finite(value) for s, value in zip(SAMPLED, spreads, strict=True)}
    return [
        Claim(id, claim, reading.name, bool(holds), figures if id != "C3" else {**figures, **spread}, picture)
        for id, claim, holds in words
    ]


def _distance(of: dict[str, SimulatedRun], method: str) -> float:
    """How far the method's error is from the centralised one, in logarithms; a tie is a tie."""
    return max(TIE, abs(float(np.log(of[method].level / of["centralised"].level))))


def _spread(of: dict[str, SimulatedRun]) -> float:
    errors = [of[method].level for method in METHODS]
    return float(max(errors) / min(errors)) if np.isfinite(errors).all() else np.inf


def _exponent(of: list[SimulatedRun]) -> dict[str, Any]:
    """The exponent of the error in τ, from the exact errors; the simulated ones with their interval beside it."""
    found: dict[str, Any] = {one.run.label: one.summary() for one in of}
    if any(one.growing for one in of):
        return {**found, "exponent": None}
    simulated = fit_power_law(TAUS, np.transpose([one.errors for one in of]))
    return {
        **found,
        "exponent": fit_power_law(TAUS, [one.level for one in of]).value,
        "simulated exponent": simulated.value,
        "low": simulated.low,
        "high": simulated.high,
    }


def _claim_4(reading: Reading, exponents: dict[str, Any], picture: str) -> Claim:
    slopes = [found["exponent"] for found in exponents.values()]
    holds = all(slope is not None and abs(slope + 1) <= ALMOST for slope in slopes)
    words = f"ST-GT's steady-state error falls almost linearly in τ: its exponent is within {ALMOST} of −1."
    return Claim("C4", words, reading.name, holds, exponents, picture)
