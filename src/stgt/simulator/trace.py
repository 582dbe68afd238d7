"""The result of a run: measurements, costs, and the state to resume from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from stgt._internal.checks import NotCovered
from stgt._internal.files import write_table, writing
from stgt._internal.hyper import short_repr
from stgt._internal.markup import many
from stgt._internal.registry import METRICS
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.job import RunState
from stgt.simulator.metrics import Metric
from stgt.simulator.serialize import Serialized
from stgt.topology import Topology, contraction

if TYPE_CHECKING:
    import pandas

_RHO: WeakKeyDictionary[Topology, float | None] = WeakKeyDictionary()  # computed once, not at each checkpoint


def as_frame(table: Any) -> pandas.DataFrame:
    """A pandas table from columns or rows; a ValueError if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise ValueError("pandas is not installed: pip install pandas, or use trace.to_csv(path).") from None
    return pandas.DataFrame(table)


class Best(NamedTuple):
    """The best mean over the seeds in a run, and the round at whose start it was measured."""

    value: float
    round: int


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The measurements of a run at the start of each round and after the last one: arrays (seeds, rounds + 1).

    When every run of a batch has diverged, no more rounds are computed, and the rest of the arrays is NaN. A round in
    which no node sends anything (by ProxSkip's coin, or because every link fails) has a column too.
    `trace["communications"]` counts the rounds with communication, which are the rounds of costs and axes.

    Attributes:
        algorithm, problem, topology, oracle: the parts of the run. In a trace loaded from a file, the problem and the
            topology have only the entries of the file (name, n, …).
        seeds: one for each run.
        values: the measurements by name; you usually write `trace["consensus"]`.
        seconds: of this computer since the first round, (rounds + 1,), without compilation.
        origin: a checksum of the initial values.
        run_state: the state after the last round, from which `simulate(…, resume=trace)` continues.
        measured: the metrics by name; None for a metric of a loaded trace that is not registered in this process.
        engine, dtype: the engine, and its precision.
        interrupted: did the run end before the last requested round?
        absent: why a metric was not measured, by name.
        notes: remarks about the numbers, such as that the method equals another one with these options.
    """

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    oracle: Oracle
    seeds: tuple[int, ...]
    values: dict[str, np.ndarray]
    seconds: np.ndarray
    origin: str
    run_state: RunState
    measured: Mapping[str, Metric | None]
    engine: str
    dtype: str
    interrupted: bool = False
    absent: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def residual(self) -> np.ndarray:
        """‖x̄ − x*‖² at the start of each round, (seeds, rounds + 1)."""
        return self["residual"]

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The last state by field, (seeds, n, p)."""
        return self.run_state.state

    @property
    def x(self) -> np.ndarray:
        """The last models, (seeds, n, p)."""
        return self.state["x"]

    @property
    def params(self) -> list[Any]:
        """The mean over the nodes of the last models, for each seed, in the form that the problem's loss takes."""
        mean = self.x.mean(axis=1)
        if isinstance(self.problem, Serialized):
            if self.problem.pytree:
                raise ValueError(
                    "a file does not hold the form of the parameters: make the problem again, and give "
                    "problem.unravel(trace.x[seed].mean(axis=0))."
                )
            return list(mean)
        return list(mean) if self.problem.unravel is None else [self.problem.unravel(one) for one in mean]

    @property
    def rounds(self) -> int:
        """The number of completed rounds, with or without communication."""
        return self.run_state.rounds

    @property
    def diverged_at(self) -> np.ndarray:
        """(seeds,) the first round at whose start some model, or a built-in measurement of it, was not finite; −1 if
        all stayed finite. A model of 1e200 is finite, but its square is not. Your own metrics do not count."""
        return self.run_state.diverged_at

    @property
    def diverged(self) -> np.ndarray:
        """Which runs diverged, (seeds,) booleans."""
        return self.diverged_at >= 0

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.values:
            return self.values[name]
        metric = METRICS.get(name)
        if metric is not None and metric.of_trace:
            return metric.compute(self)
        if name in self.absent:
            raise KeyError(f"{name!r} was not measured: {self.absent[name]}.")
        raise KeyError(f"{name!r} is not a measurement: choose from {', '.join(self)}.")

    def __iter__(self) -> Iterator[str]:
        """The names of measurements and counts. "lyapunov", "communications" and "seconds" exist in addition."""
        return iter(self.values)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def spent(self, cost: str) -> np.ndarray:
        """The cost up to the start of each round, (seeds, rounds + 1): "gradients", "messages", "floats", "seconds", or
        "rounds" with communication."""
        return self["communications" if cost == "rounds" else cost]

    def tail(self, name: str = "residual", share: float = 0.25) -> np.ndarray:
        """The mean of a measurement over the last `share` of the rounds, (seeds,): its steady state."""
        values = self[name]
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
            return values[:, -max(1, round(share * values.shape[1])) :].mean(axis=1)

    def best(self, name: str = "residual", *, largest: bool = False) -> Best:
        """The lowest mean over the seeds that a measurement reached, or the `largest`, and its round. Rounds at which a
        seed is not finite do not count."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self[name].astype(np.float64).mean(axis=0)
        if not np.isfinite(mean).any():
            raise ValueError(f"{name} of {self.algorithm.label} is not finite in any round, so it has no best value.")
        at = int(np.nanargmax(np.where(np.isfinite(mean), mean if largest else -mean, np.nan)))
        return Best(float(mean[at]), at)

    def save(self, path: Path | str) -> Path:
        """Writes the trace to a file, atomically. `Trace.load` reads it, and `simulate(…, resume=…)` continues it.

        The file holds numbers and words only, nothing that could be executed. It has the names and checksums of the
        problem and the topology, and does not have your own functions.
        """
        from stgt.simulator.store import save

        return save([self], Path(path).expanduser())

    @staticmethod
    def load(path: Path | str) -> Trace:
        """Reads what `save` wrote, or a checkpoint; a ValueError if the file is damaged or of another kind."""
        from stgt.simulator.store import load

        found = load(Path(path).expanduser())
        if len(found) > 1:
            raise ValueError(f"{path} holds the {len(found)} runs of a sweep: give it to sweep(…, checkpoint=…).")
        return found[0]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each seed and round: the parts of the run, and each measurement as a column."""
        return as_frame(self._columns())

    def to_csv(self, path: Path | str) -> Path:
        """Writes the table of `to_pandas` as a CSV file; needs no pandas."""
        columns = self._columns()
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        with writing(Path(path)):
            return write_table(Path(path).expanduser(), [dict(zip(columns, row, strict=True)) for row in rows])

    def _columns(self) -> dict[str, Any]:
        seeds, length = len(self.seeds), self.rounds + 1
        gamma = self.algorithm.gamma
        same = {
            "method": self.algorithm.label,
            "topology": self.topology.name,
            "gamma": gamma if isinstance(gamma, float) else short_repr(gamma),
            "tau": self.algorithm.tau,
        }
        names = [name for name in (*self, "communications", "lyapunov", "seconds") if name in self]
        return {
            **{name: [value] * (seeds * length) for name, value in same.items()},
            "seed": np.repeat(self.seeds, length),
            "round": np.tile(np.arange(length), seeds),
            **{name: self[name].ravel() for name in names},
        }

    @cached_property
    def rho(self) -> float | None:
        """ρ of Theorem 1, the largest ‖E[W_rᵀW_r] − J‖ of any round of its topology; None if it is not known."""
        if isinstance(self.topology, Serialized):
            return self.topology.rho
        if self.topology not in _RHO:
            try:
                _RHO[self.topology] = contraction(self.topology).worst
            except NotCovered:
                _RHO[self.topology] = None
        return _RHO[self.topology]

    def __repr__(self) -> str:
        lost = int(self.diverged.sum())
        note = f", {lost} diverged" if lost else ""
        note += ", interrupted" if self.interrupted else ""
        note += f"; {' '.join(self.notes)}" if self.notes else ""
        seeds, rounds = many(len(self.seeds), "seed"), many(self.rounds, "round")
        return f"Trace({self.algorithm.label}, {self.topology.name}, {seeds}, {rounds}{note})"

    def _repr_html_(self) -> str:
        from stgt.simulator.html import trace_html

        return trace_html(self)
