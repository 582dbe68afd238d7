"""Chooses the best of several runs by a simple rule, and names the runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_flag, check_number
from stgt._internal.hyper import Frozen, other_fields, short_repr
from stgt._internal.statistics import Interval, difference_interval
from stgt.algorithms import Algorithm
from stgt.simulator.metrics import is_error, over_seeds
from stgt.simulator.trace import Trace
from stgt.topology import Topology

COSTS = {
    "rounds": "communication rounds",
    "gradients": "gradients computed by all nodes",
    "messages": "messages sent by all nodes and the server",
    "floats": "floats sent by all nodes and the server",
    "seconds": "seconds of this computer",
}
SHARE = 0.1  # the share of the rounds, at the end, over which an error is averaged
SHORTEST = 30  # rounds; a tenth of fewer rounds is too short for a judgement


@dataclass(frozen=True)
class Rule(Frozen):
    """The lowest error after a fixed number of rounds, or the least cost to reach a target.

    Attributes:
        metric: the measurement that is compared.
        target: the value to reach; None to compare the error after all rounds.
        cost: the cost of reaching the target, to be minimised.
        largest: is a larger value better, as for an accuracy?
        stop: end a comparison's runs when the target has decided; see `settled`.
    """

    metric: str
    target: float | None = None
    cost: str = "rounds"
    largest: bool = False
    stop: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise InputError("by", self.metric, "give the name of a measurement, such as 'residual'.")
        check_choice(self.cost, "cost", COSTS)
        check_flag(self.largest, "largest")
        if check_flag(self.stop, "stop") and self.target is None:
            raise InputError("stop", True, f" without a target: give target=…, a value of {self.metric} to reach.")
        if self.target is not None:
            self._set(target=check_number(self.target, "target"))
        elif self.cost != "rounds":
            raise InputError("cost", self.cost, f" without a target: give target=…, a value of {self.metric} to reach.")

    def __str__(self) -> str:
        if self.target is None:
            first = "highest" if self.largest else "lowest"
            return f"{first} {self.metric}, a mean over the seeds and the last {SHARE:.0%} of the rounds"
        than = "at least" if self.largest else "at most"
        return f"fewest {COSTS[self.cost]} until the mean over the seeds of {self.metric} is {than} {self.target:g}"

    def error(self, trace: Trace) -> np.ndarray:
        """The error after the budget, (seeds,); not finite if a run diverged, or did not measure it."""
        if self.metric not in trace:
            return np.full(len(trace.seeds), np.nan)
        return np.where(trace.diverged, np.nan, trace.tail(self.metric, SHARE).astype(np.float64))

    def reached(self, trace: Trace) -> int | None:
        """The first round at whose start the mean over the seeds is at the target; None if there is none."""
        if self.target is None or self.metric not in trace:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            mean = trace[self.metric].astype(np.float64).mean(axis=0)
        at = mean >= self.target if self.largest else mean <= self.target
        return int(np.argmax(at)) if at.any() else None

    def counted_to(self, trace: Trace) -> int:
        """The round up to which costs are counted: the one that reaches the target, or the last."""
        reached = self.reached(trace)
        return trace.rounds if reached is None else reached

    def settled(self, traces: Sequence[Trace]) -> bool:
        """Can no further round change which of these settings is chosen, nor the costs of its seeds?

        The best one reaches the target in the mean and with every seed. Each other one has reached it in the mean, or
        has cost more already.
        """
        best = self.choose(traces)
        least = self.score(best)
        if not np.isfinite(least) or np.isnan(self._by_seed(best)).any():
            return False
        return all(self.reached(one) is not None or one.spent(self.cost)[:, -1].mean() > least for one in traces)

    def score(self, trace: Trace) -> float:
        """Lower is better; infinite for a run that diverges or does not reach the target."""
        if self.target is None:
            return self.ending(trace)
        reached = self.reached(trace)
        return np.inf if reached is None else float(trace.spent(self.cost)[:, reached].mean())

    def ending(self, trace: Trace) -> float:
        """The error after the budget, lower is better; infinite if it is not finite."""
        with np.errstate(over="ignore"):  # a diverging run is a result
            error = float(self.error(trace).mean())
        return np.inf if not np.isfinite(error) else -error if self.largest else error

    def failure(self, trace: Trace) -> str:
        """Why a run's score is infinite; "" if it is not."""
        if np.isfinite(self.score(trace)):
            return ""
        if self.metric not in trace:
            why = trace.absent.get(self.metric, "")
            return f"{self.metric} was not measured{': ' if why else ''}{why}"
        if trace.diverged.any():
            return "diverges"
        if self.target is None:
            return f"{self.metric} is not finite"
        return f"does not reach {self.target:g}{f' in {trace.rounds:,} rounds' if self.stop else ''}"

    def grows(self, trace: Trace) -> bool:
        """Does the error still grow at the end of a run, above its start? False if a seed is not finite.

        The rounds are cut into tenths, and the error is averaged over each. The last average must be above the start,
        and in every seed above the one before. In addition it must be four times all others, or the last five must
        increase by growing steps. So an error that rises to its floor does not count, and noise hardly ever does.
        """
        if self.largest or trace.rounds + 1 < SHORTEST or self.metric not in trace:
            return False
        values = trace[self.metric].astype(np.float64)
        if not np.isfinite(values).all():
            return False
        tenths = np.stack([part.mean(axis=1) for part in np.array_split(values, 10, axis=1)], axis=1)
        mean = tenths.mean(axis=0)
        rises = np.diff(mean[-5:])
        goes_on = mean[-1] > 4 * mean[:-1].max() > 0 or (rises[0] > 0 and (np.diff(rises) >= 0).all())
        return bool(goes_on and mean[-1] > values[:, 0].mean() and (tenths[:, -1] > tenths[:, -2]).all())

    def interval(self, trace: Trace) -> Interval:
        """The error after the budget: its mean over the seeds and its 95 % interval, (mean, low, high)."""
        return over_seeds(self.metric, self.error(trace))

    def order(self, traces: Mapping[str, Trace]) -> list[str]:
        """The names of traces, best first. Failed runs come last, sorted by their errors."""
        scores = {name: (self.score(trace), self.ending(trace)) for name, trace in traces.items()}
        return sorted(traces, key=lambda name: scores[name])

    def groups(self, traces: Mapping[str, Trace]) -> list[tuple[str, ...]]:
        """The names in order, grouped with the first one that they do not differ significantly from."""
        left, found = self.order(traces), []
        while left:
            first, *others = left
            group = (first, *(one for one in others if self.tied(traces[first], traces[one])))
            found.append(group)
            left = [one for one in others if one not in group]
        return found

    def tied(self, first: Trace, second: Trace) -> bool | None:
        """Does the 95 % interval of the difference between two runs contain 0? None if there is no interval.

        It compares the error after the budget or, with a target, the cost until each seed reaches it, which some seeds
        may never do. Runs with the same seeds are compared seed by seed, as they share their noise.
        """
        values = [self._by_seed(trace) for trace in (first, second)]
        low, high = difference_interval(
            *values, paired=first.seeds == second.seeds, errors=self.target is not None or is_error(self.metric)
        )
        return None if np.isnan(low) else low <= 0 <= high

    def _by_seed(self, trace: Trace) -> np.ndarray:
        """The values by which two runs are compared, (seeds,); not finite for a seed that has none."""
        if self.target is None or self.metric not in trace:
            return self.error(trace)
        values = trace[self.metric]
        at = values >= self.target if self.largest else values <= self.target
        first = at.argmax(axis=1)
        spent = trace.spent(self.cost)[range(len(first)), first]
        return np.where(at.any(axis=1), spent, np.nan)

    def choose(self, traces: Iterable[Trace]) -> Trace:
        """The best trace; if all fail, the one with the lowest error at the end."""
        traces = list(traces)
        scores = [self.score(trace) for trace in traces]
        if not np.isfinite(scores).any():
            scores = [self.ending(trace) for trace in traces]
        return traces[int(np.argmin(scores))]


