"""What to expect of a run, before it is run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from stgt.algorithms import DSGT, LED, STGT, Algorithm
from stgt.checks import check_number
from stgt.engines import simulate, sweep
from stgt.engines.costs import floats_a_round
from stgt.engines.drive import interrupts_as_ever
from stgt.oracles import SAGA, SVRG, Exact, Minibatch, Noisy, Oracle, ProblemNoise
from stgt.problems.base import Problem
from stgt.progress import Progress
from stgt.setting import check_constant_stepsize, fitting
from stgt.theory.assumptions import CONNECTED
from stgt.theory.connectivity import Rho, rho
from stgt.theory.local_model import LocalModel, local_model
from stgt.theory.mean_square import MeanSquare
from stgt.theory.rates import Constants, stepsize
from stgt.theory.relaxation import too_large
from stgt.theory.stability import STABLE_BELOW, curve_of, exact_map, spectral_radius, steady_state_of
from stgt.theory.stepsizes import StableStepsize, largest_stable_stepsize
from stgt.topology import Topology, complete

PILOT_ROUNDS, PILOT_SEEDS = 400, 8
LONGEST = 16384  # rounds to look for the target in
LONGEST_RANDOM = 2048  # the same where rounds are random, which takes longer
OUTSIDE = "outside the theory"  # the basis of what is said of a method whose rounds are not linear


@dataclass(frozen=True)
class Advice:
    """What `check` found. Errors are E‖x̄ − x*‖² in the long run.

    Attributes:
        basis: "exact", what the numbers are an estimate from, or "outside the theory".
        radius: by how much the slowest mode shrinks in a round, or the root mean square where rounds are random; the
            run is stable below 1.
        error: in the steady state; None if there is none.
        bias: the part of `error` that is no noise; None where it is not told apart.
        largest_gamma: the end of the stable interval that begins at 0; `.gaps` has unstable ones beyond it.
        theorem_gamma: the limit of Theorem 1 (strongly convex) or 2; None where its assumptions do not hold, or
            where it does not speak of the method.
        rounds_to_target: until the expected error is below the target; None if it is never, or not within those looked
            at, of which a warning then says how many.
        bytes_a_round: sent by a node in a round, on average.
        L, mu, sigma2, rho: the constants it rests on; rho is nan where W_r is not doubly stochastic.
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
    L: float
    mu: float
    sigma2: float
    rho: float
    warnings: tuple[str, ...]

    @property
    def stable(self) -> bool | None:
        """None where nothing can be said."""
        return None if self.radius is None else self.radius < STABLE_BELOW


@interrupts_as_ever()
@threadpool_limits.wrap(limits=1, user_api="blas")
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
    """Says whether a run will be stable, its error in the long run, the largest safe stepsize, and what it will send.

    Exact for a quadratic with additive noise, on schedules with a period and on random ones whose rounds are
    independent. Any other problem is replaced by its quadratic model at the minimum. What the exact theory does not
    reach, as it is too large or its rounds depend on each other, is tried out in short runs. Both are estimates, and
    said to be. Of a method whose rounds are not linear, such as FedAdam, nothing is said but what it sends.

    Args:
        algorithm, problem, topology: what is to be run.
        oracle: where gradients come from; the problem's own if left out. Of those that reduce the variance only what
            they are in the long run is looked at: exact.
        target: an E‖x̄ − x*‖² to reach.
        itemsize: bytes of a number on the wire.
        stepsizes: look for the largest safe one too, which takes longest.
        progress: called with (done, total) from time to time.
    """
    setting = fitting(algorithm, problem, topology, oracle)
    check_constant_stepsize(algorithm)
    target = None if target is None else check_number(target, "target", above=0)
    problem = _with_noise_of(problem, oracle)
    reduced = algorithm.oracle is not None or isinstance(oracle, SAGA | SVRG)
    model = local_model(problem, noiseless=reduced)
    connectivity = rho(topology) if topology.doubly_stochastic else Rho(math.nan)
    found = _Findings("exact" if algorithm.linear else OUTSIDE, None)
    if model.problem is not None and algorithm.linear:
        found = _found(algorithm, model.problem, topology, target, stepsizes, progress)
        if isinstance(algorithm, LED) and too_large(algorithm, topology):  # small stepsizes are what is not safe
            found = replace(found, largest_gamma=None)
    basis = found.basis
    if not model.exact and algorithm.linear:
        of = "" if basis == "exact" else f"{basis}, "
        basis = f"an estimate, {of.removeprefix('an estimate, ')}from the quadratic model at the minimum"
    return Advice(
        basis=basis,
        radius=found.radius,
        error=found.error,
        bias=found.bias,
        largest_gamma=found.largest_gamma,
        theorem_gamma=_theorem(model, topology, algorithm, connectivity.worst),
        rounds_to_target=found.rounds,
        bytes_a_round=floats_a_round(setting) * itemsize,
        L=model.L,
        mu=model.mu,
        sigma2=model.sigma2,
        rho=float(connectivity),
        warnings=tuple(_warnings(algorithm, model, topology, found, target)),
    )


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
    raise ValueError(f"oracle={oracle}: the theory knows nothing of its noise; give one of stgt.oracles.")


@dataclass(frozen=True)
class _Findings:
    basis: str
    radius: float | None
    error: float | None = None
    bias: float | None = None
    largest_gamma: StableStepsize | None = None  # None where it was not looked for, or is below what was asked about
    rounds: int | None = None
    looked: int | None = None  # rounds in which the target was looked for
    stepsizes: bool = True  # was the largest one looked for?


