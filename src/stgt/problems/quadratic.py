"""Quadratic problems with additive gradient noise δ_i = F_i ξ, ξ ~ N(0, I): optimum and curvature in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, check_number, check_seed
from stgt._internal.hyper import short_repr
from stgt._internal.ops import Array
from stgt._internal.registry import register
from stgt.problems.base import NOISE_FACTOR, Problem, check_array

ROUNDING = 1e-8  # rounding allowed in a covariance, relative to its largest eigenvalue
ISOTROPIC = "isotropic"


@dataclass(frozen=True)
class RidgeModel:
    """f_i(x) = (θ_iᵀx − d_i)² + (μ/2)‖x‖²."""

    def losses(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        residual = (data["theta"] * x).sum(axis=-1) - data["d"]
        return residual**2 + 0.5 * data["mu"] * (x * x).sum(axis=-1)

    def gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        residual = (data["theta"] * x).sum(axis=-1) - data["d"]
        return (2.0 * residual)[:, None] * data["theta"] + data["mu"][:, None] * x


@dataclass(frozen=True)
class QuadraticModel:
    """f_i(x) = ½ xᵀA_i x − b_iᵀx."""

    def losses(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return (x * (0.5 * self._product(xp, data, x) - data["b"])).sum(axis=-1)

    def gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return self._product(xp, data, x) - data["b"]

    @staticmethod
    def _product(xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return (data["A"] @ x[:, :, None])[:, :, 0]


@register
def ridge(
    n: int = 32,
    p: int = 10,
    mu: float = 0.5,
    scale: str = "sqrt_p",
    noise: Any = 0.1,
    seed: int = 0,
    noise_kind: str = "isotropic",
) -> Problem:
    """The paper's ridge regression (Prob_RR): f_i(x) = (θ_iᵀx − d_i)² + (μ/2)‖x‖², θ_i and d_i uniform on [0, 1].

    Args:
        n, p: nodes, dimension (32 and 10 in the paper).
        mu: the regularisation; the paper does not give its value.
        scale: "sqrt_p" divides θ_i by √p. "none" keeps θ_i in [0, 1]^p as printed; with it the paper's gamma = 0.4
            diverges for every method (L_i = 2‖θ_i‖² + μ).
        noise: σ² of the gradient noise (0.1 in the paper), or (n,) one σ² per node; 0 for exact gradients. Or its
            covariance, (p, p) for all nodes or (n, p, p) for each, symmetric and positive semidefinite.
        seed: of θ and d.
        noise_kind: how σ² enters. "isotropic": δ ~ N(0, σ² I). "scalar": one number for all coordinates, δ = ε 1 with
            ε ~ N(0, σ²). "labels": through a sampled label d_i + ε, so that δ = −2ε θ_i.

    Returns:
        A `Problem` with its closed-form optimum, L = max_i 2‖θ_i‖² + μ, and mu.
    """
    n, p = check_count(n, "n"), check_count(p, "p")
    mu = check_number(mu, "mu", above=0)
    check_choice(scale, "scale", ("sqrt_p", "none"))
    rng = np.random.default_rng(check_seed(seed))
    theta = rng.uniform(size=(n, p)) / (np.sqrt(p) if scale == "sqrt_p" else 1.0)
    d = rng.uniform(size=n)
    drawn = gradient_noise(noise, noise_kind, n, p, {"scalar": np.ones((n, p)), "labels": -2.0 * theta})

    return Problem(
        name=f"ridge(n={n}, p={p}, mu={mu:g}, scale={scale}, {drawn.words}, seed={seed})",
        model=RidgeModel(),
        data={"theta": theta, "d": d, "mu": np.full(n, mu), **drawn.data},
        n=n,
        p=p,
        L=float(2.0 * (theta**2).sum(axis=1).max() + mu),
        mu=mu if p > 1 else float(2.0 * (theta**2).min() + mu),
        noise=drawn.noise,
        solve=partial(_ridge_optimum, theta, d, mu),
    )


def _ridge_optimum(theta: np.ndarray, d: np.ndarray, mu: float) -> np.ndarray:
    """x* of (2/n ΘᵀΘ + μI) x = (2/n) Θᵀd, which is also Θᵀ(ΘΘᵀ + (nμ/2)I)⁻¹ d. Solves the smaller of both systems."""
    n, p = theta.shape
    if p <= n:
        return np.linalg.solve(2.0 / n * theta.T @ theta + mu * np.eye(p), 2.0 / n * theta.T @ d)
    return theta.T @ np.linalg.solve(theta @ theta.T + n * mu / 2.0 * np.eye(n), d)


@register
def Quadratic(A: Any, b: Any, noise: Any = 0.0, noise_kind: str = "isotropic") -> Problem:
    """f_i(x) = ½ xᵀA_i x − b_iᵀx, with exact gradients unless `noise` is given.

    Args:
        A: (n, p, p), symmetric; their mean positive definite.
        b: (n, p).
        noise: σ² of the gradient noise, or (n,) one σ² per node; or its covariance, (p, p) for all nodes or
            (n, p, p) for each, symmetric and positive semidefinite.
        noise_kind: how σ² enters. "isotropic": δ ~ N(0, σ² I). "scalar": one number for all coordinates, δ = ε 1 with
            ε ~ N(0, σ²).

    Returns:
        A `Problem` with optimum (Σ A_i)⁻¹ Σ b_i, L = max_i ‖A_i‖ and mu = min_i λ_min(A_i) (None if not positive).
    """
    A = check_array(A, "A", (None, None, None), "(n, p, p): a symmetric matrix for each node")
    n, p, q = A.shape
    if p != q:
        raise InputError("A", hint=f" has shape {A.shape}: give (n, p, p), a square symmetric matrix for each node.")
    b = check_array(b, "b", (n, p), f"(n, p) = ({n}, {p}) to match A")
    if not np.allclose(A, A.transpose(0, 2, 1), rtol=0, atol=1e-10 * max(1.0, np.abs(A).max())):
        raise InputError("A", hint=" is not symmetric: f_i(x) = ½ xᵀA_i x − b_iᵀx needs A_i = A_iᵀ; give (A + Aᵀ)/2.")
    drawn = gradient_noise(noise, noise_kind, n, p, {"scalar": np.ones((n, p))})
    eigenvalues = np.linalg.eigvalsh(A)
    lowest = float(np.linalg.eigvalsh(A.mean(axis=0))[0])
    if lowest <= 0:
        raise InputError(
            "A", hint=f"the mean of A_i has eigenvalue {lowest:.3g}, so f has no unique minimum; make it positive."
        )
    return Problem(
        name=f"Quadratic(n={n}, p={p}, {drawn.words})",
        model=QuadraticModel(),
        data={"A": A, "b": b, **drawn.data},
        n=n,
        p=p,
        L=float(np.abs(eigenvalues).max()),
        mu=float(eigenvalues.min()) if eigenvalues.min() > 0 else None,
        noise=drawn.noise,
        solve=partial(np.linalg.solve, A.mean(axis=0), b.mean(axis=0)),
    )


class GradientNoise(NamedTuple):
    """A problem's `noise`, the factors F_i for its data, and the words for its name."""

    noise: float | None
    data: dict[str, np.ndarray]
    words: str


