"""Refuses replies that are far larger than the others. NumPy, no Flower.

This protects against nonsense, such as broken memory or a wrong unit. It is not a robust aggregation: a reply that is
ten times too large, or has the wrong sign, is accepted. Honest clients differ in their data, their lr and their number
of steps. So the bounds are wide, and the compared sizes do not depend on these:

- the update, ‖x_i − x‖, and the rate, ‖x_i − x‖ over the sum of the stepsizes. Both must be MAX_RATIO times those of
  others, because more steps explain a large update and another optimiser a large rate. The update must also be larger
  than MODEL_NORMS times the model's norm;
- the direction from which control variates are computed, if the method reads one;
- the sum of the stepsizes, which the client itself reports;
- the change of the buffers.

"Others" are the median of the round's other replies, or of an earlier round if its median was larger. So clients that
have nearly converged do not exclude a new one. A first round with only one reply has nothing to compare it with. The
sizes of a client are divided by the factor of its loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from stgt.flower.protocol import QUIET, Arrays, Reply

MAX_RATIO = 1e3
MAX_LR_SUM_RATIO = 1e6  # a thousand times the lr and a thousand times the steps
MODEL_NORMS = 10.0
COMPARED = ("update", "rate", "direction", "lr_sum", "buffers")
Sizes = dict[str, float]  # the compared sizes, and "model", the model's norm


@QUIET
def sizes_of(reply: Reply, model: Arrays, scale: float, reads_direction: bool) -> Sizes:
    """The sizes of a reply.

    Args:
        reply: of a client.
        model: the model that it started from, buffers included.
        scale: the factor of the client's loss.
        reads_direction: does the method read the direction?
    """
    updates = {name: _norm(model[name] - end) for name, end in reply.end.items()}
    found = {
        "model": math.hypot(*(_norm(model[name]) for name in reply.end)),
        "update": math.hypot(*updates.values()) / scale,
        "rate": math.hypot(*(one / float(reply.lr_sum[name]) for name, one in updates.items())) / scale,
        "lr_sum": max(float(reply.lr_sum[name]) for name in updates),
        "buffers": math.hypot(*(_norm(_change(one, model[name])) for name, one in reply.buffers.items())),
    }
    if reads_direction:
        sent = None if reply.direction is None else math.hypot(*map(_norm, reply.direction.values())) / scale
        found["direction"] = found["rate"] if sent is None else sent
    return found


@QUIET
def find_outliers(measured: Mapping[int, Sizes], usual: Sizes) -> dict[int, str]:
    """The clients whose replies are far larger than the others', and why.

    Args:
        measured: the sizes of the round's replies.
        usual: those of earlier rounds.
    """
    found = {}
    for client, sizes in measured.items():
        others = typical_sizes((one for other, one in measured.items() if other != client), usual)
        ratio = {name: sizes[name] / others[name] for name in sizes if others.get(name)}
        bound = MODEL_NORMS * sizes["model"]
        if min(ratio.get("update", 0), ratio.get("rate", 0)) > MAX_RATIO and sizes["update"] > bound:
            found[client] = f"its update is {ratio['update']:.1e} times as large as those of others"
        elif ratio.get("direction", 0) > MAX_RATIO and sizes["direction"] * others["lr_sum"] > bound:
            found[client] = (
                f"its direction is {ratio['direction']:.1e} times as long as those of others, with stepsizes that sum "
                f"to {sizes['lr_sum']:.3g}, where those of others sum to {others['lr_sum']:.3g}"
            )
        elif ratio.get("lr_sum", 0) > MAX_LR_SUM_RATIO:
            found[client] = f"its stepsizes sum to {ratio['lr_sum']:.1e} times those of others"
        elif ratio.get("buffers", 0) > MAX_RATIO:
            found[client] = f"its buffers change {ratio['buffers']:.1e} times as much as those of others"
    return {client: f"{why}: use a smaller lr, or check its data and its machine." for client, why in found.items()}


def typical_sizes(measured: Iterable[Sizes], usual: Sizes) -> Sizes:
    """The (lower) median of each nonzero size, or the usual size, if that is larger."""
    found = dict(usual)
    rows = list(measured)
    for name in COMPARED:
        values = sorted(row[name] for row in rows if 0 < row.get(name, 0) < np.inf)
        if values:
            found[name] = max(found.get(name, 0.0), values[(len(values) - 1) // 2])
    return found


def _change(one: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The change of a buffer. Entries that are inf or NaN count as unchanged."""
    found = one.astype(np.float64) - before
    return np.where(np.isfinite(found), found, 0.0)


def _norm(array: np.ndarray) -> float:
    """The Euclidean norm, in double precision."""
    return float(np.sqrt(np.square(array, dtype=np.float64).sum()))
