"""Error against rate: every method over its own stepsizes, so none is compared at a stepsize that suits another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, TableRow
from reproductions.simulated import AT_ONCE, as_matrices
from reproductions.topology_study import GRAPHS
from stgt import InputError, NotCovered, theory
from stgt.simulator import METRICS
from stgt.study import Progress, RunSpec, Spec, build_run, parallel_map, split_progress
from stgt.study.report import Figure, Line, Panel
from stgt.theory import STABLE_BELOW

NODES, TAU = 32, 50
METHODS: dict[str, tuple[dict[str, Any], float]] = {  # the algorithm, and 1/η_s
    "ST-GT": ({"name": "STGT"}, 1.0),
    "FlexGT (first)": ({"name": "FlexGT", "snapshot": "first"}, 1.0),
    "FlexGT (last)": ({"name": "FlexGT", "snapshot": "last"}, 1.0),
    "K-GT (½)": ({"name": "KGT", "eta_s": 0.5}, 2.0),
    "D-PSGD": ({"name": "DPSGD", "atc": True}, 1.0),
    "Scaffold": ({"name": "Scaffold"}, 1.0),
    "FedAvg": ({"name": "FedAvg"}, 1.0),
}
FEDERATED, SERVER = ("Scaffold", "FedAvg"), "server, half sampled"
DECENTRALISED = tuple(method for method in METHODS if method not in FEDERATED)
REACHES = tuple(float(value) for value in np.geomspace(0.003, 10.0, 8))  # γη_sτL
NARROWINGS = 11  # golden-section steps on the interval around the fastest of REACHES: to 1.2 %
SAME = 0.01  # errors and rates with a smaller relative difference are called equal
RATES = 60  # the number of rates in the common range at which two frontiers are compared


@dataclass(frozen=True, eq=False)
class Probe:
    """The exact rate and error of a method on a graph with one stepsize; `reach` is γη_sτL."""

    run: RunSpec
    reach: float
    radius: float
    error: float

    @property
    def rounds(self) -> float:
        """The number of rounds in which the distance shrinks by a factor of e."""
        return float(-1 / np.log(self.radius))


Frontier = list[Probe]  # from the fastest to the slowest; slower ones have smaller errors
Found = dict[str, dict[str, Frontier]]  # by graph and method


def frontier(
    progress: Progress | None = None, graphs: Iterable[str] | None = None, n: int = NODES, p: int = 4, tau: int = TAU
) -> Outcome:
    """The steady-state error of each method against its rate, both exact, over its own stepsizes; claims R1 to R5.

    Scaffold and FedAvg have a server that samples half of its workers. If the exact theory does not cover that, they
    are left out, and a row of the table and a line above the picture state the reason.
    """
    names = [check_choice(name, "graphs", GRAPHS) for name in graphs or GRAPHS]
    if n != NODES and "grid" in names:
        raise InputError("n", n, f"the grid has 4 rows of 8; give n={NODES}, or leave the grid out of graphs.")
    topologies = {**{name: GRAPHS[name] for name in names}, SERVER: {"name": "server", "sampled": n // 2}}
    problem = {"name": "ridge", "n": n, "p": p, "mu": 0.5, "scale": "sqrt_p", "noise": 0.1, "seed": 0}
    cases = [(graph, method) for graph in topologies for method in (FEDERATED if graph == SERVER else DECENTRALISED)]

    def study(case: tuple[str, str], tick: Progress) -> Frontier | str:
        graph, method = case
        algorithm, times = METHODS[method]

        def run_at(reach: float, L: float) -> RunSpec:
            moving = {**algorithm, "gamma": times * reach / (tau * L), "tau": tau}
            parts = {"algorithm": moving, "problem": problem, "topology": topologies[graph]}
            return RunSpec.model_validate({"label": method, **parts, "x0": "optimum", "rounds": 0})

        return _study(run_at, tick)

    ticks = split_progress(progress, [1.0] * len(cases))
    with threadpool_limits(1, "blas"):
        studied = dict(zip(cases, parallel_map(study, cases, ticks, at_once=AT_ONCE), strict=True))
    found: Found = {}
    rows: list[TableRow] = []
    refused: dict[str, list[str]] = {}
    for (graph, method), result in studied.items():
        if isinstance(result, str):
            rows.append({"graph": graph, "method": method, "note": result})
            refused.setdefault(result, []).append(method)
        else:
            found.setdefault(graph, {})[method] = result
            rows += [_row(graph, method, probe) for probe in result]
    runs = tuple(probe.run for by in found.values() for of in by.values() for probe in of)
    spec = Spec(experiment="frontier", options={"n": n, "p": p, "tau": tau}, runs=runs)
    notes = [f"Left out: {', '.join(methods)}, as {reason}" for reason, methods in refused.items()]
    return Outcome(spec, rows, _claims(found), _figures(found, notes))


def lower_left(probes: Iterable[Probe]) -> Frontier:
    """The stable probes for which no other probe is better in both rate and error, from the fastest to the slowest."""
    kept: Frontier = []
    for probe in sorted(probes, key=lambda probe: (probe.radius, probe.error)):
        if probe.radius < STABLE_BELOW and (not kept or probe.error < kept[-1].error):
            kept.append(probe)
    return kept


def errors_at(of: Frontier, rounds: np.ndarray) -> np.ndarray:
    """The frontier's error at these rates, by linear interpolation of logarithms; NaN outside its range."""
    x, y = (np.log([value(probe) for probe in of]) for value in (lambda one: one.rounds, lambda one: one.error))
    return np.exp(np.interp(np.log(rounds), x, y, left=np.nan, right=np.nan))


