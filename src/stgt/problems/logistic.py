"""Logistic regression on data given as arrays, spread over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count, check_number
from stgt._internal.ops import Array
from stgt._internal.registry import register
from stgt.problems.base import Problem, check_array, scale_of
from stgt.problems.linear import Data, LinearModel, pack, products
from stgt.problems.partition import held_out, named_partitions, parts_of


@dataclass(frozen=True)
class LogisticModel(LinearModel):
    """f_i(x) = (1/m_i) Σ_j log(1 + exp(−y_ij a_ijᵀx)) + (l2/2)‖x‖² + nonconvex Σ_k x_k²/(1 + x_k²).

    The rows `signed` are y_ij a_ij.
    """

    rows = "signed"

    def phi(self, xp: ModuleType, z: Array, y: Array) -> Array:
        return xp.logaddexp(0.0 * z, -z)

    def slope(self, xp: ModuleType, z: Array, y: Array) -> Array:
        return -0.5 * (1.0 - xp.tanh(0.5 * z))  # −1/(1 + exp(z)) without overflow

    def penalty(self, data: Data, x: Array) -> Array:
        square = x * x
        return (0.5 * data["l2"][:, None] * square + data["nonconvex"][:, None] * square / (1.0 + square)).sum(axis=-1)

    def penalty_gradient(self, data: Data, x: Array) -> Array:
        return data["l2"][:, None] * x + data["nonconvex"][:, None] * 2.0 * x / (1.0 + x * x) ** 2

    def accuracies(self, xp: ModuleType, data: Data, x: Array) -> Array:
        """The share of each node's samples whose sign is predicted correctly, (k,)."""
        right = (products(data["signed"], x) > 0) & (data["weight"] > 0)
        return right.sum(axis=-1).astype(x.dtype) / (data["weight"] > 0).sum(axis=-1).astype(x.dtype)


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
    test: float = 0.0,
) -> Problem:
    """Logistic regression, f_i(x) = (1/m_i) Σ_j log(1 + exp(−y_ij a_ijᵀx)) + penalty, spread over n nodes.

    Args:
        features: (samples, p). One of SciPy's sparse arrays is made dense.
        labels: (samples,), numbers or words of two different values; the larger, or later in the alphabet, becomes +1.
        n: number of nodes (omit it if `partition` is a list).
        partition: "iid", "label" (`classes` labels a node), "dirichlet" (`alpha`), or the index array of each node.
        l2: adds (l2/2)‖x‖², and makes the problem strongly convex.
        nonconvex: adds nonconvex · Σ_k x_k²/(1 + x_k²).
        batch: samples of a minibatch gradient, drawn with replacement; None for exact gradients. Runs with
            `oracle=stgt.oracles.Shuffled(batch)` draw them without replacement.
        seed: of the partition, and of the test samples.
        width: rows that each node is padded to; by default those of the largest node. Partitions of one width share a
            compiled program.
        weights: "equal": each node's mean counts 1/n, for any number of samples; "samples": f_i is multiplied by
            n m_i / Σ m, so that (1/n) Σ f_i is the mean over all samples.
        test: the share of all samples that no node holds, drawn before the partition. The metrics `test_loss` and
            `test_accuracy` are computed on them, without the penalty. They are removed from a given partition.

    Returns:
        A `Problem`. If l2 > 0 and nonconvex = 0, its optimum is computed to rounding; otherwise it is None.
    """
    features = check_array(features, "features", (None, None), "(samples, p)")
    samples, p = features.shape
    signs = _signs(labels, samples)
    l2 = check_number(l2, "l2", least=0)
    nonconvex = check_number(nonconvex, "nonconvex", least=0)
    batch = None if batch is None else check_count(batch, "batch")
    held = held_out(samples, test, seed)
    parts = parts_of(partition, signs, n, named_partitions(classes=classes, alpha=alpha, seed=seed), held)
    n, counts = len(parts), np.array([len(part) for part in parts])
    width = int(counts.max()) if width is None else check_count(width, "width", int(counts.max()))
    signed = features * signs[:, None]
    data = pack(parts, width, signed=signed)
    data |= {"l2": np.full(n, l2), "nonconvex": np.full(n, nonconvex)}
    scale, scale_data, weighing = scale_of(weights, counts)
    curvature = np.array([np.linalg.norm(data["signed"][i], 2) ** 2 / (4.0 * counts[i]) for i in range(n)])
    tested = f", test={len(held)}" if len(held) else ""
    return Problem(
        name=f"logistic(n={n}, p={p}, samples={counts.sum()}, l2={l2:g}, nonconvex={nonconvex:g}{weighing}{tested})",
        model=LogisticModel(),
        data=data | scale_data,
        n=n,
        p=p,
        L=float((scale * (curvature + l2 + 2.0 * nonconvex)).max()),
        mu=float(l2 * scale.min()) if l2 > 0 and nonconvex == 0 else None,
        batch=batch,
        counts=counts,
        solve=partial(_newton, data, p, l2, scale) if l2 > 0 and nonconvex == 0 else None,
        test=pack([held], len(held), signed=signed) | {"l2": np.zeros(1), "nonconvex": np.zeros(1)} if tested else None,
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
    """x*, by a trust-region Newton method, then full Newton steps to rounding."""
    from scipy.optimize import minimize  # imported here, as it takes longer than most runs take to compile

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
