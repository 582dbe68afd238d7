"""The first five minutes: the paper's figure on its ridge problem, and the same error for fewer bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stgt import problems, theory, topology
from stgt._internal.checks import NotCovered
from stgt._internal.progress import Progress, split_progress
from stgt._internal.statistics import error_interval
from stgt.algorithms import LED, STGT, Algorithm, FlexGT, Scaffold
from stgt.simulator import METRICS, Trace, simulate
from stgt.simulator.choice import Rule
from stgt.simulator.drive import interrupts_as_ever
from stgt.study.report import Figure, Line, Panel, long_band
from stgt.topology import Topology

NODES, TAU, SEEDS, ROUNDS = 32, 50, 20, 700
GAMMA = 0.4 / NODES  # the paper's, for a node that follows its part of the mean gradient
FEW, MANY = (5, 4), (15, 16)  # the paper's two panels: the neighbours, and the workers that the server samples
TARGET = 1e-3
NUMBER = 4  # bytes: single precision
SURE = 0.999  # the confidence of the statement that a run has not reached its steady state
BACKDROP = "centralised"


@dataclass(frozen=True, eq=False)
class DemoRun:
    """A method on a graph: what was simulated, and what theory predicts.

    Attributes:
        method, graph: their names, in a word or two.
        panel: the number of the panel that it belongs to.
        style: the number of its colour.
        trace: its rounds.
        exact: its steady-state error from theory, infinite if it is unstable; None if the theory does not cover it.
    """

    method: str
    graph: str
    panel: int
    style: int
    trace: Trace
    exact: float | None

    @property
    def error(self) -> tuple[float, float, float]:
        """The steady-state error, a mean over the last quarter of the rounds, and its 95 % interval."""
        error, low, high = map(float, error_interval(self.trace.tail("residual")))
        return error, low, high

    @property
    def settled(self) -> bool:
        """Does the error agree with the exact one? It does not if the run is too short for its steady state."""
        _, low, high = map(float, error_interval(self.trace.tail("residual"), SURE))
        return self.exact is None or low <= self.exact <= high

    @property
    def bytes_to_target(self) -> float | None:
        """What a node sends on average until the mean error is at the target; None if it never is."""
        found = Rule("residual", TARGET, "floats").score(self.trace)
        return NUMBER * found / self.trace.problem.n if np.isfinite(found) else None

    @property
    def lost_at(self) -> int | None:
        """The first round at which the error of a seed is not finite."""
        return min(self.trace.diverged_at[self.trace.diverged].tolist(), default=None)


def methods() -> list[tuple[str, str, int, int, Algorithm, Topology]]:
    """The names of the method and the graph, the panel, the colour, the method and the graph of each run."""
    size = {"gamma": GAMMA, "tau": TAU}
    found: list[tuple[str, str, int, int, Algorithm, Topology]] = []
    for panel, (neighbors, sampled) in enumerate((FEW, MANY)):
        graph, name = topology.exponential(NODES, neighbors=neighbors), f"{neighbors} neighbours"
        server = topology.server(NODES, sampled=sampled)
        found += [
            ("ST-GT", name, panel, 0, STGT(**size), graph),
            ("FlexGT", name, panel, 1, FlexGT(**size, snapshot="last"), graph),
            ("Scaffold", f"{sampled} of {NODES} workers", panel, 2, Scaffold(**size), server),
            (BACKDROP, "complete", panel, 3, STGT(**size), topology.complete(NODES)),
        ]
    few, name = topology.exponential(NODES, neighbors=FEW[0]), f"{FEW[0]} neighbours"
    one = topology.one_peer_exponential(NODES)
    return [
        *found,
        ("ST-GT, β = ½", name, 2, 4, STGT(**size, beta=0.5), few),
        ("LED", name, 2, 5, LED(**size), few),
        ("LED", "one peer a round", 2, 6, LED(**size), one),
    ]


@interrupts_as_ever()
def demo(progress: Progress | None = None) -> list[DemoRun]:
    """Runs all methods on the paper's ridge problem, 20 seeds each, and predicts their errors.

    The paper leaves some choices open. This is the reading `mean-gradient` of the reproductions: θ as printed, μ = 0.5,
    x_0 = 0, gradients of the mean over the nodes, directed exponential graphs, and FlexGT's last snapshot.
    """
    problem, chosen = problems.ridge(n=NODES, p=10, mu=0.5, scale="none", noise=0.1, seed=0), methods()
    ticks = split_progress(progress, [ROUNDS] * len(chosen))
    found = []
    for (method, graph, panel, style, algorithm, where), tick in zip(chosen, ticks, strict=True):
        trace = simulate(algorithm, problem, where, ROUNDS, SEEDS, progress=tick)
        found.append(DemoRun(method, graph, panel, style, trace, _exact(algorithm, problem, where)))
    return found


def _exact(algorithm: Algorithm, problem: problems.Problem, where: Topology) -> float | None:
    try:
        found = theory.exact_map(algorithm, problem, where)
    except NotCovered:
        return None
    return found.steady_state().residual if found.stable else np.inf


# -- the figure --------------------------------------------------------------------------------------------------------


def figure(runs: list[DemoRun]) -> Figure:
    """The paper's two panels, and next to them the error over the bytes that a node sends."""
    panels = [
        _panel(f"{neighbours} neighbours, or {sampled} of {NODES} workers", [run for run in runs if run.panel == i])
        for i, (neighbours, sampled) in enumerate((FEW, MANY))
    ]
    fewer = [run for run in runs if run.panel == 2 or (run.panel == 0 and run.method == "ST-GT")]
    panels.append(_panel(f"{FEW[0]} neighbours: the same error for fewer bytes", fewer, by_bytes=True))
    seeds = len(runs[0].trace.seeds)
    notes = (f"Means over {seeds} seeds and their 95 % intervals. Dotted: the exact steady-state error, from theory.",)
    return Figure("demo", tuple(panels), columns=3, notes=notes)


def _panel(title: str, runs: list[DemoRun], by_bytes: bool = False) -> Panel:
    lines = []
    for run in runs:
        over, backdrop = ("floats" if by_bytes else "rounds"), run.method == BACKDROP
        label = f"{run.method}, {run.graph}" if run.graph.startswith("one peer") else run.method
        line = long_band(label, run.trace, over=over, per_node=True, style=run.style, backdrop=backdrop)
        line = replace(line, x=NUMBER * line.x) if by_bytes else line
        lines.append(line)
        if run.exact is not None and np.isfinite(run.exact) and not backdrop:
            lines.append(Line("", line.x[[0, -1]], np.full(2, run.exact), style=run.style, thin=True))
    words = "bytes sent by a node" if by_bytes else "communication round"
    return Panel(title, words, METRICS["residual"].formula, tuple(lines), xlog=True)
