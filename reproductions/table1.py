"""The paper's Table 1, next to measured computation, communication and memory, and its rounds in numbers: `table1`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reproductions.outcome import Claim, Outcome
from reproductions.simulated import whole
from stgt.algorithms import Algorithm
from stgt.problems import Problem
from stgt.simulator import Trace, simulate
from stgt.study import BuiltRun, Progress, RunSpec, Spec, build_run
from stgt.study.report import Figure, Line, Panel
from stgt.testing import CountingModel
from stgt.theory import Complexity, Constants, Start, fit_power_law, table1_rounds
from stgt.topology import Topology

NODES, SAMPLES, DIMENSION, TAU, PERIOD, GAMMA = 4, 20, 3, 5, 10, 0.1
CONSTANTS = Constants(L=1.0, mu=0.05, sigma2=1.0, n=32, tau=10, rho=4 / 9, sampled=4, samples=100)
START = Start(residual=1.0, gap=1.0, consensus=0.0, tracking=32.0)  # f(x̄_0) − f* = 1 and C_0 = 1
EPSILON = 1e-3
GRAPH, SERVER = {"name": "exponential"}, {"name": "server"}
SMALL = 1e-12  # differences below this are rounding, for models of size 1
STYLES = {"ST-GT": 0, "FlexGT": 1, "Scaffold": 2, "K-GT": 3, "GT-SAGA": 4}


@dataclass(frozen=True)
class Method:
    """A method of Table 1. The paper's entries are text; m is the number of samples of a node.

    Attributes:
        label: as in the paper.
        algorithm, topology: the run.
        objectives: its rows: "SC" strongly convex, "NC" nonconvex.
        compute, communication, memory: as printed.
        buffers: the model-sized arrays that a node needs here, by name.
    """

    label: str
    algorithm: dict[str, Any]
    topology: dict[str, Any]
    objectives: tuple[str, ...]
    compute: str
    memory: str
    buffers: tuple[str, ...]
    communication: str = "2"


ROWS = (
    Method("Scaffold", {"name": "Scaffold", "tau": TAU}, SERVER, ("SC", "NC"), "1", "6", ("x_i", "x", "c − c_i", "g")),
    Method("FlexGT", {"name": "FlexGT", "tau": TAU}, GRAPH, ("SC",), "1", "4", ("x", "c", "g", "the round's first g")),
    Method("K-GT", {"name": "KGT", "tau": TAU}, GRAPH, ("NC",), "1", "5", ("x", "the round's start", "c", "g")),
    Method(
        "GT-SAGA", {"name": "GTSAGA"}, GRAPH, ("SC",), "1", "4 + m", ("x", "c", "v", "mean of the table", "m × table")
    ),
    Method("GT-SVRG", {"name": "GTSVRG", "period": PERIOD}, GRAPH, ("SC",), "m", "4", ("x", "c", "v", "x̃", "∇f_i(x̃)")),
    Method("ST-GT", {"name": "STGT", "tau": TAU}, GRAPH, ("SC", "NC"), "1", "5", ("x", "the round's start", "c", "g")),
)


@dataclass(frozen=True, eq=False)
class Counted:
    """The costs of a short run per node.

    Attributes:
        gradients: sample gradients per local step, counted in the model.
        initial: gradients before the first step.
        traced: gradients per step according to `trace["gradients"]`.
        vectors: models sent to a neighbour per round according to `trace["floats"]`; for a server up and down.
        kept: model-sized arrays that the method and its oracle keep from one step to the next, by name.
    """

    made: BuiltRun
    gradients: float
    initial: float
    traced: float
    vectors: float
    kept: dict[str, int]

    @property
    def buffers(self) -> float:
        """The buffers of a node according to `algorithm.cost`."""
        counts = self.made.problem.counts
        return self.made.algorithm.cost(None if counts is None else round(counts.mean())).buffers


def count(made: BuiltRun, period: int) -> Counted:
    """Runs two periods on the reference, which computes only the requested gradients, and counts in the second.

    All nodes must work in every round.
    """
    algorithm, problem, topology = made.objects
    n, p = problem.n, problem.p
    counts, traces = [], []
    for rounds in (0, period, 2 * period):
        model = CountingModel(problem.model)
        traces.append(reference(algorithm, replace(problem, model=model), topology, rounds))
        counts.append(model.count / n)
    steps, links = period * algorithm.tau, n * (1 if topology.has_server else topology.degree)
    last = traces[-1]
    arrays = last.state | last.run_state.memory
    return Counted(
        made=made,
        gradients=(counts[2] - counts[1]) / steps,
        initial=counts[0],
        traced=float(last["gradients"][0, -1] - last["gradients"][0, period]) / (n * steps),
        vectors=float(last["floats"][0, -1]) / (2 * period * links * p),
        kept={name: array.size // (n * p) for name, array in arrays.items()},
    )


def reference(algorithm: Algorithm, problem: Problem, topology: Topology, count: int) -> Trace:
    """A run of one seed on the NumPy engine, without measurements."""
    return whole(simulate(algorithm, problem, topology, count, engine="numpy", metrics=[]))


def table1(progress: Progress | None = None) -> Outcome:
    """Every row of Table 1: gradients, messages and buffers counted in a short run, and its rounds; B1 to B11."""
    rows, counted, runs = [], {}, []
    for done, row in enumerate(ROWS):
        run = _run(row.label, row.algorithm, row.topology)
        runs.append(run)
        counted[row.label] = count(build_run(run), PERIOD)
        rows += [_row(row, counted[row.label], objective) for objective in row.objectives]
        if progress is not None:
            progress(done + 1, len(ROWS))
    chosen = {key: getattr(CONSTANTS, key) for key in ("L", "mu", "sigma2", "n", "tau", "rho", "sampled", "samples")}
    options = {**chosen, "epsilon": EPSILON, "gap": START.gap, "tracking": START.tracking}
    spec = Spec(experiment="table1", options=options, runs=tuple(runs))
    return Outcome(spec, rows, _costs(counted) + _complexities(), [_figure()])


def _run(label: str, algorithm: dict[str, Any], topology: dict[str, Any], batch: int | None = 1) -> RunSpec:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NODES * SAMPLES, DIMENSION)).round(3)
    labels = np.where(features @ np.ones(DIMENSION) + rng.normal(size=len(features)) > 0, 1.0, -1.0)
    problem = {"name": "logistic", "features": features.tolist(), "labels": labels.tolist(), "n": NODES, "l2": 0.1}
    return RunSpec.model_validate(
        {
            "label": label,
            "algorithm": {**algorithm, "gamma": GAMMA},
            "problem": problem if batch is None else {**problem, "batch": batch},
            "topology": topology,
            "rounds": 2 * PERIOD,
            "seeds": 1,
        }
    )


def _row(row: Method, counted: Counted, objective: str) -> dict[str, Any]:
    cost = counted.made.algorithm.cost(SAMPLES)
    printed, corrected = (_rounds(row, objective, as_printed=flag) for flag in (True, False))
    return {
        "method": row.label,
        "graph": counted.made.topology.name,
        "objective": objective,
        "paper_gradients": row.compute,
        "gradients": counted.gradients,
        "gradients_traced": counted.traced,
        "gradients_once": counted.initial,
        "paper_vectors": row.communication,
        "up": cost.up if row.topology is SERVER else cost.vectors,
        "down": cost.down if row.topology is SERVER else cost.vectors,
        "vectors_traced": counted.vectors,
        "paper_buffers": row.memory,
        "buffers": counted.buffers,
        "buffers_named": ", ".join(row.buffers),
        "kept": ", ".join(name if size == 1 else f"{size} × {name}" for name, size in counted.kept.items()),
        "rounds_printed": printed.total,
        "rounds": corrected.total,
        "dominant": corrected.dominant,
        **{f"term: {name}": value for name, value in corrected.terms.items()},
    }


def _rounds(
    row: Method, objective: str, constants: Constants = CONSTANTS, epsilon: float = EPSILON, as_printed: bool = False
) -> Complexity:
    options: dict[str, Any] = {"start": START, "as_printed": as_printed}
    return table1_rounds(epsilon, constants, row.algorithm["name"], objective == "SC", **options)


def _costs(counted: dict[str, Counted]) -> list[Claim]:
    """The table's statements on memory, communication and computation."""
    buffers = {label: one.buffers for label, one in counted.items()}
    kept = {label: sum(one.kept.values()) for label, one in counted.items()}
    one_each = {label: counted[label].gradients for label in counted if label != "GT-SVRG"}
    reduced, svrg = ("GT-SAGA", "GT-SVRG"), counted["GT-SVRG"].gradients
    figures: dict[str, tuple[str, bool, dict[str, Any]]] = {
        "B1": (
            "ST-GT needs 5 buffers per node.",
            buffers["ST-GT"] == 5,
            {"paper": 5, "here": buffers["ST-GT"], "which": list(_of("ST-GT").buffers)},
        ),
        "B2": (
            "Scaffold needs 6 buffers per worker.",
            buffers["Scaffold"] == 6,
            {"paper": 6, "here": buffers["Scaffold"], "which": list(_of("Scaffold").buffers)},
        ),
        "B3": (
            "GT-SVRG needs 4 buffers per node, including the estimate v.",
            kept["GT-SVRG"] + 1 == 4,
            {"paper": 4, "here": buffers["GT-SVRG"], "kept": counted["GT-SVRG"].kept, "and": "v"},
        ),
        "B4": (
            "FlexGT needs 4 buffers per node, and GT-SAGA 4 + m.",
            buffers["FlexGT"] == 4 and kept["GT-SAGA"] + 1 == 4 + SAMPLES,
            {**{label: buffers[label] for label in ("FlexGT", "GT-SAGA")}, "m": SAMPLES},
        ),
        "B5": (
            "A worker of Scaffold sends two vectors per round.",
            counted["Scaffold"].vectors == 4,
            {"paper, up and down": 4, "here, up and down": counted["Scaffold"].vectors, "up": 1, "down": 2},
        ),
        "B6": (
            "ST-GT, K-GT, FlexGT, GT-SAGA and GT-SVRG send two vectors to each neighbour.",
            all(one.vectors == 2 for label, one in counted.items() if label != "Scaffold"),
            {label: one.vectors for label, one in counted.items() if label != "Scaffold"},
        ),
        "B7": (
            "All methods but GT-SVRG compute one gradient per local step.",
            all(value == 1 for value in one_each.values()),
            {**one_each, "once, before the first": {label: counted[label].initial for label in reduced}},
        ),
        "B8": (
            "GT-SVRG computes m gradients per step.",
            svrg == SAMPLES,
            {"m": SAMPLES, "here": svrg, "2 + m/T": 2 + SAMPLES / PERIOD},
        ),
    }
    return [Claim(id, claim, "costs", holds, of) for id, (claim, holds, of) in figures.items()]


