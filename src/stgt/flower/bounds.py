"""How far one reply may go beyond the others before it is refused. NumPy, no Flower.

This is against nonsense, such as a broken memory or a wrong unit, and not a robust aggregation: a reply that is ten
times too large, or has the wrong sign, is taken in. Honest clients differ in their data, their lr and the number of
their steps, so that the bounds are wide, and compare what does not depend on these:

- the model's way, ‖x_i − x‖, and that over the sum of the stepsizes: both must be FAR times those of others, as more
  steps explain the one and another optimiser the other; and the way must be longer than the model by MODEL times;
- the direction that control variables follow, where the method reads one;
- the sum of the stepsizes, which the client says itself;
- the change of the buffers.

"Others" are the median of the round's other replies, or of the round so far in which that was largest: clients that
are nearly done do not shut a new one out. The only reply to a first round has none to be compared with. The sizes of a
client are taken over the factor that multiplies its loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from stgt.flower.reply import QUIET, Arrays, Reply

FAR = 1e3
LONG = 1e6  # of the sum of the stepsizes: a thousand times the lr and a thousand times the steps
MODEL = 10.0
KINDS = ("moved", "rate", "direction", "stepsizes", "buffers")  # what is compared
Sizes = dict[str, float]  # these, and "model", its norm


@QUIET
def sizes(reply: Reply, known: Arrays, scale: float, tracks: bool) -> Sizes:
    """The sizes of a reply.

    Args:
        known: the model it began from, buffers included.
        scale: what the client's loss was multiplied by.
        tracks: does the method read the direction?
    """
    ways = {name: _norm(known[name] - end) for name, end in reply.end.items()}
    found = {
        "model": math.hypot(*(_norm(known[name]) for name in reply.end)),
        "moved": math.hypot(*ways.values()) / scale,
        "rate": math.hypot(*(way / float(reply.travelled[name]) for name, way in ways.items())) / scale,
        "stepsizes": max(float(reply.travelled[name]) for name in ways),
        "buffers": math.hypot(*(_norm(_change(one, known[name])) for name, one in reply.buffers.items())),
    }
    if tracks:
        sent = None if reply.direction is None else math.hypot(*map(_norm, reply.direction.values())) / scale
        found["direction"] = found["rate"] if sent is None else sent
    return found


@QUIET
def far_ones(measured: Mapping[int, Sizes], usual: Sizes) -> dict[int, str]:
    """Whose replies are out of all proportion to the others', and why.

    Args:
        measured: the sizes of the round's replies.
        usual: those of the rounds before.
    """
    found = {}
    for worker, own in measured.items():
        others = typical((one for other, one in measured.items() if other != worker), usual)
        times = {kind: own[kind] / others[kind] for kind in own if others.get(kind)}
        room = MODEL * own["model"]
        if min(times.get("moved", 0), times.get("rate", 0)) > FAR and own["moved"] > room:
            found[worker] = f"its model went {times['moved']:.1e} times as far as those of others do"
        elif times.get("direction", 0) > FAR and own["direction"] * others["stepsizes"] > room:
            found[worker] = (
                f"its direction is {times['direction']:.1e} times as long as those of others are, with stepsizes that "
                f"sum to {own['stepsizes']:.3g} where theirs do to {others['stepsizes']:.3g}"
            )
        elif times.get("stepsizes", 0) > LONG:
            found[worker] = f"its stepsizes sum to {times['stepsizes']:.1e} times those of others"
        elif times.get("buffers", 0) > FAR:
            found[worker] = f"its buffers change {times['buffers']:.1e} times as much as those of others do"
    return {worker: f"{why}: take a smaller lr, or look at its data and its machine." for worker, why in found.items()}


def typical(measured: Iterable[Sizes], usual: Sizes) -> Sizes:
    """The (lower) median of each size that is not 0, or what is usual, if that is larger."""
    found = dict(usual)
    rows = list(measured)
    for kind in KINDS:
        known = sorted(row[kind] for row in rows if 0 < row.get(kind, 0) < np.inf)
        if known:
            found[kind] = max(found.get(kind, 0.0), known[(len(known) - 1) // 2])
    return found


def _change(one: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Of a buffer, which may hold inf and NaN where it did before."""
    found = one.astype(np.float64) - before
    return np.where(np.isfinite(found), found, 0.0)


def _norm(array: np.ndarray) -> float:
    """In double precision."""
    return float(np.sqrt(np.square(array, dtype=np.float64).sum()))
