"""The settings of the page: checked, with the graph, the problem and the methods that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stgt
from playground.engine import graphs
from playground.engine.graphs import Graph
from playground.engine.methods import KINDS, make
from playground.engine.problem import Problem, draw
from stgt._internal.checks import InputError, check_choice, check_count, check_number, check_seed, under
from stgt.algorithms.support import refusal

GRAPHS = ("ring", "exponential", "one_peer", "directed", "edges", "server")
UNDIRECTED = ("ring", "edges")  # links can be lost without a change of the column sums
FAR = 20.0  # minimisers may be dragged this far


@dataclass(frozen=True)
class Settings:
    """Checked settings. `given` has an entry for everything."""

    given: dict[str, Any]

    @property
    def n(self) -> int:
        return self.given["n"]

    @property
    def rounds(self) -> int:
        return self.given["rounds"]

    @property
    def seed(self) -> int:
        return self.given["seed"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """In the order of their rounds."""
        return sorted(self.given["events"], key=lambda event: event["round"])

    @property
    def problem(self) -> Problem:
        given = self.given["problem"]
        return draw(self.n, given["spread"], given["seed"], given["noise"], given["centres"])

    @property
    def methods(self) -> list[stgt.Algorithm]:
        return [make(entry) for entry in self.given["methods"]]

    def graph(self, members: Sequence[int]) -> Graph:
        """The graph of these nodes, in the order of their numbers."""
        given, n = self.given["graph"], len(members)
        kind = given["kind"]
        if kind == "server":
            return graphs.server(n, given["sampled"])
        if kind == "edges":
            place = {node: i for i, node in enumerate(members)}
            edges = [(place[i], place[j]) for i, j in given["edges"] if i in place and j in place]
            return graphs.lossy(graphs.from_edges(edges, n), given["lost"])
        if kind in ("ring", "directed"):
            return graphs.lossy(graphs.ring(n, directed=kind == "directed"), given["lost"])
        return {"exponential": graphs.exponential, "one_peer": graphs.one_peer}[kind](n)

    def graph_of(self, method: stgt.Algorithm, members: Sequence[int]) -> Graph:
        """The graph that a method runs on: one with a server if the server holds its model."""
        needed = "x" in method.spec().server_fields and self.given["graph"]["kind"] != "server"
        return graphs.server(len(members)) if needed else self.graph(members)


def stories() -> list[dict[str, Any]]:
    """The page's stories, each with its settings. The page opens with the first."""
    return json.loads((Path(__file__).parents[1] / "stories.json").read_text())


def check(given: Any) -> Settings:
    """The settings; an InputError says what is wrong with them."""
    given = _table(given, "settings", ("n", "graph", "problem", "methods", "rounds", "seed", "events"))
    n = check_count(given["n"], "n", 3, 8)
    checked = {
        "n": n,
        "graph": _graph(given["graph"], n),
        "problem": _problem(given["problem"], n),
        "methods": [_method(entry, i) for i, entry in enumerate(_list(given["methods"], "methods", 1, 3))],
        "rounds": check_count(given["rounds"], "rounds", 10, 200),
        "seed": check_seed(given["seed"]),
        "events": [],
    }
    checked["events"] = _events(given["events"], checked)
    settings = Settings(checked)
    for method in settings.methods:
        _check_method(method, settings)
    return settings


def _graph(given: Any, n: int) -> dict[str, Any]:
    given = _table(given, "graph", ("kind", "edges", "sampled", "lost"), ("edges", "sampled", "lost"))
    with under("graph"):
        kind = check_choice(given["kind"], "kind", GRAPHS)
        edges = [_edge(edge, i, n) for i, edge in enumerate(given["edges"] or [])] if kind == "edges" else []
        if kind == "edges" and len(graphs.parts(edges, range(n))) > 1:
            raise InputError("edges", hint="some nodes are not connected with the others: add links.")
        sampled = given["sampled"] if kind == "server" else None
        lost = check_number(given["lost"] or 0.0, "lost", least=0.0, most=0.9)
        if lost and kind not in UNDIRECTED:
            raise InputError("lost", lost, "only links of an undirected graph can be lost: use a ring, or edges.")
        return {
            "kind": kind,
            "edges": edges,
            "sampled": None if sampled is None else check_count(sampled, "sampled", 1, n),
            "lost": lost,
        }


