"""Logistic regression on data given as arrays, spread over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count, check_number
from stgt._internal.registry import register
from stgt.problems.base import Problem, check_array, scale_data, scale_of, scaled, weighing
from stgt.problems.partition import given_parts, needed
from stgt.problems.partition import partition as split

Array = Any


@dataclass(frozen=True)
class LogisticModel:
    """f_i(x) = (1/m_i) Σ_j log(1 + exp(−y_ij a_ijᵀx)) + (l2/2)‖x‖² + nonconvex Σ_k x_k²/(1 + x_k²).

    The rows `signed` are y_ij a_ij; nodes with fewer samples are padded with rows of weight 0.
    """

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        margin = (data["signed"] @ x[:, :, None])[:, :, 0]
        loss = (xp.logaddexp(0.0 * margin, -margin) * data["weight"]).sum(axis=-1)
        square = x * x
        penalty = 0.5 * data["l2"][:, None] * square + data["nonconvex"][:, None] * square / (1.0 + square)
        return scaled(data, loss + penalty.sum(axis=-1))

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        slope = self._slope(xp, data["signed"], x) * data["weight"]
        return scaled(data, (slope[:, None, :] @ data["signed"])[:, 0] + self._penalty(data, x))

    def component_gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        slope = self._slope(xp, data["signed"], x)
        return scaled(data, slope[:, :, None] * data["signed"] + self._penalty(data, x)[:, None, :])

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        rows = data["signed"][xp.arange(len(x))[:, None], index]
        slope = self._slope(xp, rows, x)
        return scaled(data, (slope[:, :, None] * rows).mean(axis=1) + self._penalty(data, x))

    @staticmethod
    def _slope(xp: Any, rows: Array, x: Array) -> Array:
        # −1/(1 + exp(margin)), written so that nothing overflows.
        return -0.5 * (1.0 - xp.tanh(0.5 * (rows @ x[:, :, None])[:, :, 0]))

    @staticmethod
    def _penalty(data: dict[str, Array], x: Array) -> Array:
        return data["l2"][:, None] * x + data["nonconvex"][:, None] * 2.0 * x / (1.0 + x * x) ** 2


@register
def logistic(
    features: Any,
    labels: Any,
    n: int | None = None,
    *,
    partition: str | Sequence[Any] = "iid",
    classes: int = 1,
    alpha: float = 0.5,
    l2: float = 0.0,
    nonconvex: float = 0.0,
    batch: int | None = None,
    seed: int = 0,
    width: int | None = None,
    weights: str = "equal",
) -> Problem:
    """Logistic regression, f_i(x) = (1/m_i) Σ_j log(1 + exp(−y_ij a_ijᵀx)) + penalty, spread over n nodes.

    Args:
        features: (samples, p).
        labels: (samples,), numbers or words of two different values; the larger, or later in the alphabet, becomes +1.
        n: number of nodes (left out if `partition` is a list).
        partition: "iid", "label" (`classes` labels a node), "dirichlet" (`alpha`), or the index array of each node.
        l2: adds (l2/2)‖x‖², and makes the problem strongly convex.
        nonconvex: adds nonconvex · Σ_k x_k²/(1 + x_k²).
        batch: samples of a minibatch gradient, drawn with replacement; None for exact gradients.
        seed: of the partition.
        width: rows that each node is padded to, the largest node's if left out; partitions of one width share a
            compiled program.
        weights: "equal": each node's mean counts 1/n, however many samples it has; "samples": f_i is multiplied by
            n m_i / Σ m, so that (1/n) Σ f_i is the mean over all samples.

    Returns:
        A `Problem`. Its optimum is solved for to rounding if l2 > 0 and nonconvex = 0, else None.
    """
    features = check_array(features, "features", (None, None), "(samples, p)")
    samples, p = features.shape
    signs = _signs(labels, samples)
    l2 = check_number(l2, "l2", least=0)
    nonconvex = check_number(nonconvex, "nonconvex", least=0)
    batch = None if batch is None else check_count(batch, "batch")
    if isinstance(partition, str):
        parts = split(signs, needed(n), partition, classes=classes, alpha=alpha, seed=seed)
    else:
        parts = given_parts(partition, n, samples)
    n = len(parts)
    counts = np.array([len(part) for part in parts])
    width = int(counts.max()) if width is None else check_count(width, "width", int(counts.max()))
    signed = np.zeros((n, width, p))
    weight = np.zeros((n, width))
    for i, part in enumerate(parts):
        signed[i, : len(part)] = features[part] * signs[part, None]
        weight[i, : len(part)] = 1.0 / len(part)
    scale = scale_of(weights, counts)
    data = {"signed": signed, "weight": weight, "l2": np.full(n, l2), "nonconvex": np.full(n, nonconvex)}
    curvature = np.array([np.linalg.norm(signed[i], 2) ** 2 / (4.0 * counts[i]) for i in range(n)])
    return Problem(
        name=f"logistic(n={n}, p={p}, samples={counts.sum()}, l2={l2:g}, nonconvex={nonconvex:g}{weighing(weights)})",
        model=LogisticModel(),
        data=data | scale_data(weights, scale),
        n=n,
        p=p,
        L=float((scale * (curvature + l2 + 2.0 * nonconvex)).max()),
        mu=float(l2 * scale.min()) if l2 > 0 and nonconvex == 0 else None,
        batch=batch,
        counts=counts,
        solve=partial(_newton, data, p, l2, scale) if l2 > 0 and nonconvex == 0 else None,
    )


def _signs(labels: Any, samples: int) -> np.ndarray:
    sized = isinstance(labels, np.ndarray | list | tuple) and len(labels) == samples
    if not sized or not all(isinstance(label, str) for label in labels):
        labels = check_array(labels, "labels", (samples,), f"one label for each of the {samples} rows of features")
    values, index = np.unique(labels, return_inverse=True)
    if len(values) != 2:
        raise InputError("labels", hint=f" has {len(values)} different values: logistic regression needs exactly two.")
    return np.where(index == 1, 1.0, -1.0)


def _newton(data: dict[str, np.ndarray], p: int, l2: float, scale: np.ndarray) -> np.ndarray:
    """x*, by a trust-region Newton method, polished by full Newton steps to rounding."""
    from scipy.optimize import minimize  # it takes longer to load than most runs to compile

    rows = data["signed"].reshape(-1, p)
    weight = (data["weight"] * scale[:, None]).reshape(-1) / len(scale)

    def value(x: np.ndarray) -> float:
        return float(weight @ np.logaddexp(0.0, -(rows @ x)) + 0.5 * l2 * x @ x)

    def gradient(x: np.ndarray) -> np.ndarray:
        return -rows.T @ (weight * 0.5 * (1.0 - np.tanh(0.5 * (rows @ x)))) + l2 * x

    def hessian(x: np.ndarray) -> np.ndarray:
        half = np.tanh(0.5 * (rows @ x))
        return rows.T @ ((weight * 0.25 * (1.0 - half**2))[:, None] * rows) + l2 * np.eye(p)

    x = minimize(value, np.zeros(p), jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-8}).x
    for _ in range(3):
        x = x - np.linalg.solve(hessian(x), gradient(x))
    return x
