"""What a study found, in rows of a table and in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stgt._internal.markup import interval, many, number
from stgt.simulator import Rule, Trace
from stgt.simulator.choice import COSTS, edge
from stgt.study.report.downsample import is_best, itemsize, modelled_seconds, steps, working
from stgt.study.report.study import Study

if TYPE_CHECKING:
    from stgt.theory import Advice


@dataclass(frozen=True)
class Row:
    """A run in the table. Costs are of all nodes until the target is reached, or until the end; rounds are those in
    which anything was sent."""

    method: str
    setting: str
    error: float
    low: float
    high: float
    rounds: float
    gradients: float
    megabytes: float
    seconds: float
    share: dict[str, float]  # what the modelled seconds are made of, for the page to compute them again
    remark: str

    @property
    def error_in_words(self) -> str:
        return interval(self.error, self.low, self.high)

    @property
    def rounds_in_words(self) -> str:
        return many(round(self.rounds), "round")


def row(study: Study, method: str, trace: Trace) -> Row:
    """The row of one run of a method."""
    rule = study.judged
    judged = rule is not None and rule.metric in trace
    mean, low, high = rule.interval(trace) if rule is not None and judged else (math.nan,) * 3
    reached = rule.reached(trace) if rule is not None and judged and rule.target is not None else None
    at = trace.rounds if reached is None else reached
    floats = float(trace["floats"][:, at].mean())
    return Row(
        method=method,
        setting=study.setting(method, trace),
        error=float(mean),
        low=float(low),
        high=float(high),
        rounds=float(trace["communications"][:, at].mean()),
        gradients=float(trace["gradients"][:, at].mean()),
        megabytes=floats * itemsize(trace) / 1e6,
        seconds=modelled_seconds(study, trace, at),
        share={
            "steps": at * steps(trace),
            "communications": float(trace["communications"][:, at].mean()),
            "bits": 8 * itemsize(trace) * floats / working(trace),
        },
        remark=_remark(study, method, trace, rule if judged else None),
    )


def _remark(study: Study, method: str, trace: Trace, rule: Rule | None) -> str:
    parts = []
    lost = trace.diverged_at[trace.diverged]
    if len(lost):
        who = "diverged" if len(trace.seeds) == 1 else f"{len(lost)} of {many(len(trace.seeds), 'seed')} diverged"
        parts.append(f"{who}, from round {int(lost.min()):,} on")
    if rule is None and study.judged is not None:
        why = trace.absent.get(study.judged.metric, "")
        parts.append(f"{study.judged.metric} was not measured{': ' if why else ''}{why}")
    elif rule is not None and not len(lost):
        parts += [rule.failure(trace), "grows" if rule.grows(trace) else ""]
    if trace.interrupted:
        parts.append(f"interrupted after {many(trace.rounds, 'round')}")
    if is_best(study, method, trace):
        parts.append(edge(trace.algorithm, [run.algorithm for run in study.runs[method]]))
    if trace is study.best[method]:
        parts.append(_tie(study, method))
    parts += [note.rstrip(".") for note in trace.notes]
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _tie(study: Study, method: str) -> str:
    first = next((group[0] for group in study.groups if method in group), method)
    return "" if method == first else f"tied with {first}"


def headline(study: Study) -> str:
    """Who won, or how it ended."""
    rule, rows = study.judged, [row(study, method, study.best[method]) for method in study.ranking]
    if not rows or rule is None:
        return "Nothing was measured."
    if len(study.problems) > 1:
        return f"{many(len(rows), 'run')} on {len(study.problems)} problems, whose errors are not to be compared."
    scores = [rule.score(study.best[one.method]) if rule.metric in study.best[one.method] else math.inf for one in rows]
    if not math.isfinite(scores[0]):
        return _all_fail(study, rule, rows)
    words = _alone(study, rule, rows[0]) if len(rows) == 1 else _won(study, rule, rows, scores)
    return f"{words} Its {rule.metric} grows." if rule.grows(study.best[rows[0].method]) else words


def _all_fail(study: Study, rule: Rule, rows: list[Row]) -> str:
    who = rows[0].method if len(rows) == 1 else "Every method"
    if all(study.best[one.method].diverged.any() for one in rows):
        return f"{who} diverged."
    if rule.target is None:
        return f"{who} ended with a {rule.metric} that is not finite."
    closest = "" if len(rows) == 1 else f", {rows[0].method},"
    nobody = f"{who} does not reach" if len(rows) == 1 else "No method reaches"
    return f"{nobody} a {rule.metric} of {rule.target:g}; the closest{closest} ends at {rows[0].error_in_words}."


def _alone(study: Study, rule: Rule, only: Row) -> str:
    at = f" at {only.setting}" if len(study.runs[only.method]) > 1 else ""
    if rule.target is None:
        return f"{only.method}{at} ends with a {rule.metric} of {only.error_in_words} after {only.rounds_in_words}."
    return f"{only.method}{at} reaches a {rule.metric} of {rule.target:g} after {only.rounds_in_words}."


def _won(study: Study, rule: Rule, rows: list[Row], scores: list[float]) -> str:
    first, second = rows[0], rows[1]
    level = study.groups[0][1:]
    others = f" and {len(level) - 1} more are" if len(level) > 1 else " is"
    tied = f"{others} not told apart from it: the 95 % interval of the difference holds 0"
    if rule.target is not None:
        what = f"reaches a {rule.metric} of {rule.target:g}"
        if not math.isfinite(scores[1]):
            return f"{first.method} is the only one that {what}, after {first.rounds_in_words}."
        cost = COSTS[rule.cost]
        if scores[0] == scores[1]:
            return f"{first.method} and {second.method} are level: each {what} with {_amount(scores[0])} {cost}."
        if second.method in level:
            return (
                f"{first.method} is first: it {what} with {_amount(scores[0])} {cost}, but {second.method} with "
                f"{_amount(scores[1])}{tied}."
            )
        return (
            f"{first.method} wins: it {what} with {_amount(scores[0])} {cost}, {second.method} with "
            f"{_amount(scores[1])}{_factor(scores[1], scores[0], 'times as many')}."
        )
    best, next_best = first.error_in_words, second.error_in_words
    if not math.isfinite(scores[1]):
        return f"{first.method} wins with a {rule.metric} of {best}; no other method stays finite."
    if second.method in level:
        return f"{first.method} is first with a {rule.metric} of {best}, but {second.method} with {next_best}{tied}."
    times = "" if rule.largest else _factor(second.error, first.error, "times as much")
    seeds = "" if math.isfinite(first.low) else " (one seed, so that nothing is known of chance)"
    return (
        f"{first.method} wins with a {rule.metric} of {best}; next is {second.method} with {next_best}{times}{seeds}."
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else number(value)


def _factor(more: float, less: float, words: str) -> str:
    return f", {more / less:.3g} {words}" if less > 0 and more / less >= 1.05 else ""


def prediction(advice: Advice | str | None) -> dict[str, str]:
    """What the theory predicts of a run, as cells of the table; "–" where there is no prediction."""
    names = ("predicted", "stable (radius)", "largest safe gamma")
    if advice is None or isinstance(advice, str):
        return dict.fromkeys(names, "–")
    answer = {True: "yes", False: "no", None: "unknown"}[advice.stable]
    radius = "" if advice.radius is None else f" ({advice.radius:.4g})"
    estimate = "" if advice.basis == "exact" else "≈ "
    cells = (_predicted(advice.error, estimate), f"{answer}{radius}", _predicted(advice.largest_gamma, estimate))
    return dict(zip(names, cells, strict=True))


def _predicted(value: Any, estimate: str) -> str:
    return "–" if value is None or math.isnan(value) else f"{estimate}{number(value)}"


def warnings(study: Study) -> dict[str, list[str]]:
    """The warnings of the theory, by method; or why it has no prediction."""
    found = {}
    for method in study.ranking:
        advice = study.advice.get(method, "no prediction was asked for")
        if isinstance(advice, str):
            found[method] = [f"No prediction: {advice.rstrip('.')}."]
        else:
            basis = "" if advice.basis == "exact" else f" This is {advice.basis}."
            found[method] = [f"{sentence}{basis}" for sentence in advice.warnings] or [f"No warning.{basis}"]
    return found
