"""Means over seeds (the first axis), and their confidence intervals."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

LEAST_SHAPE = 0.2  # the least shape assumed for a gamma distribution of errors, unless they vary more
FEWEST = 2  # the fewest seeds that give a variance

Interval = tuple[np.ndarray, np.ndarray, np.ndarray]


def mean_interval(values: np.ndarray, confidence: float = 0.95) -> Interval:
    """(mean, low, high) by Student's t, for numbers of either sign, such as differences. One seed gives NaN ends."""
    from scipy.special import stdtrit

    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        mean = values.mean(axis=0)
        if count < FEWEST:
            return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
        half = stdtrit(count - 1, 0.5 + confidence / 2) * values.std(axis=0, ddof=1) / np.sqrt(count)
        return mean, mean - half, mean + half


def error_interval(values: np.ndarray, confidence: float = 0.95) -> Interval:
    """(mean, low, high) for errors: squared norms, losses above their minimum, all skewed quantities that are ≥ 0.

    An error is a quadratic form of nearly Gaussian vectors, so it is nearly gamma distributed. The mean of a gamma
    sample is independent of its relative spread. The spread estimates the shape, and the shape determines how far the
    sample's mean may be from the true one. The interval integrates over both uncertainties (a fiducial interval). For
    a small spread it is Student's t.

    A nominal 95 % interval covers 94 to 96 % for χ² of any degrees of freedom from 3 seeds on, and for most sums of χ²
    variables. It covers less with two seeds (92 % for one degree of freedom), for tails longer than a gamma's (93 to
    94 % for a lognormal of σ = 0.7), and for values on two levels. If some numbers are negative, such as a loss that
    rounding takes below its minimum, the result is that of `mean_interval`.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < FEWEST or (values < 0).any():
        return mean_interval(values, confidence)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        mean = values.mean(axis=0)
        # Divide first: the squares of small errors would underflow.
        spread = np.where(mean == 0, 0.0, (values / np.where(mean == 0, 1.0, mean)).std(axis=0, ddof=1))
        places, low, high = _exponents(len(values), confidence)
        lower, upper = (mean * np.exp(spread * np.interp(spread, places, one)) for one in (low, high))
    known = np.isfinite(mean) & np.isfinite(spread)
    return mean, np.where(known, lower, np.nan), np.where(known, upper, np.nan)


@lru_cache(maxsize=64)
def _exponents(count: int, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At some relative spreads c of a gamma sample, log(end / mean) / c for the two ends of the interval.

    With shape a and sum A = count · a, c² / count is nearly beta distributed. Its mean is exactly 1/(A + 1) and its
    variance 2 count² a(a + 1) / ((count − 1)(A + 1)²(A + 2)(A + 3)); the beta distribution with these two moments is
    used. It is exact for two values, and in the limit of large shapes. The sample's mean over the true mean is a gamma
    variable of shape A, divided by A.
    """
    from scipy.special import betainc, chdtri, expit, gammaincc, stdtrit

    n = count
    spread = np.geomspace(0.01, np.sqrt(n), 48)
    tail = expit(np.linspace(12.0, -12.0, 97))[:, None]
    shape = chdtri(n - 1, tail) / (n - 1) / spread**2  # increasing: quantiles in the limit of large shapes
    total = (n - 1) * (n * shape + 2) * (n * shape + 3) / (2 * n * (shape + 1)) - 1
    first = total / (n * shape + 1)
    below = betainc(first, total - first, np.minimum(spread**2 / n, 1.0))  # confidence that the shape is at most this
    weight = np.diff(below, axis=0, prepend=0.0, append=1.0)
    middle = np.concatenate([shape[:1], np.sqrt(shape[1:] * shape[:-1]), shape[-1:]])
    # A few seeds never rule out shapes near 0, which would allow any mean.
    whole = n * np.maximum(middle, np.minimum(LEAST_SHAPE, 1 / spread**2))

    limit = stdtrit(n - 1, (1 + confidence) / 2) / np.sqrt(n)  # the limit of small spreads

    def quantile(sure: float) -> np.ndarray:
        high = 3 * limit * spread
        low = -high
        for _ in range(24):
            half = (low + high) / 2
            above = (weight * gammaincc(whole, whole * np.exp(-half))).sum(axis=0) < sure
            low, high = np.where(above, half, low), np.where(above, high, half)
        return (low + high) / 2 / spread

    low, high = quantile((1 - confidence) / 2), quantile((1 + confidence) / 2)
    return np.append(0.0, spread), np.append(-limit, low), np.append(limit, high)


def difference_interval(
    first: np.ndarray, second: np.ndarray, *, paired: bool, errors: bool, confidence: float = 0.95
) -> tuple[float, float]:
    """(low, high) of the difference of two samples' means, first − second; each sample is (seeds,). One seed gives NaN.

    Args:
        first, second: a number for each seed.
        paired: are they of the same seeds, in the same order? Then their common part cancels.
        errors: are they never below 0? Then the result is the difference of the means' logarithms, by the jackknife.
            Errors that share their noise are nearly proportional, so their ratio varies less than their difference,
            and is less skewed. Otherwise it is the difference of the means, by Student's t.
        confidence: of the interval.

    A nominal 95 % interval covers 94 to 95 % for χ² of 5 or more degrees of freedom, for any correlation, and also if
    the two samples have different degrees of freedom. It covers 93.5 % for 2 degrees, and 92 to 94 % for 1.
    """
    from scipy.special import stdtrit

    samples = [np.asarray(one, dtype=np.float64) for one in (first, second)]
    if min(map(len, samples)) < FEWEST:
        return np.nan, np.nan
    left_out = [(one.sum() - one) / (len(one) - 1) for one in samples]
    errors = errors and all((one > 0).all() for one in left_out) and all((one >= 0).all() for one in samples)
    values = [np.log(one) for one in left_out] if errors else samples
    if paired:
        values = [values[0] - values[1]]
    # Leaving one of n values out changes the mean by 1/(n − 1) times the distance of that value from the mean.
    squares = [np.var(one, ddof=1) / len(one) * ((len(one) - 1) ** 2 if errors else 1) for one in values]
    freedom = len(values[0]) - 1
    if not paired and sum(squares) > 0:  # Welch's t-test
        freedom = sum(squares) ** 2 / sum(s**2 / (len(one) - 1) for s, one in zip(squares, values, strict=True))
    means = [np.log(one.mean()) if errors else one.mean() for one in samples]
    half = stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(sum(squares))
    return float(means[0] - means[1] - half), float(means[0] - means[1] + half)