def ratio_at_equal_rate(a: Frontier, b: Frontier) -> np.ndarray:
    """The ratio of a's error to b's at their common rates, from the fastest to the slowest; empty if there are none."""
    fastest, slowest = max(a[0].rounds, b[0].rounds), min(a[-1].rounds, b[-1].rounds)
    if fastest > slowest:
        return np.empty(0)
    rounds = np.clip(np.geomspace(fastest, slowest, RATES), fastest, slowest)
    return errors_at(a, rounds) / errors_at(b, rounds)


def _study(run_at: Callable[[float, float], RunSpec], tick: Progress) -> Frontier | str:
    """A frontier; or the reason why the exact theory does not cover a random schedule."""
    made = build_run(run_at(1.0, 1.0))
    L, topology = made.problem.L or np.nan, as_matrices(made.topology)
    total = 2.0 * (len(REACHES) + NARROWINGS + 2)

    def radius(reach: float) -> float:
        return theory.spectral_radius(build_run(run_at(reach, L)).algorithm, made.problem, topology)

    try:
        radii = _search(radius, lambda done: tick(done, total))
    except NotCovered as refusal:
        if not made.topology.random:
            raise
        tick(1, 1)
        return str(refusal)
    probes = []
    for reach, of in radii.items():
        run = run_at(reach, L)
        stable = of < STABLE_BELOW
        error = theory.steady_state(build_run(run).algorithm, made.problem, topology).residual if stable else np.inf
        probes.append(Probe(run, reach, of, error))
        tick(total / 2 + len(probes), total / 2 + len(radii))
    return lower_left(probes)


