"""The first five minutes: ST-GT, FlexGT and Scaffold on the paper's ridge problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stgt import problems, topology
from stgt._internal.progress import Progress, split_progress
from stgt._internal.statistics import error_interval
from stgt.algorithms import STGT, FlexGT, Scaffold
from stgt.simulator import Trace, simulate
from stgt.simulator.drive import interrupts_as_ever

NODES, NEIGHBOURS, TAU, GAMMA, SEEDS, ROUNDS = 32, 3, 50, 0.4, 20, 700
TITLE = f"{NODES} nodes, {NEIGHBOURS} neighbours or {NEIGHBOURS + 1} sampled workers"


@dataclass(frozen=True)
class MethodSummary:
    """How a method did: one line of the demo's table."""

    method: str
    graph: str
    error: float
    low: float  # the ends of the 95 % interval of `error`
    high: float
    floats: float  # sent in a round, by all nodes and a server, over the nodes
    diverged: str
    lost_at: int | None  # the first round at which the error of a seed is not finite


@interrupts_as_ever()
def demo(progress: Progress | None = None) -> dict[str, Trace]:
    """Runs the methods on 32 nodes with three neighbours each, and Scaffold with four sampled workers, 20 seeds.

    The paper leaves some choices open. This is the reading θ/√p, μ = 0.5, x_0 = 0, symmetric hops {±1, 16}, and both
    snapshots of FlexGT.
    """
    problem = problems.ridge(n=NODES, p=10, mu=0.5, scale="sqrt_p", noise=0.1, seed=0)
    graph = topology.exponential(NODES, neighbors=NEIGHBOURS, symmetric=True)
    server = topology.server(NODES, sampled=NEIGHBOURS + 1)
    runs = [
        (STGT(gamma=GAMMA, tau=TAU), graph),
        (FlexGT(gamma=GAMMA, tau=TAU, snapshot="first"), graph),
        (FlexGT(gamma=GAMMA, tau=TAU, snapshot="last"), graph),
        (Scaffold(gamma=GAMMA, tau=TAU), server),
    ]
    traces: dict[str, Trace] = {}
    ticks = split_progress(progress, [ROUNDS] * len(runs))
    for (algorithm, where), tick in zip(runs, ticks, strict=True):
        traces[algorithm.label] = simulate(algorithm, problem, where, ROUNDS, SEEDS, progress=tick)
    return traces


def summary(traces: dict[str, Trace]) -> list[MethodSummary]:
    """The steady-state error of each trace, its mean over the last quarter of the rounds, with its interval."""
    rows = []
    for method, trace in traces.items():
        error, low, high = map(float, error_interval(trace.tail("residual")))
        wrong = ~np.isfinite(trace["residual"])
        lost = wrong.argmax(axis=1)[wrong.any(axis=1)].tolist()
        rows.append(
            MethodSummary(
                method=method,
                graph=trace.topology.name,
                error=error,
                low=low,
                high=high,
                floats=float(trace["floats"][:, -1].mean()) / (trace.rounds * trace.problem.n),
                diverged=f"{len(lost)} of {len(trace.seeds)}",
                lost_at=min(lost, default=None),
            )
        )
    return rows
