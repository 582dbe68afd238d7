"""The simulator: runs compiled by JAX, seeds and hyper-parameters in one batch."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stgt.engines.job import Job
from stgt.engines.mixing import as_pytree
from stgt.engines.program import CHUNK, Carry, Inputs, Program, Static
from stgt.engines.trace import Trace

Array = Any
Tree = Any


@partial(jax.jit, static_argnames="static")
def _begin(static: Static, inputs: Inputs, hyper: Tree, seeds: Array, x: Array, state0: Tree) -> Carry:
    return jax.vmap(lambda h, seed: Program(static, inputs, h, seed).first(x, state0))(hyper, seeds)


@partial(jax.jit, static_argnames="static", donate_argnames="carry")
def _advance(
    static: Static, inputs: Inputs, hyper: Tree, seeds: Array, carry: Carry, start: Array, count: Array
) -> tuple[Carry, dict[str, Array]]:
    def one(h: Tree, seed: Array, c: Carry) -> Any:
        return Program(static, inputs, h, seed).rounds(c, start, count)

    return jax.vmap(one)(hyper, seeds, carry)


@partial(jax.jit, static_argnames="static")
def _finish(
    static: Static, inputs: Inputs, hyper: Tree, seeds: Array, carry: Carry, r: Array
) -> tuple[Carry, dict[str, Array]]:
    def one(h: Tree, seed: Array, c: Carry) -> Any:
        program = Program(static, inputs, h, seed)
        return program.watch(c, r), program.measure(c.state)

    return jax.vmap(one)(hyper, seeds, carry)


def run(job: Job) -> list[Trace]:
    """Runs each algorithm of the job with each seed, in one batch; a trace for each algorithm."""
    with jax.enable_x64(job.dtype == "float64"), jax.default_matmul_precision("highest"):
        return _run(job)


def assemble(job: Job) -> tuple[Static, Inputs, Tree, Array]:
    """The arguments of a compiled program: static, shared, and the hyper-parameters and seeds of all runs."""
    problem, topology, dtype = job.problem, job.topology, np.dtype(job.dtype)
    runs = [(algorithm, seed) for algorithm in job.algorithms for seed in job.seeds]
    hyper = {
        name: jnp.asarray(np.array([algorithm.hyper()[name] for algorithm, _ in runs]), dtype)
        for name in job.algorithm.hyper()
    }
    seeds = jnp.asarray([seed for _, seed in runs], np.uint32)
    static = Static(
        algorithm=job.algorithm.bind(**dict.fromkeys(hyper)),
        oracle=job.oracle.bind(**dict.fromkeys(job.oracle.hyper())),
        model=problem.model,
        metrics=job.metrics,
        n=problem.n,
        p=problem.p,
        participation=topology.participation,
        batch=len(runs),
    )
    inputs = Inputs(
        data=_cast(problem.data, dtype),
        counts=None if problem.counts is None else jnp.asarray(problem.counts, np.int32),
        structure=_cast(as_pytree(topology.structure), dtype),
        topology_seed=jnp.asarray(topology.seed, np.uint32),
        oracle_hyper=_cast(job.oracle.hyper(), dtype),
        optimum=None if job.optimum is None else jnp.asarray(job.optimum, dtype),
        minimum=None if job.minimum is None else jnp.asarray(job.minimum, dtype),
    )
    return static, inputs, hyper, seeds


def _run(job: Job) -> list[Trace]:
    static, inputs, hyper, seeds = assemble(job)
    dtype = np.dtype(job.dtype)
    carry = _begin(static, inputs, hyper, seeds, jnp.asarray(job.x0, dtype), _cast(job.state0, dtype))
    pieces: list[dict[str, np.ndarray]] = []
    done, size = 0, CHUNK if job.progress is None else 1
    while done < job.rounds:
        count = min(size, job.rounds - done)
        began = time.perf_counter()
        carry, records = _advance(static, inputs, hyper, seeds, carry, jnp.int32(done), jnp.int32(count))
        pieces.append({name: np.asarray(values)[:, :count] for name, values in records.items()})
        done += count
        if job.progress is not None:
            job.progress(done * len(seeds), job.rounds * len(seeds))
            pace = (time.perf_counter() - began) / count
            size = int(np.clip(0.2 / pace, 1, CHUNK))
        if (np.asarray(carry.diverged_at) >= 0).all():
            break
    pieces += _after_divergence(pieces, job.rounds - done)
    carry, last = _finish(static, inputs, hyper, seeds, carry, jnp.int32(job.rounds))
    values = {
        name: np.concatenate([piece[name] for piece in pieces] + [np.asarray(last[name])[:, None]], axis=1)
        for name in job.metrics
    }
    used = np.concatenate([piece["links"] for piece in pieces], axis=1) if pieces else np.zeros((len(seeds), 0))
    state = {name: np.array(value) for name, value in carry.state.items()}
    diverged_at = np.asarray(carry.diverged_at)
    width = len(job.seeds)
    cuts = [slice(i * width, (i + 1) * width) for i in range(len(job.algorithms))]
    return [
        job.trace(
            i,
            {name: value[cut] for name, value in values.items()},
            {name: value[cut] for name, value in state.items()},
            diverged_at[cut],
            used[cut],
        )
        for i, cut in enumerate(cuts)
    ]


def _after_divergence(pieces: list[dict[str, np.ndarray]], rounds: int) -> list[dict[str, np.ndarray]]:
    """What stands for the rounds that are left out once every run has left the finite numbers."""
    if rounds == 0:
        return []
    empty = {name: np.full((len(values), rounds), np.nan, values.dtype) for name, values in pieces[-1].items()}
    return [{**empty, "links": np.repeat(pieces[-1]["links"][:, -1:], rounds, axis=1)}]


def _cast(tree: Tree, dtype: np.dtype) -> Tree:
    def leaf(value: Any) -> Array:
        value = np.asarray(value)
        return jnp.asarray(value, dtype if np.issubdtype(value.dtype, np.floating) else None)

    return jax.tree.map(leaf, tree)
