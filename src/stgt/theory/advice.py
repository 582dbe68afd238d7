"""`check`: stability, error, safe stepsizes and communication of a run, before you run it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from stgt._internal.checks import InputError, NotCovered, check_number
from stgt._internal.progress import Progress, split_progress
from stgt.algorithms import DSGT, LED, STGT, Algorithm
from stgt.oracles import SAGA, SVRG, Exact, Minibatch, Noisy, Oracle, ProblemNoise, Shuffled
from stgt.problems.base import Problem
from stgt.simulator.costs import floats_a_round
from stgt.simulator.drive import interrupts_as_ever
from stgt.simulator.instance import Instance, check_constant_stepsize, validate
from stgt.theory.assumptions import CONNECTED
from stgt.theory.estimates import QUADRATIC, LocalModel, local_model, short_runs
from stgt.theory.mean_square import QUICK, MeanSquare
from stgt.theory.network import STABLE_BELOW, ExactMap
from stgt.theory.rates import Constants, stepsize
from stgt.theory.relaxation import too_large
from stgt.theory.stability import by_second_moments, exact_map, spectral_radius
from stgt.theory.stepsizes import Probe, StableStepsize, search
from stgt.topology import Rho, Topology, complete, contraction

LONGEST = 16384  # the most rounds of the expected curve in which the target is searched for
LONGEST_RANDOM = 2048  # the same for random rounds, which take longer
TRIED = "an estimate, from short runs"
OUTSIDE = "outside the theory"  # the basis for a method whose rounds are not linear


@dataclass(frozen=True)
class Advice:
    """The result of `check`. Errors are E‖x̄ − x*‖² at the steady state.

    Attributes:
        basis: "exact", the source of an estimate, or "outside the theory".
        radius: the factor by which the slowest mode shrinks in a round, or its root mean square if rounds are random;
            the run is stable below 1.
        error: at the steady state; None if there is none.
        bias: the part of `error` that is not noise; None if only their sum is known.
        largest_gamma: the end of the stable interval that begins at 0; `.gaps` has unstable intervals beyond it.
        theorem_gamma: the limit of Theorem 1 (strongly convex) or 2, from the problem's own L and mu. None if its
            assumptions do not hold, L is not known, or it does not cover the method.
        rounds_to_target: communication rounds until the expected error is below the target; their expected number if
            the method communicates at random. None if the target is never reached, or not within the searched rounds;
            a warning then has their number.
        bytes_a_round: sent by a node in a round, on average; with a server, sent to it.
        bytes_received: by a node in a round, on average; with a server, received from it.
        L, mu: the problem's own constants; None if they are not known.
        sigma2: E‖g_i − ∇f_i‖² at the minimum.
        rho: the connectivity; nan if W_r is not doubly stochastic.
        warnings: sentences that name what is unsafe.
    """

    basis: str
    radius: float | None
    error: float | None
    bias: float | None
    largest_gamma: float | None
    theorem_gamma: float | None
    rounds_to_target: int | None
    bytes_a_round: float
    bytes_received: float
    L: float | None
    mu: float | None
    sigma2: float
    rho: float
    warnings: tuple[str, ...]

    @property
    def stable(self) -> bool | None:
        """Is the run stable? None if it is not known."""
        return None if self.radius is None else self.radius < STABLE_BELOW


def check(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    *,
    oracle: Oracle | None = None,
    target: float | None = None,
    itemsize: int = 4,
    stepsizes: bool = True,
    progress: Progress | None = None,
) -> Advice:
    """Predicts whether a run is stable, its steady-state error, the largest safe stepsize, and what its nodes send.

    The result is exact for a quadratic with additive noise or minibatches, on schedules with a period and on random
    ones with independent rounds. Any other problem is replaced by its quadratic model at the minimum, sample by sample
    for minibatch gradients. The exact theory does not apply if the state is too large, rounds depend on each other, or
    gradients are variance-reduced. Then `check` makes short runs. Both are estimates, and `basis` says so. For a method
    whose rounds are not linear, such as FedAdam, it predicts only the communication.

    Args:
        algorithm, problem, topology: the parts of the run.
        oracle: computes the gradients; by default the problem's own.
        target: a value of E‖x̄ − x*‖² to reach.
        itemsize: bytes of a number in a message.
        stepsizes: also search for the largest safe stepsize, which takes most of the time.
        progress: called with (done, total) from time to time.
    """
    return check_all(
        [algorithm],
        problem,
        topology,
        oracle=oracle,
        target=target,
        itemsize=itemsize,
        stepsizes=stepsizes,
        progress=progress,
    )[0]


@interrupts_as_ever()
@threadpool_limits.wrap(limits=1, user_api="blas")
def check_all(
    algorithms: Iterable[Algorithm],
    problem: Problem,
    topology: Topology,
    *,
    oracle: Oracle | None = None,
    target: float | None = None,
    itemsize: int = 4,
    stepsizes: bool = True,
    progress: Progress | None = None,
) -> list[Advice]:
    """`check` of several algorithms; their common parts are computed once."""
    instances = [validate(algorithm, problem, topology, oracle) for algorithm in algorithms]
    for instance in instances:
        check_constant_stepsize(instance.algorithm)
    target = None if target is None else check_number(target, "target", above=0)
    checker = _Checker(problem, topology, oracle, target, stepsizes, [one.algorithm for one in instances])
    ticks = split_progress(progress, [1.0] * len(instances))
    return [checker.advice(one, itemsize, tick) for one, tick in zip(instances, ticks, strict=True)]


class _Checker:
    """Computes the advice for several instances, and stores their common parts."""

    def __init__(
        self,
        problem: Problem,
        topology: Topology,
        oracle: Oracle | None,
        target: float | None,
        stepsizes: bool,
        algorithms: list[Algorithm],
    ) -> None:
        self.problem, self.topology, self.oracle = _with_noise_of(problem, oracle), topology, oracle
        self.target, self.stepsizes, self.algorithms = target, stepsizes, algorithms
        self.connectivity = contraction(topology) if topology.doubly_stochastic else Rho(math.nan)
        self._models: dict[bool, LocalModel] = {}
        self._maps: dict[Algorithm, ExactMap] = {}  # one map for all algorithms that differ in gamma only
        self._searched: dict[Algorithm, StableStepsize] = {}

    def advice(self, instance: Instance, itemsize: int, progress: Progress | None) -> Advice:
        algorithm, topology = instance.algorithm, self.topology
        reduced = isinstance(instance.oracle, SAGA | SVRG)
        if reduced not in self._models:
            self._models[reduced] = local_model(self.problem, noiseless=reduced)
        model = self._models[reduced]
        found = _Findings("exact" if instance.spec.linear else OUTSIDE, None)
        if model.problem is not None and instance.spec.linear:
            found = self._found(algorithm, model.problem, reduced, progress)
            if isinstance(algorithm, LED) and too_large(algorithm, topology):  # then small stepsizes are unsafe
                found = replace(found, largest_gamma=None)
        basis = found.basis
        if not model.exact and instance.spec.linear:
            of = "" if basis == "exact" else f"{basis}, "
            basis = f"an estimate, {of.removeprefix('an estimate, ')}from the quadratic model at the minimum"
        sent, received = floats_a_round(instance)
        return Advice(
            basis=basis,
            radius=found.radius,
            error=found.error,
            bias=found.bias,
            largest_gamma=found.largest_gamma,
            theorem_gamma=_theorem(instance, self.problem, self.connectivity.worst),
            rounds_to_target=_communications(instance, found.rounds),
            bytes_a_round=sent * itemsize,
            bytes_received=received * itemsize,
            L=self.problem.L,
            mu=self.problem.mu,
            sigma2=model.sigma2,
            rho=float(self.connectivity),
            warnings=tuple(_warnings(algorithm, model, topology, found, self.target)),
        )

    def _found(self, algorithm: Algorithm, problem: Problem, reduced: bool, progress: Progress | None) -> _Findings:
        if reduced:  # the noise also grows with the distance to the minimum, and depends on the oracle's tables
            return self._tried(algorithm, problem)
        try:
            kind = _but_for_gamma(algorithm)
            found = exact_map(algorithm, problem, self.topology, like=self._maps.get(kind))
            self._maps.setdefault(kind, found)
            if isinstance(found, MeanSquare) and not found.exact:  # short runs are faster than moments of drawn rounds
                return self._tried(algorithm, problem)
            return self._exact(algorithm, problem, found, progress)
        except NotCovered:
            if not by_second_moments(validate(algorithm, problem, self.topology)):
                raise
            return self._tried(algorithm, problem)  # its rounds depend on each other, or its state is too large

    def _exact(self, algorithm: Algorithm, problem: Problem, found: ExactMap, progress: Progress | None) -> _Findings:
        gamma, random = _gamma(algorithm), isinstance(found, MeanSquare)
        radius = found.radius(QUICK) if isinstance(found, MeanSquare) else found.spectral_radius
        largest = self._largest(algorithm, problem, found, progress) if self.stepsizes else None
        if isinstance(found, MeanSquare) and largest is not None:
            found.growth = largest.seen[gamma]  # also needed for the steady state
        if radius >= STABLE_BELOW:  # the search estimates the radius of a large state; this radius is precise
            safe = largest if largest is not None and gamma > largest else None
            return _Findings("exact", radius, largest_gamma=safe, stepsizes=self.stepsizes)
        steady = found.steady_state()
        rounds, looked = None, None
        if self.target is not None and steady.residual < self.target:
            looked, most = 64, LONGEST_RANDOM if random else LONGEST
            while (rounds := _first_below(found.curve(looked), self.target)) is None and looked < most:
                looked *= 4
        return _Findings("exact", radius, steady.residual, steady.bias, largest, rounds, looked, self.stepsizes)

    def _largest(
        self, algorithm: Algorithm, problem: Problem, like: ExactMap, progress: Progress | None
    ) -> StableStepsize:
        """The largest safe stepsize, computed once for all algorithms that differ in gamma only."""
        kind = _but_for_gamma(algorithm)
        if kind not in self._searched:
            probe = Probe(algorithm, problem, self.topology, like.quadratic, like.conserved)
            also = [_gamma(one) for one in self.algorithms if _but_for_gamma(one) == kind]
            precision = 0.02 if probe.by_growth else 1e-3
            self._searched[kind] = search(probe, np.inf, precision, progress, also)
        return self._searched[kind]

    def _tried(self, algorithm: Algorithm, problem: Problem) -> _Findings:
        """The findings of short runs."""
        oracle = self.oracle if isinstance(self.oracle, SAGA | SVRG) else None
        seen = short_runs(algorithm, problem, self.topology, oracle)
        rounds = None if self.target is None or seen.curve is None else _first_below(seen.curve, self.target)
        looked = None if seen.curve is None else len(seen.curve) - 1
        return _Findings(TRIED, seen.radius, seen.error, None, seen.largest_gamma, rounds, looked)


def _with_noise_of(problem: Problem, oracle: Oracle | None) -> Problem:
    """The problem whose own gradients are those of the oracle; unchanged for a variance-reduced oracle."""
    match oracle:
        case None | ProblemNoise() | SAGA() | SVRG():
            return problem
        case Exact():
            return replace(problem, noise=0.0, batch=None)
        case Noisy(variance=variance):
            return replace(problem, noise=variance, batch=None)
        case Minibatch(batch=batch):
            return replace(problem, noise=0.0, batch=batch)
        case Shuffled(batch=batch):
            raise NotCovered(
                f"oracle={oracle}: the samples of a pass depend on each other, which the theory does not cover; give "
                f"Minibatch({batch}), which draws with replacement."
            )
    raise InputError("oracle", oracle, "its noise is not covered by the theory; give one of stgt.oracles.")


@dataclass(frozen=True)
class _Findings:
    basis: str
    radius: float | None
    error: float | None = None
    bias: float | None = None
    largest_gamma: StableStepsize | None = None  # None if it was not searched for, or is above gamma
    rounds: int | None = None
    looked: int | None = None  # the rounds in which the target was searched for
    stepsizes: bool = True  # was the largest stepsize searched for?


def _gamma(algorithm: Algorithm) -> float:
    """The stepsize, or the largest one if nodes have their own."""
    return float(np.max(np.asarray(algorithm.gamma, dtype=float)))


def _communications(instance: Instance, rounds: int | None) -> int | None:
    """The number of these rounds that communicate, on average."""
    return math.ceil(rounds * float(instance.spec.communication_probability)) if rounds and instance.tosses else rounds


def _first_below(curve: np.ndarray, target: float) -> int | None:
    below = np.flatnonzero(curve <= target)
    return int(below[0]) if len(below) else None


def _but_for_gamma(algorithm: Algorithm) -> Algorithm:
    """The algorithm with gamma = 1; unchanged if nodes have their own stepsizes."""
    return replace(algorithm, gamma=1.0) if isinstance(algorithm.gamma, float) else algorithm


def _theorem(instance: Instance, problem: Problem, worst: float) -> float | None:
    """The limit of the theorem that covers the run, or None. The theorems cover ST-GT, and all methods that equal it.

    They need noise of bounded variance. Neither minibatches of a quadratic nor variance-reduced gradients have it.
    """
    algorithm, topology = instance.algorithm, instance.topology
    covered = isinstance(algorithm, STGT | DSGT) or algorithm.same_as(topology.has_server) in ("ST-GT", "DSGT")
    if not covered or not topology.doubly_stochastic or worst >= CONNECTED or topology.sampled < topology.n:
        return None
    bounded = not isinstance(instance.oracle, SAGA | SVRG | Minibatch) or (
        isinstance(instance.oracle, Minibatch) and not isinstance(problem.model, QUADRATIC)
    )
    if problem.L is None or not bounded:
        return None
    constants = Constants(L=problem.L, mu=problem.mu, n=topology.n, tau=algorithm.tau, rho=worst)
    return stepsize(constants, theorem=1 if constants.mu else 2).limit


def _warnings(
    algorithm: Algorithm, model: LocalModel, topology: Topology, found: _Findings, target: float | None
) -> list[str]:
    name, sentences = f"{algorithm.label} on {topology.name}", []
    if not algorithm.spec().linear:
        return [
            f"{algorithm.label} makes a step that is not linear in the models and gradients, so the theory says "
            "nothing about its steady state; try it in a short run."
        ]
    if model.problem is None:
        return [
            f"∇²f has the eigenvalue {model.mu_mean:.3g} at the point found, so it is not a strict minimum, and the "
            "theory says nothing about the steady state; a cautious choice is gamma below 1/(tau·L) = "
            f"{1 / (algorithm.tau * model.L):.3g}."
        ]
    stable = found.radius is not None and found.radius < STABLE_BELOW
    relaxed = too_large(algorithm, topology) if isinstance(algorithm, LED) else None
    if found.radius is not None and not stable:
        sentences += _unstable(algorithm, model, topology, found, relaxed)
    elif found.radius is not None and found.radius > 0.999:
        slow = int(np.ceil(np.log(10) / -np.log(found.radius)))
        sentences.append(f"{name} converges slowly: its slowest mode takes {slow:,} rounds to shrink tenfold.")
    if stable and found.largest_gamma is not None and _gamma(algorithm) > found.largest_gamma * (1 + 1e-9):
        gaps = [f"{low:.3g} to {high:.3g}" for low, high in found.largest_gamma.gaps if low < _gamma(algorithm)]
        between = f", from {' and '.join(gaps)}" if gaps else ""
        sentences.append(
            f"gamma={_gamma(algorithm):g} is stable, but smaller ones are not{between}: {name} is safe only up to "
            f"gamma={found.largest_gamma:.3g}."
        )
    if stable and relaxed:
        sentences.append(relaxed)
    rounding = 1e-24 * (1 + float((model.problem.optimum**2).sum()) if model.problem.optimum is not None else 1)
    if found.error and found.bias and found.bias > max(0.01 * found.error, rounding):
        sentences.append(f"{name} does not converge to x*: ‖E x̄ − x*‖² stays at {found.bias:.3g}, even without noise.")
    if target is not None and found.error is not None and found.error >= target:
        sentences.append(
            f"{name} never reaches {target:g}: its steady-state error is {found.error:.3g}; take a smaller gamma."
        )
    elif target is not None and found.error is not None and found.rounds is None:
        sentences.append(f"{name} reaches {target:g} eventually, but not within the {found.looked:,} rounds searched.")
    return sentences


def _unstable(
    algorithm: Algorithm, model: LocalModel, topology: Topology, found: _Findings, relaxed: str | None
) -> list[str]:
    name = f"{algorithm.label} on {topology.name}"
    safe = f"the largest safe gamma is {found.largest_gamma:.3g}" if found.largest_gamma else "no gamma tried is safe"
    safe = "no small gamma is safe" if relaxed else safe if found.stepsizes else "smaller ones may be stable"
    sentences = [f"{name} is unstable at gamma={_gamma(algorithm):g}: spectral radius {found.radius:.4f}; {safe}."]
    if relaxed:
        return [*sentences, relaxed]
    problem = model.problem
    if problem is None or topology.random or validate(algorithm, problem, topology).tosses or found.basis == TRIED:
        return sentences
    if problem.batch is not None:
        without = spectral_radius(algorithm, replace(problem, batch=None), topology)
        if without < STABLE_BELOW:
            sentences.append(
                f"The reason is the noise of minibatches of {problem.batch}, which grows with the distance to x*: with "
                f"exact gradients the radius is {without:.4f}. Most runs may look fine for long, before one diverges."
            )
            return sentences
        problem = replace(problem, batch=None)
    if isinstance(algorithm, STGT) and not (algorithm.adjoint or topology.symmetric or topology.has_push):
        adjoint = spectral_radius(replace(algorithm, adjoint=True), problem, topology)
        if adjoint < STABLE_BELOW:
            sentences.append(
                f"The reason is that {topology.name} is directed: with adjoint=True the radius is {adjoint:.4f}."
            )
            return sentences
    everyone = spectral_radius(algorithm, problem, complete(topology.n))
    if everyone < STABLE_BELOW:
        sentences.append(
            f"{topology.name} is too sparse for this gamma: on the complete graph the radius is {everyone:.4f}."
        )
    else:
        sentences.append(f"gamma·L = {_gamma(algorithm) * model.L:.3g} is too large on any graph.")
    return sentences
