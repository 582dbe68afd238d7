"""Runs whose nodes come and go.

A run is cut where its members change. Each piece is a plain run of the nodes that take part, on a topology of just so
many nodes, which begins from their rows of the state; the rows of all others stay as they are. Both engines make such
pieces already: this module keeps the whole state, changes it between the pieces, and measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, spelt
from stgt._internal.ops import NUMPY, Ops
from stgt._internal.randomness import Clock
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import at_stepsize
from stgt.oracles import Exact, Oracle
from stgt.problems.base import Problem
from stgt.problems.members import problem_of
from stgt.simulator.changes import Change, Crash, Join, Leave, Segment, check_members, segments
from stgt.simulator.drive import CHUNK
from stgt.simulator.instance import Instance, check_algorithm_object, check_problem_object
from stgt.simulator.job import Job, RunState, first_models, prepare
from stgt.simulator.metrics import Snapshot, choose_metrics, measure
from stgt.simulator.run import ENGINES, load_engine
from stgt.topology import Topology

Array = Any
Graphs = Callable[[int], Topology]
REPAIRS = ("projection", "none")
NEEDS_OPTIMUM = {"optimum", "losses"}  # f(x*) is subtracted from the losses


@dataclass(frozen=True, eq=False, repr=False)
class ChurnTrace:
    """The measurements of a run with changes, over the members of the time: arrays (seeds, times).

    Attributes:
        algorithm, problem: what was run; the problem is that of all nodes.
        changes, repair: as they were given.
        seeds: one for each run.
        rounds: the numbers of the rounds at whose starts was measured, after their changes; the last one is the end.
        members: who was a member then, (times, n) booleans.
        values: the measurements by name; `trace["residual"]` is the usual access.
        state: the last state by field, (seeds, n, p). Rows of nodes that are no members are what they left behind.
        diverged_at: (seeds,) the first round at whose start some model was not finite; −1 if all stayed finite.
        engine, dtype: where it ran, and in which precision.
        absent: why a metric was not measured, by name.
    """

    algorithm: Algorithm
    problem: Problem
    changes: tuple[Change, ...]
    repair: str
    seeds: tuple[int, ...]
    rounds: np.ndarray
    members: np.ndarray
    values: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    diverged_at: np.ndarray
    engine: str
    dtype: str
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def residual(self) -> np.ndarray:
        """‖x̄ − x*‖², where x̄ is the mean of the members' models and x* the minimiser of their objectives."""
        return self["residual"]

    @property
    def x(self) -> np.ndarray:
        """The last models, (seeds, n, p)."""
        return self.state["x"]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.values:
            why = self.absent.get(name)
            known = ", ".join(self.values)
            raise KeyError(
                f"{name!r} was not measured: {why}." if why else f"{name!r} is not a measurement: choose from {known}."
            )
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the measurements."""
        return iter(self.values)

    def __repr__(self) -> str:
        low, high = self.members.sum(axis=1).min(), self.members.sum(axis=1).max()
        size = f"{low}" if low == high else f"{low} to {high}"
        return (
            f"ChurnTrace({self.algorithm.label}, {size} of {self.problem.n} nodes, {len(self.changes)} changes, "
            f"{len(self.seeds)} seeds, {self.rounds[-1]} rounds)"
        )


@spelt
def simulate_churn(
    algorithm: Algorithm,
    problem: Problem,
    topology: Graphs,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    *,
    changes: Iterable[Change] = (),
    members: Sequence[int] | None = None,
    repair: str = "projection",
    x0: Any = None,
    oracle: Oracle | None = None,
    metrics: Any = None,
    every: int = 1,
    dtype: str | None = None,
    engine: str | None = None,
) -> ChurnTrace:
    """Runs an algorithm while nodes join, leave, crash and pause, and measures it over the members of the time.

    At a fixed point of a method whose correction is c, ∇f_V(x) = −(1/|V|) Σ_V c_i over the members V. So a change is
    harmless if it leaves Σ_V c_i = 0, for each variable that the method declares with `zero_sum=True`:

    - `Leave` hands c over: c_i ← c_i + c_k/|V| for all i that stay.
    - `Crash` loses c. With repair="projection" c_i ← c_i − (1/|V|) Σ_V c_j for all i that stay; with repair="none" they
      go on as they are, towards another point.
    - `Join` begins at c = 0, and with the mean of the members' models and of all else that they keep.
    - `Pause` changes nothing: the node keeps x and c and sits out, as if its row and column of W_r were the identity's.

    A method without such a variable has nothing to hand over or to repair. What a node draws depends on the seed, the
    step and its number in the problem, and not on who else is there.

    Args:
        algorithm, problem, seeds, oracle, metrics, dtype, engine: as for `simulate`. The problem has all nodes that
            ever are members.
        topology: a function of the number of nodes, such as `stgt.topology.exponential`; the k-th of its nodes is the
            k-th of those that take part. It is asked for each number that occurs.
        rounds: how many to make.
        changes: `Join`, `Leave`, `Crash` and `Pause`; see also `random_churn`.
        members: those at the start; all nodes if left out.
        repair: "projection" or "none": what the members do after a crash.
        x0: the first model, (p,), or one for each node, (n, p).
        every: rounds between two measurements, up to 256.

    Returns:
        A `ChurnTrace`.

    Example:
        >>> import stgt
        >>> from stgt.simulator import Crash, Join, simulate_churn
        >>> problem = stgt.problems.ridge(n=8, p=2, noise=0.0)
        >>> trace = simulate_churn(
        ...     stgt.STGT(gamma=0.1, tau=5), problem, stgt.topology.ring, 400, changes=[Crash(50, 3), Join(90, 3)]
        ... )
        >>> bool(trace.residual[0, -1] < 1e-8)
        True
    """
    check_algorithm_object(algorithm, "stgt.STGT(gamma=0.1, tau=10)")
    check_problem_object(problem)
    _check_method(algorithm)
    check_choice(repair, "repair", REPAIRS)
    rounds, every = check_count(rounds, "rounds", 0), check_count(every, "every", 1, CHUNK)
    if isinstance(changes, Change) or not isinstance(changes, Iterable):
        raise InputError("changes", changes, "give a list of changes, such as [Crash(100, 3)].")
    changes = tuple(changes)
    start = check_members(members, problem.n)
    parts = segments(problem.n, start, changes, rounds)
    engine = ENGINES[check_choice("jax" if engine is None else engine, "engine", ENGINES)]
    options = {"seeds": seeds, "oracle": oracle, "dtype": dtype or ("float32" if engine == "jax" else "float64")}
    run = _ChurnRun(algorithm, problem, topology, rounds, start, x0, metrics, engine, options)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        for part in parts:
            for change in part.changes:
                run.change(change, repair)
            run.advance(part, every)
        run.record(rounds)
    return ChurnTrace(
        algorithm=algorithm,
        problem=problem,
        changes=changes,
        repair=repair,
        seeds=run.seeds,
        rounds=np.array(run.times),
        members=np.array(run.present),
        values={name: np.array(rows).T for name, rows in run.values.items()},
        state=run.state,
        diverged_at=run.diverged_at,
        engine=engine,
        dtype=str(options["dtype"]),
        absent=run.absent,
    )


def _check_method(algorithm: Algorithm) -> None:
    """An InputError for methods of which it is not known how to mend what they conserve."""
    spec = algorithm.spec()
    if spec.invariant:
        raise InputError(
            "algorithm",
            hint=f" is {algorithm.label}, which needs more than sums of 0 ({spec.invariant}), and no rule restores "
            "that after a change: give one without server variables, such as STGT, LED or DPSGD.",
        )
    if spec.second_messages:
        raise InputError(
            "algorithm",
            hint=f" is {algorithm.label}, which exchanges twice a round, and so has begun the next round when members "
            "change: give one that exchanges once, such as STGT or FlexGT.",
        )


@dataclass(frozen=True)
class _OfNodes(Oracle):
    """An oracle for some of the nodes, each of which draws by its own number in the whole problem."""

    inner: Oracle
    # As real numbers, exact up to 2²⁴, since these are arguments of a compiled program: other nodes, the same program.
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


class _ChurnRun:
    """The state of all nodes, (seeds, n, …), who is a member, and what was measured."""

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
        # Sets of nodes that come back, as those of a straggler do, are cut out of the data once.
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
        graph = _graph(self.topology, len(nodes))
        job = prepare([self.algorithm], self.part(nodes), graph, 0, metrics=[], **self.options)
        instance = job.instances[0]
        return replace(job, instances=(replace(instance, oracle=_OfNodes(instance.oracle, nodes)),))

    def advance(self, segment: Segment, every: int) -> None:
        """Makes the rounds of a segment, and measures at the start of every so many."""
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
        """Applies a change to the state, and to who is a member."""
        nodes, before = list(change.nodes), self.members
        if isinstance(change, Join):
            self.members = tuple(sorted({*before, *nodes}))
            self._welcome(nodes, list(before))
        elif isinstance(change, Leave | Crash):
            self.members = tuple(node for node in before if node not in nodes)
            rest = list(self.members)
            for name in self._zero_sum:
                c = self.state[name]
                if isinstance(change, Leave):
                    c[:, rest] += c[:, nodes].sum(axis=1, keepdims=True) / len(rest)
                elif repair == "projection":
                    c[:, rest] -= c[:, rest].mean(axis=1, keepdims=True)

    @property
    def _zero_sum(self) -> list[str]:
        return [kept.name for kept in self.algorithm.spec().state if kept.zero_sum]

    def _welcome(self, nodes: list[int], members: list[int]) -> None:
        """The state of newcomers, and the memory of their oracle: what it would begin with at their models."""
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


def _graph(topology: Graphs, n: int) -> Topology:
    """The topology of n nodes; an InputError if the function gives anything else."""
    if isinstance(topology, Topology) or not callable(topology):
        raise InputError(
            "topology", topology, "give a function of the number of nodes, such as stgt.topology.exponential."
        )
    try:
        found = topology(n)
    except Exception as error:
        raise InputError(
            "topology", hint=f"({n}) raised {type(error).__name__}: {error} It must give a topology for {n} nodes."
        ) from error
    if not isinstance(found, Topology) or found.n != n:
        raise InputError("topology", hint=f"({n}) gave {found!r}: it must give a topology of {n} nodes.")
    if found.has_server:
        raise InputError(
            "topology",
            hint=f"({n}) gave {found}: what a server holds is no node's, and who it calls is its own matter; give a "
            "topology without one, such as stgt.topology.complete.",
        )
    return found
