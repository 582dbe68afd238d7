"""The round as an affine map, got by differentiating the simulator's own round: no algorithm is defined twice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from stgt.engines.job import Job
from stgt.engines.program import Carry, Inputs, Program, Static
from stgt.engines.simulator import assemble
from stgt.oracles import Oracle
from stgt.randomness import STREAM_LOCAL, Clock, Ops

Array = Any


@dataclass(frozen=True)
class Given(Oracle):
    """The exact gradient plus noise that is handed in: a row for each local step, and one for an extra gradient."""

    noise: Any = None  # (steps, n, p)
    extra: Any = None  # (n, p)
    start: Any = 0  # the step of the first row

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return self.noise[clock.step - self.start] if clock.stream == STREAM_LOCAL else self.extra

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return model.gradients(ops.xp, data, x) + drawn, state


@dataclass(frozen=True, eq=False)
class AffineRound:
    """v ← M v + b + B ξ, with v the state's fields (D,) one after the other and ξ the round's noise of variance 1."""

    M: np.ndarray  # (D, D)
    b: np.ndarray  # (D,)
    Q: Any  # (D, D): B Bᵀ, or None if it was not asked for


@dataclass(frozen=True, eq=False)
class Layout:
    """Where what is in v: linear maps out of it, and v before round 0."""

    start: np.ndarray  # (D,)
    start_noise: np.ndarray  # (D, D): B Bᵀ of the noise in v before round 0, of gradients that an initialisation takes
    mean: np.ndarray  # (p, D): x̄
    models: np.ndarray  # (n p, D): all x_i
    conserved: np.ndarray  # (p, D): what stays 0, or (0, D)


def affine_round(job: Job, r: int, with_noise: bool = True) -> AffineRound:
    """The map of round r; a ValueError if the round is not affine."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        arguments = (*_arguments(job), jnp.asarray(job.x0))
        M, b, Q, probe, there = _maps(*arguments, jnp.int32(r), with_noise=with_noise)
    M, b, there = np.asarray(M), np.asarray(b), np.asarray(there)
    if not np.allclose(there, M @ np.asarray(probe) + b, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(there).max())):
        raise ValueError(f"{job.problem.name} is not quadratic: the round is an affine map on quadratics only.")
    return AffineRound(M, b, None if Q is None else np.asarray(Q))


def layout(job: Job) -> Layout:
    """Linear maps from the flat state to what one asks about it."""
    with jax.enable_x64(True):
        static, inputs, hyper, seed = _arguments(job)
        program, v, unflatten = _begin(static, inputs, hyper, seed, jnp.asarray(job.x0), *_quiet(static, 1))

        def start(noise: Array, extra: Array) -> Array:
            return _begin(static, inputs, hyper, seed, jnp.asarray(job.x0), noise, extra)[1]

        def conserved(v: Array) -> Array:
            vector = program.algorithm.conserved(unflatten(v)[0], job.topology.participation)
            return jnp.zeros(0) if vector is None else vector.sum(axis=0)

        asked = (
            lambda v: unflatten(v)[0]["x"].mean(axis=0),
            lambda v: unflatten(v)[0]["x"].ravel(),
            conserved,
        )
        start_noise = _noise_covariance(jax.jacfwd(start, argnums=(0, 1))(*_quiet(static, 1)), len(v))
        maps = (np.asarray(jax.jacfwd(function)(jnp.zeros_like(v))) for function in asked)
        return Layout(np.asarray(v), np.asarray(start_noise), *maps)


@partial(jax.jit, static_argnames=("static", "with_noise"))
def _maps(
    static: Static, inputs: Inputs, hyper: Any, seed: Array, x0: Array, r: Array, with_noise: bool
) -> tuple[Array, ...]:
    quiet = _quiet(static, static.algorithm.tau + 1)
    program, v, unflatten = _begin(static, inputs, hyper, seed, x0, *quiet)

    def go(v: Array, noise: Array, extra: Array) -> Array:
        program.oracle = Given(noise, extra, r * static.algorithm.tau)
        state, ahead = unflatten(v)
        carry, _ = program.round(Carry(state, {}, ahead, jnp.int32(-1)), r)
        return ravel_pytree((carry.state, carry.ahead))[0]

    zero = jnp.zeros_like(v)
    Q = _noise_covariance(jax.jacrev(go, argnums=(1, 2))(zero, *quiet), len(v)) if with_noise else None
    probe = jnp.cos(1.0 + jnp.arange(len(v)))
    return jax.jacfwd(go)(zero, *quiet), go(zero, *quiet), Q, probe, go(probe, *quiet)


def _arguments(job: Job) -> tuple[Static, Inputs, Any, Array]:
    static, inputs, hyper, seeds = assemble(job)
    return static, inputs, {name: values[0] for name, values in hyper.items()}, seeds[0]


def _begin(
    static: Static, inputs: Inputs, hyper: Any, seed: Array, x0: Array, noise: Array, extra: Array
) -> tuple[Program, Array, Any]:
    """The program with its noise handed in, its state before round 0 as a flat vector, and the way back."""
    program = Program(static, inputs, hyper, seed)
    program.oracle = Given(noise, extra)
    carry = program.first(x0, {})
    return program, *ravel_pytree((carry.state, carry.ahead))


def _quiet(static: Static, steps: int) -> tuple[Array, Array]:
    return jnp.zeros((steps, static.n, static.p)), jnp.zeros((static.n, static.p))


def _noise_covariance(parts: tuple[Array, ...], size: int) -> Array:
    """B Bᵀ from the derivatives (size, …) with respect to all noise."""
    return sum(part.reshape(size, -1) @ part.reshape(size, -1).T for part in parts)
