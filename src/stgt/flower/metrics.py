"""The clients' numbers, made into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from stgt.flower.records import METRICS
from stgt.flower.reply import QUIET

NUM_EXAMPLES = "num-examples"
Aggregate = Callable[[list[RecordDict], str], MetricRecord]  # as in Flower's own strategies


def aggregated(rows: list[dict[str, Any]], function: Aggregate | None, weight: str = "") -> dict[str, Any]:
    """What a user's function makes of the clients' metrics; without one, the mean of each number that all have.

    Args:
        rows: the metrics of each client.
        function: called with a list of {"metrics": …} and the name of the weight, as Flower does.
        weight: the metric to weigh them by, where all of them have it and it is finite and above 0.
    """
    if function is not None:
        return dict(function([RecordDict({METRICS: MetricRecord(row)}) for row in rows], NUM_EXAMPLES))
    weight = weight if all(_is_number(row.get(weight)) and 0 < row[weight] < np.inf for row in rows) else ""
    weights = np.array([float(row[weight]) if weight else 1.0 for row in rows])
    names = [name for name in rows[0] if name != weight and all(_is_number(row.get(name)) for row in rows)]
    return {name: _mean([float(row[name]) for row in rows], weights) for name in names}


@QUIET
def _mean(values: list[float], weights: np.ndarray) -> float:
    """The weighted mean; NaN of inf and -inf."""
    return float(np.average(values, weights=weights))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
