"""Several methods on one problem, each at its best by one rule: the table, the ranking and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.container import BadFile
from stgt._internal.markup import interval, many, render
from stgt.simulator import Rule, Trace
from stgt.simulator.choice import choose, edge, in_a_row, in_words, noted
from stgt.simulator.costs import COUNTED
from stgt.simulator.trace import as_frame
from stgt.study.verdict import verdict

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several methods on one problem, each at the best of its hyper-parameters.

    Attributes:
        rule: the rule that defines the best; `str(rule)` describes it.
        runs: all traces by method, in the order of the grid.
        best: the best run of each method. If settings were chosen, it is the chosen setting run again on fresh seeds,
            because the seeds that chose it make it look too good. Tables and curves are of these.
        chosen: the chosen run of each method, one of `runs`.
    """

    rule: Rule
    runs: dict[str, list[Trace]]
    best: dict[str, Trace]
    chosen: dict[str, Trace]

    @staticmethod
    def of(rule: Rule, runs: dict[str, list[Trace]], fresh: Mapping[str, Trace] | None = None) -> Comparison:
        """Chooses; `fresh` are the chosen settings on other seeds, if all of them were run to the end."""
        chosen = choose(rule, runs)
        best = {label: (fresh or chosen)[label] for label in runs}
        return Comparison(rule, runs, {label: noted(rule, label, trace) for label, trace in best.items()}, chosen)

    def save(self, path: Path | str) -> Path:
        """Writes the comparison to a file atomically, for `Comparison.load`; it contains the same as `Trace.save`."""
        from stgt.simulator.store import save

        fresh = list(self.best.values()) if self.fresh else []
        about = {"rule": asdict(self.rule), "methods": {name: len(traces) for name, traces in self.runs.items()}}
        traces = [trace for traces in self.runs.values() for trace in traces]
        return save([*traces, *fresh], Path(path).expanduser(), {**about, "fresh": bool(fresh)})

    @staticmethod
    def load(path: Path | str) -> Comparison:
        """Reads a file of `save`; a ValueError if it is damaged or another file."""
        from stgt.simulator.store import COMPARISON, load_comparison

        traces, about = load_comparison(Path(path).expanduser())
        try:
            left = iter(traces)
            runs = {name: [next(left) for _ in range(count)] for name, count in about["methods"].items()}
            fresh = {name: next(left) for name in runs} if about["fresh"] else None
            return Comparison.of(Rule(**about["rule"]), runs, fresh)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
            raise BadFile(Path(path), "foreign", COMPARISON) from None

    @property
    def losers(self) -> dict[str, list[Trace]]:
        """The runs that are not their method's best."""
        return {label: [one for one in runs if not self.is_chosen(label, one)] for label, runs in self.runs.items()}

    @property
    def fresh(self) -> bool:
        """Are the numbers from other seeds than the choice?"""
        return any(self.best[label].run_state is not one.run_state for label, one in self.chosen.items())

    @cached_property
    def order(self) -> list[str]:
        """The methods, best first; those that fail, or lack the rule's measurement, last."""
        return self.rule.order(self.best)

    @cached_property
    def ranking(self) -> list[tuple[str, ...]]:
        """The methods, best first, in groups: the methods of a group do not differ significantly from its first.

        Two differ significantly if the 95 % interval of the difference between their errors, seed by seed, does not
        contain 0; with a target, of the costs at which each seed reached it. With one seed, every method is a group.
        Empty if the methods ran on different problems, whose errors cannot be compared.
        """
        return self.rule.groups(self.best) if len(self.problems) == 1 else []

    @cached_property
    def problems(self) -> dict[str, str]:
        """The problems' names by checksum: one, unless a run folder has several."""
        traces = [trace for traces in self.runs.values() for trace in traces]
        return {trace.problem.fingerprint: trace.problem.name for trace in traces}

    @cached_property
    def metrics(self) -> list[str]:
        """The measurements of the best runs; that of the rule is first."""
        found = [name for trace in self.best.values() for name in (*trace, "lyapunov") if name in trace]
        names = list(dict.fromkeys(name for name in found if name not in COUNTED))
        return sorted(names, key=lambda name: name != self.rule.metric)

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each method at its best, the winner first: the chosen setting, the error and the costs.

        `error` is the mean over the seeds of the rule's measurement after all rounds, `low` and `high` its 95 %
        interval. Costs are of the whole network, up to the target if there is one, otherwise of all rounds. `rounds`
        are those with communication, on average over the seeds.
        """
        return [self.row(label, self.best[label]) for label in self.order]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `to_pandas`, as dicts."""
        found = []
        for label, traces in self.runs.items():
            best = self.best[label]  # the chosen one of `traces` with its note, or another one on fresh seeds
            tried = [best if one.run_state is best.run_state else one for one in traces]
            found += [(label, one) for one in (*tried, *([best] if self.fresh else []))]
        return [
            {**self.row(label, one), "seeds": in_a_row(one.seeds), "best": one is self.best[label]}
            for label, one in found
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for every run, including losers; `best` marks those of `table`."""
        return as_frame(self.rows)

    def row(self, label: str, trace: Trace) -> dict[str, Any]:
        """The row of one run of a method."""
        mean, low, high = map(float, self.rule.interval(trace))
        at = self.rule.counted_to(trace)
        return {
            "method": label,
            "chosen": self.setting(label, trace),
            "error": mean,
            "low": low,
            "high": high,
            **{name: float(trace.spent(name)[:, at].mean()) for name in ("rounds", *self._costs)},
            "remark": self._remark(label, trace),
        }

    def setting(self, label: str, trace: Trace) -> str:
        """The options in which a run differs from the others of its method, such as "gamma=0.1"."""
        return in_words(trace.algorithm, [run.algorithm for run in self.runs[label]])

    def is_chosen(self, label: str, trace: Trace) -> bool:
        """Is it the chosen run of the method, or the same setting on fresh seeds?"""
        return any(trace.run_state is one.run_state for one in (self.chosen[label], self.best[label]))

    def _remark(self, label: str, trace: Trace) -> str:
        """A short remark about a run, or ""."""
        lost = trace.diverged_at[trace.diverged]
        if len(lost):
            seeds = f"{len(lost)} of {many(len(trace.seeds), 'seed')} " if len(trace.seeds) > 1 else ""
            parts = [f"{seeds}diverged, from round {int(lost.min()):,} on"]
        else:
            parts = [self.rule.failure(trace), "grows" if self.rule.grows(trace) else ""]
        if trace.interrupted:
            parts.append(f"interrupted after {many(trace.rounds, 'round')}")
        if self.is_chosen(label, trace):
            parts.append(edge(trace.algorithm, [run.algorithm for run in self.runs[label]]))
        first = next((group[0] for group in self.ranking if label in group), label)
        if trace is self.best[label] and label != first:
            parts.append(f"tied with {first}")
        return "; ".join(part for part in parts if part)

    @property
    def _costs(self) -> tuple[str, ...]:
        """The counted costs, with the seconds if the rule compares them."""
        return ("gradients", "messages", "floats", *(["seconds"] if self.rule.cost == "seconds" else []))

    def cells(self, rows: list[dict[str, Any]] | None = None) -> list[list[str]]:
        """A head and a line for each row, by default those of `table`, as text; the remark is last."""
        shown = [name for name in self._costs if name != "messages" or self.rule.cost == "messages"]
        head = ["method", "chosen", self.rule.metric, "rounds", *shown, ""]
        lines = [
            [
                row["method"],
                row["chosen"],
                interval(row["error"], row["low"], row["high"]),
                f"{row['rounds']:,.0f}",
                *(f"{row[name]:.3g}" if name == "seconds" else f"{row[name]:,.0f}" for name in shown),
                row["remark"],
            ]
            for row in (self.table if rows is None else rows)
        ]
        return [head, *lines]

    @cached_property
    def verdict(self) -> str:
        """The best method, or how the runs ended, in one sentence."""
        return verdict(self)

    @property
    def caption(self) -> str:
        """The rule, and the numbers of runs and seeds."""
        runs = sum(len(traces) for traces in self.runs.values())
        seeds = len(next(iter(self.best.values())).seeds)
        amount = f"{many(runs, 'run')} of {many(seeds, 'seed')}"
        words = f"Best: {self.rule}. {amount}; gradients and floats of the whole network."
        if self.choice:
            words += f" {self.choice}"
        if seeds == 1 and len(self.best) > 1:
            words += " One seed, so the variation between seeds is unknown."
        if self.rule.stop:
            words += " Runs ended when the target had decided; errors are those of the rounds that were run."
        traces = [trace for traces in self.runs.values() for trace in traces]
        if len({trace.rounds for trace in traces}) == 1 or not any(trace.interrupted for trace in traces):
            return words
        return f"Interrupted: the methods made different numbers of rounds. {words}"

    @property
    def choice(self) -> str:
        """The seeds of the choice, and those of the numbers; "" if there was no choice."""
        if sum(map(len, self.runs.values())) == len(self.runs):
            return ""
        chosen, best = next(iter(self.chosen.values())), next(iter(self.best.values()))
        chose = in_a_row(chosen.seeds, "seed")
        if self.fresh:
            return f"Chosen on {chose}; all numbers are of the {in_a_row(best.seeds, 'fresh seed')}."
        return f"No fresh seeds were run: all numbers are of {chose}, which make the best look too good."

    def notes(self, rows: list[dict[str, Any]] | None = None) -> list[str]:
        """Remarks about the rows, by default those of `table`, and the notes of the best runs."""
        notes = [note for trace in self.best.values() for note in trace.notes]
        failing = {label for label in self.best if any(note.startswith(f"{label} at its best") for note in notes)}
        remarks = [
            f"{row['method']}, {row['chosen']}: {row['remark']}."
            for row in (self.table if rows is None else rows)
            if row["remark"] and row["method"] not in failing
        ]
        return list(dict.fromkeys([*remarks, *notes]))

    def curves(self, path: Path | str, *, x: str = "rounds", metric: str | None = None, **options: Any) -> list[Path]:
        """Draws the best run of each method; x and the other options are those of `stgt.report.curves`."""
        from stgt.study.report.figures import curves

        named = {", ".join(filter(None, (name, self.setting(name, one)))): one for name, one in self.best.items()}
        return curves(named, path, metric=metric or self.rule.metric, x=x, **options)

    def __repr__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:], self.verdict, self.caption])

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        return render("study/comparison.html.j2", head=head, rows=rows, verdict=self.verdict, caption=self.caption)
