"""The verdict: one sentence on the result of a comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stgt._internal.markup import interval, many, number
from stgt.simulator.choice import COSTS

if TYPE_CHECKING:
    from stgt.study.comparison import Comparison


def verdict(found: Comparison) -> str:
    """The best method, or how the runs ended."""
    rule, rows = found.rule, found.table
    if not any(rule.metric in trace for trace in found.best.values()):
        return "Nothing was measured." if not found.metrics else f"{rule.metric} was not measured."
    if len(found.problems) > 1:
        return f"{many(len(rows), 'run')} on {len(found.problems)} problems, whose errors cannot be compared."
    scores = [rule.score(found.best[row["method"]]) for row in rows]
    if not math.isfinite(scores[0]):
        return _all_fail(found, rows)
    words = _alone(found, rows[0]) if len(rows) == 1 else _won(found, rows, scores)
    return f"{words} Its {rule.metric} grows." if rule.grows(found.best[rows[0]["method"]]) else words


def _all_fail(found: Comparison, rows: list[dict[str, Any]]) -> str:
    rule, first = found.rule, rows[0]["method"]
    who = first if len(rows) == 1 else "Every method"
    if all(trace.diverged.any() for trace in found.best.values()):
        return f"{who} diverged."
    if rule.target is None:
        return f"{who} ended with a {rule.metric} that is not finite."
    closest = "" if len(rows) == 1 else f", {first},"
    nobody = f"{who} does not reach" if len(rows) == 1 else "No method reaches"
    return f"{nobody} a {rule.metric} of {rule.target:g}; the closest{closest} ends at {_error(rows[0])}."


def _alone(found: Comparison, only: dict[str, Any]) -> str:
    rule, rounds = found.rule, many(round(only["rounds"]), "round")
    who = f"{only['method']} at {only['chosen']}" if len(found.runs[only["method"]]) > 1 else only["method"]
    if rule.target is None:
        return f"{who} ends with a {rule.metric} of {_error(only)} after {rounds}."
    return f"{who} reaches a {rule.metric} of {rule.target:g} after {rounds}."


def _won(found: Comparison, rows: list[dict[str, Any]], scores: list[float]) -> str:
    rule, level = found.rule, found.ranking[0][1:]
    first, second = rows[0]["method"], rows[1]["method"]
    others = f" and {len(level) - 1} more do" if len(level) > 1 else " does"
    tied = f"{others} not differ significantly: the 95 % interval of the difference contains 0"
    if rule.target is not None:
        what, cost = f"reaches a {rule.metric} of {rule.target:g}", COSTS[rule.cost]
        if not math.isfinite(scores[1]):
            return f"{first} is the only one that {what}, after {many(round(rows[0]['rounds']), 'round')}."
        if scores[0] == scores[1]:
            return f"{first} and {second} are level: each {what} with {_amount(scores[0])} {cost}."
        if second in level:
            return (
                f"{first} is first: it {what} with {_amount(scores[0])} {cost}, but {second} with "
                f"{_amount(scores[1])}{tied}."
            )
        times = _factor(scores[1], scores[0], "times as many")
        return f"{first} wins: it {what} with {_amount(scores[0])} {cost}, {second} with {_amount(scores[1])}{times}."
    best, next_best = _error(rows[0]), _error(rows[1])
    if not math.isfinite(scores[1]):
        return f"{first} wins with a {rule.metric} of {best}; no other method stays finite."
    if second in level:
        return f"{first} is first with a {rule.metric} of {best}, but {second} with {next_best}{tied}."
    times = "" if rule.largest else _factor(rows[1]["error"], rows[0]["error"], "times as much")
    seeds = "" if math.isfinite(rows[0]["low"]) else " (one seed, so the variation between seeds is unknown)"
    return f"{first} wins with a {rule.metric} of {best}; next is {second} with {next_best}{times}{seeds}."


def _error(row: dict[str, Any]) -> str:
    return interval(row["error"], row["low"], row["high"])


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else number(value)


def _factor(more: float, less: float, words: str) -> str:
    return f", {more / less:.3g} {words}" if less > 0 and more / less >= 1.05 else ""
