"""How often the printed 95 % intervals contain the true value, in percent.

    python benchmarks/coverage.py

prints the table of docs/studies.md.
"""

import numpy as np

from stgt._internal.statistics import difference_interval, error_interval, mean_interval

SEEDS, TIMES, SETTINGS = (3, 5, 10, 20), 20_000, 6


def share(low, high, true: float) -> float:
    return float(np.mean((np.asarray(low) <= true) & (true <= np.asarray(high))))


def errors(rng, k: int, *shape: int) -> np.ndarray:
    """χ² with k degrees of freedom divided by k: an error with mean 1."""
    return rng.chisquare(k, shape) / k


def chosen(rng, seeds: int) -> tuple[float, float]:
    """For the lowest of six settings with one mean and independent noise: on the seeds that chose it, and on others."""
    values = errors(rng, 5, 2, seeds, TIMES, SETTINGS)
    best = values[0].mean(axis=0).argmin(axis=1)
    samples = (np.take_along_axis(one, best[None, :, None], axis=2)[..., 0] for one in values)
    same, fresh = (share(*error_interval(one)[1:], 1.0) for one in samples)
    return same, fresh


def difference(rng, k: int, m: int, seeds: int, shared: float = 0.99) -> float:
    """For the difference of the logarithms of two means: errors of k and m degrees of freedom, mostly shared noise."""
    z = rng.standard_normal((TIMES // 4, seeds, max(k, m)))
    y = shared * z + np.sqrt(1 - shared**2) * rng.standard_normal(z.shape)
    pairs = zip((z[..., :k] ** 2).mean(axis=-1), (y[..., :m] ** 2).mean(axis=-1), strict=True)
    return share(*np.transpose([difference_interval(a, b, paired=True, errors=True) for a, b in pairs]), 0.0)


def main() -> None:
    rng, rows = np.random.default_rng(0), {}
    for k in (1, 2, 5, 10, 50):
        samples = [errors(rng, k, seeds, TIMES) for seeds in SEEDS]
        rows[f"mean, χ² of {k}"] = [share(*error_interval(one)[1:], 1.0) for one in samples]
        rows[f"(Student's t, χ² of {k})"] = [share(*mean_interval(one)[1:], 1.0) for one in samples]
    for sigma in (0.3, 0.7):
        samples = [rng.lognormal(-(sigma**2) / 2, sigma, (seeds, TIMES)) for seeds in SEEDS]
        rows[f"mean, lognormal, σ = {sigma}"] = [share(*error_interval(one)[1:], 1.0) for one in samples]
    same, fresh = zip(*(chosen(rng, seeds) for seeds in SEEDS), strict=True)
    rows["chosen of six, χ² of 5, fresh seeds"], rows["(the same, on the seeds that chose)"] = fresh, same
    for k, m in ((1, 1), (2, 2), (5, 5), (10, 10), (5, 50)):
        rows[f"difference, χ² of {k} and {m}"] = [difference(rng, k, m, seeds) for seeds in SEEDS]
    print("| 95 % interval of a |", " | ".join(f"{seeds} seeds" for seeds in SEEDS), "|\n|---|---:|---:|---:|---:|")
    for name, found in rows.items():
        print(f"| {name} |", " | ".join(f"{100 * one:.1f}" for one in found), "|")


if __name__ == "__main__":
    main()
