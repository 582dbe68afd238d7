"""Additive gradient noise δ_i = F_i ξ with ξ ~ N(0, I): from what a user says of it to the factors F_i."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from stgt._internal.checks import check_choice, check_number
from stgt._internal.hyper import short_repr
from stgt.problems.base import NOISE_FACTOR, check_array

ROUNDING = 1e-8  # of a covariance, relative to its largest eigenvalue
ISOTROPIC = "isotropic"


class GradientNoise(NamedTuple):
    """What a problem is made with: its `noise`, what that adds to its data, and words for its name."""

    noise: float | None
    data: dict[str, np.ndarray]
    words: str


def gradient_noise(noise: Any, kind: Any, n: int, p: int, directions: Mapping[str, np.ndarray]) -> GradientNoise:
    """The noise that a user describes by a number, a number for each node, or covariances.

    Args:
        noise: σ², or (n,) σ_i²; or a covariance (p, p) for all nodes or (n, p, p) for each.
        kind: how a number enters: "isotropic", or one of `directions`.
        n, p: nodes, dimension.
        directions: by kind the vectors v_i (n, p) of noise δ_i = ε v_i with one ε ~ N(0, σ_i²) a step.
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
            raise ValueError(
                f"noise_kind={kind!r} says how a number enters, and noise is a covariance: leave noise_kind out."
            )
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
        raise ValueError(f"noise[{i}]={variances[i]:g}: the variance of each node must be at least 0.")
    return np.sqrt(variances)


def _factors(covariances: np.ndarray) -> np.ndarray:
    """F (m, p, q) with F_i F_iᵀ the covariances (m, p, p); q is the largest of their ranks."""
    transposed = covariances.transpose(0, 2, 1)
    if np.abs(covariances - transposed).max() > ROUNDING * np.abs(covariances).max():
        raise ValueError("noise is not symmetric, as a covariance C must be: give (C + Cᵀ)/2.")
    covariances = (covariances + transposed) / 2
    eigenvalues = np.linalg.eigvalsh(covariances)
    lowest, largest = eigenvalues[:, 0], np.abs(eigenvalues).max(axis=1)
    worst = int((lowest + ROUNDING * largest).argmin())
    if lowest[worst] < -ROUNDING * largest[worst]:
        where = f" at node {worst}" if len(covariances) > 1 else ""
        raise ValueError(
            f"noise has eigenvalue {lowest[worst]:.3g}{where}, and a covariance must be positive semidefinite: give "
            "one whose eigenvalues are at least 0."
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
    """The columns of F with F Fᵀ = C, the largest pivot first; a rest whose diagonal is below `rounding` is left out.

    Sums in a fixed order, so that every machine draws the same noise.
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
