"""What a page shows of a run folder, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stgt._internal.checks import check_number
from stgt._internal.hyper import Frozen
from stgt.simulator import Rule, Trace
from stgt.simulator.choice import in_words
from stgt.simulator.costs import COUNTED

if TYPE_CHECKING:
    from stgt.theory import Advice
    from stgt.topology import Topology


@dataclass(frozen=True)
class Network(Frozen):
    """What a round takes in a network to be imagined: the time is modelled, not measured.

    Attributes:
        gradient: seconds that a node takes for one local step.
        latency: seconds that a round waits for the network, however little is sent.
        bandwidth: bits a second of a node's link.
    """

    gradient: float = 1e-3
    latency: float = 0.05
    bandwidth: float = 1e7

    def __post_init__(self) -> None:
        self._set(
            gradient=check_number(self.gradient, "network.gradient", least=0),
            latency=check_number(self.latency, "network.latency", least=0),
            bandwidth=check_number(self.bandwidth, "network.bandwidth", above=0),
        )


@dataclass(frozen=True, eq=False)
class Study:
    """A finished or unfinished run, sweep or comparison.

    Attributes:
        name: the folder's.
        kind: "run", "sweep" or "compare".
        status: "finished", or how it ended, such as "interrupted after 40 of 100 rounds".
        spec: what was run, as TOML.
        facts: versions, seeds, checksums, by name.
        runs: by method, all combinations of its grid.
        best: the best of them, one for each method: that trace itself, or one with its run_state and another note; or
            its setting on fresh seeds.
        rule: what best means; None where nothing was chosen.
        advice: by method, what the theory predicts of the best, or why there is no prediction.
        topologies: by method, where they could be made.
        network: what the modelled time begins with.
        chosen: the one of `runs` that was chosen, by method, where `best` is of fresh seeds.
        choice: a sentence on which seeds were used to choose, and which for the numbers.
    """

    name: str
    kind: str
    status: str
    spec: str
    facts: Mapping[str, str]
    runs: Mapping[str, Sequence[Trace]]
    best: Mapping[str, Trace]
    rule: Rule | None = None
    advice: Mapping[str, Advice | str] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    chosen: Mapping[str, Trace] = field(default_factory=dict)
    choice: str = ""

    @cached_property
    def metrics(self) -> list[str]:
        """Whatever some method measured, what is judged first."""
        found = dict.fromkeys(name for trace in self.best.values() for name in measured(trace))
        first = [self.rule.metric] if self.rule is not None and self.rule.metric in found else []
        return list(dict.fromkeys([*first, *found]))

    @cached_property
    def judged(self) -> Rule | None:
        """The rule by which methods are put in order: the study's, or the first measurement's that all have."""
        if self.rule is not None:
            return self.rule
        shared = [name for name in self.metrics if all(name in trace for trace in self.best.values())]
        return Rule(shared[0]) if shared else None

    @cached_property
    def ranking(self) -> list[str]:
        """The methods, the best first; those that fail, or did not measure what is judged, last."""
        return sorted(self.best, key=lambda method: self._key(self.best[method]))

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """The methods as they are ranked, those together that are not told apart from the first of their group.

        Empty where they cannot be compared. Those that did not measure what is judged are left out.
        """
        if self.judged is None or len(self.problems) > 1:
            return []
        return self.judged.groups({name: trace for name, trace in self.best.items() if self.judged.metric in trace})

    def _key(self, trace: Trace) -> tuple[float, float]:
        if self.judged is None or self.judged.metric not in trace:
            return np.inf, np.inf
        return self.judged.score(trace), self.judged.ending(trace)

    def setting(self, method: str, trace: Trace) -> str:
        """What sets a run apart from the others of its method, such as "gamma=0.1"."""
        return in_words(trace.algorithm, [run.algorithm for run in self.runs[method]])

    @cached_property
    def problems(self) -> dict[str, str]:
        """The problems' names by checksum."""
        traces = [trace for traces in self.runs.values() for trace in traces]
        return {trace.problem.fingerprint: trace.problem.name for trace in traces}


def measured(trace: Trace) -> list[str]:
    """The names of what a trace measured, without what it counted."""
    names = [name for name in trace if name not in COUNTED]
    return [*names, *(["lyapunov"] if "lyapunov" in trace else [])]
