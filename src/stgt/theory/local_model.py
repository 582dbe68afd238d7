"""A problem near its minimum, as a quadratic: what the exact theory can then say of it is an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from stgt.problems.base import Problem
from stgt.problems.least_squares import LeastSquaresModel
from stgt.problems.quadratic import Quadratic, QuadraticModel, RidgeModel

QUADRATIC = (QuadraticModel, RidgeModel, LeastSquaresModel)
LARGEST = 50_000_000  # entries of all Hessians together


@dataclass(frozen=True, eq=False)
class LocalModel:
    """f_i to second order at x, with gradient noise as strong as it is there.

    Attributes:
        problem: the quadratic; the problem itself if it is one with additive noise.
        exact: is it the problem itself?
        L, mu: the largest and smallest eigenvalue of the Hessians ∇²f_i(x).
        mu_mean: the smallest of their mean; not positive where x is no strict minimum.
        sigma2: E‖g_i − ∇f_i‖² at x: of additive noise the largest of any node, of minibatches the mean over the nodes.
    """

    problem: Problem | None
    exact: bool
    L: float
    mu: float
    mu_mean: float
    sigma2: float


def local_model(problem: Problem, *, noiseless: bool = False) -> LocalModel:
    """The quadratic model of a problem at its minimum, which is searched for where it is not known.

    `noiseless=True` leaves noise out, as variance reduction does in the long run.
    """
    if (
        isinstance(problem.model, QuadraticModel | RidgeModel | LeastSquaresModel)
        and problem.batch is None
        and not noiseless
    ):
        H = problem_hessians(problem, np.zeros(problem.p))
        return _model(problem, True, H, problem.sigma2)
    size = problem.n * problem.p**2
    if size > LARGEST:
        raise ValueError(
            f"{problem.name}: {problem.n} Hessians of {problem.p} × {problem.p} are too many for an estimate; "
            "give a smaller problem of the same kind."
        )
    x = problem.optimum if problem.optimum is not None else _search(problem)
    H = problem_hessians(problem, x)
    noise, sigma2 = (0.0, 0.0) if noiseless else _noise(problem, x)
    b = np.einsum("nij,j->ni", H, x) - problem.gradients(x)
    strict = np.linalg.eigvalsh(H.mean(axis=0))[0] > 1e-10 * np.abs(H).max()
    return _model(Quadratic(H, b, noise=noise) if strict else None, False, H, sigma2)


def problem_hessians(problem: Problem, x: np.ndarray) -> np.ndarray:
    """∇²f_i(x) of every node, (n, p, p): a node's gradient depends on its own model alone, so p directions do."""
    from stgt.xla import jax, jnp

    with jax.enable_x64(True):
        data = {name: jnp.asarray(value) for name, value in problem.data.items()}
        everywhere = jnp.broadcast_to(jnp.asarray(x, jnp.float64), (problem.n, problem.p))

        def column(direction: Any) -> Any:
            at = jnp.broadcast_to(direction, everywhere.shape)
            return jax.jvp(lambda X: problem.model.gradients(jnp, data, X), (everywhere,), (at,))[1]

        columns = np.asarray(jax.jit(lambda: jax.lax.map(column, jnp.eye(problem.p)))())
    H = columns.transpose(1, 2, 0)
    return (H + H.transpose(0, 2, 1)) / 2


def _model(problem: Problem | None, exact: bool, H: np.ndarray, sigma2: float) -> LocalModel:
    eigenvalues = np.linalg.eigvalsh(H)
    return LocalModel(
        problem=problem,
        exact=exact,
        L=float(np.abs(eigenvalues).max()),
        mu=float(eigenvalues.min()),
        mu_mean=float(np.linalg.eigvalsh(H.mean(axis=0))[0]),
        sigma2=sigma2,
    )


def _search(problem: Problem) -> np.ndarray:
    """A point where ∇f is small, from 0."""
    return minimize(problem.value, np.zeros(problem.p), jac=problem.gradient, method="L-BFGS-B").x


def _noise(problem: Problem, x: np.ndarray) -> tuple[Any, float]:
    """The noise at x as `Quadratic` takes it, and E‖g_i − ∇f_i‖²: additive, or of minibatches with replacement."""
    if problem.batch is None:
        return (problem.covariance if problem.noise is None else problem.noise), problem.sigma2
    model: Any = problem.model
    everywhere = np.broadcast_to(x, (problem.n, problem.p))
    each = np.asarray(model.component_gradients(np, problem.data, everywhere))
    apart = (each - problem.gradients(x)[:, None]) * np.sqrt(problem.data["weight"] / problem.batch)[:, :, None]
    covariance = apart.transpose(0, 2, 1) @ apart
    return covariance, float(np.trace(covariance, axis1=1, axis2=2).mean())
