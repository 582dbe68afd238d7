"""The problem: min_x f(x) = (1/n) Σ_i f_i(x), where only node i has access to f_i."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from stgt._internal.checks import Argument, InputError, check_choice
from stgt._internal.digest import digest
from stgt._internal.ops import Array

NOISE_FACTOR = "noise_factor"  # the key of the factors F_i in a problem's data
SCALE = "scale"  # the key of n m_i / Σ m in a problem's data
WEIGHTS = ("equal", "samples")
MOST_ENTRIES = 5 * 10**8  # the most entries of the features, 4 GB


class Model(Protocol):
    """The functions of a problem, pure and hashable. The data are an argument, with a row for each node.

    `xp` is numpy or jax.numpy; x is (k, p), the models of the k nodes that the data belong to.
    """

    def losses(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        """f_i(x_i), (k,)."""
        ...

    def gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        """∇f_i(x_i), (k, p)."""
        ...


class FiniteSum(Model, Protocol):
    """A model whose f_i is a mean over samples. data["weight"] (k, m) is 1/m_i for a sample and 0 for padding.

    If nodes are weighted by their samples, data["scale"] (k,) is n m_i / Σ m, and all functions are `scaled` by it.
    """

    def component_gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        """The gradient of each sample of each node, (k, m, p)."""
        ...

    def sample_gradients(self, xp: ModuleType, data: dict[str, Array], x: Array, index: Array) -> Array:
        """The mean gradient of the samples index (k, b) of each node, (k, p)."""
        ...


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem over n nodes in p dimensions.

    Attributes:
        name: for tables and legends.
        model: its functions.
        data: arrays whose first axis is the node.
        n, p: number of nodes, dimension.
        L, mu: the largest smoothness and the smallest strong convexity constant of the f_i, if they are known.
        noise: variance of each coordinate of the additive gradient noise, if it is isotropic; for the default oracle.
            None: node i's noise is F_i ξ with ξ ~ N(0, I) and F = data["noise_factor"], (n, p, q), or (n, 1) for
            multiples of the identity. Use `covariance`, `sigma2` and `noisy` for any noise.
        batch: samples of a minibatch gradient, for the default oracle. None: exact.
        counts: the number of samples at each node (n,); None if f_i is not a sum.
        solve: computes x*, if it is unique.
        test: samples that no node has, as data of one node, for metrics such as `test_loss`.
        start: the default initial models of a run, (p,); 0 if omitted.
        unravel: turns a flat x (p,) into the parameters that the problem was made with, if these are a pytree.
    """

    name: str
    model: Model
    data: dict[str, np.ndarray]
    n: int
    p: int
    L: float | None = None
    mu: float | None = None
    noise: float | None = 0.0
    batch: int | None = None
    counts: np.ndarray | None = None
    solve: Callable[[], np.ndarray] | None = field(default=None, repr=False)
    test: dict[str, np.ndarray] | None = field(default=None, repr=False)
    start: np.ndarray | None = field(default=None, repr=False)
    unravel: Callable[[Array], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.noise is None and NOISE_FACTOR not in self.data:
            raise InputError(
                "noise",
                hint=f" is None, so data[{NOISE_FACTOR!r}] has to define it: add that, or give a number as noise.",
            )

    @property
    def noisy(self) -> bool:
        """Do gradients have additive noise?"""
        return self.noise is None or self.noise > 0

    @property
    def sigma2(self) -> float:
        """The largest E‖δ_i‖² of any node's additive noise δ_i."""
        if self.noise is not None:
            return float(self.p * self.noise)
        factor = self.data[NOISE_FACTOR]
        if factor.ndim == 2:
            return float(self.p * (factor**2).max())
        return float((factor**2).sum(axis=(1, 2)).max())

    @cached_property
    def covariance(self) -> np.ndarray:
        """E[δ_i δ_iᵀ] of each node's additive noise δ_i, (n, p, p), read-only; zeros without noise."""
        if self.noise is not None:
            return np.broadcast_to(self.noise * np.eye(self.p), (self.n, self.p, self.p))
        factor = self.data[NOISE_FACTOR]
        if factor.ndim == 2:
            return factor[:, :, None] ** 2 * np.eye(self.p)
        return factor @ factor.transpose(0, 2, 1)

    @cached_property
    def optimum(self) -> np.ndarray | None:
        """x* (p,); None if it is not known or not unique."""
        return None if self.solve is None else self.solve()

    @cached_property
    def minimum(self) -> float | None:
        """f(x*); None if x* is not known."""
        return None if self.optimum is None else self.value(self.optimum)

    def ravel(self, params: Any) -> np.ndarray:
        """The flat x (p,) of parameters like those that the problem was made with; other arrays stay unchanged."""
        from stgt._internal.xla import jax

        if self.unravel is None:
            return np.asarray(params, dtype=np.float64)
        wanted = self.unravel(np.zeros(self.p))
        flat = isinstance(params, list) and len(params) == self.p and jax.tree_util.all_leaves(params)
        if flat or (jax.tree_util.all_leaves([params]) and np.shape(params) != np.shape(wanted)):
            return np.asarray(params, dtype=np.float64)  # a vector, or one per node
        if jax.tree.structure(params) != jax.tree.structure(wanted):
            raise ValueError(
                f"parameters of structure {jax.tree.structure(params)}: {self.name} has {jax.tree.structure(wanted)}."
            )
        leaves = [np.asarray(leaf, dtype=np.float64) for leaf in jax.tree.leaves(params)]
        shapes, needed = [leaf.shape for leaf in leaves], [np.shape(leaf) for leaf in jax.tree.leaves(wanted)]
        if shapes != needed:
            raise ValueError(f"parameters of shapes {shapes}: {self.name} has {needed}.")
        return np.concatenate([leaf.ravel() for leaf in leaves])

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of its name, size and data. A resumed run compares it."""
        return digest(self.name, self.n, self.p, self.noise, self.batch, self.data)

    def value(self, x: np.ndarray) -> float:
        """f(x) at one x (p,), in float64."""
        return float(np.mean(self.model.losses(np, self.data, self._everywhere(x, one=True))))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x) at one x (p,), in float64."""
        return np.asarray(self.model.gradients(np, self.data, self._everywhere(x, one=True))).mean(axis=0)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """∇f_i(x_i) for x (n, p), or for one x (p,) at all nodes; (n, p), in float64."""
        return np.asarray(self.model.gradients(np, self.data, self._everywhere(x)))

    def _everywhere(self, x: np.ndarray, one: bool = False) -> np.ndarray:
        """A model for each node, (n, p), also from one model for all, (p,). Any other shape is an error."""
        x = np.asarray(x, dtype=np.float64)
        if x.shape != (self.p,) and (one or x.shape != (self.n, self.p)):
            each = "" if one else f", or ({self.n}, {self.p}), one for each node"
            raise InputError("x", hint=f" has shape {x.shape}: give ({self.p},), one model{each}.")
        return np.broadcast_to(x, (self.n, self.p))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        name, size = " ".join(self.name.split()), f"n={self.n}, p={self.p}"
        return f"Problem({name})" if size in name else f"Problem({name}, {size})"


def scale_of(weights: str, counts: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], str]:
    """The factor of each f_i, (n,); the same as a part of a problem's data, and in its name, if it is not 1.

    The factor is 1, or n m_i / Σ m, which makes (1/n) Σ f_i the mean over all samples.
    """
    if check_choice(weights, "weights", WEIGHTS) == "equal":
        return np.ones(len(counts)), {}, ""
    scale = len(counts) * counts / counts.sum()
    return scale, {SCALE: scale}, f", weights={weights}"


