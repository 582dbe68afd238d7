"""Runs whose members change.

A run is split where its members change. Each piece is a plain run of the active nodes, on a topology with that number
of nodes. It starts from their rows of the state; the rows of all other nodes do not change. Both engines can run such
pieces. `churn_run` keeps the whole state, applies the changes between the pieces, and measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, spelt
from stgt._internal.markup import many
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.changes import Change, check_members, segments
from stgt.simulator.churn_run import ChurnRun, Graphs
from stgt.simulator.drive import CHUNK
from stgt.simulator.instance import check_algorithm_object, check_problem_object
from stgt.simulator.run import ENGINES

REPAIRS = ("projection", "none")


@dataclass(frozen=True, eq=False, repr=False)
class ChurnTrace:
    """The measurements of a run with changes, over the members at each time: arrays (seeds, times).

    Attributes:
        algorithm, problem: as they were given; the problem is that of all nodes.
        changes, repair: as they were given.
        seeds: one for each run.
        rounds: the rounds at whose starts it was measured, after their changes; the last one is the end of the run.
        members: the members at each time, (times, n) booleans.
        values: the measurements by name; you usually write `trace["residual"]`.
        state: the last state by field, (seeds, n, p). Rows of nodes that are not members are what they left behind.
        diverged_at: (seeds,) the first round at whose start some model was not finite; −1 if all stayed finite.
        engine, dtype: the engine, and its precision.
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
        counts = {"change": len(self.changes), "seed": len(self.seeds), "round": int(self.rounds[-1])}
        words = ", ".join(many(count, word) for word, count in counts.items())
        return f"ChurnTrace({self.algorithm.label}, {size} of {self.problem.n} nodes, {words})"


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
    """Runs an algorithm while nodes join, leave, crash and pause, and measures it over the members at each time.

    At a fixed point of a method with correction c, ∇f_V(x) = −(1/|V|) Σ_V c_i over the members V. So a change is
    harmless if it keeps Σ_V c_i = 0, for each variable that the method declares with `zero_sum=True`:

    - `Leave` distributes c: c_i ← c_i + c_k/|V| for all i that stay.
    - `Crash` loses c. With repair="projection", c_i ← c_i − (1/|V|) Σ_V c_j for all i that stay. With repair="none"
      the members continue unchanged, towards another point.
    - `Join` starts at c = 0, and at the mean of the members' models and of all their other variables.
    - `Repair` does with repair="none", at the start of its round, what "projection" does at a crash.
    - `Pause` changes nothing: the node keeps x and c, as if its row and column of W_r were those of the identity.

    A method without such a variable needs no repair. The draws of a node depend on the seed, the step and its number in
    the problem, and not on the other members.

    Args:
        algorithm, problem, seeds, oracle, metrics, dtype, engine: as for `simulate`. The problem has all nodes that
            are ever members.
        topology: a function of the number of nodes, such as `stgt.topology.exponential`. The k-th of its nodes is the
            k-th active node. It is called for each number of nodes that occurs.
        rounds: the number of rounds.
        changes: `Join`, `Leave`, `Crash`, `Pause` and `Repair`; see also `random_churn`.
        members: those at the start; all nodes by default.
        repair: "projection" or "none": what the members do after a crash.
        x0: the initial model, (p,), or one per node, (n, p).
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
    run = ChurnRun(algorithm, problem, topology, rounds, start, x0, metrics, engine, options)
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
    """An InputError for methods whose conserved quantities have no known repair."""
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
            hint=f" is {algorithm.label}, which exchanges twice a round and has already begun the next round when the "
            "members change: give one that exchanges once, such as STGT or FlexGT.",
        )
