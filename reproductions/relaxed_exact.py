"""The exact stability, rates and errors of plain and relaxed ST-GT and of LED, over γτL and graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from reproductions.options import check_choice
from reproductions.outcome import Claim, finite
from reproductions.simulated import AT_ONCE
from stgt.study import Progress, RunSpec, build_run, parallel_map, split_progress
from stgt.theory import STABLE_BELOW, exact_map
from stgt.topology import Topology, sequence

TAU, MU = 20, 0.1
GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # γτL
PERIOD = 8  # the rounds of a random graph that is drawn once and then repeated
METHODS: dict[str, dict[str, Any]] = {
    "ST-GT": {"name": "STGT"},
    "ST-GT, β = ½": {"name": "STGT", "beta": 0.5},
    "ST-GT, β = ¼": {"name": "STGT", "beta": 0.25},
    "LED, β = 1": {"name": "LED", "beta": 1.0},
    "LED, β = ½": {"name": "LED", "beta": 0.5},
    "LED, β = ¼": {"name": "LED", "beta": 0.25},
    "ST-GT adjoint": {"name": "STGT", "adjoint": True},  # only on directed graphs; on others it equals ST-GT
}
PLAIN, QUARTER, ADJOINT = "ST-GT", "ST-GT, β = ¼", "ST-GT adjoint"
LED = {1.0: "LED, β = 1", 0.5: "LED, β = ½", 0.25: "LED, β = ¼"}
SLACK = 0.03  # errors with a smaller relative difference are called equal
FASTER = 9.0  # LED with β = ½ must be this many times faster than ST-GT on the ring
SMALL, LARGE = 0.3, 10.0  # claims are about γτL up to the first, and from the second


@dataclass(frozen=True)
class Graph:
    """A topology as named in a spec. `repeated` draws this many rounds once; `times` uses each matrix this often."""

    topology: dict[str, Any]
    repeated: int = 0
    times: int = 1
    nodes: int = 16  # fewer if second moments of random rounds would converge slowly

    def make(self, draw: int = 0, n: int | None = None) -> Topology:
        table = {**self.topology, **({"seed": draw} if self.repeated else {})}
        parts = {"algorithm": {"name": "STGT"}, "problem": {"name": "ridge", "n": n or self.nodes}, "topology": table}
        made = build_run(RunSpec.model_validate(parts)).topology
        if not self.repeated and self.times == 1:
            return made
        rounds = self.repeated or made.period or 1
        return sequence([made.matrix(r // self.times) for r in range(rounds * self.times)])


_LOSSY = {"name": "unreliable", "topology": {"name": "ring"}, "link": 0.3}
GRAPHS = {
    "ring": Graph({"name": "ring"}),
    "exponential": Graph({"name": "exponential"}),
    "symmetric exponential": Graph({"name": "exponential", "symmetric": True}),
    "one-peer": Graph({"name": "one_peer_exponential"}),
    "one-peer, each twice": Graph({"name": "one_peer_exponential"}, times=2),
    "hypercube, a side a round": Graph({"name": "hypercuboid"}),
    "matchings, i.i.d.": Graph({"name": "random_matching"}),
    f"{PERIOD} matchings in turn": Graph({"name": "random_matching"}, repeated=PERIOD),
    "lossy ring, i.i.d., n = 8": Graph(_LOSSY, nodes=8),
    f"{PERIOD} lossy rings in turn": Graph(_LOSSY, repeated=PERIOD),
    "directed ring": Graph({"name": "ring", "directed": True}),
    "hops {1, 2, 4}": Graph({"name": "circulant", "hops": [1, 2, 4]}),
}
SPARSE = ("directed ring", "hops {1, 2, 4}")
SHAKY = ("one-peer", "hypercube, a side a round", f"{PERIOD} lossy rings in turn")  # plain ST-GT is not stable on these


@dataclass(frozen=True)
class Point:
    """A method on a graph with one stepsize; the errors are infinite if it is not stable. `reach` is γτL."""

    graph: str
    method: str
    reach: float
    radius: float
    error: float = np.inf
    consensus: float = np.inf
    undirected: bool = True
    random: bool = False
    draw: int = 0
    gamma: float = np.nan

    @property
    def stable(self) -> bool:
        return self.radius < STABLE_BELOW

    @property
    def rounds(self) -> float:
        """The number of rounds in which the distance shrinks by a factor of e; infinite if unstable."""
        return float(-1 / np.log(self.radius)) if self.stable else np.inf


Points = list[Point]


def exact_points(
    progress: Progress | None = None,
    graphs: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    grid: Iterable[float] = GRID,
    n: int | None = None,
    p: int = 3,
    draws: int = 20,
) -> tuple[Points, list[RunSpec]]:
    """The points, and their runs as a spec, without schedules of drawn matrices, which a spec cannot name.

    Graphs with rounds that are drawn once get `draws` draws.
    """
    names = [check_choice(name, "graphs", GRAPHS) for name in graphs or GRAPHS]
    chosen = [check_choice(name, "methods", METHODS) for name in methods or METHODS]
    reaches = tuple(grid)
    cases = [(name, draw) for name in names for draw in range(draws if GRAPHS[name].repeated else 1)]

    def study(case: tuple[str, int], tick: Progress) -> Points:
        name, draw = case
        topology = GRAPHS[name].make(draw, n)
        here = [method for method in chosen if method != ADJOINT or not topology.symmetric]
        found = []
        for method in here:
            for reach in reaches:
                found.append(_point(_run(name, method, reach, topology.n, p), topology, name, reach, draw))
                tick(len(found), len(here) * len(reaches))
        return found

    work = [30.0 if GRAPHS[name].make().random else 1.0 for name, _ in cases]  # second moments take longer
    with threadpool_limits(1, "blas"):
        studied = parallel_map(study, cases, split_progress(progress, work), at_once=AT_ONCE)
    points = [point for some in studied for point in some]
    plain = [one for one in points if GRAPHS[one.graph].repeated == 0 and GRAPHS[one.graph].times == 1]
    return points, [_run(one.graph, one.method, one.reach, n or GRAPHS[one.graph].nodes, p) for one in plain]


def _run(graph: str, method: str, reach: float, n: int, p: int) -> RunSpec:
    problem = {"name": "ridge", "n": n, "p": p, "mu": MU, "scale": "sqrt_p", "noise": 0.1, "seed": 0}
    parts = {"problem": problem, "topology": GRAPHS[graph].topology, "x0": "optimum", "rounds": 0}
    on_ring = {"algorithm": {"name": "STGT"}, **parts, "topology": {"name": "ring"}}
    L = build_run(RunSpec.model_validate(on_ring)).problem.L
    algorithm = {**METHODS[method], "gamma": reach / (TAU * (L or np.nan)), "tau": TAU}
    return RunSpec.model_validate({"label": method, "reading": graph, "algorithm": algorithm, **parts})


def _point(run: RunSpec, topology: Topology, graph: str, reach: float, draw: int) -> Point:
    made = build_run(run)
    exact = exact_map(made.algorithm, made.problem, topology, x0=made.problem.optimum)
    names = {"undirected": topology.symmetric, "random": topology.random, "draw": draw}
    point = Point(graph, run.label, reach, exact.spectral_radius, **names, gamma=run.algorithm.arguments["gamma"])
    if not point.stable:
        return point
    state = exact.steady_state()
    return replace(point, error=state.residual, consensus=state.consensus)


def exact_rows(points: Points) -> list[dict[str, Any]]:
    """A row for each point."""
    return [
        {
            "part": "exact",
            "graph": one.graph,
            "draw": one.draw,
            "method": one.method,
            "gamma": one.gamma,
            "tau": TAU,
            "gamma_tau_L": one.reach,
            "radius": one.radius,
            "rounds_per_e": finite(one.rounds),
            "exact": finite(one.error),
            "exact_consensus": finite(one.consensus),
        }
        for one in points
    ]


def exact_claims(points: Points) -> list[Claim]:
    """X1 to X9."""
    undirected = [one for one in points if one.undirected]
    rate, error = "relaxed-rate.png", "relaxed-error.png"
    judged = (
        ("X1", "LED with β = ¼ is stable at every γτL on every undirected graph and schedule.",
         _stable(undirected, LED[0.25]), rate),
        ("X2", "So is LED with β = ½.", _stable(undirected, LED[0.5]), rate),
        ("X3", f"On the one-peer schedule ST-GT is unstable from γτL = {LARGE:g} on, while LED with β = ½ and ¼ is "
         "stable at every γτL.", _one_peer(points), rate),
        ("X4", f"On the ring, LED with β = ½ contracts at least {FASTER:g} times as fast as ST-GT from γτL = 1 on.",
         _faster(points), rate),
        ("X5", f"If both are stable, the steady-state error of the mean of LED (β = ½, ¼) is within {SLACK:.0%} of "
         "ST-GT's.", _errors(points, "error", 1 - SLACK), error),
        ("X6", f"It is nowhere more than {SLACK:.0%} above ST-GT's.", _errors(points, "error", 0.0), error),
        ("X7", f"Nor is LED's consensus error anywhere more than {SLACK:.0%} above ST-GT's.",
         _errors(points, "consensus", 0.0), "relaxed-consensus.png"),
        ("X8", f"On the directed ring and hops {{1, 2, 4}}, LED with β ≥ ¼ is unstable up to γτL = {SMALL:g}; ST-GT "
         "adjoint is stable at every γτL.", _directed(points), rate),
        ("X9", "β = ¼ makes ST-GT stable on the schedules on which β = 1 is not: one-peer, the hypercube's sides "
         "and lossy rings in turn.", _relaxation(points), rate),
        ("X10", "If matchings and lossy rings are drawn again each round, ST-GT is stable in mean square at every "
         "γτL.", _stable([one for one in points if one.random], PLAIN), rate),
    )  # fmt: skip
    return [Claim(id, words, "exact", bool(holds), of, picture) for id, words, (holds, of), picture in judged]


Judged = tuple[bool, dict[str, Any]]


def _of(points: Points, method: str, graph: str | None = None) -> Points:
    return [one for one in points if one.method == method and graph in (None, one.graph)]


def _graphs(points: Points) -> list[str]:
    return list(dict.fromkeys(one.graph for one in points))


def _stable(points: Points, method: str) -> Judged:
    """Is there no unstable point? By graph the largest radius and, if there are several draws, the unstable ones."""
    figures = {}
    for graph in _graphs(points):
        of = _of(points, method, graph)
        lost = [one for one in of if not one.stable]
        draws = {one.draw for one in of}
        figures[graph] = {
            "largest radius": max((one.radius for one in of), default=None),
            "unstable at γτL": sorted({one.reach for one in lost}),
            "unstable draws": f"{len({one.draw for one in lost})} of {len(draws)}",
        }
    of = _of(points, method)
    return bool(of) and all(one.stable for one in of), figures


def _one_peer(points: Points) -> Judged:
    of = {method: _of(points, method, "one-peer") for method in (PLAIN, LED[0.5], LED[0.25])}
    beyond = [one for one in of[PLAIN] if one.reach >= LARGE]
    holds = bool(beyond) and not any(one.stable for one in beyond)
    holds = holds and all(one.stable for method in (LED[0.5], LED[0.25]) for one in of[method])
    return holds, {method: _by_reach(some, lambda one: one.radius) for method, some in of.items()}


def _faster(points: Points) -> Judged:
    times = _ratios(points, "ring", LED[0.5], lambda one: 1 / one.rounds)
    seen = [value for reach, value in times.items() if float(reach) >= 1.0]
    return bool(seen) and min(seen) >= FASTER, {"LED's rate/ST-GT's by γτL": times}


def _errors(points: Points, what: str, least: float) -> Judged:
    """The ratio of LED's error to ST-GT's, least and most over γτL and draws, by graph."""
    figures: dict[str, Any] = {}
    every: list[float] = []
    for graph in _graphs(points):
        for method in (LED[0.5], LED[0.25]):
            ratios = []
            for draw in sorted({one.draw for one in points if one.graph == graph}):
                some = [one for one in points if one.draw == draw]
                ratios += _ratios(some, graph, method, lambda one: getattr(one, what)).values()
            if ratios:
                figures.setdefault(graph, {})[method] = [min(ratios), max(ratios)]
                every += ratios
    holds = bool(every) and least <= min(every) and max(every) <= 1 + SLACK
    return holds, {"LED's/ST-GT's, least and most": figures}


def _ratios(points: Points, graph: str, method: str, value: Callable[[Point], float]) -> dict[str, float]:
    """The ratio of a method's value to ST-GT's by γτL, if both are stable."""
    plain = {one.reach: one for one in _of(points, PLAIN, graph) if one.stable}
    both = [one for one in _of(points, method, graph) if one.stable and one.reach in plain]
    return {f"{one.reach:g}": value(one) / value(plain[one.reach]) for one in both}


def _directed(points: Points) -> Judged:
    here = [one for one in points if one.graph in SPARSE]
    small = [one for one in here if one.method in LED.values() and one.reach <= SMALL]
    holds = bool(small) and not any(one.stable for one in small) and _stable(here, ADJOINT)[0]
    figures = {
        graph: {
            method: _by_reach(_of(here, method, graph), lambda one: one.radius)
            for method in (*LED.values(), PLAIN, ADJOINT)
        }
        for graph in _graphs(here)
    }
    return holds, figures


def _relaxation(points: Points) -> Judged:
    """If β = 1 is unstable, is β = ¼ stable? By graph the unstable draws and γτL of each, and the largest radii."""
    figures: dict[str, Any] = {}
    lost = {(one.graph, one.draw, one.reach) for one in _of(points, PLAIN) if one.graph in SHAKY and not one.stable}
    again = [one for one in _of(points, QUARTER) if (one.graph, one.draw, one.reach) in lost]
    for graph in [graph for graph in _graphs(points) if graph in SHAKY]:
        for method in (PLAIN, "ST-GT, β = ½", QUARTER):
            of = _of(points, method, graph)
            figures.setdefault(graph, {})[method] = {
                "unstable": f"{sum(not one.stable for one in of)} of {len(of)}",
                "largest radius": max((one.radius for one in of), default=None),
            }
    return bool(again) and all(one.stable for one in again), figures


def _by_reach(points: Points, value: Callable[[Point], float]) -> dict[str, float | None]:
    return {f"{one.reach:g}": finite(value(one)) for one in points}
