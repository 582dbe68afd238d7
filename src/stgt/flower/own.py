"""What a worker keeps from round to round, worked out by the worker and by the server alike, to the last bit.

Where the server holds the model (Scaffold), a worker's own follows from its round alone. Where each worker keeps its
own model (ST-GT), it also takes what was mixed, which the worker hears with the next call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import begin, hear, readable
from stgt.flower.fit import unsent, worker_fields
from stgt.flower.reply import Arrays, View


class Unheard:
    """Stands for what a worker has not heard when its round ends, and for all that is computed of it."""

    __array_ufunc__ = None  # NumPy leaves the arithmetic to this class

    def _itself(self, *_: object) -> Unheard:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _itself
    __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _itself


def state_of(algorithm: Algorithm, view: View, name: str) -> Arrays:
    """What the view says of one parameter's state; where it has no more than x, the state before round 0."""
    begun = begin(algorithm, view["x"][name])
    return begun | {field: view[field][name] for field in begun if field in view}


def own_after(
    algorithm: Algorithm, state: Mapping[str, np.ndarray], local: Local, mixed: Mapping[str, np.ndarray] | None
) -> Arrays:
    """A worker's own fields of one parameter after its round; `mixed` is needed where the server holds no model."""
    if algorithm.held:  # the worker is gone when the mixture is there, so its own cannot wait for it
        unknown = {field: Unheard() for field in unsent(algorithm)}
        unheard = {sent.name: Unheard() for sent in algorithm.exchanges}
        after = hear(algorithm, readable(algorithm, {**state, **unknown}), local, unheard)
    else:
        after = hear(algorithm, readable(algorithm, state), local, mixed or {})
    found = {field: after[field] for field in worker_fields(algorithm)}
    if any(isinstance(value, Unheard) for value in found.values()):
        raise ValueError(
            f"{algorithm.label} makes what a worker keeps depend on what was mixed, which the worker does "
            "not hear when a server holds the model: keep it at the server, or make it from the worker's "
            "own round."
        )
    return found
