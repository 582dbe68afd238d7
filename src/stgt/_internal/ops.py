"""What generic code asks of an array library beyond operators, and NumPy's answers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = Any


class Ops(Protocol):
    """What generic code needs from an array library beyond operators; each engine supplies one."""

    xp: Any  # numpy or jax.numpy

    def erfinv(self, x: Array) -> Array: ...

    def cond(self, flag: Array, change: Any, state: Any) -> Any:
        """`change(state)` where `flag` holds, else `state`, without computing the change for nothing."""

    def apart(self, make: Any, shape: tuple[int, ...], dtype: Any, step: Array) -> Array:
        """`make(0)` of this shape and dtype, computed on its own and not fused into what uses it."""

    def put(self, table: Array, index: Array, value: Array) -> Array:
        """A copy of `table` (k, m, ...) with table[i, index[i]] = value[i]."""

    def loop(self, count: int, step: Any, state: Any) -> Any:
        """`step(k, state)` for k = 0, 1, … below `count`, each on what the one before has made of `state`."""

    def switch(self, which: Array, branches: Any, *operands: Any) -> Any:
        """`branches[which](*operands)`, without computing the other branches."""


class NumpyOps:
    """What generic code asks of NumPy."""

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