def gradient_noise(noise: Any, kind: Any, n: int, p: int, directions: Mapping[str, np.ndarray]) -> GradientNoise:
    """The noise that a user describes by one number, a number per node, or covariances.

    Args:
        noise: σ², or (n,) σ_i²; or a covariance (p, p) for all nodes or (n, p, p) for each.
        kind: how a number enters: "isotropic", or one of `directions`.
        n, p: nodes, dimension.
        directions: for each kind the vectors v_i (n, p) of the noise δ_i = ε v_i, with one ε ~ N(0, σ_i²) per step.
    """
    check_choice(kind, "noise_kind", (ISOTROPIC, *directions))
    how = "" if kind == ISOTROPIC else f", noise_kind={kind}"
    if isinstance(noise, list | tuple) or getattr(noise, "ndim", 0) > 0:
        given = _check_shape(noise, n, p)
        words = f"noise={short_repr(given)}{how}"
    else:
        number = check_number(noise, "noise", least=0)
        words = f"noise={number:g}{how}"
        if kind == ISOTROPIC:
            return GradientNoise(number, {}, words)
        given = np.full(n, number)
    if given.ndim > 1:
        if kind != ISOTROPIC:
            raise InputError("noise_kind", kind, " needs a variance, but noise is a covariance: leave noise_kind out.")
        factor = _factors(given.reshape(-1, p, p))
        factor = np.broadcast_to(factor, (n, *factor.shape[1:]))
    else:
        factor = _deviations(given)[:, None]
        if kind != ISOTROPIC:
            factor = (factor * directions[kind])[:, :, None]
    return GradientNoise(None, {NOISE_FACTOR: factor}, words) if factor.any() else GradientNoise(0.0, {}, words)


