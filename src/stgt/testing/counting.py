"""What a run really computes: a model that counts the gradients it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class CountingModel:
    """A problem's model, and how many gradients it was asked for: one for each sample, or for each node without them.

    For `engine="numpy"`, which computes what is asked for and nothing else.

    Example:
        >>> from dataclasses import replace
        >>> import stgt
        >>> problem = stgt.problems.ridge(n=4, p=2)
        >>> model = stgt.testing.CountingModel(problem.model)
        >>> run = stgt.simulate(
        ...     stgt.STGT(gamma=0.1, tau=5), replace(problem, model=model), stgt.topology.ring(4), rounds=3,
        ...     engine="numpy", metrics=[],
        ... )
        >>> model.count
        60
    """

    def __init__(self, model: Any):
        self.model, self.count = model, 0

    def losses(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        return self.model.losses(xp, data, x)

    def gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        self.count += int(np.count_nonzero(data["weight"])) if "weight" in data else len(x)
        return self.model.gradients(xp, data, x)

    def component_gradients(self, xp: Any, data: dict[str, Array], x: Array) -> Array:
        self.count += int(np.count_nonzero(data["weight"]))
        return self.model.component_gradients(xp, data, x)

    def sample_gradients(self, xp: Any, data: dict[str, Array], x: Array, index: Array) -> Array:
        self.count += int(index.size)
        return self.model.sample_gradients(xp, data, x, index)