def _search(radius: Callable[[float], float], tick: Callable[[int], None]) -> dict[float, float]:
    """Radii by reach: over REACHES, then by golden sections towards the fastest. Larger ones are left out.

    Beyond the fastest, a larger stepsize is slower and has a larger error, so it is not on the frontier.
    """
    radii: dict[float, float] = {}

    def look(reach: float) -> float:
        if reach not in radii:
            radii[reach] = radius(reach)
            tick(len(radii))
        return radii[reach]

    best = int(np.argmin([look(reach) for reach in REACHES]))
    low, high = np.log([REACHES[max(best - 1, 0)], REACHES[min(best + 1, len(REACHES) - 1)]])
    golden = (np.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    for _ in range(NARROWINGS):
        if look(float(np.exp(left))) < look(float(np.exp(right))):
            high, right = right, left
            left = high - golden * (high - low)
        else:
            low, left = left, right
            right = low + golden * (high - low)
    fastest = min(radii, key=radii.__getitem__)
    beyond = radius(0.999 * fastest) <= radii[fastest]
    return {reach: radii[reach] for reach in sorted(radii) if reach < fastest or (reach == fastest and not beyond)}


def _row(graph: str, method: str, probe: Probe) -> dict[str, Any]:
    arguments = probe.run.algorithm.arguments
    return {
        "graph": graph,
        "method": method,
        "gamma": arguments["gamma"],
        "tau": arguments["tau"],
        "reach": probe.reach,
        "radius": probe.radius,
        "rounds_per_e": probe.rounds,
        "exact": probe.error,
        "note": "",
    }


def _claims(found: Found) -> list[Claim]:
    graphs = {graph: by for graph, by in found.items() if graph != SERVER}
    claims = [
        _below("R1", "FlexGT's, of either snapshot,", graphs, ("FlexGT (first)", "FlexGT (last)")),
        _below("R2", "K-GT's with η_s = ½", graphs, ("K-GT (½)",)),
        _below("R3", "D-PSGD's", graphs, ("D-PSGD",)),
        _faster(graphs),
    ]
    if SERVER in found:
        joined = {graph: {**by, **found[SERVER]} for graph, by in graphs.items()}
        claims.append(_below("R5", "Scaffold's with half of its workers", joined, ("Scaffold",)))
    return claims


def _below(id: str, whose: str, found: Found, others: tuple[str, ...]) -> Claim:
    """Below by more than `SAME` at some rate, and above by more at none."""
    figures: dict[str, Any] = {}
    holds = True
    for graph, by in found.items():
        for other in others:
            ratio = ratio_at_equal_rate(by["ST-GT"], by[other])
            holds = holds and len(ratio) > 0 and ratio.min() < 1 - SAME and ratio.max() <= 1 + SAME
            numbers = {"fastest": ratio[0], "least": ratio.min(), "most": ratio.max()} if len(ratio) else {}
            figures.setdefault(graph, {})[other] = {name: float(value) for name, value in numbers.items()}
    words = (
        f"At equal rate ST-GT's error is below {whose} on every graph: by over 1 % somewhere, nowhere above by as much."
    )
    return Claim(id, words, "", bool(holds), {"ST-GT's error/the other's": figures}, "frontier-ratio.png")


def _faster(found: Found) -> Claim:
    figures = {graph: {method: of[0].rounds for method, of in by.items()} for graph, by in found.items()}
    leads = [rounds["K-GT (½)"] / rounds["ST-GT"] for rounds in figures.values()]
    holds = max(leads) > 1 + SAME and min(leads) >= 1 - SAME
    words = "ST-GT's fastest rate is above K-GT's with η_s = ½ by over 1 % on some graph, and below by as much on none."
    return Claim("R4", words, "", holds, {"rounds to shrink by e, least": figures}, "frontier.png")


def _figures(found: Found, notes: list[str]) -> list[Figure]:
    styles = {method: i for i, method in enumerate(METHODS)}
    x, y = "rounds to shrink the distance by e", f"E{METRICS['residual'].formula}"
    best = found.get("complete", {}).get("ST-GT")
    plain, relative = [], []
    for graph, by in found.items():
        lines, ratios = [], []
        if best is not None:
            lines.append(_line("ST-GT, complete graph", best, backdrop=True))
        for method, of in by.items():
            lines.append(_line(method, of, style=styles[method], marked=True))
            if best is not None:
                rounds = np.array([probe.rounds for probe in of])
                ratio = np.array([probe.error for probe in of]) / errors_at(best, rounds)
                ratios.append(Line(method, rounds, ratio, style=styles[method], marked=True))
        plain.append(Panel(graph, x, y, tuple(lines), xlog=True))
        relative.append(Panel(graph, x, f"{y} / ST-GT's, complete", tuple(ratios), xlog=True, ylog=False, ymax=3.0))
    titles = {"frontier": "Each method over its own stepsizes, exact"}
    if best is not None:
        titles["frontier-ratio"] = "Error over that of ST-GT on the complete graph at the same rate, exact"
    return [
        Figure(name, tuple(panels), columns=4, title="\n".join([title, *notes]), shared=False)
        for (name, title), panels in zip(titles.items(), (plain, relative), strict=False)
    ]


def _line(label: str, of: Frontier, **style: Any) -> Line:
    return Line(label, np.array([probe.rounds for probe in of]), np.array([probe.error for probe in of]), **style)
