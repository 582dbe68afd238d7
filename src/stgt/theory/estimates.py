"""Estimates for cases that the exact theory does not cover: by a quadratic model of the problem, and by short runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from stgt._internal.checks import NotCovered
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import NOISE_FACTOR, Problem
from stgt.problems.least_squares import LeastSquaresModel
from stgt.problems.quadratic import Quadratic, QuadraticModel, RidgeModel
from stgt.simulator import simulate, sweep
from stgt.theory.stepsizes import StableStepsize
from stgt.topology import Topology

Array = Any
Gradients = Callable[..., Any]
QUADRATIC = (QuadraticModel, RidgeModel, LeastSquaresModel)
QUICK_UP_TO = 2**22  # up to this size of the data times p, compilation takes longer than the Hessians
LARGEST = 50_000_000  # the most entries of all Hessians together, of the nodes or of their samples
ROUNDS, SEEDS = 400, 8  # of short runs
DOUBLINGS = 6  # the given stepsize is halved and doubled up to this many times


@dataclass(frozen=True)
class SampleQuadratics:
    """f_i(x) = mean_j (½ xᵀA_ij x − b_ijᵀx): every sample's loss to second order."""

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        each = (x[:, None] * (0.5 * self._product(data["A"], x) - data["b"])).sum(axis=-1)
        return (each * data["weight"]).sum(axis=-1)

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return (self.component_gradients(xp, data, x) * data["weight"][:, :, None]).sum(axis=1)

    def component_gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self._product(data["A"], x) - data["b"]

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        at = (xp.arange(len(x))[:, None], index)
        return (self._product(data["A"][at], x) - data["b"][at]).mean(axis=1)

    @staticmethod
    def _product(A: Array, x: Array) -> Array:
        return (A @ x[:, None, :, None])[..., 0]


@dataclass(frozen=True, eq=False)
class LocalModel:
    """f_i to second order at x, with the gradient noise at x: additive, or that of minibatches, sample by sample.

    Attributes:
        problem: the quadratic. It is the problem itself if that is quadratic, or if it has too many samples for
            Hessians of each. None if x is not a strict minimum.
        exact: is it the problem itself?
        L: the largest curvature at x of any f_i.
        mu_mean: the smallest eigenvalue of ∇²f(x); not positive if x is not a strict minimum.
        sigma2: E‖g_i − ∇f_i‖² at x: for additive noise the largest of any node, for minibatches the mean over nodes.
    """

    problem: Problem | None
    exact: bool
    L: float
    mu_mean: float
    sigma2: float


def local_model(problem: Problem, *, noiseless: bool = False) -> LocalModel:
    """The quadratic model of a problem at its minimum, which is searched for if it is not known.

    `noiseless=True`: the noise is 0 at x, as with variance reduction.
    """
    quadratic = isinstance(problem.model, QUADRATIC)
    if problem.n * problem.p**2 > LARGEST:
        raise NotCovered(
            f"{problem.name}: {problem.n} Hessians of {problem.p} × {problem.p} are too many for an estimate; "
            "give a smaller problem of the same kind."
        )
    x = _search(problem) if problem.optimum is None else problem.optimum
    H = problem_hessians(problem, x)
    mean = np.linalg.eigvalsh(H.mean(axis=0))
    strict = problem.optimum is not None if quadratic else mean[0] > 1e-10 * np.abs(H).max()
    sigma2 = 0.0 if noiseless else problem.sigma2 if problem.batch is None else _sample_variance(problem, x)
    by_sample = problem.batch is not None or noiseless
    found = None if not strict else problem if quadratic else _quadratic(problem, x, H, by_sample)
    return LocalModel(
        problem=found,
        exact=found is not None and found.model is problem.model,
        L=float(np.abs(np.linalg.eigvalsh(H)).max()),
        mu_mean=float(mean[0]),
        sigma2=sigma2,
    )


