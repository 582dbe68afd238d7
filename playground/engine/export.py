"""The settings as a spec file for `stgt run`, and as a script. Both give the numbers of the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from playground.engine.methods import arguments, outer_momentum
from playground.engine.problem import Problem
from playground.engine.settings import Settings, check
from stgt._internal.checks import InputError

Call = tuple[str, dict[str, Any]]  # a name of the library, and its arguments, which may be calls
NAMES = {"one_peer": "one_peer_exponential", "directed": "ring", "edges": "from_edges"}
EXACT = {"engine": "numpy", "dtype": "float64"}  # what the page computes


def export(kind: str, given: Any) -> str:
    """The text of a file: "toml" or "python"."""
    settings = check(given)
    if kind == "toml":
        return spec(settings)
    return churn_script(settings) if settings.events else script(settings)


# -- a spec file -------------------------------------------------------------------------------------------------------


def spec(settings: Settings) -> str:
    """A spec file; an InputError if nodes fail, which a spec cannot hold."""
    if settings.events:
        raise InputError(
            "events", hint="a spec file cannot hold nodes that fail: copy the settings as Python, or remove the events."
        )
    top = {"name": "playground", "rounds": settings.rounds, "seeds": [settings.seed], **EXACT, "x0": "zero"}
    lines = [
        "# `stgt run spec.toml` gives the numbers of the playground.",
        *(f"{key} = {toml(value)}" for key, value in top.items()),
        "",
        "[problem]",
        *(f"{key} = {toml(value)}" for key, value in {"name": "Quadratic", **quadratic(settings.problem)}.items()),
    ]
    for label, method, graph in runs(settings):
        lines += ["", "[[runs]]", f"label = {toml(label)}", f"algorithm = {toml(method)}", f"topology = {toml(graph)}"]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value as TOML; a call is a table with its name."""
    if isinstance(value, tuple):
        name, options = value
        return toml({"name": name, **options})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)  # numbers, words and flags are the same in TOML


# -- scripts -----------------------------------------------------------------------------------------------------------


def script(settings: Settings) -> str:
    """A script with `stgt.simulate`."""
    lines = ["import stgt", "", *_problem(settings.problem), "runs = {"]
    for label, method, graph in runs(settings):
        lines.append(f"    {label!r}: ({_method(method)}, {_graph(graph, str(settings.n))}),")
    return _text(
        [
            *lines,
            "}",
            "for label, (method, graph) in runs.items():",
            f"    trace = stgt.simulate(method, problem, graph, rounds={settings.rounds}, seeds=[{settings.seed}], "
            f"{_exact()})",
            *_print(),
        ]
    )


def churn_script(settings: Settings) -> str:
    """A script with `simulate_churn`, for settings with nodes that fail."""
    changes = [
        f"Crash({event['round']}, {event['node']})" if event["kind"] == "kill" else f"Repair({event['round']})"
        for event in settings.events
    ]
    lines = [
        "import stgt",
        "from stgt.simulator import Crash, Repair, simulate_churn",
        "",
        *_problem(settings.problem),
        f"changes = [{', '.join(changes)}]",
        "runs = {  # a graph is a function of the number of nodes that are left",
    ]
    for label, method, graph in runs(settings):
        lines.append(f"    {label!r}: ({_method(method)}, {_graphs(settings, graph)}),")
    return _text(
        [
            *lines,
            "}",
            "for label, (method, graph) in runs.items():",
            "    trace = simulate_churn(",
            f'        method, problem, graph, {settings.rounds}, [{settings.seed}], changes=changes, repair="none",',
            f"        {_exact()},",
            "    )",
            *_print(),
        ]
    )


def _problem(problem: Problem) -> list[str]:
    options = [f"    {name}={value!r}," for name, value in quadratic(problem).items()]
    return ["problem = stgt.problems.Quadratic(", *options, ")"]


def _print() -> list[str]:
    return ['    print(f"{label:20} {trace.residual[0, -1]:.6g}")  # ‖x̄ − x*‖² at the end']


def _exact() -> str:
    return ", ".join(f'{name}="{value}"' for name, value in EXACT.items())


def _method(call: Call) -> str:
    name, options = call
    given = [_method(value) if isinstance(value, tuple) else f"{key}={value!r}" for key, value in options.items()]
    return f"stgt.{name}({', '.join(given)})"


def _graph(call: Call, n: str) -> str:
    name, options = call
    if name == "unreliable":
        return f"stgt.topology.unreliable({_graph(options['topology'], n)}, link={options['link']!r})"
    if name == "from_edges":
        return f"stgt.topology.from_edges({[tuple(edge) for edge in options['edges']]!r}, {n})"
    return f"stgt.topology.{name}({', '.join([n, *(f'{key}={value!r}' for key, value in options.items())])})"


def _graphs(settings: Settings, call: Call) -> str:
    """A graph as a function of the number of its nodes."""
    name, options = call
    if name == "server":
        return "stgt.topology.complete"  # the same weights as a server that calls all nodes
    if settings.given["graph"]["kind"] != "edges":
        return f"lambda n: {_graph(call, 'n')}" if options else f"stgt.topology.{name}"
    members, found = list(range(settings.n)), []
    for dead in (None, *(event["node"] for event in settings.events if event["kind"] == "kill")):
        members = [node for node in members if node != dead]
        found.append(f"{len(members)}: {_graph(graph_call(settings, members), str(len(members)))}")
    return f"lambda n: {{{', '.join(found)}}}[n]"


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


# -- what both hold ----------------------------------------------------------------------------------------------------


def quadratic(problem: Problem) -> dict[str, Any]:
    """The arguments of `stgt.problems.Quadratic`."""
    A = [[[a, c], [c, d]] for a, c, d in problem.A]
    return {"A": A, "b": [list(one) for one in problem.b], "noise": problem.variance}


def runs(settings: Settings) -> list[tuple[str, Call, Call]]:
    """(label, method, topology) of each run; labels differ."""
    found: list[tuple[str, Call, Call]] = []
    for entry, method in zip(settings.given["methods"], settings.methods, strict=True):
        on_server = settings.graph_of(method, range(settings.n)).has_server
        label, seen = method.label, [one[0] for one in found]
        label = label if label not in seen else f"{label}, {len(found) + 1}"
        call = arguments(entry)
        if momentum := outer_momentum(entry):
            call = "Outer", {"method": call, "momentum": momentum}
        found.append((label, call, _server(settings) if on_server else graph_call(settings, range(settings.n))))
    return found


def graph_call(settings: Settings, members: Sequence[int]) -> Call:
    """The drawn graph of these nodes."""
    given = settings.given["graph"]
    kind = given["kind"]
    options: dict[str, Any] = {"directed": True} if kind == "directed" else {}
    if kind == "edges":
        place = {node: i for i, node in enumerate(members)}
        options = {"edges": [[place[i], place[j]] for i, j in given["edges"] if i in place and j in place]}
    call = NAMES.get(kind, kind), options
    return ("unreliable", {"topology": call, "link": given["lost"]}) if given["lost"] else call


def _server(settings: Settings) -> Call:
    sampled = settings.given["graph"]["sampled"]
    return "server", {} if sampled is None else {"sampled": sampled}
