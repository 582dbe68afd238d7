"""How the error in the long run grows with τ, n, σ² and 1 − ρ: exponents, fitted and as the theory has them.

Of the whole error, and of its excess over the centralised error: that of the same method, γ, τ, σ² and n with W = J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from stgt._internal.checks import InputError, check_choice, check_count, check_number
from stgt._internal.hyper import ShortRepr
from stgt._internal.statistics import mean_interval
from stgt.algorithms import Algorithm
from stgt.problems.base import Problem
from stgt.problems.quadratic import ridge
from stgt.simulator.instance import check_constant_stepsize
from stgt.theory.stability import steady_state
from stgt.topology import from_matrix

# At γτ = α fixed Theorem 1 has E‖x̄ − x*‖² ≲ ασ²/(μnτ) + α²Lσ²/(μτ(1 − ρ)³): a term that a centralised method has
# too and that leads in the total, and the network's, which is what the excess is of. FlexGT's lacks 1/τ (Table 1).
TOTAL = {"tau": -1.0, "n": -1.0, "sigma2": 1.0, "gap": 0.0}
EXCESS = {"tau": -1.0, "n": 0.0, "sigma2": 1.0, "gap": -3.0}
FLEXGT_EXCESS = {**EXCESS, "tau": 0.0}
STEPS = {"tau": (1, 2, 4, 8), "n": (1, 2, 4, 8), "sigma2": (1.0, 4.0, 16.0, 64.0), "gap": (1.0, 0.5, 0.25, 0.125)}
ROUNDING = 1e-9  # of the error: a difference of two errors that is no larger may be rounding


@dataclass(frozen=True)
class Exponent(ShortRepr):
    """y ∝ x^value, with its 95 % interval.

    Attributes:
        value, low, high: the exponent and its interval.
        x, y: the points, y the (geometric) mean over replicates.
        theory: that of the upper bound's term; None where there is no theory.
    """

    value: float
    low: float
    high: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    theory: float | None = None


@dataclass(frozen=True)
class Scaling(ShortRepr):
    """How the error in the long run scales.

    Attributes:
        total: the exponent of E‖x̄ − x*‖², beside that of the theorem's centralised term.
        excess: the exponent of what is above the centralised error, beside that of the theorem's network term; None
            where that is not positive.
        note: why there is no `excess`.
    """

    total: Exponent
    excess: Exponent | None
    note: str = ""


def fit_power_law(x: ArrayLike, y: ArrayLike) -> Exponent:
    """The slope of log y over log x by least squares.

    Args:
        x: (points,), positive, at least two of them.
        y: (points,), or (replicates, points), positive. With replicates the interval is that of their slopes; without,
            that of the regression, which needs three points.
    """
    x = np.asarray(x, dtype=np.float64)
    y = np.atleast_2d(np.asarray(y, dtype=np.float64))
    if x.ndim != 1 or len(x) < 2 or y.ndim != 2 or y.shape[1] != len(x):
        raise InputError(
            "x", hint=f" has shape {x.shape} and y {y.shape}: give at least two points, and a y for each x."
        )
    for name, values in (("x", x), ("y", y)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"{name} holds numbers that are not positive and finite: a power law has none.")
    log_x, log_y = np.log(x), np.log(y)
    centred = log_x - log_x.mean()
    if not centred.any():
        raise InputError("x", hint=" has one value only: give different ones.")
    slopes = log_y @ centred / (centred @ centred)
    value = float(slopes.mean())
    if len(y) > 1:
        half = float(mean_interval(slopes)[2]) - value
    elif len(x) > 2:
        left = log_y[0] - log_y[0].mean() - value * centred
        half = float(stdtrit(len(x) - 2, 0.975) * np.sqrt(left @ left / (len(x) - 2) / (centred @ centred)))
    else:
        half = np.nan
    return Exponent(value, value - half, value + half, tuple(x.tolist()), tuple(np.exp(log_y.mean(axis=0)).tolist()))


def fit_exponents(
    algorithm: Algorithm,
    problem: Callable[[int, float, int], Problem] | None = None,
    *,
    over: Iterable[str] = tuple(STEPS),
    n: int = 4,
    noise: float = 0.1,
    gap: float = 0.8,
    seeds: int = 5,
) -> dict[str, Scaling]:
    """The measured exponents of E‖x̄ − x*‖² in the long run, and of its excess over W = J, beside the theory's.

    One quantity at a time is raised up to eightfold (σ² up to 64-fold, 1 − ρ lowered to an eighth), the others staying
    at the values given; γτ stays, as in the theory. The measurement is `steady_state`, which is exact, so the interval
    shows how much the exponent differs from one random problem to the next. W = (1 − a) I + a J has any ρ = (1 − a)²
    for any n. The excess can have either sign, and is 0 where all nodes have one Hessian: then x̄ does not depend
    on the network, no power law is fitted, and a note says why.

    Args:
        algorithm: with the gamma and tau to begin at.
        problem: makes a quadratic problem of n nodes with this noise from a seed; ridge with p = 4 and mu = 0.5 if
            left out.
        over: of "tau", "n", "sigma2", "gap".
        n, noise, gap: the nodes, the noise's variance a coordinate and 1 − ρ to begin at.
        seeds: how many problems.

    Returns:
        A `Scaling` by name.
    """
    if algorithm.gamma is None:
        raise InputError("gamma", hint=f" was left out of {algorithm.label}: give the one to begin at.")
    check_constant_stepsize(algorithm)
    base = {
        "tau": algorithm.tau,
        "n": check_count(n, "n", 2),
        "sigma2": check_number(noise, "noise", above=0),
        "gap": check_number(gap, "gap", above=0, most=1),
    }
    seeds = check_count(seeds, "seeds", 2)
    make = problem or (lambda nodes, variance, seed: ridge(n=nodes, p=4, mu=0.5, noise=variance, seed=seed))
    found = {}
    for name in over:
        check_choice(name, "over", STEPS)
        values = [base[name] * step for step in STEPS[name]]
        points = [{**base, name: value} for value in values]
        total = np.array([[_error(algorithm, make, at, seed) for at in points] for seed in range(seeds)])
        central = np.array(
            [[_error(algorithm, make, {**at, "gap": 1.0}, seed) for at in points] for seed in range(seeds)]
        )
        found[name] = _scaling(name, values, total, total - central, _excess_theory(algorithm))
    return found


def _scaling(
    name: str, values: list[float], total: np.ndarray, excess: np.ndarray, theory: dict[str, float]
) -> Scaling:
    whole = replace(fit_power_law(values, total), theory=TOTAL[name] if theory else None)
    wrong = np.argwhere(excess <= ROUNDING * total)
    if not len(wrong):
        return Scaling(whole, replace(fit_power_law(values, excess), theory=theory.get(name)))
    seed, place = wrong[0]
    size = excess[seed, place] / total[seed, place]
    what = "0 up to rounding" if abs(size) <= ROUNDING else f"{size:.2g} times the error"
    many = f"{len(wrong)} of {excess.size} points"
    note = (
        f"The excess over the centralised error is not positive at {many}, first at {name}={values[place]:g} with seed "
        f"{seed}, where it is {what}: it follows no power law."
    )
    return Scaling(whole, None, note)


def _error(algorithm: Algorithm, make: Callable[[int, float, int], Problem], at: dict[str, float], seed: int) -> float:
    """On W = (1 − a) I + a J with 1 − ρ = 1 − (1 − a)² = gap."""
    n, tau, a = int(at["n"]), int(at["tau"]), 1 - (1 - at["gap"]) ** 0.5
    if tau != algorithm.tau:
        gammas = np.asarray(algorithm.gamma, dtype=float) * (algorithm.tau / tau)
        algorithm = replace(algorithm, tau=tau, gamma=tuple(gammas.tolist()) if gammas.ndim else float(gammas))
    W = from_matrix((1 - a) * np.eye(n) + a / n)
    return steady_state(algorithm, make(n, at["sigma2"], seed), W).residual


def _excess_theory(algorithm: Algorithm) -> dict[str, float]:
    """The exponents of the network's term; empty where there is no theory."""
    kind = type(algorithm).__name__
    if kind == "FlexGT":
        return FLEXGT_EXCESS
    return EXCESS if kind in ("STGT", "KGT") else {}
