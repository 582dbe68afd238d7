"""One run as JAX traces it: a round, its local steps, the exchange, the measurements.

The algorithm's class, tau, the shapes, the graph's structure and the number of runs are static: a new value compiles a
new program. Stepsizes, data, seeds and the number of rounds are arguments of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stgt._internal.randomness import STREAM_INITIAL, STREAM_LOCAL, STREAM_START_GRADIENT, Clock, coin
from stgt._internal.xla import jax, jnp, lax
from stgt.algorithms import Algorithm, MessageVar
from stgt.algorithms.calls import Checked
from stgt.oracles import Oracle
from stgt.simulator.cache import keep_compiled
from stgt.simulator.costs import pushed_share
from stgt.simulator.drive import CHUNK
from stgt.simulator.jax_ops import OPS, average, mix, push
from stgt.simulator.metrics import Metric, Snapshot, finite, measure
from stgt.topology.circulant import Average

Array = Any
Tree = Any
DRAWN_AT_ONCE = 2**22  # random numbers; a round that needs more draws them step by step


keep_compiled()


@dataclass(frozen=True)
class Static:
    """The static inputs of the compiled program."""

    model: Any
    measured: tuple[Metric, ...]
    n: int
    p: int
    participation: float
    batch: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """The arguments of the compiled program that all runs of a batch share."""

    data: dict[str, Array]
    counts: Array | None
    structure: Any
    topology_seed: Array
    optimum: Array | None
    minimum: Array | None
    test: dict[str, Array] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What is passed from one round to the next."""

    state: dict[str, Array]
    memory: dict[str, Array]  # the oracle's variables
    ahead: Array | None  # the gradient at x, for methods that exchange twice
    diverged_at: Array


class Workers(NamedTuple):
    """The nodes that work in a round, and their data. `rows` is None if all do."""

    rows: Array | None
    nodes: Array
    data: dict[str, Array]
    counts: Array | None


