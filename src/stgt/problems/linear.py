"""Linear models on data given as arrays: f_i(x) = (1/m_i) Σ_j φ(a_ijᵀx, y_ij) + penalty(x)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import ClassVar

import numpy as np

from stgt._internal.ops import Array
from stgt.problems.base import scaled

Data = dict[str, Array]


class LinearModel(ABC):
    """The functions of such a problem. A subclass is a frozen dataclass that defines φ, its derivative and the penalty.

    data["weight"] (k, m) is 1/m_i for a sample and 0 for the rows that pad nodes with fewer samples; see `pack`.
    """

    rows: ClassVar[str] = (
        "features"  # the key of the a_ij (k, m, p) in the data; the y_ij are "labels", if there are any
    )

    @abstractmethod
    def phi(self, xp: ModuleType, z: Array, y: Array) -> Array:
        """φ(z, y) of the products z = a_ijᵀx, (k, m); y is None without labels."""

    @abstractmethod
    def slope(self, xp: ModuleType, z: Array, y: Array) -> Array:
        """∂φ/∂z, (k, m)."""

    @abstractmethod
    def penalty(self, data: Data, x: Array) -> Array:
        """The penalty of each node's x, (k,)."""

    @abstractmethod
    def penalty_gradient(self, data: Data, x: Array) -> Array:
        """The gradient of the penalty, (k, p)."""

    def losses(self, xp: ModuleType, data: Data, x: Array) -> Array:
        values = self.phi(xp, products(data[self.rows], x), data.get("labels"))
        return scaled(data, (values * data["weight"]).sum(axis=-1) + self.penalty(data, x))

    def gradients(self, xp: ModuleType, data: Data, x: Array) -> Array:
        slope = self.slope(xp, products(data[self.rows], x), data.get("labels")) * data["weight"]
        return scaled(data, (slope[:, None, :] @ data[self.rows])[:, 0] + self.penalty_gradient(data, x))

    def component_gradients(self, xp: ModuleType, data: Data, x: Array) -> Array:
        slope = self.slope(xp, products(data[self.rows], x), data.get("labels"))
        return scaled(data, slope[:, :, None] * data[self.rows] + self.penalty_gradient(data, x)[:, None, :])

    def sample_gradients(self, xp: ModuleType, data: Data, x: Array, index: Array) -> Array:
        at = (xp.arange(len(x))[:, None], index)
        rows = data[self.rows][at]
        slope = self.slope(xp, products(rows, x), data["labels"][at] if "labels" in data else None)
        return scaled(data, (slope[:, :, None] * rows).mean(axis=1) + self.penalty_gradient(data, x))


def products(rows: Array, x: Array) -> Array:
    """a_ijᵀx_i, (k, m)."""
    return (rows @ x[:, :, None])[:, :, 0]


def pack(parts: list[np.ndarray], width: int, **columns: np.ndarray) -> dict[str, np.ndarray]:
    """Each node's rows of the columns, padded with zeros to (n, width, …), and their "weight"."""
    packed = {name: np.zeros((len(parts), width, *column.shape[1:])) for name, column in columns.items()}
    packed["weight"] = np.zeros((len(parts), width))
    for i, part in enumerate(parts):
        for name, column in columns.items():
            packed[name][i, : len(part)] = column[part]
        packed["weight"][i, : len(part)] = 1.0 / len(part)
    return packed