def best(
    traces: Iterable[Trace] | Trace,
    by: str = "residual",
    *,
    target: float | None = None,
    cost: str = "rounds",
    largest: bool = False,
) -> dict[str, Trace]:
    """The best run of each method in `traces`, by the method's name.

    Args:
        traces: runs of one or more methods, as `sweep` returns them.
        by: the measurement to compare: its mean over the seeds and the last tenth of the rounds, lower is better.
        target: compare the `cost` of reaching this value instead; the run with the least cost is the best.
        cost: "rounds" (with communication), "gradients", "messages", "floats" or "seconds".
        largest: is a larger value better, as for an accuracy?

    Returns:
        A trace for each method, in the order of the methods. If no run of a method is finite, or reaches the target,
        the trace's notes say so. The confidence interval over the seeds that chose a run is too optimistic: run it
        again on other seeds, as `compare` does.
    """
    rule, groups = Rule(by, target, cost, largest), {}
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not all(isinstance(trace, Trace) for trace in traces):
        raise InputError("traces", hint="give a list of traces, as sweep returns them.")
    for label, trace in zip(labels([(one.algorithm, one.topology) for one in traces]), traces, strict=True):
        groups.setdefault(label, []).append(trace)
    if not groups:
        raise InputError("traces", hint=" is empty: give the traces of at least one run.")
    return {label: noted(rule, label, rule.choose(runs)) for label, runs in groups.items()}


