"""Exact, noisy and minibatch gradients.

An engine uses an oracle in two steps. `draw` looks up the randomness of one step, or of a whole round at once.
`gradient` uses it. The draws depend on (seed, node, step) alone, so they are the same in every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stgt._internal.checks import InputError, check_count, check_number
from stgt._internal.hyper import Frozen, ShortRepr
from stgt._internal.ops import Ops
from stgt._internal.randomness import SWAPS, Clock
from stgt._internal.registry import register
from stgt.problems.base import NOISE_FACTOR, Problem

Array = Any


@dataclass(frozen=True)
class Oracle(Frozen, ShortRepr):
    """Base of all oracles; it is itself exact. The first axis of the arrays in a state is the node.

    Your own oracle is a frozen dataclass that overrides `gradient`, and `draw` if it is random. `@stgt.register` gives
    it a name.

    Example:
        >>> from dataclasses import dataclass
        >>> import stgt
        >>> @dataclass(frozen=True)
        ... class Signs(stgt.Oracle):
        ...     def gradient(self, ops, model, data, state, x, drawn):
        ...         return ops.xp.sign(model.gradients(ops.xp, data, x)), state
        >>> problem, ring = stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4)
        >>> stgt.simulate(stgt.DPSGD(gamma=0.1), problem, ring, rounds=3, oracle=Signs()).x.shape
        (1, 4, 2)
    """

    def check(self, problem: Problem) -> None:
        """Raises a ValueError if the oracle cannot be used with the problem."""

    def init(self, ops: Ops, model: Any, data: dict[str, Array], x: Array) -> dict[str, Array]:
        """The state before step 0, at the first models x."""
        return {}

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Any:
        """The randomness of a step: a pytree of arrays, with a leading axis if the clock holds several steps."""
        return ()

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        """The gradients at x (k, p) and the next state."""
        return model.gradients(ops.xp, data, x), state

    def width(self, p: int) -> int:
        """About how many random numbers a node draws per step."""
        return 1

    def calls(self, samples: float) -> float:
        """Gradients of single samples computed per step, if each f_i is a mean over `samples` samples."""
        return samples

    def initial_calls(self, samples: float) -> float:
        """Gradients computed before step 0."""
        return 0


@register
@dataclass(frozen=True)
class Exact(Oracle):
    """∇f_i(x)."""


@register
@dataclass(frozen=True)
class Noisy(Oracle):
    """∇f_i(x) + δ with δ ~ N(0, variance · I), drawn again for each node and step."""

    variance: float

    def __post_init__(self) -> None:
        self._set(variance=check_number(self.variance, "variance", least=0))

    def width(self, p: int) -> int:
        return p

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return clock.normal(p)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return model.gradients(ops.xp, data, x) + self.variance**0.5 * drawn, state


@register
@dataclass(frozen=True)
class ProblemNoise(Oracle):
    """∇f_i(x) + F_i ξ with ξ ~ N(0, I), drawn again for each node and step: the problem's own noise, if it has F.

    `rank` is the length of ξ.
    """

    rank: int

    def __post_init__(self) -> None:
        self._set(rank=check_count(self.rank, "rank"))

    @classmethod
    def of(cls, problem: Problem) -> ProblemNoise:
        """The oracle of a problem whose `noise` is None."""
        factor = problem.data[NOISE_FACTOR]
        return cls(problem.p if factor.ndim == 2 else factor.shape[2])

    def check(self, problem: Problem) -> None:
        if problem.noise is not None or self != ProblemNoise.of(problem):
            raise InputError("oracle", self, f" does not match the noise of {problem.name}: leave oracle out.")

    def width(self, p: int) -> int:
        return self.rank

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return clock.normal(self.rank)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        factor = data[NOISE_FACTOR]
        noise = factor * drawn if factor.ndim == 2 else (factor @ drawn[:, :, None])[:, :, 0]
        return model.gradients(ops.xp, data, x) + noise, state


@register
@dataclass(frozen=True)
class Minibatch(Oracle):
    """The mean gradient of `batch` samples of the node, drawn uniformly with replacement."""

    batch: int = 1

    def __post_init__(self) -> None:
        self._set(batch=check_count(self.batch, "batch"))

    def check(self, problem: Problem) -> None:
        needs_samples(self, problem)

    def width(self, p: int) -> int:
        return self.batch

    def calls(self, samples: float) -> float:
        return self.batch

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return clock.integers(self.batch, counts)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return model.sample_gradients(ops.xp, data, x, drawn), state


@register
@dataclass(frozen=True)
class Shuffled(Oracle):
    """The mean gradient of `batch` samples of the node, drawn without replacement: passes in random order.

    A pass of node i has ⌊m_i / batch⌋ steps. The samples that are left over wait for the next pass, which has a new
    order. The passes go on while a server does not call the node, so a node that it calls seldom misses some samples.
    The theory does not cover it: the samples of a pass are not independent.
    """

    batch: int = 1

    def __post_init__(self) -> None:
        self._set(batch=check_count(self.batch, "batch"))

    def check(self, problem: Problem) -> None:
        needs_samples(self, problem)
        assert problem.counts is not None
        fewest = int(problem.counts.min())
        if self.batch > fewest:
            raise InputError("oracle", self, f"a node has {fewest} samples; give a batch of at most {fewest}.")

    def width(self, p: int) -> int:
        return self.batch + SWAPS

    def calls(self, samples: float) -> float:
        return self.batch

    def draw(self, clock: Clock, p: int, counts: Array | None) -> Array:
        return clock.shuffled(self.batch, counts)

    def gradient(
        self, ops: Ops, model: Any, data: dict[str, Array], state: dict[str, Array], x: Array, drawn: Any
    ) -> tuple[Array, dict[str, Array]]:
        return model.sample_gradients(ops.xp, data, x, drawn), state


def needs_samples(oracle: Oracle, problem: Problem) -> None:
    if problem.counts is None:
        raise InputError(
            "oracle",
            hint=f" {type(oracle).__name__} draws samples, but {problem.name} has none: use a problem with samples, by "
            "logistic(...) or from_loss(...), or another algorithm or oracle.",
        )


def default_oracle(problem: Problem) -> Oracle:
    """The oracle that fits the problem's own noise: noisy, minibatch or exact."""
    if problem.batch is not None:
        return Minibatch(problem.batch)
    if problem.noise is None:
        return ProblemNoise.of(problem)
    return Noisy(problem.noise) if problem.noisy else Exact()
