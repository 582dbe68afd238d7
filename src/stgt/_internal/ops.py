"""The array operations that generic code needs beyond operators: the protocol and NumPy's. The simulator has JAX's."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

import numpy as np

Array = Any


class Ops(Protocol):
    """Operations of an array library; each engine supplies its own."""

    xp: ModuleType  # numpy or jax.numpy

    def erfinv(self, x: Array) -> Array: ...

    def cond(self, flag: Array, change: Any, state: Any) -> Any:
        """`change(state)` if `flag`, else `state`. The change is computed only if it is needed."""

    def apart(self, make: Any, shape: tuple[int, ...], dtype: Any, step: Array) -> Array:
        """`make(0)` of this shape and dtype, which a compiler must not fuse into the code around it."""

    def put(self, table: Array, index: Array, value: Array) -> Array:
        """A copy of `table` (k, m, ...) with table[i, index[i]] = value[i]."""

    def loop(self, count: int, step: Any, state: Any) -> Any:
        """state ← step(k, state) for k = 0, 1, …, count − 1; returns the last state."""

    def switch(self, which: Array, branches: Any, *operands: Any) -> Any:
        """`branches[which](*operands)`, without computing the other branches."""


class NumpyOps:
    """The operations of NumPy."""

    xp = np

    def erfinv(self, x: np.ndarray) -> np.ndarray:
        from scipy.special import erfinv

        return erfinv(x)

    def cond(self, flag: Any, change: Any, state: Any) -> Any:
        return change(state) if flag else state

    def apart(self, make: Any, shape: tuple[int, ...], dtype: Any, step: Any) -> Any:
        return make(np.uint32(0))

    def put(self, table: np.ndarray, index: np.ndarray, value: np.ndarray) -> np.ndarray:
        table = table.copy()
        table[np.arange(len(table)), index] = value
        return table

    def loop(self, count: int, step: Any, state: Any) -> Any:
        for k in range(count):
            state = step(k, state)
        return state

    def switch(self, which: Any, branches: Any, *operands: Any) -> Any:
        return branches[int(which)](*operands)


NUMPY = NumpyOps()
