"""Least squares on data given as arrays, spread over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stgt._internal.checks import check_choice, check_count, check_number
from stgt._internal.registry import register
from stgt.problems.base import Problem, check_array, scale_data, scale_of, scaled, weighing
from stgt.problems.partition import given_parts, iid, in_order, needed

Array = Any
SINGULAR = 1e-12  # an eigenvalue this small beside the largest counts as 0


@dataclass(frozen=True)
class LeastSquaresModel:
    """f_i(x) = 1/(2 m_i) Σ_j (a_ijᵀx − y_ij)² + (l2/2)‖x‖².

    The rows `features` are a_ij; nodes with fewer samples are padded with rows of weight 0.
    """

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        error = self._error(data["features"], data["labels"], x)
        return scaled(data, 0.5 * ((error**2 * data["weight"]).sum(axis=-1) + data["l2"] * (x * x).sum(axis=-1)))

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        slope = self._error(data["features"], data["labels"], x) * data["weight"]
        return scaled(data, (slope[:, None, :] @ data["features"])[:, 0] + data["l2"][:, None] * x)

    def component_gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        error = self._error(data["features"], data["labels"], x)
        return scaled(data, error[:, :, None] * data["features"] + (data["l2"][:, None] * x)[:, None, :])

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        at = (xp.arange(len(x))[:, None], index)
        rows = data["features"][at]
        error = self._error(rows, data["labels"][at], x)
        return scaled(data, (error[:, :, None] * rows).mean(axis=1) + data["l2"][:, None] * x)

    @staticmethod
    def _error(rows: Array, labels: Array, x: Array) -> Array:
        return (rows @ x[:, :, None])[:, :, 0] - labels


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
) -> Problem:
    """Linear regression, f_i(x) = 1/(2 m_i) Σ_j (a_ijᵀx − y_ij)² + (l2/2)‖x‖², spread over n nodes.

    Args:
        features: (samples, p).
        labels: (samples,), the values y to predict.
        n: number of nodes (left out if `partition` is a list).
        partition: "iid", "sorted" (node 0 holds the smallest labels, the last node the largest), or the index array of
            each node.
        l2: adds (l2/2)‖x‖².
        batch: samples of a minibatch gradient, drawn with replacement; None for exact gradients.
        seed: of the partition.
        weights: "equal": each node's mean counts 1/n, however many samples it has; "samples": f_i is multiplied by
            n m_i / Σ m, so that (1/n) Σ f_i is the mean over all samples.

    Returns:
        A `Problem` with its closed-form optimum (None where it is not unique), L the largest ‖∇²f_i‖, and mu.
    """
    features = check_array(features, "features", (None, None), "(samples, p)")
    samples, p = features.shape
    labels = check_array(labels, "labels", (samples,), f"one number for each of the {samples} rows of features")
    l2 = check_number(l2, "l2", least=0)
    batch = None if batch is None else check_count(batch, "batch")
    parts = _parts(partition, labels, n, seed)
    n, counts = len(parts), np.array([len(part) for part in parts])
    data = {
        "features": np.zeros((n, counts.max(), p)),
        "labels": np.zeros((n, counts.max())),
        "weight": np.zeros((n, counts.max())),
        "l2": np.full(n, l2),
    }
    scale = scale_of(weights, counts)
    for i, part in enumerate(parts):
        data["features"][i, : len(part)] = features[part]
        data["labels"][i, : len(part)] = labels[part]
        data["weight"][i, : len(part)] = 1.0 / len(part)
    weighted = data["weight"][:, :, None] * data["features"] * scale[:, None, None]
    H = weighted.transpose(0, 2, 1) @ data["features"] + scale[:, None, None] * l2 * np.eye(p)
    eigenvalues, mean = np.linalg.eigvalsh(H), H.mean(axis=0)
    lowest, highest = np.linalg.eigvalsh(mean)[[0, -1]]
    b = (data["labels"][:, None, :] @ weighted)[:, 0].mean(axis=0)
    mu = float(eigenvalues[:, 0].min())
    return Problem(
        name=f"least_squares(n={n}, p={p}, samples={counts.sum()}, l2={l2:g}{weighing(weights)})",
        model=LeastSquaresModel(),
        data=data | scale_data(weights, scale),
        n=n,
        p=p,
        L=float(eigenvalues[:, -1].max()),
        mu=mu if mu > SINGULAR * eigenvalues[:, -1].max() else None,
        batch=batch,
        counts=counts,
        solve=partial(np.linalg.solve, mean, b) if lowest > SINGULAR * highest else None,
    )


def _parts(partition: Any, labels: np.ndarray, n: int | None, seed: int) -> list[np.ndarray]:
    if not isinstance(partition, str):
        return given_parts(partition, n, len(labels))
    check_choice(partition, "partition", ("iid", "sorted"))
    return in_order(labels, needed(n)) if partition == "sorted" else iid(labels, needed(n), seed)
