"""The rounds of an instance as affine maps v ← M v + b + B ξ of the whole network's state, without dense matrices.

v has the nodes one after the other, each with its variables, (n, k p). Several columns can go through a round at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import linalg

from stgt._internal.checks import NotCovered
from stgt._internal.ops import NUMPY
from stgt.simulator.instance import Instance
from stgt.theory.node_round import Curvature, MessageMap, NodeRound, curvature, first_state, node_round

Array = np.ndarray
DENSE_UP_TO = 256  # nodes; for more, W_r is applied by its layout's own kernel
SHARES = 200  # nodes times variables; up to this, conserved sums may have different weights for different nodes
STAYS = 1e-12  # a sum whose relative change in a round is below this is conserved
STABLE_BELOW = 1 - 1e-12  # a spectral radius from here on is 1 up to rounding


@dataclass(frozen=True)
class SteadyState:
    """The steady state of a stable method.

    Attributes:
        residual: E‖x̄ − x*‖² at the starts of rounds, the mean over a period.
        consensus: E‖X − 1x̄‖², likewise.
        bias: ‖E x̄ − x*‖², the part of `residual` that is not noise; 0 for exact methods.
        consensus_error: the standard error of `consensus`, which is estimated for large states; 0 if it is exact.
        residual_error: the standard error of `residual` if the law of W_r is known only from drawn rounds; otherwise 0.
    """

    residual: float
    consensus: float
    bias: float
    consensus_error: float = 0.0
    residual_error: float = 0.0


class ExactMap:
    """The rounds of a method, from which its stability, steady state and expected curve are computed.

    Attributes:
        instance: the instance that runs them.
        period: the number of rounds in a period, or of rounds that differ in law.
        quadratic: the problem.
        conserved: orthonormal rows of the sums over nodes that no round changes.
        spectral_radius: the factor by which the slowest mode shrinks in a round, or its root mean square if rounds are
            random; above 1 the run diverges.
    """

    instance: Instance
    period: int
    quadratic: Curvature
    conserved: cached_property[Array]
    spectral_radius: cached_property[float]

    @property
    def stable(self) -> bool:
        return self.spectral_radius < STABLE_BELOW

    def steady_state(self) -> SteadyState:
        """The steady state; a ValueError if the method is not stable."""
        if self.stable:
            return SteadyState(*self.long_run())
        raise ValueError(
            f"{self} has spectral radius {self.spectral_radius:.6f}, so there is no steady state: give a smaller gamma "
            "or another topology."
        )

    def long_run(self) -> tuple[float, ...]:
        """The fields of `SteadyState` for a stable method."""
        raise NotImplementedError

    def curve(self, rounds: int) -> Array:
        """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,)."""
        raise NotImplementedError

    def __str__(self) -> str:
        algorithm = self.instance.algorithm
        return f"{algorithm.label} with gamma={algorithm.gamma} on {self.instance.topology.name}"


class NetworkRounds(ExactMap):
    """The rounds of a period as operators, and the state before round 0.

    Attributes:
        node_rounds: what the nodes compute in each round of the period.
        start: v before round 0, (D,).
        shape: (n, k p): nodes, and entries of a node's state.
        optimum: x*.
        noisy: is there any noise?
    """

    def __init__(
        self, instance: Instance, x0: Array, quadratic: Curvature | None = None, conserved: Array | None = None
    ) -> None:
        self.instance, self.period, self._likely = instance, instance.topology.period or 1, conserved
        self.quadratic = quadratic = curvature(instance) if quadratic is None else quadratic
        self.node_rounds = self._rounds()
        v, self._own, self._shared = first_state(instance, quadratic, x0)
        self.start, self.shape = v.ravel(), v.shape
        self.optimum, self.noisy = np.asarray(instance.problem.optimum), bool(quadratic.C.any())

    def _rounds(self) -> list[NodeRound]:
        """The period's rounds. If the method does not read the round's number, they differ in W_r only."""
        algorithm = self.instance.algorithm
        if "round" not in self.instance.spec.reads:
            return [node_round(self.instance, self.quadratic, 0)] * self.period
        made = [node_round(self.instance, self.quadratic, r) for r in range(2 * self.period)]
        for now, later in zip(made[: self.period], made[self.period :], strict=True):
            if not np.allclose(now.G, later.G, rtol=1e-8) or not all(
                np.allclose(one.F, other.F, rtol=1e-8) for one, other in zip(now.messages, later.messages, strict=True)
            ):
                raise NotCovered(
                    f"{algorithm.label} changes from round to round: give it constant stepsizes (decay=0)."
                )
        return made[: self.period]

    @cached_property
    def models(self) -> Array:
        """The positions of x in v, (n, p) whole numbers."""
        n, size = self.shape
        return size * np.arange(n)[:, None] + np.arange(self.instance.problem.p)

    @cached_property
    def mean(self) -> Array:
        """The rows (p, D) that map v to x̄."""
        n, p = self.models.shape
        return self.weighing(np.broadcast_to(np.eye(p)[:, None] / n, (p, n, p)))

    def weighing(self, weights: Array) -> Array:
        """The rows (k, D) that give the sums of x with `weights` (k, n, p)."""
        found = np.zeros((len(weights), len(self.start)))
        found[:, self.models] = weights
        return found

    def push(self, r: int, columns: Array) -> Array:
        """M v for each column v of (D, b), in round r of the period."""
        round, (n, size) = self.node_rounds[r], self.shape
        return self.forward(r, columns.reshape(n, size, -1), slice(0, round.size)).reshape(len(columns), -1)

    def advance(self, r: int, v: Array) -> Array:
        """M v + b, in round r of the period."""
        n, size = self.shape
        return self.forward(r, v.reshape(n, size, 1), slice(0, self.node_rounds[r].size), 1.0).ravel()

    def over_period(self, columns: Array) -> Array:
        """M v of a whole period for each column v of (D, b), without v's conserved part."""
        columns = columns - self.conserved.T @ (self.conserved @ columns)
        for r in range(self.period):
            columns = self.push(r, columns)
        return columns

    def pull(self, r: int, rows: Array) -> tuple[Array, Array]:
        """u M and u B Bᵀ for each row u of (k, D), in round r of the period."""
        round, (n, size) = self.node_rounds[r], self.shape
        weights = self._backward(r, rows.T.reshape(n, size, -1))
        noise = weights[:, size:]
        root = round.noise_root
        spread = self.forward(r, root @ (root.transpose(0, 2, 1) @ noise), slice(size, round.inputs))
        return weights[:, :size].reshape(n * size, -1).T, spread.reshape(n * size, -1).T

    def noise_columns(self, r: int) -> Array:
        """B itself, (D, all noises of all nodes), if noise is additive."""
        return self.columns_of_noise(r, self.node_rounds[r].noise_root)

    def columns_of_noise(self, r: int, root: Array | None = None) -> Array:
        """How the noises of all nodes enter v, (D, all of them); each node's by its `root` (n, q p, q p)."""
        round, (n, size) = self.node_rounds[r], self.shape
        width = round.inputs - size
        columns = np.zeros((n, width, n, width))
        columns[np.arange(n), :, np.arange(n)] = np.eye(width) if root is None else root
        there = self.forward(r, columns.reshape(n, width, -1), slice(size, round.inputs))
        return there.reshape(n * size, -1)

    @property
    def noisy_start(self) -> bool:
        """Is there noise in v before round 0?"""
        return self.noisy and bool(self._own.any() or self._shared.any())

    def start_spread(self, rows: Array) -> Array:
        """u B Bᵀ for each row u, with B of the noise in v before round 0."""
        if not self.noisy_start:
            return np.zeros_like(rows)
        return spread_of_start(rows, self._own, self._shared, self.quadratic.C)

    @cached_property
    def conserved(self) -> Array:
        """Orthonormal rows (q p, D) of the sums over the nodes that no round changes: uM = u, u b = 0 and u B = 0."""
        (n, size), p = self.shape, self.instance.problem.p
        changes = [partial(self.change, r) for r in range(self.period)]
        return conserved_rows(all_shares(n, size // p), p, changes, self._likely)

    def curve(self, rounds: int) -> Array:
        curve, v = np.zeros(rounds + 1), self.start
        for r in range(rounds + 1):
            curve[r] = ((self.mean @ v - self.optimum) ** 2).sum()
            v = self.advance(r % self.period, v) if r < rounds else v
        if not self.noisy:
            return curve
        # The noise of round k reaches x̄ at round r as mean · M_{r−1} ⋯ M_{k+1} B_k. Counted backwards from r, these
        # depend only on r modulo the period. So one backward pass serves all r with the same remainder.
        for place in range(min(self.period, rounds + 1)):
            rows, total = self.mean, 0.0
            for back in range(rounds + 1):
                if back % self.period == place:
                    curve[back] += total + np.vdot(rows, self.start_spread(rows))
                if back + self.period > rounds and back % self.period == place:
                    break
                earlier, spread = self.pull((place - back - 1) % self.period, rows)
                rows, total = earlier, total + np.vdot(rows, spread)
        return curve

    def change(self, r: int, rows: Array) -> Array:
        """The change of the sums with rows u (k, D) in round r, (·, k): u M − u, u b, and the coefficients of noise."""
        n, size = self.shape
        weights = self._backward(r, rows.T.reshape(n, size, -1))
        drift = rows @ self.advance(r, np.zeros_like(self.start))
        moved = weights[:, :size].reshape(n * size, -1) - rows.T
        return np.concatenate([moved, weights[:, size:].reshape(-1, len(rows)), drift[None]])

    def forward(self, r: int, given: Array, place: slice, constant: Any = None) -> Array:
        """v after round r, (n, k p, b), from the inputs at `place`, (n, ·, b); all others are 0.

        The round's constants are added `constant` times, a number or (n, 1, b)."""
        round = self.node_rounds[r]
        inputs = [(place, given)]
        seen = round.inputs
        for exchange in round.messages:
            message = _apply(exchange.F, inputs)
            if constant is not None:
                message = message + exchange.constant[:, :, None] * constant
            inputs.append((slice(seen, seen + message.shape[1]), self._mixed(r, message, exchange, back=False)))
            seen += message.shape[1]
        v = _apply(round.G, inputs)
        return v if constant is None else v + round.constant[:, :, None] * constant

    def _backward(self, r: int, rows: Array) -> Array:
        """The transpose of `forward`: maps rows (n, k p, b) after round r to weights of the inputs, (n, ·, b)."""
        round = self.node_rounds[r]
        weights = round.G.transpose(0, 2, 1) @ rows
        seen = weights.shape[1]
        for exchange in reversed(round.messages):
            width = exchange.F.shape[1]
            message = self._mixed(r, weights[:, seen - width : seen], exchange, back=True)
            seen -= width
            weights = weights[:, :seen] + exchange.F.transpose(0, 2, 1) @ message
        return weights

    def _mixed(self, r: int, message: Array, exchange: MessageMap, back: bool) -> Array:
        """W_r times each field of a message (n, m p, b), W_rᵀ for a transposed one, C_r for a pushed one; repeated as
        often as the method mixes."""
        for _ in range(self.instance.spec.mixing_steps):
            message = self._mixed_once(r, message, exchange, back)
        return message

    def _mixed_once(self, r: int, message: Array, exchange: MessageMap, back: bool) -> Array:
        ways = list(zip(exchange.transposed, exchange.pushed, strict=True))
        if len(set(ways)) == 1:
            ((transposed, pushed),) = set(ways)
            return self._product(r, message, back != transposed, pushed)
        p = message.shape[1] // len(ways)
        parts = [
            self._product(r, message[:, k * p : (k + 1) * p], back != transposed, pushed)
            for k, (transposed, pushed) in enumerate(ways)
        ]
        return np.concatenate(parts, axis=1)

    def _product(self, r: int, message: Array, back: bool, pushed: bool) -> Array:
        n = len(message)
        flat = message.reshape(n, -1)
        if n <= DENSE_UP_TO:
            W = (self._pushing if pushed else self._mixing)[r]
            return ((W.T if back else W) @ flat).reshape(message.shape)
        structure, seed = self.instance.topology.structure, np.uint32(self.instance.topology.seed)
        structure = structure.pushing if pushed else structure
        return np.asarray(structure.product(NUMPY, seed, r, flat, back)).reshape(message.shape)

    @cached_property
    def _mixing(self) -> list[Array]:
        return [self.instance.topology.matrix(r) for r in range(self.period)]

    @cached_property
    def _pushing(self) -> list[Array]:
        return [self.instance.topology.matrix(r, pushed=True) for r in range(self.period)]


def spread_of_start(rows: Array, own: Array, shared: Array, C: Array) -> Array:
    """u Q for each row u of (k, D), with Q the covariance of v before round 0.

    The noises have covariances C (n, p, p). Each enters by `own`, and their mean by `shared`, both (n, k p, q p).
    """
    n, size, p = len(own), own.shape[1], C.shape[1]
    columns = rows.T.reshape(n, size, -1)
    noise = own.transpose(0, 2, 1) @ columns + (shared.transpose(0, 2, 1) @ columns).sum(axis=0) / n
    noise = (C[:, None] @ noise.reshape(n, -1, p, noise.shape[-1])).reshape(noise.shape)
    return (own @ noise + shared @ noise.mean(axis=0)).reshape(n * size, -1).T


def conserved_rows(
    shares: Array, p: int, changes: list[Callable[[Array], Array]], likely: Array | None = None
) -> Array:
    """Orthonormal rows (q p, D) of the sums of vectors in the state that no map changes.

    An algorithm treats all coordinates alike, so its conserved sums do too.

    Args:
        shares: (a, D/p), the sums that, or combinations of which, may be conserved.
        p: coordinates.
        changes: each maps rows (k, D) to (·, k), whose columns are 0 for conserved rows.
        likely: the rows at another stepsize, which are used if they are conserved.
    """
    if likely is not None and (not len(likely) or all(np.abs(one(likely)).max() <= 10 * STAYS for one in changes)):
        return likely
    rows, seen = _sums(shares, p), np.zeros((0, len(shares)))
    for change in changes:
        more = change(rows).reshape(-1, len(shares), p).transpose(0, 2, 1).reshape(-1, len(shares))
        seen = np.asarray(linalg.qr(np.concatenate([seen, more]), mode="r")[0])[: len(shares)]
    rows = _sums(_kernel(seen) @ shares, p)
    return np.linalg.qr(rows.T)[0].T if len(rows) else rows


def all_shares(n: int, fields: int) -> Array:
    """Sums over n nodes of one variable each, with any weights of the nodes; with equal weights if there are many."""
    if n * fields <= SHARES:
        return np.eye(n * fields)
    return np.tile(np.eye(fields), n) / n**0.5


def _sums(shares: Array, p: int) -> Array:
    """The rows (a p, D) of the sums with these weights, one for each coordinate."""
    return np.kron(shares, np.eye(p))


def _apply(maps: Array, inputs: list[tuple[slice, Array]]) -> Array:
    """A linear map of the given inputs; all others are 0."""
    return sum((maps[:, :, place] @ given for place, given in inputs), start=np.zeros(()))


def _kernel(change: Array) -> Array:
    """Orthonormal rows that span the combinations of columns which `change` (m, a) maps to 0."""
    full = len(change) < change.shape[1]
    try:
        _, s, vt = np.linalg.svd(change, full_matrices=full)
    except np.linalg.LinAlgError:  # entries of different orders: the older method of LAPACK can solve it
        _, s, vt = linalg.svd(change, full_matrices=full, lapack_driver="gesvd")
    small = np.ones(len(vt), dtype=bool)
    small[: len(s)] = s <= STAYS * max(1.0, float(s.max(initial=0.0)))
    return vt[small]
