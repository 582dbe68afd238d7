"""How the steady-state error grows with τ, n, σ² and 1 − ρ: exponents, fitted and from the theory.

They are given for the error, and for its excess over the centralised error: the error with W = J at the same γ, τ, σ²
and n.
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

# At fixed γτ = α Theorem 1 has E‖x̄ − x*‖² ≲ ασ²/(μnτ) + α²Lσ²/(μτ(1 − ρ)³). The first term is that of a centralised
# method and dominates. The second is the network's, and describes the excess. FlexGT's second has no 1/τ (Table 1).
TOTAL = {"tau": -1.0, "n": -1.0, "sigma2": 1.0, "gap": 0.0}
EXCESS = {"tau": -1.0, "n": 0.0, "sigma2": 1.0, "gap": -3.0}
FLEXGT_EXCESS = {**EXCESS, "tau": 0.0}
STEPS = {"tau": (1, 2, 4, 8), "n": (1, 2, 4, 8), "sigma2": (1.0, 4.0, 16.0, 64.0), "gap": (1.0, 0.5, 0.25, 0.125)}
ROUNDING = 1e-9  # a difference of two errors below this share of the error may be rounding


@dataclass(frozen=True)
class Exponent(ShortRepr):
    """y ∝ x^value, with its 95 % interval.

    Attributes:
        value, low, high: the exponent and its interval.
        x, y: the points; y is the (geometric) mean over replicates.
        theory: the exponent in the upper bound; None if there is no theory.
    """

    value: float
    low: float
    high: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    theory: float | None = None


@dataclass(frozen=True)
class Scaling(ShortRepr):
    """How the steady-state error scales.

    Attributes:
        total: the exponent of E‖x̄ − x*‖², with that of the theorem's centralised term.
        excess: the exponent of the excess over the centralised error, with that of the theorem's network term; None if
            the excess is not positive.
        note: why there is no `excess`.
    """

    total: Exponent
    excess: Exponent | None
    note: str = ""


def fit_power_law(x: ArrayLike, y: ArrayLike) -> Exponent:
    """The slope of log y over log x by least squares.

    Args:
        x: (points,), positive, at least two of them.
        y: (points,), or (replicates, points), positive. With replicates the interval is that of their slopes. Without
            them it is that of the regression, which needs three points.
    """
    x = np.asarray(x, dtype=np.float64)
    y = np.atleast_2d(np.asarray(y, dtype=np.float64))
    if x.ndim != 1 or len(x) < 2 or y.ndim != 2 or y.shape[1] != len(x):
        raise InputError(
            "x", hint=f" has shape {x.shape} and y {y.shape}: give at least two points, and one y for each x."
        )
    for name, values in (("x", x), ("y", y)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"{name} has numbers that are not positive and finite: a power law needs positive ones.")
    log_x, log_y = np.log(x), np.log(y)
    centred = log_x - log_x.mean()
    if not centred.any():
        raise InputError("x", hint=" has only one distinct value: give different ones.")
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
    """The measured exponents of E‖x̄ − x*‖² at the steady state and of its excess over W = J, with the theory's.

    One quantity at a time is increased up to eightfold (σ² up to 64-fold; 1 − ρ is decreased to an eighth), while the
    others stay at the given values. γτ is constant, as in the theory. Errors are computed by `steady_state`, which is
    exact, so the interval shows how much the exponent differs between random problems. W = (1 − a) I + a J has any
    ρ = (1 − a)² for any n. The excess can have either sign. It is 0 if all nodes have the same Hessian, as x̄ then does
    not depend on the network. No power law is fitted to an excess that is not positive; a note says so.

    Args:
        algorithm: with the gamma and tau at the first point.
        problem: a function of (n, noise, seed) that makes a quadratic problem; by default ridge with p = 4 and
            mu = 0.5.
        over: any of "tau", "n", "sigma2", "gap".
        n, noise, gap: the number of nodes, the noise's variance per coordinate, and 1 − ρ at the first point.
        seeds: the number of problems.

    Returns:
        A `Scaling` for each quantity, by name.
    """
    if algorithm.gamma is None:
        raise InputError("gamma", hint=f" was left out of {algorithm.label}: give the one at the first point.")
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
    """The steady-state error on W = (1 − a) I + a J with 1 − ρ = 1 − (1 − a)² = gap."""
    n, tau, a = int(at["n"]), int(at["tau"]), 1 - (1 - at["gap"]) ** 0.5
    if tau != algorithm.tau:
        gammas = np.asarray(algorithm.gamma, dtype=float) * (algorithm.tau / tau)
        algorithm = replace(algorithm, tau=tau, gamma=tuple(gammas.tolist()) if gammas.ndim else float(gammas))
    W = from_matrix((1 - a) * np.eye(n) + a / n)
    return steady_state(algorithm, make(n, at["sigma2"], seed), W).residual


def _excess_theory(algorithm: Algorithm) -> dict[str, float]:
    """The exponents of the network's term; empty if there is no theory."""
    kind = type(algorithm).__name__
    if kind == "FlexGT":
        return FLEXGT_EXCESS
    return EXCESS if kind in ("STGT", "KGT") else {}
