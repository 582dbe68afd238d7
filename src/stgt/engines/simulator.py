"""The simulator: runs compiled by JAX, seeds and hyper-parameters in one batch."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.engines.job import Job, Result
from stgt.engines.mixing import as_pytree
from stgt.engines.program import CHUNK, Carry, Inputs, Program, Static
from stgt.engines.traced import single, stacked
from stgt.oracles import Oracle
from stgt.setting import Setting
from stgt.topology import Structure
from stgt.xla import jax, jnp

Array = Any
Tree = Any


@partial(jax.jit, static_argnames="static")
def _begin(
    static: Static, inputs: Inputs, algorithms: Algorithm, oracle: Oracle, seeds: Array, x: Array, state0: Tree
) -> Carry:
    def one(algorithm: Algorithm, seed: Array) -> Carry:
        return Program(static, inputs, algorithm, oracle, seed).first(x, state0)

    return jax.vmap(one)(algorithms, seeds)


@partial(jax.jit, static_argnames="static", donate_argnames="carry")
def _advance(
    static: Static,
    inputs: Inputs,
    algorithms: Algorithm,
    oracle: Oracle,
    seeds: Array,
    carry: Carry,
    start: Array,
    count: Array,
) -> tuple[Carry, dict[str, Array]]:
    def one(algorithm: Algorithm, seed: Array, c: Carry) -> Any:
        return Program(static, inputs, algorithm, oracle, seed).rounds(c, start, count)

    return jax.vmap(one)(algorithms, seeds, carry)


@partial(jax.jit, static_argnames="static")
def _finish(
    static: Static, inputs: Inputs, algorithms: Algorithm, oracle: Oracle, seeds: Array, carry: Carry, r: Array
) -> tuple[Carry, dict[str, Array]]:
    def one(algorithm: Algorithm, seed: Array, c: Carry) -> Any:
        program = Program(static, inputs, algorithm, oracle, seed)
        return program.watch(c, r), program.measure(c.state)

    return jax.vmap(one)(algorithms, seeds, carry)


def run(job: Job) -> list[Result]:
    """Runs each setting of the job with each seed, in one batch."""
    with jax.enable_x64(job.dtype == "float64"), jax.default_matmul_precision("highest"):
        return _run(job)


def assemble(
    setting: Setting,
    dtype: np.dtype,
    *,
    metrics: tuple[str, ...] = (),
    optimum: np.ndarray | None = None,
    minimum: float | None = None,
    batch: int = 1,
) -> tuple[Static, Inputs, Oracle]:
    """The arguments of a compiled program that all its runs share."""
    problem, topology = setting.problem, setting.topology
    static = Static(
        model=problem.model,
        metrics=metrics,
        n=problem.n,
        p=problem.p,
        participation=topology.participation,
        batch=batch,
    )
    inputs = Inputs(
        data=_cast(problem.data, dtype),
        counts=None if problem.counts is None else jnp.asarray(problem.counts, np.int32),
        structure=as_arrays(topology.structure, dtype),
        topology_seed=jnp.asarray(topology.seed, np.uint32),
        optimum=None if optimum is None else jnp.asarray(optimum, dtype),
        minimum=None if minimum is None else jnp.asarray(minimum, dtype),
    )
    return static, inputs, single(setting.oracle, dtype)


def as_arrays(structure: Structure, dtype: np.dtype) -> Structure:
    """The structure with its numbers as JAX arrays."""
    return _cast(as_pytree(structure), dtype)


def _run(job: Job) -> list[Result]:
    dtype, runs = np.dtype(job.dtype), [(setting, seed) for setting in job.settings for seed in job.seeds]
    options = {"metrics": job.metrics, "optimum": job.optimum, "minimum": job.minimum, "batch": len(runs)}
    static, inputs, oracle = assemble(job.settings[0], dtype, **options)
    seeds = jnp.asarray([seed for _, seed in runs], np.uint32)
    shared = (static, inputs, stacked([setting.algorithm for setting, _ in runs], dtype), oracle, seeds)
    carry = _begin(*shared, jnp.asarray(job.x0, dtype), _cast(job.state0, dtype))
    pieces: list[dict[str, np.ndarray]] = []
    done, size = 0, CHUNK if job.progress is None else 1
    while done < job.rounds:
        count = min(size, job.rounds - done)
        began = time.perf_counter()
        carry, records = _advance(*shared, carry, jnp.int32(done), jnp.int32(count))
        pieces.append({name: np.asarray(values)[:, :count] for name, values in records.items()})
        done += count
        if job.progress is not None:
            job.progress(done * len(seeds), job.rounds * len(seeds))
            pace = (time.perf_counter() - began) / count
            size = int(np.clip(0.2 / pace, 1, CHUNK))
        if (np.asarray(carry.diverged_at) >= 0).all():
            break
    pieces += _after_divergence(pieces, job.rounds - done)
    carry, last = _finish(*shared, carry, jnp.int32(job.rounds))
    values = {
        name: np.concatenate([piece[name] for piece in pieces] + [np.asarray(last[name])[:, None]], axis=1)
        for name in job.metrics
    }
    used = np.concatenate([piece["links"] for piece in pieces], axis=1) if pieces else np.zeros((len(seeds), 0))
    state = {name: np.array(value) for name, value in carry.state.items()}
    diverged_at = np.asarray(carry.diverged_at)
    width = len(job.seeds)
    cuts = [slice(i * width, (i + 1) * width) for i in range(len(job.settings))]
    return [
        Result(
            values={name: value[cut] for name, value in values.items()},
            state={name: value[cut] for name, value in state.items()},
            diverged_at=diverged_at[cut],
            links=used[cut],
        )
        for cut in cuts
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
