"""The content of a page: a comparison and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stgt._internal.checks import check_number
from stgt._internal.hyper import Frozen
from stgt.study.comparison import Comparison

if TYPE_CHECKING:
    from stgt.theory import Advice
    from stgt.topology import Topology


@dataclass(frozen=True)
class Network(Frozen):
    """The speeds of an assumed network, which give the time of a round. The time is modelled, not measured.

    Attributes:
        gradient: seconds that a node takes for one local step.
        latency: seconds that a round waits for the network, even for a very short message.
        bandwidth: bits per second of a node's link.
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
    """A comparison and its metadata: from a run folder or from `stgt.compare`.

    Attributes:
        comparison: the runs, the rule, the ranking and the table.
        name: its title.
        kind: "run", "sweep" or "compare".
        status: "finished", or how it ended, such as "interrupted after 40 of 100 rounds".
        spec: what was run, as TOML.
        facts: versions, seeds, checksums and times, by name.
        advice: by method, the theory's prediction for the best run, or the reason for no prediction.
        topologies: by method, if they could be built.
        network: the initial speeds for the modelled time.
    """

    comparison: Comparison
    name: str = "comparison"
    kind: str = "compare"
    status: str = "finished"
    spec: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, Advice | str] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