def _complexities() -> list[Claim]:
    """The paper's statements on ST-GT's rounds compared with those of FlexGT and K-GT."""
    slopes = {label: _in_tau(label) for label in ("ST-GT", "FlexGT", "Scaffold")}
    gain = slopes["ST-GT"]["noise, topology"] - slopes["FlexGT"]["noise, topology"]
    linear = [label for label, of in slopes.items() if of["noise, centralised"] == -1]
    difference = _kgt()
    figures: dict[str, tuple[str, bool, dict[str, Any]]] = {
        "B9": (
            "ST-GT's rounds improve on FlexGT's by a factor of 1/τ.",
            gain == -1,
            {"exponent of τ in the ratio of the terms of noise and topology": gain, "exponents of τ": slopes},
        ),
        "B10": (
            "In the strongly convex case, ST-GT is the first method with a linear speed-up in τ.",
            linear == ["ST-GT"],
            {"rows with a term in 1/τ": linear, "exponents of τ": slopes},
        ),
        "B11": (
            "ST-GT depends less on the network than K-GT: 1/(1 − ρ)^1.5 instead of 1/(1 − ρ)².",
            difference > SMALL,
            {
                **{f"exponent of 1/(1 − ρ), {label}": _in_gap(label) for label in ("K-GT", "ST-GT")},
                "largest difference of their runs, η_s = 1": difference,
            },
        ),
    }
    return [Claim(id, claim, "complexity", holds, of, "table1.png") for id, (claim, holds, of) in figures.items()]


