"""The round as an affine map, got by differentiating the simulator's own round: no algorithm is defined twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.algorithms.calls import whole
from stgt.engines.program import Carry, Inputs, Program, Static
from stgt.engines.simulator import assemble
from stgt.engines.traced import single
from stgt.hyper import Brief
from stgt.ops import Ops
from stgt.oracles import Oracle
from stgt.randomness import STREAM_LOCAL, Clock
from stgt.setting import Setting
from stgt.xla import jax, jnp, lax, ravel_pytree

Array = Any
AT_ONCE = 64  # rows of a dense map that are computed together
ROOM = 2**25  # numbers that the noise of the rows computed together may have
STAYS = 1e-9  # a sum that a round changes by less is conserved


@dataclass(frozen=True)
class Given(Oracle):
    """The exact gradient plus noise that is handed in: a row for each local step, and one for an extra gradient."""

    noise: Any = None  # (steps, n, p)
    extra: Any = None  # (n, p)
    start: Any = 0  # the step of the first row

    def width(self, p: int) -> int:
        return 0  # nothing is drawn, so a round takes its rows at once

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        if clock.stream != STREAM_LOCAL:
            return self.extra
        steps = jnp.asarray(clock.step)
        if steps.ndim:
            return self.noise[: len(steps)]  # a round's own steps come together, from the first on
        return lax.dynamic_index_in_dim(self.noise, steps - self.start, keepdims=False)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return model.gradients(ops.xp, data, x) + drawn, state


@dataclass(frozen=True, eq=False)
class AffineRound(Brief):
    """v ← M v + b + B ξ, with v the state's fields (D,) one after the other and ξ the round's noise of variance 1."""

    M: np.ndarray  # (D, D)
    b: np.ndarray  # (D,)
    Q: Any  # (D, D): B Bᵀ, or None if it was not asked for


@dataclass(frozen=True, eq=False)
class Layout(Brief):
    """Where what is in v: linear maps out of it, and v before round 0."""

    start: np.ndarray  # (D,)
    start_noise: np.ndarray  # (D, D): B Bᵀ of the noise in v before round 0, of gradients that an initialisation takes
    mean: np.ndarray  # (p, D): x̄
    models: np.ndarray  # (n p, D): all x_i
    conserved: np.ndarray  # (p, D): what stays 0, or (0, D)


class Rounds:
    """The rounds of a setting as operators on flat states (D,). Rows go through them, (k, D) at a time; M and B are
    never written out.

    Attributes:
        start: v before round 0, (D,).
        models: where x is in v, (n, p) whole numbers.
        conserved: rows (p, D) that map v to what stays 0, or (0, D).
    """

    def __init__(self, setting: Setting, x0: np.ndarray) -> None:
        self.setting, algorithm = setting, setting.algorithm
        with _precise():
            self._arguments = _arguments(setting, x0)
            start, places, conserved = _place(*self._arguments)
        static = self._arguments[0]
        self.start = np.asarray(start)
        places = {name: np.asarray(place).astype(np.int64) for name, place in places.items()}
        self.models = places.pop("x")
        self.noisy_start = algorithm.starts_warm or bool(algorithm.exchanges_again)
        fits = max(1, ROOM // ((algorithm.tau + 2) * static.n * static.p))
        self._width = min(fits, static.p * -(-8 // static.p))  # rows a compiled call takes: p of them, or a few times p
        self.conserved = np.asarray(conserved) if algorithm.tracks else self._found_conserved(places)

    def _found_conserved(self, places: dict[str, np.ndarray]) -> np.ndarray:
        """The sums over the nodes of what they keep that no round changes, where the method declares none."""
        kept = []
        for place in places.values():
            rows = np.zeros((place.shape[1], len(self.start)))
            rows[np.arange(len(rows))[:, None], place.T] = 1.0
            for r in range(self.setting.topology.period or 1):
                moved, spread = self.pull(r, rows)
                drift = rows @ self.advance(r, np.zeros_like(self.start))
                stays = np.abs(moved - rows).max(axis=1) + np.abs(spread).max(axis=1) + np.abs(drift) <= STAYS
                rows = rows[stays]
            kept.append(rows)
        return np.concatenate(kept) if kept else np.zeros((0, len(self.start)))

    def advance(self, r: int, v: np.ndarray) -> np.ndarray:
        """M v + b, in round r."""
        return self._push(r, v, np.zeros_like(v))[0]

    def push(self, r: int, rows: np.ndarray) -> np.ndarray:
        """M v for each row v, in round r."""
        zero = np.zeros_like(self.start)
        return np.stack([self._push(r, zero, row)[1] for row in rows])

    def pull(self, r: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u M and u B Bᵀ for each row u, in round r."""
        return self._in_parts(lambda part: _pull(*self._arguments, jnp.int32(r), part), rows)

    def start_spread(self, rows: np.ndarray) -> np.ndarray:
        """u B Bᵀ for each row u, with B of the noise in v before round 0."""
        if not self.noisy_start:
            return np.zeros_like(rows)
        return self._in_parts(lambda part: (_start_spread(*self._arguments, part),), rows)[0]

    def check(self) -> None:
        """A ValueError if a round is not affine, or not the same a period later."""
        period = self.setting.topology.period or 1
        state, zero = _test_state(np, len(self.start)), np.zeros_like(self.start)
        for r in range(period):
            b, moved = self._push(r, zero, state)
            _check(self.setting, self.advance(r, state), moved + b, self.advance(r + period, state))

    def _push(self, r: int, v: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """M v + b, and M applied to a row."""
        with _precise():
            there, moved = _push(*self._arguments, jnp.int32(r), v, row)
        return np.asarray(there), np.asarray(moved)

    def _in_parts(self, function: Callable[[np.ndarray], Any], rows: np.ndarray) -> Any:
        """A compiled function of `_width` rows, on any number of them."""
        parts = []
        with _precise():
            for first in range(0, len(rows), self._width):
                part = rows[first : first + self._width]
                parts.append([np.asarray(out)[: len(part)] for out in function(_padded(part, self._width))])
        return tuple(np.concatenate(outs) for outs in zip(*parts, strict=True))


def affine_round(setting: Setting, x0: np.ndarray, r: int, with_noise: bool = True) -> AffineRound:
    """The map of round r; a ValueError if the round is not affine."""
    with _precise():
        arguments = _arguments(setting, x0)
        period = jnp.int32(setting.topology.period or 1)
        M, b, Q, there, later = _maps(*arguments, jnp.int32(r), period, with_noise=with_noise)
    M, b = np.asarray(M), np.asarray(b)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = M @ _test_state(np, len(b)) + b
    _check(setting, np.asarray(there), expected, np.asarray(later))
    return AffineRound(M, b, None if Q is None else np.asarray(Q))


def layout(setting: Setting, x0: np.ndarray) -> Layout:
    """Linear maps from the flat state to what one asks about it."""
    rounds = Rounds(setting, x0)
    one = np.eye(len(rounds.start))
    models = one[rounds.models]
    return Layout(
        start=rounds.start,
        start_noise=rounds.start_spread(one),
        mean=models.mean(axis=0),
        models=models.reshape(-1, len(one)),
        conserved=rounds.conserved,
    )


@partial(jax.jit, static_argnames="static")
def _place(
    static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array
) -> tuple[Array, dict[str, Array], Array]:
    """The state before round 0, where each field is in it, and the rows that map it to what stays 0."""
    v, unflatten = _begin(static, inputs, algorithm, seed, x0, *_quiet(static, 1))

    def conserved(v: Array) -> Array:
        if not algorithm.tracks:
            return v[:0]
        return algorithm.conserved(whole(algorithm, unflatten(v)[0]), static.participation).sum(axis=0)

    places = unflatten(jnp.arange(len(v), dtype=v.dtype))[0]
    return v, places, jax.jacrev(conserved)(jnp.zeros_like(v)).reshape(-1, len(v))


@partial(jax.jit, static_argnames=("static", "with_noise"))
def _maps(
    static: Static,
    inputs: Inputs,
    algorithm: Algorithm,
    seed: Array,
    x0: Array,
    r: Array,
    period: Array,
    with_noise: bool,
) -> tuple[Array, ...]:
    """M, b, B Bᵀ of round r, and where it and the same round a period later lead a test state."""
    go, zero, quiet = _round(static, inputs, algorithm, seed, x0)
    if with_noise:
        size = len(zero)
        parts = -(-size // AT_ONCE)
        width = -(-size // parts)
        rows = jnp.eye(parts * width, size).reshape(parts, width, size)
        M, Q = (out.reshape(-1, size)[:size] for out in lax.map(jax.vmap(partial(_pulled, go, r, zero, quiet)), rows))
    else:
        M, Q = jax.jacfwd(lambda v: go(r, v, *quiet))(zero), None
    state = _test_state(jnp, len(zero))
    starts, rounds = jnp.stack([zero, state, state]), jnp.stack([r, r, r + period])
    b, there, later = jax.vmap(lambda r, v: go(r, v, *quiet))(rounds, starts)
    return M, b, Q, there, later


@partial(jax.jit, static_argnames="static")
def _push(
    static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array, r: Array, v: Array, row: Array
) -> tuple[Array, Array]:
    go, _, quiet = _round(static, inputs, algorithm, seed, x0)
    return jax.jvp(lambda v: go(r, v, *quiet), (v,), (row,))


@partial(jax.jit, static_argnames="static")
def _pull(
    static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array, r: Array, rows: Array
) -> tuple[Array, Array]:
    go, zero, quiet = _round(static, inputs, algorithm, seed, x0)
    return jax.vmap(partial(_pulled, go, r, zero, quiet))(rows)


@partial(jax.jit, static_argnames="static")
def _start_spread(static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array, rows: Array) -> Array:
    def start(noise: Array, extra: Array) -> Array:
        return _begin(static, inputs, algorithm, seed, x0, noise, extra)[0]

    return jax.vmap(partial(_spread, start, _quiet(static, 1)))(rows)


def _pulled(
    go: Callable[..., Array], r: Array, zero: Array, quiet: tuple[Array, Array], row: Array
) -> tuple[Array, Array]:
    """u M and u B Bᵀ for a row u."""
    moved, *noise = jax.vjp(partial(go, r), zero, *quiet)[1](row)
    return moved, jax.jvp(partial(go, r, zero), quiet, tuple(noise))[1]


def _spread(function: Callable[..., Array], quiet: tuple[Array, ...], row: Array) -> Array:
    """u B Bᵀ for a row u, with B the derivative of a function of the noise."""
    return jax.jvp(function, quiet, jax.vjp(function, *quiet)[1](row))[1]


def _round(
    static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array
) -> tuple[Callable[..., Array], Array, tuple[Array, Array]]:
    """The round as a function (r, v, noise, extra) -> v, a state 0, and a round without noise."""
    quiet = _quiet(static, algorithm.tau + 1)
    v, unflatten = _begin(static, inputs, algorithm, seed, x0, *quiet)

    def go(r: Array, v: Array, noise: Array, extra: Array) -> Array:
        program = Program(static, inputs, algorithm, Given(noise, extra, r * algorithm.tau), seed)
        state, ahead = unflatten(v)
        carry, _ = program.round(Carry(state, {}, ahead, jnp.int32(-1)), r)
        return ravel_pytree((carry.state, carry.ahead))[0]

    return go, jnp.zeros_like(v), quiet


def _arguments(setting: Setting, x0: np.ndarray) -> tuple[Static, Inputs, Algorithm, Array, Array]:
    """What the compiled functions take; the oracle is left out, as its noise is handed in."""
    dtype = np.dtype(np.float64)
    static, inputs, _ = assemble(setting, dtype)
    return static, inputs, single(setting.algorithm, dtype), jnp.uint32(0), jnp.asarray(x0, dtype)


def _begin(
    static: Static, inputs: Inputs, algorithm: Algorithm, seed: Array, x0: Array, noise: Array, extra: Array
) -> tuple[Array, Any]:
    """The state before round 0 as a flat vector, with its noise handed in, and the way back."""
    carry = Program(static, inputs, algorithm, Given(noise, extra), seed).first(x0, {})
    return ravel_pytree((carry.state, carry.ahead))


def _quiet(static: Static, steps: int) -> tuple[Array, Array]:
    return jnp.zeros((steps, static.n, static.p)), jnp.zeros((static.n, static.p))


def _test_state(xp: Any, size: int) -> Array:
    """A state like no other, to see whether a round is what it should be."""
    return xp.cos(1.0 + xp.arange(size))


def _check(setting: Setting, there: np.ndarray, expected: np.ndarray, later: np.ndarray) -> None:
    """A ValueError unless the test state went where it was expected to go, now and a period later."""
    if not np.isfinite(there).all():
        raise ValueError(
            f"{setting.algorithm.label} with gamma={setting.algorithm.gamma} leaves the finite numbers within a round: "
            "give a smaller one."
        )
    near = partial(np.allclose, there, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(there).max()))
    if not near(expected):
        raise ValueError(f"{setting.problem.name} is not quadratic: the round is an affine map on quadratics only.")
    if not near(later):
        raise ValueError(
            f"{setting.algorithm.label} changes from round to round: give it constant stepsizes (decay=0)."
        )


def _padded(rows: np.ndarray, width: int) -> np.ndarray:
    return rows if len(rows) == width else np.pad(rows, ((0, width - len(rows)), (0, 0)))


def _precise() -> ExitStack:
    """Double precision, also in products."""
    stack = ExitStack()
    stack.enter_context(jax.enable_x64(True))
    stack.enter_context(jax.default_matmul_precision("highest"))
    return stack