def scaled(data: dict[str, Array], values: Array) -> Array:
    """Values or gradients, one row per node, times the scale of their nodes."""
    return values * data[SCALE].reshape(-1, *[1] * (values.ndim - 1)) if SCALE in data else values


def as_dense(values: Any, name: Argument) -> Any:
    """One of SciPy's sparse arrays as a dense one, if that is not too large; anything else unchanged."""
    if not hasattr(values, "toarray"):
        return values
    entries = int(np.prod(values.shape, dtype=np.float64))
    if entries > MOST_ENTRIES:
        raise InputError(
            name, hint=f" is sparse, with {entries:.1e} entries when dense: give at most {MOST_ENTRIES:.0e}."
        )
    return values.toarray()


def check_array(values: Any, name: str, shape: tuple[int | None, ...], meaning: str) -> np.ndarray:
    """`values` as float64 if it has the shape (None: any length) and is finite, else a ValueError."""
    values = as_dense(values, name)
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(name, hint=f" is not an array of numbers: give {meaning}.") from None
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or array.size == 0:
        raise InputError(name, hint=f" has shape {array.shape}: give {meaning}.")
    if not np.isfinite(array).all():
        bad = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(name, hint=f" holds {array[bad]} at {bad}: all entries of {name} must be finite numbers.")
    return array