def _edge(edge: Any, number: int, n: int) -> tuple[int, int]:
    i, j = (check_count(node, ("edges", number), 0, n - 1) for node in _list(edge, "edges", 2, 2))
    if i == j:
        raise InputError(("edges", number), edge, "a node needs no link to itself.")
    return min(i, j), max(i, j)


def _problem(given: Any, n: int) -> dict[str, Any]:
    given = _table(given, "problem", ("spread", "seed", "noise", "centres"), ("centres",))
    with under("problem"):
        centres = given["centres"]
        return {
            "spread": check_number(given["spread"], "spread", least=0.0, most=2.0),
            "seed": check_seed(given["seed"]),
            "noise": check_number(given["noise"], "noise", least=0.0, most=1.0),
            "centres": None if centres is None else [_point(one) for one in _list(centres, "centres", n, n)],
        }


def _point(given: Any) -> list[float]:
    return [check_number(value, "centres", least=-FAR, most=FAR) for value in _list(given, "centres", 2, 2)]


def _method(given: Any, i: int) -> dict[str, Any]:
    optional = ("beta", "momentum")
    given = _table(given, f"methods[{i}]", ("name", "gamma", "tau", *optional), optional)
    with under("methods", i):
        check_choice(given["name"], "name", KINDS)
        given["tau"] = check_count(given["tau"], "tau", 1, 20)
        given["gamma"] = check_number(given["gamma"], "gamma", above=0.0, most=2.0)
        given["momentum"] = check_number(given["momentum"] or 0.0, "momentum", least=0.0, below=1.0)
        make(given)  # which checks beta
        return given


def _events(given: Any, checked: dict[str, Any]) -> list[dict[str, Any]]:
    events = []
    for i, one in enumerate(_list(given, "events", 0, 100)):
        with under("events", i):
            event = _table(one, "event", ("round", "kind", "node"), ("node",))
            check_choice(event["kind"], "kind", ("kill", "repair"))
            check_count(event["round"], "round", 0, checked["rounds"] - 1)
            if event["kind"] == "kill":
                check_count(event["node"], "node", 0, checked["n"] - 1)
            else:
                event.pop("node")
            events.append(event)
    if events and checked["graph"]["sampled"] not in (None, checked["n"]):
        raise InputError("events", hint="nodes can fail only where a server calls all of them: set sampled to all.")
    alive = set(range(checked["n"]))
    for event in sorted((one for one in events if one["kind"] == "kill"), key=lambda one: one["round"]):
        node = event["node"]
        if node not in alive:
            raise InputError("events", hint=f"node {node} fails twice: leave one of them out.")
        alive.remove(node)
        edges = [edge for edge in checked["graph"]["edges"] if alive.issuperset(edge)]
        if checked["graph"]["kind"] == "edges" and len(graphs.parts(edges, alive)) > 1:
            raise InputError("events", hint=f"without node {node} the graph has separate parts: add links.")
    if len(alive) < 2:
        raise InputError("events", hint="at least two nodes must stay.")
    return events


def _check_method(method: stgt.Algorithm, settings: Settings) -> None:
    """An InputError if the library would refuse the method on this graph, or with these events."""
    spec = method.spec()
    if words := refusal(method.label, spec, settings.graph_of(method, range(settings.n)), "reference"):
        raise InputError("methods", hint=words)
    if settings.events and spec.invariant:
        raise InputError(
            "events",
            hint=f"{method.label} needs more than sums of 0 ({spec.invariant}), and no rule restores that after a node "
            "has failed: leave it out.",
        )


def _table(given: Any, name: str, known: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """A copy of a JSON object with exactly these entries; None for those that are optional and left out."""
    if not isinstance(given, Mapping):
        raise InputError(name, hint=f" must be an object with {', '.join(known)}.")
    for key in given:
        check_choice(key, name, known)
    for key in known:
        if key not in given and key not in optional:
            raise InputError(name, hint=f" has no {key!r}: give it.")
    return {key: given.get(key) for key in known}


def _list(given: Any, name: str, least: int, most: int) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not least <= len(given) <= most:
        raise InputError(name, hint=f" must be a list of {least} to {most} entries.")
    return list(given)