def _found(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    target: float | None,
    stepsizes: bool,
    progress: Progress | None,
) -> _Findings:
    try:
        return _exact(algorithm, problem, topology, target, stepsizes, progress)
    except ValueError:
        if not (topology.random or fitting(algorithm, problem, topology).tosses):
            raise
        return _tried(algorithm, problem, topology, target)  # its rounds depend on each other, or are too many numbers


def _exact(
    algorithm: Algorithm,
    problem: Problem,
    topology: Topology,
    target: float | None,
    stepsizes: bool,
    progress: Progress | None,
) -> _Findings:
    found = exact_map(algorithm, problem, topology)
    random = isinstance(found, MeanSquare)
    if isinstance(found, MeanSquare) and not found.exact:  # short runs are quicker than the moments of drawn rounds
        return _tried(algorithm, problem, topology, target)
    radius, gamma = found.spectral_radius, _gamma(algorithm)
    options: dict[str, Any] = {"precision": 0.02 if random else 1e-3, "progress": progress, "also": [gamma]}
    largest = largest_stable_stepsize(algorithm, problem, topology, **options) if stepsizes else None
    if radius >= STABLE_BELOW:  # of a large state the stepsizes were judged by estimates: the radius itself is right
        safe = largest if largest is not None and gamma > largest else None
        return _Findings("exact", radius, largest_gamma=safe, stepsizes=stepsizes)
    steady = steady_state_of(found)
    rounds, looked = None, None
    if target is not None and steady.residual < target:
        looked, most = 64, LONGEST_RANDOM if random else LONGEST
        while (rounds := _first_below(curve_of(found, looked), target)) is None and looked < most:
            looked *= 4
    return _Findings("exact", radius, steady.residual, steady.bias, largest, rounds, looked, stepsizes)


def _tried(algorithm: Algorithm, problem: Problem, topology: Topology, target: float | None) -> _Findings:
    """The same from short runs: without noise for the radius, with noise for the error."""
    assert problem.optimum is not None
    quiet = replace(problem, noise=0.0)
    away = {"x0": problem.optimum + 1.0, "dtype": "float64", "metrics": ["residual", "consensus"]}
    given = np.asarray(algorithm.gamma, dtype=float)
    gammas = np.array([given * 2.0**k for k in range(-6, 7)])
    grid = {"gamma": gammas.tolist()}
    runs = sweep(algorithm, quiet, topology, PILOT_ROUNDS, PILOT_SEEDS, grid=grid, **away)
    growths = np.array([_growth(trace) for trace in runs])
    radius = float(growths[6])
    # Up to the first unstable one, so that a gamma is safe only if all smaller ones are.
    safe = int(np.argmax(growths >= 1)) if (growths >= 1).any() else len(growths)
    largest = StableStepsize(float(np.max(gammas[safe - 1])) if safe else 0.0, (), float(np.max(gammas[-1])))
    basis = "an estimate, from short runs"
    if radius >= 1:
        return _Findings(basis, radius, largest_gamma=largest)
    options = {"dtype": "float64", "metrics": ["residual"]}
    trace = simulate(algorithm, problem, topology, 4 * PILOT_ROUNDS, PILOT_SEEDS, **options)
    error = float(trace.tail("residual").mean())
    rounds = None if target is None else _first_below(trace.residual.mean(axis=0), target)
    return _Findings(basis, radius, error, None, largest, rounds, 4 * PILOT_ROUNDS)


def _growth(trace: Any) -> float:
    """The factor a round by which the distance to the optimum changes in a run without noise, the worst seed's."""
    with np.errstate(all="ignore"):
        distance = np.sqrt(trace["residual"] + trace["consensus"])
        if trace.diverged.any() or not np.isfinite(distance).all():
            return np.inf
        kept = np.maximum(distance, 1e-13 * distance[:, :1])  # below it is rounding
    worst = 0.0
    for one in kept:
        last = int(np.argmax(one <= 1e-13 * one[0])) or len(one) - 1
        first = last // 2
        worst = max(worst, float((one[last] / one[first]) ** (1 / max(1, last - first))))
    return worst


def _gamma(algorithm: Algorithm) -> float:
    """The stepsize, or the largest where nodes have their own."""
    return float(np.max(np.asarray(algorithm.gamma, dtype=float)))


def _first_below(curve: np.ndarray, target: float) -> int | None:
    below = np.flatnonzero(curve <= target)
    return int(below[0]) if len(below) else None


def _theorem(model: LocalModel, topology: Topology, algorithm: Algorithm, worst: float) -> float | None:
    """The theorems are about ST-GT, which DSGT is with one local step, and others under some options."""
    covered = isinstance(algorithm, STGT | DSGT) or algorithm.same_as(topology.has_server) in ("ST-GT", "DSGT")
    if not covered or not topology.doubly_stochastic or worst >= CONNECTED or topology.sampled < topology.n:
        return None
    constants = Constants(L=model.L, mu=model.mu, sigma2=model.sigma2, n=topology.n, tau=algorithm.tau, rho=worst)
    return stepsize(constants, theorem=1 if model.mu > 0 else 2).limit


def _warnings(
    algorithm: Algorithm, model: LocalModel, topology: Topology, found: _Findings, target: float | None
) -> list[str]:
    name, sentences = f"{algorithm.label} on {topology.name}", []
    if not algorithm.linear:
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
    if found.error and found.bias and found.bias > 0.01 * found.error:
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
    if problem is None or topology.random or fitting(algorithm, problem, topology).tosses:
        return sentences
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
