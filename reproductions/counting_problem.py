"""What a run really computes: a model that counts the gradients it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Counting:
    """A problem's model, and how many gradients it was asked for: one for each sample, or for each node without them.

    For the reference, which computes what is asked for and nothing else.
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
