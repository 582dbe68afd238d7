"""How the error in the long run grows with τ, n, σ² and 1 − ρ: exponents, fitted and as the theory has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from stgt.algorithms import Algorithm
from stgt.checks import check_choice, check_count, check_number
from stgt.hyper import Brief
from stgt.problems.base import Problem
from stgt.problems.quadratic import ridge
from stgt.setting import check_constant_stepsize
from stgt.statistics import mean_interval
from stgt.theory.stability import steady_state
from stgt.topology import Topology, from_matrix

# At γτ = α fixed Theorem 1 has E‖x̄ − x*‖² ≲ ασ²/(μnτ) + α²Lσ²/(μτ(1 − ρ)³): the exponents in its first term, which
# a centralised method has too, and in its second, which is the network's. FlexGT's second lacks 1/τ (Table 1).
THEORY = {"tau": (-1.0, -1.0), "n": (-1.0, 0.0), "sigma2": (1.0, 1.0), "gap": (0.0, -3.0)}
FLEXGT_TAU = (-1.0, 0.0)
STEPS = {"tau": (1, 2, 4, 8), "n": (1, 2, 4, 8), "sigma2": (1.0, 4.0, 16.0, 64.0), "gap": (1.0, 0.5, 0.25, 0.125)}


@dataclass(frozen=True)
class Exponent(Brief):
    """y ∝ x^value, with its 95 % interval.

    Attributes:
        value, low, high: the exponent and its interval.
        x, y: the points, y the (geometric) mean over replicates.
        theory: the exponents of the centralised and of the network's term; None where there is no theory.
    """

    value: float
    low: float
    high: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    theory: tuple[float, float] | None = None


def fit_power_law(x: Any, y: Any) -> Exponent:
    """The slope of log y over log x by least squares.

    Args:
        x: (points,), positive, at least two of them.
        y: (points,), or (replicates, points), positive. With replicates the interval is that of their slopes; without,
            that of the regression, which needs three points.
    """
    x = np.asarray(x, dtype=np.float64)
    y = np.atleast_2d(np.asarray(y, dtype=np.float64))
    if x.ndim != 1 or len(x) < 2 or y.ndim != 2 or y.shape[1] != len(x):
        raise ValueError(f"x has shape {x.shape} and y {y.shape}: give at least two points, and a y for each x.")
    for name, values in (("x", x), ("y", y)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"{name} holds numbers that are not positive and finite: a power law has none.")
    log_x, log_y = np.log(x), np.log(y)
    centred = log_x - log_x.mean()
    if not centred.any():
        raise ValueError("x has one value only: give different ones.")
    slopes = log_y @ centred / (centred @ centred)
    value = float(slopes.mean())
    if len(y) > 1:
        half = float(mean_interval(slopes)[1])
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
    over: Iterable[str] = tuple(THEORY),
    n: int = 4,
    noise: float = 0.1,
    gap: float = 0.8,
    seeds: int = 5,
) -> dict[str, Exponent]:
    """The measured exponents of E‖x̄ − x*‖² in the long run, beside the theory's.

    One quantity at a time is raised up to eightfold (σ² up to 64-fold, 1 − ρ lowered to an eighth), the others staying
    at the values given; γτ stays, as in the theory. The measurement is `steady_state`, which is exact, so the interval
    tells how much the exponent differs from one random problem to the next. W = (1 − a) I + a J has any ρ = (1 − a)²
    for any n. Which of the theory's two terms shows depends on the values: the network's is of second order in γτ.

    Args:
        algorithm: with the gamma and tau to begin at.
        problem: makes a quadratic problem of n nodes with this noise from a seed; ridge with p = 4 and mu = 0.5 if
            left out.
        over: of "tau", "n", "sigma2", "gap".
        n, noise, gap: the nodes, the noise's variance a coordinate and 1 − ρ to begin at.
        seeds: how many problems.

    Returns:
        An `Exponent` by name.
    """
    if algorithm.gamma is None:
        raise ValueError(f"gamma was left out of {algorithm.label}: give the one to begin at.")
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
        check_choice(name, "over", THEORY)
        values = [base[name] * step for step in STEPS[name]]
        errors = [[_error(algorithm, make, {**base, name: value}, seed) for value in values] for seed in range(seeds)]
        found[name] = replace(fit_power_law(values, errors), theory=_theory(algorithm, name))
    return found


def _error(algorithm: Algorithm, make: Callable[[int, float, int], Problem], at: dict[str, Any], seed: int) -> float:
    moved = algorithm
    if at["tau"] != algorithm.tau:
        moved = replace(algorithm, tau=at["tau"], gamma=_scaled(algorithm.gamma, algorithm.tau / at["tau"]))
    return steady_state(moved, make(at["n"], at["sigma2"], seed), _even(at["n"], at["gap"])).residual


def _scaled(gamma: Any, factor: float) -> Any:
    return tuple(factor * one for one in gamma) if isinstance(gamma, tuple) else factor * gamma


def _even(n: int, gap: float) -> Topology:
    """W = (1 − a) I + a J with 1 − ρ = 1 − (1 − a)² = gap."""
    a = 1 - (1 - gap) ** 0.5
    return from_matrix((1 - a) * np.eye(n) + a / n)


def _theory(algorithm: Algorithm, name: str) -> tuple[float, float] | None:
    kind = type(algorithm).__name__
    if kind not in ("STGT", "KGT", "FlexGT"):
        return None
    return FLEXGT_TAU if kind == "FlexGT" and name == "tau" else THEORY[name]
