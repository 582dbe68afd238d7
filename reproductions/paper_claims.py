"""The paper's statements about its two figures on ridge regression, tested under a reading: claims C1 to C4."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproductions.outcome import Claim, finite
from reproductions.readings import Reading
from reproductions.simulated import EXACTLY, TIE, SimulatedRun, decided_by, lower
from stgt.study import mean_interval
from stgt.theory import fit_power_law

METHODS = ("ST-GT", "FlexGT", "Scaffold")
ALMOST = 0.15  # an exponent within this distance of −1 counts as almost linear

Runs = dict[str, SimulatedRun]  # by label
Judged = tuple[bool, dict[str, Any]]


def convergence_claims(reading: Reading, by_s: dict[int, Runs], picture: str) -> list[Claim]:
    """C1 to C3, from the runs for each s. A claim's figures state the basis of each comparison."""
    numbers = {f"s={s}": {label: one.summary() for label, one in of.items()} for s, of in by_s.items()}
    judged = {
        "C1": (
            "ST-GT has the lowest steady-state error of the three, for s = 4 and s = 16.",
            _lower(by_s, [("ST-GT", "FlexGT"), ("ST-GT", "Scaffold")]),
        ),
        "C2": (
            "Scaffold's steady-state error is below FlexGT's, for s = 4 and s = 16.",
            _lower(by_s, [("Scaffold", "FlexGT")]),
        ),
        "C3": (
            "From s = 4 to s = 16, every method gets closer to the centralised error, and the three to each other.",
            _closer(by_s),
        ),
    }
    return [
        Claim(id, words, reading.name, holds, {**numbers, **found}, picture)
        for id, (words, (holds, found)) in judged.items()
    ]


def local_updates_claim(reading: Reading, by_graph: dict[str, Runs], picture: str) -> Claim:
    """C4, from the runs on each graph."""
    exponents = {graph: _exponent(list(of.values())) for graph, of in by_graph.items()}
    holds = all(_almost_linear(found) for found in exponents.values())
    words = f"ST-GT's steady-state error decreases almost linearly in τ: its exponent is within {ALMOST} of −1."
    return Claim("C4", words, reading.name, holds, exponents, picture)


def _lower(by_s: dict[int, Runs], pairs: list[tuple[str, str]]) -> Judged:
    """Is the first of each pair below the second, for every s?"""
    holds, reasons = True, {}
    for s, of in by_s.items():
        for below, above in pairs:
            found = lower(of[below], of[above])
            holds &= found
            reasons[f"s={s}: {below} below {above}"] = {"holds": found, "by": decided_by(of[below], of[above])}
    return holds, {"decided by": reasons}


def _closer(by_s: dict[int, Runs]) -> Judged:
    """Are the errors closer to the centralised one, and to each other, for the larger s, beyond their bounds?"""
    few, many = by_s.values()
    distances = {f"{method} to centralised": (_distance(few, method), _distance(many, method)) for method in METHODS}
    spreads = _spread(few), _spread(many)
    reasons = {}
    for name, (before, after) in distances.items():
        runs = [of[label] for of in (few, many) for label in (name.split()[0], "centralised")]
        # A tie on both graphs does not count as farther away.
        reasons[name] = {"holds": bool(np.isfinite(after[1]) and after[1] <= before[0]), "by": decided_by(*runs)}
    runs = [of[method] for of in (few, many) for method in METHODS]
    reasons["the three to each other"] = {"holds": spreads[1][1] < spreads[0][0], "by": decided_by(*runs)}
    levels = {f"largest/smallest error, s={s}": finite(_ratio(of)) for s, of in by_s.items()}
    return all(reason["holds"] for reason in reasons.values()), {"decided by": reasons, **levels}


def _distance(of: Runs, method: str) -> tuple[float, float]:
    """Bounds on the distance of the method's error from the centralised one, in logarithms; below 0.1 % it is 0."""
    low, high = _relative(of[method], of["centralised"])
    if not np.isfinite(high):
        return np.inf, np.inf
    with np.errstate(divide="ignore"):  # an interval may reach down to 0
        ends = np.log([low, high])
    nearest = 0.0 if ends[0] <= 0 <= ends[1] else float(np.abs(ends).min())
    return max(TIE, nearest), max(TIE, float(np.abs(ends).max()))


def _relative(one: SimulatedRun, central: SimulatedRun) -> tuple[float, float]:
    """Bounds on the error in units of the centralised one. If both are simulated, they share seeds."""
    if one.growing or central.growing:
        return np.inf, np.inf
    if one.exact is None and central.exact is None:
        _, low, high = mean_interval(one.errors - central.errors)
        return max(0.0, 1 + float(low) / central.level), 1 + float(high) / central.level
    (low, high), (least, most) = one.bounds, central.bounds
    return low / most, high / least if least > 0 else np.inf


def _spread(of: Runs) -> tuple[float, float]:
    """Bounds on the ratio of the largest to the smallest error of the three."""
    lows, highs = zip(*(of[method].bounds for method in METHODS), strict=True)
    if not np.isfinite(highs).all():
        return np.inf, np.inf
    return max(1.0, max(lows) / min(highs)), max(highs) / min(lows) if min(lows) > 0 else np.inf


def _ratio(of: Runs) -> float:
    levels = [of[method].level for method in METHODS]
    return max(levels) / min(levels) if np.isfinite(levels).all() else np.inf


def _almost_linear(found: dict[str, Any]) -> bool:
    """Is the exact exponent near −1? If it is unknown, is the whole interval of the simulated one?"""
    if found["exponent"] is None:
        return False
    ends = ("exponent",) if found["decided by"] == EXACTLY else ("low", "high")
    return all(abs(found[end] + 1) <= ALMOST for end in ends)


def _exponent(of: list[SimulatedRun]) -> dict[str, Any]:
    """The exponent of the error in τ, from the exact errors; and from the simulated ones, with an interval."""
    found: dict[str, Any] = {one.run.label: one.summary() for one in of}
    found["decided by"] = decided_by(*of)
    if any(one.growing for one in of):
        return {**found, "exponent": None}
    taus = [one.made.algorithm.tau for one in of]
    simulated = fit_power_law(taus, np.transpose([one.errors for one in of]))
    return {
        **found,
        "exponent": fit_power_law(taus, [one.level for one in of]).value,
        "simulated exponent": simulated.value,
        "low": simulated.low,
        "high": simulated.high,
    }
