"""What the page shows: a pure function of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import stgt
from playground.engine.graphs import Graph, Lossy, Mixing, Sampled
from playground.engine.maps import Map
from playground.engine.methods import source
from playground.engine.problem import START, P
from playground.engine.run import Run, Steps
from playground.engine.settings import Settings, check
from playground.engine.vectors import Vector

Point = list[float]


def simulate(given: Any) -> dict[str, Any]:
    """The result for these settings; an InputError says what is wrong with them."""
    settings = check(given)
    problem, graph = settings.problem, settings.graph(range(settings.n))
    dead = {event["node"] for event in settings.events if event["kind"] == "kill"}
    left = [i for i in range(settings.n) if i not in dead]
    return {
        "problem": {
            "A": problem.A,
            "centres": problem.centres,
            "optimum": problem.optimum(range(settings.n)),
            "survivors_optimum": problem.optimum(left) if dead else None,
            "x0": START,
        },
        "graph": {"name": graph.name, "phases": graph.phases, "random": graph.random, "note": _note(graph)},
        "runs": [Recorded(settings, method, first=not i).result() for i, method in enumerate(settings.methods)],
    }


def _note(graph: Graph) -> str:
    if isinstance(graph, Lossy):
        return f"Each link is lost with probability {graph.loss:g}. Its weight is then added to both nodes' own."
    if isinstance(graph, Sampled):
        return f"In each round the server calls {graph.size} of {graph.n} nodes, at random."
    return ""


class Recorded:
    """A run with all that is drawn of it; the steps and corrections only of the first run."""

    def __init__(self, settings: Settings, method: stgt.Algorithm, first: bool):
        self.settings, self.method, self.first = settings, method, first
        self.run = Run(method, settings.problem, lambda members: settings.graph_of(method, members), settings.seed)
        self.graph = self.run.graph
        self.positions = [list(START)] * settings.n  # of all nodes; a dead one stays where it was
        self.series: dict[str, list[Any]] = {name: [] for name in ("error", "sum_c")}
        self.rounds: dict[str, list[Any]] = {name: [] for name in ("weights", "alive")}
        if first:
            self.rounds |= {name: [] for name in ("frames", "gradients", "corrections")}
        self.bytes = [0.0]
        self.diverged_at: int | None = None

    def result(self) -> dict[str, Any]:
        self._advance()
        return {
            "label": self.method.label,
            "on": self.graph.name,
            "phases": [] if self.graph.random else self.graph.phases,
            "variables": list(self.run.method.spec.state_fields),
            **self.rounds,
            **self.series,
            "bytes": self.bytes,
            "diverged_at": self.diverged_at,
            **self._map(),
            "source": source(self.method),
        }

    def _advance(self) -> None:
        for r in range(self.settings.rounds):
            for event in self.settings.events:
                if event["round"] == r:
                    self.run.repair() if event["kind"] == "repair" else self.run.kill(event["node"])
            if not self._measure(r):
                return
            corrections = self.run.corrections()
            steps, mixing = self.run.round(r)
            self.bytes.append(self.bytes[-1] + self.run.bytes(mixing))
            self._record(steps, mixing, corrections)
        self._measure(self.settings.rounds)
        if self.first:  # the picture ends where the last measurement is
            self._move(self.run.state["x"])
            self.rounds["frames"].append([[list(place) for place in self.positions]])
            self.rounds["corrections"].append(self._spread(self.run.corrections()))

    def _measure(self, r: int) -> bool:
        """The measurements at the start of round r; False, and a round less, if one of them is not finite."""
        values = {"error": self.run.error(), "sum_c": self.run.sum_c()}
        finite = all(isfinite(value) for value in values.values())
        if not (finite and all(isfinite(value) for vector in self.run.state.values() for value in vector.data)):
            self.diverged_at = r
            for listed in (*self.rounds.values(), self.bytes):
                listed.pop()
            return False
        for name, value in values.items():
            self.series[name].append(value)
        return True

    def _record(self, steps: Steps, mixing: Mixing, corrections: Vector) -> None:
        members, n = self.run.members, self.settings.n
        self.rounds["alive"].append([i in members for i in range(n)])
        whole = len(members) == n
        drawn = mixing.phase is None or not whole
        self.rounds["weights"].append(_embedded(mixing.W, members, n) if drawn else mixing.phase)
        if not self.first:
            return
        frames = []
        for models in steps.models:
            self._move(models)
            frames.append([list(place) for place in self.positions])
        self.rounds["frames"].append(frames)
        self.rounds["gradients"].append([self._spread(gradient) for gradient in steps.gradients])
        self.rounds["corrections"].append(self._spread(corrections))

    def _move(self, models: Vector) -> None:
        for i, place in zip(self.run.members, models.rows(len(self.run.members)), strict=True):
            self.positions[i] = place

    def _spread(self, vector: Vector) -> list[Point]:
        """A vector of each node; 0 at those that have failed."""
        found = [[0.0] * P for _ in range(self.settings.n)]
        for i, row in zip(self.run.members, vector.rows(len(self.run.members)), strict=True):
            found[i] = row
        return found

    def _map(self) -> dict[str, Any]:
        """The map of the rounds before any event, its eigenvalues, and its radius per round."""
        one = Map(self.method, self.settings.problem, self.graph)
        found = one.spectrum()
        radius = max((abs(value) for value in found), default=0.0) ** (1 / len(one.rounds))
        return {
            "map": {"what": one.what, "size": len(found)},
            "radius": radius,
            "eigenvalues": [[value.real, value.imag] for value in found],
        }


def _embedded(W: Sequence[Sequence[float]], members: Iterable[int], n: int) -> list[list[float]]:
    """The weights of the members among all nodes; 0 for the others."""
    places = {node: i for i, node in enumerate(members)}
    return [[W[places[i]][places[j]] if i in places and j in places else 0.0 for j in range(n)] for i in range(n)]