class Program:
    """One run, inside a JAX trace. The algorithm's `gamma` is the stepsize of the traced round."""

    def __init__(self, static: Static, inputs: Inputs, algorithm: Algorithm, oracle: Oracle, seed: Array):
        self.static, self.inputs, self.seed = static, inputs, seed
        self.method, self.oracle = Checked(algorithm), oracle
        self.graph_seed = inputs.topology_seed + seed
        self.structure = inputs.structure
        if self.structure.sampled == static.n:
            self.structure = Average(static.n)  # a server that samples all workers
        gamma: Any = algorithm.gamma
        self.gamma: Any = gamma[:, None] if gamma.ndim else gamma
        self.dtype = gamma.dtype

    def first(self, x: Array, state0: dict[str, Array]) -> Carry:
        """The carry before round 0."""
        memory = self.oracle.init(OPS, self.static.model, self.inputs.data, x)
        gradient = mean = ahead = None
        if self.method.spec.needs_initial_gradient:
            gradient, memory = self.evaluate(self.workers(None), memory, x, jnp.int32(0), STREAM_INITIAL)
            mean = jnp.broadcast_to(gradient.mean(axis=0), gradient.shape)
        state = {**self.method.init(x, gradient, mean), **state0}
        if self.method.spec.second_messages:
            ahead, memory = self.evaluate(self.workers(None), memory, x, jnp.int32(0))
        return Carry(state, memory, ahead, jnp.int32(-1))

    def workers(self, rows: Array | None) -> Workers:
        nodes = jnp.arange(self.static.n) if rows is None else rows
        return Workers(rows, nodes, _take(self.inputs.data, rows), _take(self.inputs.counts, rows))

    def draw(self, workers: Workers, step: Array, stream: int = STREAM_LOCAL) -> Tree:
        clock = Clock(OPS, self.dtype, self.seed, workers.nodes, step, stream)
        return self.oracle.draw(clock, self.static.p, workers.counts)

    def evaluate(
        self, workers: Workers, memory: Tree, x: Array, step: Array, stream: int = STREAM_LOCAL, drawn: Tree = None
    ) -> tuple[Array, Tree]:
        """The gradients of the workers at x, with the samples of `step`."""
        drawn = self.draw(workers, step, stream) if drawn is None else drawn
        return self.oracle.gradient(OPS, self.static.model, workers.data, memory, x, drawn)

    def local_steps(self, workers: Workers, state: Tree, memory: Tree, ahead: Array | None, r: Array) -> Any:
        """tau steps of the workers, with the gradients that the algorithm reads."""
        method, reads, tau = self.method, self.method.spec.reads, self.method.tau
        gamma = self.gamma if jnp.ndim(self.gamma) == 0 else _take(self.gamma, workers.rows)
        start, steps, kept = state["x"], r * tau + jnp.arange(tau), method.readable(state)
        start_gradient = None
        if "start_gradient" in reads:
            start_gradient, memory = self.evaluate(workers, memory, start, steps[0], STREAM_START_GRADIENT)

        size = self.static.batch * tau * len(start) * self.oracle.width(self.static.p)
        drawn = self.draw(workers, steps) if size <= DRAWN_AT_ONCE else None
        # A step that returns its gradient makes a copy, so only methods that read the last gradient pay for it.
        keep = "last" in reads

        def move(x: Array, g: Array) -> Array:
            return x - gamma * (g + method.correction(kept, x))

        def step(carry: Tree, t: Tree) -> tuple[Tree, None]:
            x, memory, _ = carry
            g, memory = self.evaluate(workers, memory, x, t[0], drawn=t[1])
            return (move(x, g), memory, g if keep else None), None

        first = None
        carry, begun = (start, memory, jnp.zeros_like(start) if keep else None), 0
        if ahead is not None or "first" in reads:
            first = ahead
            if first is None:
                first, memory = self.evaluate(workers, memory, start, steps[0], drawn=_at(drawn, 0))
            carry, begun = (move(start, first), memory, first if keep else None), 1
        if tau > begun:
            carry, _ = lax.scan(step, carry, (steps[begun:], _at(drawn, slice(begun, None))))
        end, memory, last = carry
        local = method.after_steps(
            start=start,
            end=end,
            gamma=gamma,
            round=r,
            participation=self.static.participation,
            first=first,
            last=last,
            start_gradient=start_gradient,
        )
        return local, memory

    def exchange(
        self, rows: Array | None, r: Array, message: dict[str, Array], declared: Sequence[MessageVar]
    ) -> dict[str, Array]:
        """The mixed message that the nodes `rows` receive."""
        if rows is not None:
            return {name: average(value) for name, value in message.items()}
        mixed = {**message}
        for sent in declared:
            for _ in range(self.method.spec.mixing_steps):
                mixed[sent.name] = self.mix(r, mixed[sent.name], sent)
        return mixed

    def mix(self, r: Array, value: Array, sent: MessageVar) -> Array:
        pushing = self.structure.pushing
        if pushing is not self.structure and (sent.pushed or sent.transposed):
            structure = pushing if sent.pushed else self.structure
            return push(OPS, structure, self.graph_seed, r, value, sent.transposed)
        return mix(OPS, self.structure, self.graph_seed, r, value, sent.transposed)

    def links(self, r: Array) -> Array:
        structure = self.inputs.structure
        used = structure.links(OPS, self.graph_seed, r)
        if structure.pushing is structure:
            return used
        share = pushed_share(self.method.spec)
        return (1 - share) * used + share * structure.pushing.links(OPS, self.graph_seed, r)

    def round(self, carry: Carry, r: Array) -> tuple[Carry, Array]:
        """Runs one round; also returns the number of links it used."""
        method, spec, structure = self.method, self.method.spec, self.structure
        rows = structure.active(jnp, self.graph_seed, r)
        workers, old = self.workers(rows), _take(carry.state, rows)
        local, memory = self.local_steps(workers, old, _take(carry.memory, rows), _take(carry.ahead, rows), r)
        kept = method.readable(old)
        message = method.message(kept, local)
        new = method.merge(kept, local, self.exchange(rows, r, message, spec.messages))
        used = self.links(r)
        if spec.communication_probability is not None:
            exchanged = coin(jnp, self.seed, r, spec.communication_probability, self.dtype)
            new = jax.tree.map(partial(jnp.where, exchanged), new, {**old, "x": local.end})
            used = jnp.where(exchanged, used, 0.0)
        ahead = carry.ahead
        if ahead is not None:
            gradient, memory = self.evaluate(workers, memory, new["x"], (r + 1) * method.tau)
            mixed = self.exchange(rows, r, method.second_message(new, gradient), spec.second_messages)
            new = method.second_merge(new, gradient, mixed)
            ahead = _put(ahead, rows, gradient)
        state = {name: _put(carry.state[name], rows, value) for name, value in new.items()}
        if rows is not None:
            state |= self.held(state, new, method.merge(kept, local, message), rows, r)
        return Carry(state, _put(carry.memory, rows, memory), ahead, carry.diverged_at), used

    def held(self, state: Tree, mixed: Tree, own: Tree, rows: Array, r: Array) -> dict[str, Array]:
        """The variables that a server holds: sent to all nodes, or by relay to the workers of the next round."""
        names = self.method.spec.server_fields
        following = self.structure.listening(jnp, self.graph_seed, r)
        if following is None:
            return {name: jnp.broadcast_to(mixed[name][0], state[name].shape) for name in names}
        return {name: state[name].at[rows].set(own[name]).at[following].set(mixed[name]) for name in names}

    def measure(self, state: Tree) -> dict[str, Array]:
        return measure(self.static.measured, self.snapshot(state))

    def snapshot(self, state: Tree) -> Snapshot:
        inputs, static = self.inputs, self.static
        return Snapshot(
            jnp, self.method.algorithm, static.model, inputs.data, state, static.participation, inputs.optimum,
            inputs.minimum, inputs.test,
        )  # fmt: skip

    def at(self, gamma: Array) -> Program:
        """The same run, in a round with this stepsize."""
        return Program(self.static, self.inputs, self.method.at_stepsize(gamma).algorithm, self.oracle, self.seed)

    def rounds(self, carry: Carry, start: Array, count: Array, gammas: Array) -> tuple[Carry, dict[str, Array]]:
        """`count` ≤ CHUNK rounds from round `start` with stepsizes `gammas`; also the measurements at their starts."""

        def body(i: Array, both: Any) -> Any:
            carry, records = both
            r, program = start + i, self.at(gammas[i])
            values = program.measure(carry.state)
            carry = program.detect_divergence(carry, r, values)
            carry, values["links"] = program.round(carry, r)
            return carry, {name: records[name].at[i].set(value) for name, value in values.items()}

        records = {
            name: jnp.zeros(CHUNK, self.dtype) for name in (*(one.name for one in self.static.measured), "links")
        }
        return lax.fori_loop(0, count, body, (carry, records))

    def detect_divergence(self, carry: Carry, r: Array, values: dict[str, Array]) -> Carry:
        """Records the first round at whose start a model, or a measurement of it, is not finite."""
        whole = jnp.isfinite(carry.state["x"]).all() & finite(jnp, self.static.measured, values)
        lost = ~whole & (carry.diverged_at < 0)
        return Carry(carry.state, carry.memory, carry.ahead, jnp.where(lost, r, carry.diverged_at).astype(np.int32))


def _take(tree: Tree, rows: Array | None) -> Tree:
    return tree if rows is None else jax.tree.map(lambda leaf: leaf[rows], tree)


def _put(tree: Tree, rows: Array | None, values: Tree) -> Tree:
    return values if rows is None else jax.tree.map(lambda leaf, value: leaf.at[rows].set(value), tree, values)


def _at(tree: Tree, position: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[position], tree)
