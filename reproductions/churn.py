"""Members that change: the error of the members, with and without a repair after crashes. `churn`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproductions.outcome import Claim, Outcome, TableRow, finite
from stgt import topology
from stgt.simulator import ChurnTrace, random_churn, simulate_churn
from stgt.study import Progress, RunSpec, Spec, build_run, error_interval, mean_interval, parallel_map, split_progress
from stgt.study.report import Figure, Line, Panel

NODES, DIMENSION, TAU, GAMMA, NOISE = 16, 5, 5, 0.1, 1e-3
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
PER, AWAY = 100, 10  # the share of lost members is per PER rounds; a replacement joins after AWAY rounds
ROUNDS, QUIET = 200, 60  # rounds with changes, and rounds without at the end
EVERY = 5  # rounds between two measurements
AT_ONCE = 2  # runs in parallel
CLOSE = 2.0  # up to this factor, an error counts as about that without churn
GRAPHS = {"exponential": topology.exponential, "complete": topology.complete}
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "ST-GT": ({"name": "STGT"}, "exponential"),
    "LED": ({"name": "LED", "beta": 0.25}, "exponential"),
    "D-PSGD": ({"name": "DPSGD", "atc": True}, "exponential"),
    "DiLoCo": ({"name": "DiLoCo", "lr": 0.7, "momentum": 0.6}, "complete"),
}
TRACKERS, OTHERS = ("ST-GT", "LED"), ("D-PSGD", "DiLoCo")
REPAIRED, LOST = "repaired", "not repaired"
KINDS = {REPAIRED: "projection", LOST: "none"}
AFTER, DURING = "after", "during"
Key = tuple[str, str]  # the method, and the repair after a crash


@dataclass(frozen=True, eq=False)
class Churned:
    """A method at a rate: its errors over the seeds, each of which has other changes.

    Attributes:
        traces: one for each seed.
        quiet: the round from which on the members do not change.
    """

    traces: list[ChurnTrace]
    quiet: int

    def errors(self, when: str) -> np.ndarray:
        """‖x̄ − x*‖² over the members, for each seed: the mean over the second half of the rounds with churn, or of the
        rounds after it; infinite if it diverged."""
        found = []
        for trace in self.traces:
            first, last = (self.quiet, trace.rounds[-1]) if when == AFTER else (0, self.quiet - 1)
            some = ((first + last) / 2 <= trace.rounds) & (trace.rounds <= last)
            found.append(np.inf if trace.diverged_at[0] >= 0 else trace.residual[0, some].mean())
        return np.array(found)


Found = dict[Key, dict[float, Churned]]  # by rate
Errors = dict[Key, dict[float, np.ndarray]]  # one for each seed


def churn(
    progress: Progress | None = None,
    rates: Iterable[float] = RATES,
    rounds: int = ROUNDS,
    quiet: int = QUIET,
    seeds: int = 6,
    n: int = NODES,
    p: int = DIMENSION,
    engine: str = "jax",
) -> Outcome:
    """ST-GT, LED, D-PSGD and DiLoCo while a share `rate` of the members is lost in every 100 rounds; claims N1 to N5.

    Half of the lost members crash, half leave cleanly. After ten rounds another node with the same data joins. `rounds`
    such rounds are followed by `quiet` rounds without changes. A seed decides the changes and the noise.
    """
    rates = tuple(sorted({0.0, *rates}))
    specs = {method: _run(method, rounds + quiet, seeds, n, p) for method in METHODS}
    keys: list[Key] = [(method, kind) for method in METHODS for kind in (KINDS if method in TRACKERS else (REPAIRED,))]
    # Without changes there is nothing to repair.
    cases = [(key, rate) for key in keys for rate in rates if rate > 0 or key[1] == REPAIRED]

    def study(case: tuple[Key, float], tick: Progress) -> Churned:
        (method, kind), rate = case
        made, graph = build_run(specs[method]), GRAPHS[METHODS[method][1]]
        traces = []
        for seed in range(seeds):
            changes = random_churn(n, rate, rounds, seed, per=PER, away=AWAY)
            parts = made.algorithm, made.problem, graph, rounds + quiet, [seed]
            options = {"metrics": ["residual"], "every": EVERY, "dtype": "float64", "engine": engine}
            traces.append(simulate_churn(*parts, changes=changes, repair=KINDS[kind], **options))
            tick(seed + 1, seeds)
        return Churned(traces, rounds)

    ticks = split_progress(progress, [1.0] * len(cases))
    found: Found = {}
    for (key, rate), one in zip(cases, parallel_map(study, cases, ticks, at_once=AT_ONCE), strict=True):
        found.setdefault(key, {})[rate] = one
    for method in TRACKERS:
        found[method, LOST] = {0.0: found[method, REPAIRED][0.0], **found[method, LOST]}
    options = {"rates": list(rates), "rounds": rounds, "quiet": quiet, "per": PER, "away": AWAY}
    return Outcome(
        Spec(experiment="churn", options=options, runs=tuple(specs.values())),
        [row for key, by in found.items() for rate, one in by.items() for row in _rows(key, rate, one)],
        _claims(found),
        [_figure(found, rounds, quiet)],
    )


def _run(method: str, rounds: int, seeds: int, n: int, p: int) -> RunSpec:
    algorithm, graph = METHODS[method]
    return RunSpec.model_validate(
        {
            "label": method,
            "algorithm": {**algorithm, "gamma": GAMMA, "tau": TAU},
            "problem": {"name": "ridge", "n": n, "p": p, "mu": 0.5, "scale": "sqrt_p", "noise": NOISE, "seed": 0},
            "topology": {"name": graph},
            "rounds": rounds,
            "seeds": seeds,
        }
    )


def _rows(key: Key, rate: float, one: Churned) -> list[TableRow]:
    """A row for each seed."""
    method, kind = key
    errors = {when: one.errors(when) for when in (AFTER, DURING)}
    return [
        {
            "method": method,
            "form": kind if method in TRACKERS else "",
            "graph": METHODS[method][1],
            "gamma": GAMMA,
            "tau": TAU,
            "rate": rate,
            "seed": trace.seeds[0],
            "changes": len(trace.changes),
            "members": int(trace.members[-1].sum()),
            **{f"error {when}": finite(errors[when][i]) for when in errors},
            "diverged_at": int(trace.diverged_at[0]) if trace.diverged_at[0] >= 0 else None,
        }
        for i, trace in enumerate(one.traces)
    ]


def _claims(found: Found) -> list[Claim]:
    errors = {
        when: {key: {rate: one.errors(when) for rate, one in by.items()} for key, by in found.items()}
        for when in (AFTER, DURING)
    }
    after, during = errors[AFTER], errors[DURING]
    rates = list(next(iter(after.values())))
    twice = {method: CLOSE * after[method, REPAIRED][0.0].mean() for method in TRACKERS}
    judged = (
        (
            "N1",
            "With repair, ST-GT's and LED's error after the churn is at most twice that without churn, at every rate.",
            all(after[method, REPAIRED][rate].mean() <= twice[method] for method in TRACKERS for rate in rates),
            after,
        ),
        (
            "N2",
            "Without repair, it is more than twice that without churn, at every rate above 0.",
            all(after[method, LOST][rate].mean() > twice[method] for method in TRACKERS for rate in rates[1:]),
            after,
        ),
        (
            "N3",
            "After the churn, ST-GT and LED with repair are below D-PSGD and DiLoCo at every rate.",
            _below(after, REPAIRED, rates),
            after,
        ),
        (
            "N4",
            "During the churn, ST-GT and LED with repair are below D-PSGD and DiLoCo at every rate.",
            _below(during, REPAIRED, rates),
            during,
        ),
        (
            "N5",
            "Even without repair, ST-GT and LED are below D-PSGD and DiLoCo at every rate after the churn.",
            _below(after, LOST, rates),
            after,
        ),
    )
    return [
        Claim(id, words, "", bool(holds), {_name(key): _means(by) for key, by in figures.items()}, "churn.png")
        for id, words, holds, figures in judged
    ]


def _below(errors: Errors, kind: str, rates: list[float]) -> bool:
    """By more than the 95 % interval of the difference, seed by seed: all methods have the same changes."""
    return all(
        mean_interval(errors[other, REPAIRED][rate] - errors[method, kind][rate])[1] > 0
        for method in TRACKERS
        for other in OTHERS
        for rate in rates
    )


def _means(by: dict[float, np.ndarray]) -> dict[str, float | None]:
    return {f"{rate:g}": finite(values.mean()) for rate, values in by.items()}


def _name(key: Key) -> str:
    method, kind = key
    return f"{method}, {kind}" if method in TRACKERS else method


def _figure(found: Found, rounds: int, quiet: int) -> Figure:
    titles = {
        AFTER: f"after {quiet // 2} to {quiet} rounds without changes",
        DURING: f"during the churn, rounds {rounds // 2} to {rounds}",
    }
    panels = []
    for when, title in titles.items():
        lines = []
        for style, (key, by) in enumerate(found.items()):
            ends = np.array([error_interval(one.errors(when)) for one in by.values()]).T
            lines.append(Line(_name(key), 100 * np.array(list(by)), *ends, style=style, marked=True))
        panels.append(Panel(title, "members lost per 100 rounds, %", "‖x̄ − x*‖², over the members", tuple(lines)))
    title = "Ridge regression; half of the lost nodes crash, half leave cleanly"
    return Figure("churn", tuple(panels), title=title, notes=("ST-GT's and LED's curves nearly coincide.",))