def _quadratic(problem: Problem, x: np.ndarray, H: np.ndarray, by_sample: bool) -> Problem:
    """The quadratic at x, or that of every sample there. The problem itself if there are too many samples."""
    if problem.counts is None or not by_sample:
        b = np.einsum("nij,j->ni", H, x) - problem.gradients(x)
        return Quadratic(H, b, noise=problem.covariance if problem.noise is None else problem.noise)
    if problem.n * problem.counts.max() * problem.p**2 > LARGEST:
        return replace(problem, solve=lambda: x)
    model: Any = problem.model
    A = problem_hessians(problem, x, model.component_gradients)
    everywhere = np.broadcast_to(x, (problem.n, problem.p))
    b = A @ x - np.asarray(model.component_gradients(np, problem.data, everywhere))
    weight = (np.arange(A.shape[1]) < problem.counts[:, None]) / problem.counts[:, None]
    noise = {name: value for name, value in problem.data.items() if name == NOISE_FACTOR}
    return replace(
        problem,
        model=SampleQuadratics(),
        data={"A": A, "b": b, "weight": weight, **noise},
        solve=partial(np.linalg.solve, H.mean(axis=0), (b * weight[:, :, None]).sum(axis=1).mean(axis=0)),
        start=None,
        unravel=None,
    )


def problem_hessians(problem: Problem, x: np.ndarray, gradients: Gradients | None = None) -> np.ndarray:
    """∇²f_i(x) of every node, (n, p, p), or the derivatives (…, p, p) of other `gradients` (…, p) of the model.

    A node's gradients depend on its own model alone, so p directions are enough.
    """
    from stgt._internal.xla import jax

    gradients = problem.model.gradients if gradients is None else gradients
    quick = problem.p * sum(np.size(value) for value in problem.data.values()) <= QUICK_UP_TO
    everywhere = np.broadcast_to(x, (problem.n, problem.p)).astype(np.float64)
    with jax.enable_x64(True):
        columns = np.asarray(_derivatives(gradients, quick)(problem.data, everywhere, np.eye(problem.p)))
    H = np.moveaxis(columns, 0, -1)
    return (H + H.swapaxes(-1, -2)) / 2


@cache
def _derivatives(gradients: Gradients, quick: bool) -> Callable[..., Any]:
    """The derivatives of a model's gradients in given directions, compiled once for each model.

    For small data, compilation takes longer than computation: `quick` compiles without optimisation, and computes all
    directions at once. Otherwise they are computed one after the other, which takes the least memory.
    """
    from stgt._internal.xla import jax, jnp, lax

    def columns(data: dict[str, Any], X: Any, directions: Any) -> Any:
        def column(direction: Any) -> Any:
            return jax.jvp(lambda x: gradients(jnp, data, x), (X,), (jnp.broadcast_to(direction, X.shape),))[1]

        return jax.vmap(column)(directions) if quick else lax.map(column, directions)

    return jax.jit(columns, compiler_options={"xla_backend_optimization_level": 0} if quick else None)


def _search(problem: Problem) -> np.ndarray:
    """A point where ∇f is small; the search begins at 0."""
    return minimize(problem.value, np.zeros(problem.p), jac=problem.gradient, method="L-BFGS-B").x


def _sample_variance(problem: Problem, x: np.ndarray) -> float:
    """E‖g_i − ∇f_i‖² of minibatches with replacement at x, the mean over the nodes."""
    model: Any = problem.model
    assert problem.batch is not None
    assert problem.counts is not None
    everywhere = np.broadcast_to(x, (problem.n, problem.p))
    each = np.asarray(model.component_gradients(np, problem.data, everywhere))
    squares = ((each - problem.gradients(x)[:, None]) ** 2).sum(axis=2)
    there = np.arange(each.shape[1]) < problem.counts[:, None]
    return float((squares * there / problem.counts[:, None]).sum(axis=1).mean() / problem.batch)


