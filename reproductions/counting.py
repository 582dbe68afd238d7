"""What a run costs, counted while it runs: sample gradients, vectors sent, arrays kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stgt._internal.ops import NUMPY
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.simulator import Trace, simulate
from stgt.simulator.drive import interrupts_as_ever
from stgt.simulator.instance import validate
from stgt.study.spec.runs import BuiltRun
from stgt.testing import CountingModel
from stgt.topology import Topology


@dataclass(frozen=True, eq=False)
class Counted:
    """What a short run cost a node.

    Attributes:
        gradients: sample gradients a local step, counted in the model.
        initial: those before the first step.
        traced: those a step by `trace["gradients"]`.
        vectors: models sent to a neighbour a round, by `trace["floats"]`; through a server, up and down together.
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
        """Those that a node needs, as `algorithm.cost` says."""
        counts = self.made.problem.counts
        return self.made.algorithm.cost(None if counts is None else round(counts.mean())).buffers


def count(made: BuiltRun, period: int) -> Counted:
    """Runs two periods on the reference, which computes what is asked for and nothing else, and counts in the second.

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
    oracle = validate(algorithm, problem, topology).oracle
    arrays = last.state | oracle.init(NUMPY, problem.model, problem.data, np.zeros((n, p)))
    return Counted(
        made=made,
        gradients=(counts[2] - counts[1]) / steps,
        initial=counts[0],
        traced=float(last["gradients"][0, -1] - last["gradients"][0, period]) / (n * steps),
        vectors=float(last["floats"][0, -1]) / (2 * period * links * p),
        kept={name: array.size // (n * p) for name, array in arrays.items()},
    )


@interrupts_as_ever()
def reference(algorithm: Algorithm, problem: Problem, topology: Topology, count: int) -> Trace:
    """A run of one seed on the NumPy engine, without measurements."""
    return simulate(algorithm, problem, topology, count, engine="numpy", metrics=[])