def choose(rule: Rule, runs: Mapping[str, list[Trace]]) -> dict[str, Trace]:
    """The best run of each method."""
    return {label: rule.choose(traces) for label, traces in runs.items()}


def fresh_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """As many other seeds, the next ones. A run that was chosen by its results on some seeds looks too good on them."""
    others = (seed for seed in chain(range(max(seeds) + 1, 2**32), count()) if seed not in seeds)
    return tuple(islice(others, len(seeds)))


def in_a_row(seeds: Sequence[int], word: str = "") -> str:
    """ "seeds 0–4", or a list if they are not consecutive; without `word` only the numbers."""
    row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    numbers = f"{seeds[0]}–{seeds[-1]}" if row else ", ".join(map(str, seeds))
    return f"{word}{'' if len(seeds) == 1 else 's'} {numbers}" if word else numbers


def noted(rule: Rule, label: str, trace: Trace) -> Trace:
    """The trace; with a note if all runs of the method fail."""
    why = rule.failure(trace) if rule.metric in trace else ""
    note = f"{label} at its best {why}."
    return replace(trace, notes=(*trace.notes, note)) if why and note not in trace.notes else trace


def labels(methods: list[tuple[Algorithm, Topology]]) -> list[str]:
    """A name for each method: its label, with the options and the topology in which methods of one label differ.

    Real-valued hyper-parameters do not make another method: they are what is tuned.
    """
    found = []
    for algorithm, topology in methods:
        kin = [(one, where) for one, where in methods if one.label == algorithm.label]
        parts = []
        for name in _shape_options(algorithm):
            if len({repr(getattr(one, name, None)) for one, _ in kin}) > 1:
                parts.append(f"{name}={getattr(algorithm, name)}")
        if len({where.name for _, where in kin}) > 1:
            parts.append(topology.name)
        found.append(f"{algorithm.label} ({', '.join(parts)})" if parts else algorithm.label)
    return found


def distinct(names: list[str]) -> list[str]:
    """The names; equal ones get a number."""
    return [f"{name} #{i + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def varied(algorithms: list[Algorithm]) -> list[str]:
    """The hyper-parameters in which runs of a method differ."""
    first: Any = algorithms[0]
    names = [field.name for field in fields(first)] if is_dataclass(first) else list(first.plain)
    return [name for name in names if len({str(getattr(one, name)) for one in algorithms}) > 1]


def in_words(algorithm: Algorithm, algorithms: list[Algorithm]) -> str:
    """The options in which this algorithm differs from the others, such as "gamma=0.1"."""
    values = {name: getattr(algorithm, name) for name in varied(algorithms) or ["gamma"]}
    words = [f"{value:g}" if isinstance(value, float) else short_repr(value) for value in values.values()]
    return ", ".join(f"{name}={word}" for name, word in zip(values, words, strict=True))


def edge(algorithm: Algorithm, algorithms: list[Algorithm]) -> str:
    """A remark if the chosen value is at the end of its grid: a better one may be outside."""
    for name in varied(algorithms):
        values = [getattr(one, name) for one in algorithms]
        if all(isinstance(value, float) for value in values):
            chosen = getattr(algorithm, name)
            if chosen in (min(values), max(values)):
                end = "least" if chosen == min(values) else "largest"
                return f"{end} {name} of the grid"
    return ""


def _shape_options(algorithm: Any) -> tuple[str, ...]:
    return other_fields(type(algorithm)) if is_dataclass(algorithm) else ()