class ShortRuns(NamedTuple):
    """Estimates from short runs.

    Attributes:
        radius: the factor per round by which the distance to the minimum changes if there is no noise at the minimum;
            that of the worst seed.
        largest_gamma: the largest stepsize tried for which all runs up to it are stable.
        curve: the mean over the seeds of ‖x̄ − x*‖² with noise, (rounds + 1,); None if it is unstable.
        error: its mean at the steady state; None if it is unstable.
    """

    radius: float
    largest_gamma: StableStepsize
    curve: np.ndarray | None = None
    error: float | None = None


def short_runs(algorithm: Algorithm, problem: Problem, topology: Topology, oracle: Oracle | None) -> ShortRuns:
    """Runs a method from a point near the minimum: without noise there for the radius, with it for the error."""
    assert problem.optimum is not None
    away = {"x0": problem.optimum + 1.0, "dtype": "float64", "metrics": ["residual", "consensus"], "oracle": oracle}
    given = np.asarray(algorithm.gamma, dtype=float)
    gammas = np.array([given * 2.0**k for k in range(-DOUBLINGS, DOUBLINGS + 1)])
    grid = {"gamma": gammas.tolist()}
    runs = sweep(algorithm, _quiet(problem), topology, ROUNDS, SEEDS, grid=grid, **away)
    growths = np.array([growth(trace) for trace in runs])
    radius = float(growths[DOUBLINGS])
    # Only up to the first unstable one: a gamma is safe only if all smaller ones are.
    safe = int(np.argmax(growths >= 1)) if (growths >= 1).any() else len(growths)
    seen = {float(np.max(gamma)): float(growth) for gamma, growth in zip(gammas, growths, strict=True)}
    largest = StableStepsize(float(np.max(gammas[safe - 1])) if safe else 0.0, (), seen)
    if radius >= 1:
        return ShortRuns(radius, largest)
    options = {"dtype": "float64", "metrics": ["residual"], "oracle": oracle}
    trace = simulate(algorithm, problem, topology, 4 * ROUNDS, SEEDS, **options)
    return ShortRuns(radius, largest, trace.residual.mean(axis=0), float(trace.tail("residual").mean()))


def growth(trace: Any) -> float:
    """The factor per round by which the distance to the optimum changes, in the worst run; no noise at the optimum."""
    with np.errstate(all="ignore"):
        distance = np.sqrt(trace["residual"] + trace["consensus"])
        if trace.diverged.any() or not np.isfinite(distance).all():
            return np.inf
        kept = np.maximum(distance, 1e-13 * distance[:, :1])  # smaller distances are rounding
    worst = 0.0
    for one in kept:
        last = int(np.argmax(one <= 1e-13 * one[0])) or len(one) - 1
        first = last // 2
        worst = max(worst, float((one[last] / one[first]) ** (1 / max(1, last - first))))
    return worst


@dataclass(frozen=True)
class _QuietModel:
    """A problem whose minibatch gradients at x* are all ∇f_i(x*); their noise grows from 0 with the distance to x*."""

    model: Any

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self.model.losses(xp, self._own(data), x)

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self.model.gradients(xp, self._own(data), x)

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        own, there = self._own(data), xp.asarray(data["x*"], x.dtype)
        here = self.model.sample_gradients(xp, own, x, index)
        return here - self.model.sample_gradients(xp, own, there, index) + data["gradient at x*"]

    @staticmethod
    def _own(data: dict[str, Array]) -> dict[str, Array]:
        return {name: value for name, value in data.items() if name not in ("x*", "gradient at x*")}


def _quiet(problem: Problem) -> Problem:
    """The problem without noise at its minimum."""
    if problem.batch is None:
        return replace(problem, noise=0.0)
    optimum: Any = problem.optimum
    more = {"x*": np.broadcast_to(optimum, (problem.n, problem.p)).copy(), "gradient at x*": problem.gradients(optimum)}
    return replace(problem, model=_QuietModel(problem.model), data={**problem.data, **more})
