"""`check`: stability, error, safe stepsizes and communication of a run, before it is run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from stgt._internal.checks import InputError, NotCovered, check_number
from stgt._internal.progress import Progress, split_progress
from stgt.algorithms import DSGT, LED, STGT, Algorithm
from stgt.oracles import SAGA, SVRG, Exact, Minibatch, Noisy, Oracle, ProblemNoise
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

LONGEST = 16384  # rounds of the expected curve, in which the target is searched for
LONGEST_RANDOM = 2048  # the same where rounds are random, which takes longer
TRIED = "an estimate, from short runs"
OUTSIDE = "outside the theory"  # the basis for a method whose rounds are not linear


@dataclass(frozen=True)
class Advice:
    """What `check` found. Errors are E‖x̄ − x*‖² in the long run.

    Attributes:
        basis: "exact", what the numbers are an estimate from, or "outside the theory".
        radius: by how much the slowest mode shrinks in a round, or the root mean square where rounds are random; the
            run is stable below 1.
        error: in the steady state; None if there is none.
        bias: the part of `error` that is no noise; None where only their sum is known.
        largest_gamma: the end of the stable interval that begins at 0; `.gaps` has unstable ones beyond it.
        theorem_gamma: the limit of Theorem 1 (strongly convex) or 2, from the problem's own L and mu; None where its
            assumptions do not hold, L is not known, or it is not about the method.
        rounds_to_target: communication rounds until the expected error is below the target, of a method that tosses a
            coin their expected number; None if it is never, or not within the rounds searched, whose number is then in
            a warning.
        bytes_a_round: sent by a node in a round, on average; to the server, where there is one.
        bytes_received: by a node in a round, on average; from the server, where there is one.
        L, mu: the problem's own constants; None where they are not known.
        sigma2: E‖g_i − ∇f_i‖² at the minimum.
        rho: the connectivity; nan where W_r is not doubly stochastic.
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
        """None where it is not known."""
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
    """Predicts if a run is stable, its error in the long run, the largest safe stepsize, and what its nodes send.

    Exact for a quadratic with additive noise or minibatches, on schedules with a period and on random ones whose rounds
    are independent. Any other problem is replaced by its quadratic model at the minimum, sample by sample where
    gradients are of minibatches. Where the exact theory does not apply, because the state is too large, rounds depend
    on each other or gradients reduce the variance, short runs are made. Both are estimates, and `basis` names them. Of
    a method whose rounds are not linear, such as FedAdam, only the communication is predicted.

    Args:
        algorithm, problem, topology: what is to be run.
        oracle: where gradients come from; the problem's own if left out.
        target: an E‖x̄ − x*‖² to reach.
        itemsize: bytes of a number on the wire.
        stepsizes: look for the largest safe one too, which takes longest.
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
    """`check` of several algorithms; what they have in common is computed once."""
    instances = [validate(algorithm, problem, topology, oracle) for algorithm in algorithms]
    for instance in instances:
        check_constant_stepsize(instance.algorithm)
    target = None if target is None else check_number(target, "target", above=0)
    checker = _Checker(problem, topology, oracle, target, stepsizes, [one.algorithm for one in instances])
    ticks = split_progress(progress, [1.0] * len(instances))
    return [checker.advice(one, itemsize, tick) for one, tick in zip(instances, ticks, strict=True)]


class _Checker:
    """Computes the advice for several instances, and keeps what they have in common."""

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
        self._maps: dict[Algorithm, ExactMap] = {}  # of algorithms but for gamma, one each
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
            if isinstance(algorithm, LED) and too_large(algorithm, topology):  # small stepsizes are what is not safe
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
        if reduced:  # its noise grows with the distance to the minimum too, and with what its tables hold
            return self._tried(algorithm, problem)
        try:
            kind = _but_for_gamma(algorithm)
            found = exact_map(algorithm, problem, self.topology, like=self._maps.get(kind))
            self._maps.setdefault(kind, found)
            if isinstance(found, MeanSquare) and not found.exact:  # short runs are quicker than moments of drawn rounds
                return self._tried(algorithm, problem)
            return self._exact(algorithm, problem, found, progress)
        except NotCovered:
            if not by_second_moments(validate(algorithm, problem, self.topology)):
                raise
            return self._tried(algorithm, problem)  # its rounds depend on each other, or are too many numbers

    def _exact(self, algorithm: Algorithm, problem: Problem, found: ExactMap, progress: Progress | None) -> _Findings:
        gamma, random = _gamma(algorithm), isinstance(found, MeanSquare)
        radius = found.radius(QUICK) if isinstance(found, MeanSquare) else found.spectral_radius
        largest = self._largest(algorithm, problem, found, progress) if self.stepsizes else None
        if isinstance(found, MeanSquare) and largest is not None:
            found.growth = largest.seen[gamma]  # needed for the steady state too
        if radius >= STABLE_BELOW:  # of a large state the stepsizes were judged by estimates: the radius is right
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
        """The largest safe stepsize, searched for once for all algorithms that differ in gamma only."""
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
    """The problem whose own gradients are those of the oracle; of one that reduces the variance, as it is."""
    match oracle:
        case None | ProblemNoise() | SAGA() | SVRG():
            return problem
        case Exact():
            return replace(problem, noise=0.0, batch=None)
        case Noisy(variance=variance):
            return replace(problem, noise=variance, batch=None)
        case Minibatch(batch=batch):
            return replace(problem, noise=0.0, batch=batch)
    raise InputError("oracle", oracle, "its noise is not covered by the theory; give one of stgt.oracles.")


@dataclass(frozen=True)
class _Findings:
    basis: str
    radius: float | None
    error: float | None = None
    bias: float | None = None
    largest_gamma: StableStepsize | None = None  # None where it was not searched for, or is above gamma
    rounds: int | None = None
    looked: int | None = None  # rounds in which the target was searched for
    stepsizes: bool = True  # was the largest one searched for?


def _gamma(algorithm: Algorithm) -> float:
    """The stepsize, or the largest where nodes have their own."""
    return float(np.max(np.asarray(algorithm.gamma, dtype=float)))


def _communications(instance: Instance, rounds: int | None) -> int | None:
    """How many of these rounds communicate, on average."""
    return math.ceil(rounds * float(instance.spec.communication_probability)) if rounds and instance.tosses else rounds


def _first_below(curve: np.ndarray, target: float) -> int | None:
    below = np.flatnonzero(curve <= target)
    return int(below[0]) if len(below) else None


def _but_for_gamma(algorithm: Algorithm) -> Algorithm:
    """The algorithm with gamma 1, or, where nodes have their own, as it is."""
    return replace(algorithm, gamma=1.0) if isinstance(algorithm.gamma, float) else algorithm


def _theorem(instance: Instance, problem: Problem, worst: float) -> float | None:
    """The theorems are about ST-GT, which DSGT is with one local step, and others under some options.

    They ask for noise of a bounded variance, which neither the minibatches of a quadratic have nor what reduces the
    variance.
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
            f"{algorithm.label} makes a step that is not linear in the models and gradients: nothing is said about the "
            "long run; try it in a short run."
        ]
    if model.problem is None:
        return [
            f"∇²f has the eigenvalue {model.mu_mean:.3g} at the point found, so it is no strict minimum: nothing is "
            f"said about the long run; gamma below 1/(tau·L) = {1 / (algorithm.tau * model.L):.3g} is cautious."
        ]
    stable = found.radius is not None and found.radius < STABLE_BELOW
    relaxed = too_large(algorithm, topology) if isinstance(algorithm, LED) else None
    if found.radius is not None and not stable:
        sentences += _unstable(algorithm, model, topology, found, relaxed)
    elif found.radius is not None and found.radius > 0.999:
        slow = int(np.ceil(np.log(10) / -np.log(found.radius)))
        sentences.append(f"{name} forgets its start slowly: its slowest mode takes {slow:,} rounds to shrink tenfold.")
    if stable and found.largest_gamma is not None and _gamma(algorithm) > found.largest_gamma * (1 + 1e-9):
        gaps = [f"{low:.3g} to {high:.3g}" for low, high in found.largest_gamma.gaps if low < _gamma(algorithm)]
        between = f", from {' and '.join(gaps)}" if gaps else ""
        sentences.append(
            f"gamma={_gamma(algorithm):g} is stable, but smaller ones are not{between}: the largest up to which "
            f"{name} is safe is {found.largest_gamma:.3g}."
        )
    if stable and relaxed:
        sentences.append(relaxed)
    rounding = 1e-24 * (1 + float((model.problem.optimum**2).sum()) if model.problem.optimum is not None else 1)
    if found.error and found.bias and found.bias > max(0.01 * found.error, rounding):
        sentences.append(f"{name} does not converge to x*: ‖E x̄ − x*‖² stays at {found.bias:.3g}, noise or not.")
    if target is not None and found.error is not None and found.error >= target:
        sentences.append(
            f"{name} never reaches {target:g}: its steady-state error is {found.error:.3g}; take a smaller gamma."
        )
    elif target is not None and found.error is not None and found.rounds is None:
        sentences.append(
            f"{name} reaches {target:g} in the long run, but not within the {found.looked:,} rounds looked at."
        )
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
                f"The noise of minibatches of {problem.batch} is the reason, as it grows with the distance to x*: with "
                f"exact gradients the radius is {without:.4f}. Most runs may look fine for long, before one leaves far."
            )
            return sentences
        problem = replace(problem, batch=None)
    if isinstance(algorithm, STGT) and not (algorithm.adjoint or topology.symmetric or topology.has_push):
        adjoint = spectral_radius(replace(algorithm, adjoint=True), problem, topology)
        if adjoint < STABLE_BELOW:
            sentences.append(
                f"{topology.name} is directed, which is the reason: with adjoint=True the radius is {adjoint:.4f}."
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
