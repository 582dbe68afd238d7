"""The state of a run whose members change, and its pieces between changes, each a plain run on either engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, quoted
from stgt._internal.ops import NUMPY, Ops
from stgt._internal.randomness import Clock
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import at_stepsize
from stgt.oracles import Exact, Oracle
from stgt.problems.base import Problem
from stgt.problems.members import problem_of
from stgt.simulator.changes import Change, Crash, Join, Leave, Repair, Segment
from stgt.simulator.instance import Instance
from stgt.simulator.job import Job, RunState, first_models, prepare
from stgt.simulator.metrics import Snapshot, choose_metrics, measure
from stgt.simulator.run import load_engine
from stgt.topology import Topology

Array = Any
Graphs = Callable[[int], Topology]
NEEDS_OPTIMUM = {"optimum", "losses"}  # f(x*) is subtracted from the losses


@dataclass(frozen=True)
class OfNodes(Oracle):
    """An oracle for some of the nodes. Each draws by its own number in the whole problem."""

    inner: Oracle
    # As real numbers, exact up to 2²⁴: then they are arguments of the compiled program, and other nodes can reuse it.
    nodes: tuple[float, ...]

    def init(self, ops: Ops, model: Any, data: dict[str, Array], x: Array) -> dict[str, Array]:
        return self.inner.init(ops, model, data, x)

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Any:
        own = clock.ops.xp.asarray(self.nodes)[clock.nodes].astype(np.int32)
        return self.inner.draw(replace(clock, nodes=own), p, counts)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return self.inner.gradient(ops, model, data, state, x, drawn)

    def width(self, p: int) -> int:
        return self.inner.width(p)


class ChurnRun:
    """The state of all nodes, (seeds, n, …), the members, and the measurements."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        topology: Graphs,
        rounds: int,
        members: tuple[int, ...],
        x0: Any,
        metrics: Any,
        engine: str,
        options: Mapping[str, Any],
    ):
        self.algorithm, self.problem, self.members = algorithm, problem, members
        self.make_engine, self.topology, self.options = load_engine(engine), topology, options
        # A set of nodes may occur many times, for example with a straggler. Its data are extracted once.
        self.part = lru_cache(maxsize=8)(lambda nodes: problem_of(problem, nodes))
        self.job = lru_cache(maxsize=8)(self._job)
        first = self.job(members)
        first = replace(
            first, gammas=prepare([algorithm], self.part(members), first.topology, rounds, **options).gammas
        )
        self.gammas, self.seeds, self.oracle = first.gammas[0], first.seeds, first.oracle
        whole = first_models(x0, Instance(algorithm, problem, first.topology, Exact()))
        begun = self.make_engine(replace(first, x0=whole[list(members)])).run_state(0, self._no_links)
        self.state, self.memory = (
            {
                name: np.zeros((len(self.seeds), problem.n, *value.shape[2:]), value.dtype)
                for name, value in kept.items()
            }
            for kept in (begun.state, begun.memory)
        )
        self.state["x"][:] = whole
        self.diverged_at = begun.diverged_at
        self._put(members, begun)
        self.measured, self.absent = choose_metrics(metrics, algorithm, problem, first.topology)
        self.times, self.present = list[int](), list[np.ndarray]()
        self.values: dict[str, list[list[float]]] = {name: [] for name in self.measured}

    @property
    def _no_links(self) -> np.ndarray:
        return np.zeros((len(self.seeds), 0))

    def _job(self, nodes: tuple[int, ...]) -> Job:
        """A plain run of these nodes, without measurements."""
        graph = graph_of(self.topology, len(nodes))
        job = prepare([self.algorithm], self.part(nodes), graph, 0, metrics=[], **self.options)
        instance = job.instances[0]
        return replace(job, instances=(replace(instance, oracle=OfNodes(instance.oracle, nodes)),))

    def advance(self, segment: Segment, every: int) -> None:
        """Runs the rounds of a segment, and measures at its start and every `every` rounds."""
        if segment.first % every == 0 and segment.first < segment.last:
            self.record(segment.first)
        active, rows = segment.active, list(segment.active)
        stops = [r for r in range(segment.first + 1, segment.last + 1) if r == segment.last or r % every == 0]
        engine = None
        if active and stops:
            state, memory = (
                {name: value[:, rows] for name, value in kept.items()} for kept in (self.state, self.memory)
            )
            now = RunState(segment.first, state, memory, None, self.diverged_at, self._no_links)
            engine = self.make_engine(self.job(active).resume(now, segment.last - segment.first))
        begun = segment.first
        for r in stops:
            if engine is not None:
                engine.advance(begun, r - begun)
                self._put(active, engine.run_state(r, self._no_links))
            begun = r
            if r < segment.last:
                self.record(r)

    def _put(self, nodes: tuple[int, ...], found: RunState) -> None:
        rows = list(nodes)
        for kept, values in ((self.state, found.state), (self.memory, found.memory)):
            for name, value in values.items():
                kept[name][:, rows] = value
        self.diverged_at = found.diverged_at

    def change(self, change: Change, repair: str) -> None:
        """Applies a change to the state and to the members."""
        nodes, before = list(change.nodes), self.members
        if isinstance(change, Join):
            self.members = tuple(sorted({*before, *nodes}))
            self._welcome(nodes, list(before))
        elif isinstance(change, Leave | Crash):
            self.members = tuple(node for node in before if node not in nodes)
            if isinstance(change, Leave):
                self._hand_over(nodes)
            elif repair == "projection":
                self._project()
        elif isinstance(change, Repair):
            self._project()

    def _hand_over(self, nodes: list[int]) -> None:
        """Each member receives the same share of what these nodes leave behind."""
        rest = list(self.members)
        for name in self._zero_sum:
            c = self.state[name]
            c[:, rest] += c[:, nodes].sum(axis=1, keepdims=True) / len(rest)

    def _project(self) -> None:
        """The members' zero-sum variables sum to 0 again."""
        rest = list(self.members)
        for name in self._zero_sum:
            c = self.state[name]
            c[:, rest] -= c[:, rest].mean(axis=1, keepdims=True)

    @property
    def _zero_sum(self) -> list[str]:
        return [kept.name for kept in self.algorithm.spec().state if kept.zero_sum]

    def _welcome(self, nodes: list[int], members: list[int]) -> None:
        """The initial state of nodes that join. Their oracle starts as it would at their models."""
        for name, value in self.state.items():
            value[:, nodes] = 0.0 if name in self._zero_sum else value[:, members].mean(axis=1, keepdims=True)
        data = {name: value[nodes] for name, value in self.problem.data.items()}
        for i, x in enumerate(self.state["x"]):
            for name, value in self.oracle.init(NUMPY, self.problem.model, data, x[nodes]).items():
                self.memory[name][i, nodes] = value

    def record(self, r: int) -> None:
        """Measures at the start of round r, over the members."""
        part, rows = self.part(self.members), list(self.members)
        metrics = list(self.measured.values())
        algorithm = at_stepsize(self.algorithm, self.gammas[min(r, len(self.gammas) - 1)])
        known = any(NEEDS_OPTIMUM & set(metric.needs) for metric in metrics)
        self.times.append(r)
        self.present.append(np.isin(np.arange(self.problem.n), rows))
        found = []
        for i in range(len(self.seeds)):
            at = Snapshot(
                np,
                algorithm,
                part.model,
                part.data,
                {name: value[i, rows] for name, value in self.state.items()},
                optimum=part.optimum if known else None,
                minimum=part.minimum if known else None,
                test=part.test,
            )
            found.append(measure(metrics, at))
        for name in self.values:
            self.values[name].append([float(one[name]) for one in found])


def graph_of(topology: Graphs, n: int) -> Topology:
    """The topology of n nodes; an InputError if the function returns anything else."""
    if isinstance(topology, Topology) or not callable(topology):
        raise InputError(
            "topology", topology, "give a function of the number of nodes, such as stgt.topology.exponential."
        )
    try:
        found = topology(n)
    except Exception as error:
        raise InputError("topology", hint=f" for {n} nodes raised {quoted(error)}.") from error
    if not isinstance(found, Topology) or found.n != n:
        raise InputError("topology", hint=f" for {n} nodes is {found!r}: give a function that returns one of n nodes.")
    if found.has_server:
        raise InputError(
            "topology",
            hint=f" for {n} nodes is {found}. A node that leaves cannot hand over the server's variables: give one "
            "without a server, such as stgt.topology.complete.",
        )
    return found