def _check_shape(noise: Any, n: int, p: int) -> np.ndarray:
    shapes = {1: (n,), 2: (p, p), 3: (n, p, p)}
    meaning = f"a number, ({n},) variances for the nodes, or covariances of shape ({p}, {p}) or ({n}, {p}, {p})"
    try:
        axes = np.ndim(noise)
    except ValueError:  # a ragged list
        axes = 1
    return check_array(noise, "noise", shapes.get(axes, (n,)), meaning)


def _deviations(variances: np.ndarray) -> np.ndarray:
    if variances.min() < 0:
        i = int(variances.argmin())
        raise InputError(("noise", i), variances[i], "the variance of each node must be at least 0.")
    return np.sqrt(variances)


def _factors(covariances: np.ndarray) -> np.ndarray:
    """F (m, p, q) with F_i F_iᵀ the covariances (m, p, p); q is the largest of their ranks."""
    transposed = covariances.transpose(0, 2, 1)
    if np.abs(covariances - transposed).max() > ROUNDING * np.abs(covariances).max():
        raise InputError("noise", hint=" is not symmetric, as a covariance C must be: give (C + Cᵀ)/2.")
    covariances = (covariances + transposed) / 2
    eigenvalues = np.linalg.eigvalsh(covariances)
    lowest, largest = eigenvalues[:, 0], np.abs(eigenvalues).max(axis=1)
    worst = int((lowest + ROUNDING * largest).argmin())
    if lowest[worst] < -ROUNDING * largest[worst]:
        where = f" at node {worst}" if len(covariances) > 1 else ""
        raise InputError(
            "noise",
            hint=f" has eigenvalue {lowest[worst]:.3g}{where}, and a covariance must be positive semidefinite: give "
            "one whose eigenvalues are at least 0.",
        )
    p = covariances.shape[1]
    rounding = 100 * np.maximum(p * np.finfo(np.float64).eps * largest, -lowest)
    columns = [_cholesky(*pair) for pair in zip(covariances, rounding, strict=True)]
    rank = max(len(one) for one in columns)
    factors = np.zeros((len(covariances), p, rank))
    for factor, found in zip(factors, columns, strict=True):
        factor[:, : len(found)] = np.reshape(found, (-1, p)).T
    return factors


def _cholesky(C: np.ndarray, rounding: float) -> list[np.ndarray]:
    """The columns of F with F Fᵀ = C, the largest pivot first. Columns with a pivot below `rounding` are omitted.

    The sums have a fixed order, so that every machine draws the same noise.
    """
    rest, columns = C.copy(), []
    while len(columns) < len(C):
        pivot = int(rest.diagonal().argmax())
        if rest[pivot, pivot] <= rounding:
            break
        column = rest[:, pivot] / np.sqrt(rest[pivot, pivot])
        rest = rest - np.outer(column, column)
        rest[pivot], rest[:, pivot] = 0.0, 0.0
        columns.append(column)
    return columns
