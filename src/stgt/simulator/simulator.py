"""The simulator: runs compiled by JAX, with seeds and hyper-parameters in one batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stgt._internal.xla import Traced, jax, jnp
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import at_stepsize
from stgt.oracles import Oracle
from stgt.simulator.drive import CHUNK
from stgt.simulator.jax_ops import as_arrays, cast, single, stacked
from stgt.simulator.job import Job, RunState
from stgt.simulator.metrics import Metric, Snapshot, own_value
from stgt.simulator.program import Carry, Inputs, Program, Static

Array = Any
Tree = Any
Shared = tuple[Inputs, Algorithm, Oracle, Array]  # the inputs, and the methods, oracles and seeds of all runs
jax.tree_util.register_dataclass(
    Snapshot,
    data_fields=["algorithm", "data", "state", "optimum", "minimum", "test", "last_gradients"],
    meta_fields=["xp", "model", "participation"],
)


def _over_runs(static: Static, shared: Shared, gammas: Array, one: Callable[..., Any], *carry: Carry) -> Any:
    """`one(program, …)` for each run, at the first of its stepsizes."""
    inputs, algorithms, oracle, seeds = shared

    def run(algorithm: Algorithm, seed: Array, gammas: Array, *carry: Carry) -> Any:
        program = Program(static, inputs, at_stepsize(algorithm, gammas[0]), oracle, seed)
        return one(program, gammas, *carry)

    return jax.vmap(run)(algorithms, seeds, gammas, *carry)


@partial(jax.jit, static_argnames="static")
def _begin(static: Static, shared: Shared, gammas: Array, x: Array, state0: Tree) -> Carry:
    return _over_runs(static, shared, gammas, lambda program, _: program.first(x, state0))


@partial(jax.jit, static_argnames="static", donate_argnames="carry")
def _advance(
    static: Static, shared: Shared, gammas: Array, carry: Carry, start: Array, count: Array
) -> tuple[Carry, dict[str, Array]]:
    def one(program: Program, gammas: Array, carry: Carry) -> tuple[Carry, dict[str, Array]]:
        return program.rounds(carry, start, count, gammas)

    return _over_runs(static, shared, gammas, one, carry)


@partial(jax.jit, static_argnames="static")
def _finish(static: Static, shared: Shared, gammas: Array, carry: Carry, r: Array) -> tuple[Array, dict[str, Array]]:
    def one(program: Program, _: Array, carry: Carry) -> tuple[Array, dict[str, Array]]:
        values = program.measure(carry.state)
        return program.detect_divergence(carry, r, values).diverged_at, values

    return _over_runs(static, shared, gammas, one, carry)


class Simulator:
    """All runs of a job in one batch; an `Engine`."""

    def __init__(self, job: Job):
        self.job, self.dtype = job, np.dtype(job.dtype)
        runs = [(instance, seed) for instance in job.instances for seed in job.seeds]
        with self._precision():
            static, inputs, oracle = assemble(job, self.dtype, len(runs))
            # The stepsize of each round is an argument, so all schedules and stepsizes share a program.
            algorithms = stacked([at_stepsize(instance.algorithm, None) for instance, _ in runs], self.dtype)
            seeds = jnp.asarray([seed for _, seed in runs], np.uint32)
            self._shared = static, (inputs, algorithms, oracle, seeds)
            self._carry = self._first() if job.run_state is None else self._continued(job.run_state)
            if job.rounds:
                self._advance(job.first, 0)  # compiles the program, so that the rounds' time does not include it
        self._diverged_at = np.asarray(self._carry.diverged_at)

    def advance(self, first: int, count: int) -> dict[str, np.ndarray]:
        with self._precision():
            records = self._advance(first, count)
        self._diverged_at = np.asarray(self._carry.diverged_at)
        # Copies: a view would keep the whole padded array in memory.
        return {name: np.asarray(values)[:, :count].copy() for name, values in records.items()}

    def measure(self, r: int) -> dict[str, np.ndarray]:
        with self._precision():
            gammas = self._gammas(max(r - 1, 0), 1)[:, :1]
            diverged_at, values = _finish(*self._shared, gammas, self._carry, jnp.int32(r))
        self._diverged_at = np.asarray(diverged_at)
        return {name: np.asarray(value, self.dtype) for name, value in values.items()}

    @property
    def diverged_at(self) -> np.ndarray:
        return self._diverged_at

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in self._carry.state.items()}

    def run_state(self, rounds: int, links: np.ndarray) -> RunState:
        carry = self._carry
        return RunState(
            rounds=rounds,
            state=self.state,
            memory={name: np.array(value) for name, value in carry.memory.items()},
            ahead=None if carry.ahead is None else np.array(carry.ahead),
            diverged_at=self._diverged_at,
            links=links,
        )

    def _advance(self, first: int, count: int) -> dict[str, Array]:
        gammas = self._gammas(first, count)
        self._carry, records = _advance(*self._shared, gammas, self._carry, jnp.int32(first), jnp.int32(count))
        return records

    def _gammas(self, first: int, count: int) -> Array:
        """The stepsizes of the next rounds, (runs, CHUNK) or (runs, CHUNK, n), padded if there are fewer."""
        start = first - self.job.gammas_from
        found = [gammas[start : start + max(count, 1)] for gammas in self.job.gammas for _ in self.job.seeds]
        padding = [(0, CHUNK - len(found[0]))] + [(0, 0)] * (found[0].ndim - 1)
        return jnp.asarray(np.stack([np.pad(one, padding, mode="edge") for one in found]), self.dtype)

    def _first(self) -> Carry:
        x, state0 = jnp.asarray(self.job.x0, self.dtype), cast(self.job.state0, self.dtype)
        return _begin(*self._shared, self._gammas(self.job.first, 1)[:, :1], x, state0)

    def _continued(self, run_state: RunState) -> Carry:
        state, memory = cast(run_state.state, self.dtype), cast(run_state.memory, self.dtype)
        ahead = None if run_state.ahead is None else jnp.asarray(run_state.ahead, self.dtype)
        return Carry(state, memory, ahead, jnp.asarray(run_state.diverged_at, np.int32))

    def _precision(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(jax.enable_x64(self.job.dtype == "float64"))
        stack.enter_context(jax.default_matmul_precision("highest"))
        return stack


def assemble(job: Job, dtype: np.dtype, batch: int) -> tuple[Static, Inputs, Oracle]:
    """The arguments of a compiled program that all its runs share."""
    problem, topology = job.problem, job.topology
    inputs = Inputs(
        data=cast(problem.data, dtype),
        counts=None if problem.counts is None else jnp.asarray(problem.counts, np.int32),
        structure=as_arrays(topology.structure, dtype),
        topology_seed=jnp.asarray(topology.seed, np.uint32),
        optimum=None if job.optimum is None else jnp.asarray(job.optimum, dtype),
        minimum=None if job.minimum is None else jnp.asarray(job.minimum, dtype),
        test=None if job.test is None else cast(job.test, dtype),
    )
    static = Static(
        model=problem.model,
        measured=tuple(one if one.built_in else _keyed(one, job, inputs, dtype) for one in job.measured.values()),
        n=problem.n,
        p=problem.p,
        participation=topology.participation,
        batch=batch,
    )
    return static, inputs, single(job.oracle, dtype)


def _keyed(metric: Metric, job: Job, inputs: Inputs, dtype: np.dtype) -> Metric:
    """A user's metric, made a part of the compiled program's cache key."""
    n, p = job.problem.n, job.problem.p
    algorithm: Any = single(at_stepsize(job.algorithm, None), dtype)
    at = Snapshot(
        jnp,
        at_stepsize(algorithm, jnp.asarray(job.gammas[0][0], dtype)),
        job.problem.model,
        inputs.data,
        {field: jax.ShapeDtypeStruct((n, p), dtype) for field in job.instances[0].spec.state_fields},
        job.topology.participation,
        inputs.optimum,
        inputs.minimum,
        inputs.test,
    )
    return replace(metric, compute=Traced(partial(own_value, metric), at))