def _in_tau(label: str) -> dict[str, float]:
    """The exponent of τ in each term of a strongly convex row."""
    taus = np.array([1, 4, 16, 64])
    found = [_rounds(_of(label), "SC", replace(CONSTANTS, tau=int(tau))).terms for tau in taus]
    return {name: _slope(taus, [terms[name] for terms in found]) for name in found[0]}


def _in_gap(label: str) -> float:
    """The exponent of 1/(1 − ρ) in the topology's part of the noise, in a nonconvex row."""
    gaps = np.array([0.5, 0.05, 0.005])
    found = [_rounds(_of(label), "NC", replace(CONSTANTS, rho=float(1 - gap))) for gap in gaps]
    return _slope(1 / gaps, [one.terms["noise, topology"] for one in found])


def _slope(x: Any, y: Any) -> float:
    return round(float(fit_power_law(x, y).value), 6)


def _of(label: str) -> Method:
    return next(row for row in ROWS if row.label == label)


def _kgt() -> float:
    """The difference between K-GT with η_s = 1 and ST-GT, on the same samples."""
    made = (build_run(_run("", _of(label).algorithm, GRAPH)) for label in ("K-GT", "ST-GT"))
    one, other = (reference(*each.objects, 2 * PERIOD).x for each in made)
    return float(np.abs(one - other).max())


