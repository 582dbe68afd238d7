"""Least squares on data given as arrays, spread over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from stgt._internal.checks import check_count, check_number
from stgt._internal.ops import Array
from stgt._internal.registry import register
from stgt.problems.base import Problem, check_array, scale_of
from stgt.problems.linear import Data, LinearModel, pack
from stgt.problems.partition import held_out, iid, in_order, parts_of

SINGULAR = 1e-12  # an eigenvalue this small relative to the largest counts as 0


@dataclass(frozen=True)
class LeastSquaresModel(LinearModel):
    """f_i(x) = 1/(2 m_i) Σ_j (a_ijᵀx − y_ij)² + (l2/2)‖x‖²."""

    def phi(self, xp: ModuleType, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, xp: ModuleType, z: Array, y: Array) -> Array:
        return z - y

    def penalty(self, data: Data, x: Array) -> Array:
        return 0.5 * (data["l2"] * (x * x).sum(axis=-1))

    def penalty_gradient(self, data: Data, x: Array) -> Array:
        return data["l2"][:, None] * x


@register
def least_squares(
    features: Any,
    labels: Any,
    n: int | None = None,
    *,
    partition: str | Sequence[Any] = "iid",
    l2: float = 0.0,
    batch: int | None = None,
    seed: int = 0,
    weights: str = "equal",
    test: float = 0.0,
) -> Problem:
    """Linear regression, f_i(x) = 1/(2 m_i) Σ_j (a_ijᵀx − y_ij)² + (l2/2)‖x‖², spread over n nodes.

    Args:
        features: (samples, p). One of SciPy's sparse arrays is made dense.
        labels: (samples,), the values y to predict.
        n: number of nodes (omit it if `partition` is a list).
        partition: "iid", "sorted" (node 0 holds the smallest labels, the last node the largest), or the index array of
            each node.
        l2: adds (l2/2)‖x‖².
        batch: samples of a minibatch gradient, drawn with replacement; None for exact gradients. Runs with
            `oracle=stgt.oracles.Shuffled(batch)` draw them without replacement.
        seed: of the partition, and of the test samples.
        weights: "equal": each node's mean counts 1/n, for any number of samples; "samples": f_i is multiplied by
            n m_i / Σ m, so that (1/n) Σ f_i is the mean over all samples.
        test: the share of all samples that no node holds, drawn before the partition. The metric `test_loss` is
            computed on them, without the penalty. They are removed from a given partition.

    Returns:
        A `Problem` with its closed-form optimum (None if it is not unique), L the largest ‖∇²f_i‖, and mu.
    """
    features = check_array(features, "features", (None, None), "(samples, p)")
    samples, p = features.shape
    labels = check_array(labels, "labels", (samples,), f"one number for each of the {samples} rows of features")
    l2 = check_number(l2, "l2", least=0)
    batch = None if batch is None else check_count(batch, "batch")
    held = held_out(samples, test, seed)
    parts = parts_of(partition, labels, n, {"iid": partial(iid, seed=seed), "sorted": in_order}, held)
    n, counts = len(parts), np.array([len(part) for part in parts])
    data = pack(parts, counts.max(), features=features, labels=labels) | {"l2": np.full(n, l2)}
    scale, scale_data, weighing = scale_of(weights, counts)
    weighted = data["weight"][:, :, None] * data["features"] * scale[:, None, None]
    H = weighted.transpose(0, 2, 1) @ data["features"] + scale[:, None, None] * l2 * np.eye(p)
    eigenvalues, mean = np.linalg.eigvalsh(H), H.mean(axis=0)
    lowest, highest = np.linalg.eigvalsh(mean)[[0, -1]]
    b = (data["labels"][:, None, :] @ weighted)[:, 0].mean(axis=0)
    mu = float(eigenvalues[:, 0].min())
    tested = f", test={len(held)}" if len(held) else ""
    return Problem(
        name=f"least_squares(n={n}, p={p}, samples={counts.sum()}, l2={l2:g}{weighing}{tested})",
        model=LeastSquaresModel(),
        data=data | scale_data,
        n=n,
        p=p,
        L=float(eigenvalues[:, -1].max()),
        mu=mu if mu > SINGULAR * eigenvalues[:, -1].max() else None,
        batch=batch,
        counts=counts,
        solve=partial(np.linalg.solve, mean, b) if lowest > SINGULAR * highest else None,
        test=pack([held], len(held), features=features, labels=labels) | {"l2": np.zeros(1)} if tested else None,
    )
