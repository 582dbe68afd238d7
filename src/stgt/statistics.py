"""What the runs of several seeds say together."""

from __future__ import annotations

import numpy as np


def mean_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds, the first axis, and the half-width of its confidence interval by Student's t."""
    from scipy.special import stdtrit

    count = len(values)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0)
    if count < 2:
        return mean, np.full_like(mean, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        return mean, stdtrit(count - 1, 0.5 + confidence / 2) * values.std(axis=0, ddof=1) / np.sqrt(count)