def _figure() -> Figure:
    """The rounds of each row over ε and over τ, without constants and logarithms, which the table omits."""
    epsilons, taus = np.logspace(-1, -6, 26), np.unique(np.logspace(0, 3, 31).round().astype(int))
    panels = []
    for objective, words in (("SC", "strongly convex"), ("NC", "nonconvex")):
        over: dict[str, list[Line]] = {"ε": [], "τ": []}
        for row in ROWS:
            if objective not in row.objectives or row.label == "GT-SVRG":
                continue
            label, style = ("GT-SAGA, GT-SVRG" if row.label == "GT-SAGA" else row.label), STYLES[row.label]
            totals = [_rounds(row, objective, epsilon=float(epsilon)).total for epsilon in epsilons]
            over["ε"].append(Line(label, epsilons, np.array(totals), style=style))
            totals = [_rounds(row, objective, replace(CONSTANTS, tau=int(tau))).total for tau in taus]
            over["τ"].append(Line(label, taus, np.array(totals), style=style))
        titles = {"ε": f"{words}, τ = {CONSTANTS.tau}", "τ": f"{words}, ε = {EPSILON:g}"}
        panels += [
            Panel(
                titles[name], {"ε": "accuracy ε", "τ": "local steps τ"}[name], "rounds, Õ(·)", tuple(lines), xlog=True
            )
            for name, lines in over.items()
        ]
    k = CONSTANTS
    words = f"L = {k.L:g}, μ = {k.mu}, σ² = {k.sigma2:g}, n = {k.n}, ρ = {k.rho:.2f}, s = {k.sampled}, m = {k.samples}"
    return Figure("table1", tuple(panels), title=f"Table 1: {words}", shared=False)
