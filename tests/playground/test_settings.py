"""What the page says of settings that cannot be, and what it takes away: a spec file, a script, a method's lines."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from playground.engine.export import export
from playground.engine.result import simulate
from playground.engine.worker import answer
from playground_reference import EXACT, settings
from stgt.cli import app

ROOT = Path(__file__).parents[2]
MIXED = settings(
    {"kind": "ring", "lost": 0.25},
    [
        {"name": "STGT_adjoint", "beta": 0.5, "momentum": 0.3},
        {"name": "DiLoCo", "momentum": 0.9},
        {"name": "LED", "beta": 0.25},
    ],
)
SAMPLED = settings({"kind": "server", "sampled": 3}, ["Scaffold", "FedAvg", "STGT"])
EDGES = settings(
    {"kind": "edges", "edges": [[0, 1], [1, 2], [2, 3], [3, 4]]}, ["STGT", {"name": "STGT", "gamma": 0.02}]
)
FAILING = settings(
    {"kind": "edges", "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [0, 2]], "lost": 0.2},
    ["STGT", "FedAvg", "LED"],
    events=[{"round": 9, "kind": "kill", "node": 1}, {"round": 30, "kind": "repair"}],
)


@pytest.mark.parametrize("given", [MIXED, EDGES], ids=["lossy", "edges"])
def test_the_spec_file_gives_the_same_numbers(given, tmp_path):
    """`stgt run` of the file, and the curves that it has written."""
    path = tmp_path / "spec.toml"
    path.write_text(export("toml", given))
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    curves = read_residuals(tmp_path / "out")
    runs = simulate(given)["runs"]
    assert len(curves) == len(runs)
    for run, curve in zip(runs, curves, strict=True):
        np.testing.assert_allclose(run["error"], curve, rtol=1e-12, atol=1e-12)


def read_residuals(folder):
    """The column `residual` of each run's metrics.csv, in the order of the runs."""
    found = []
    for path in sorted(folder.glob("*/metrics.csv")):
        with path.open(newline="") as rows:
            found.append([float(row["residual"]) for row in csv.DictReader(rows)])
    return found


@pytest.mark.parametrize("given", [MIXED, SAMPLED, EDGES, FAILING], ids=["lossy", "sampled", "edges", "failing"])
def test_the_script_gives_the_same_numbers(given, capsys):
    """It prints the last error of each run, with six digits."""
    exec(compile(export("python", given), "script", "exec"), {})
    printed = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert printed == pytest.approx([run["error"][-1] for run in simulate(given)["runs"]], rel=1e-5)


def test_exports_name_the_engine_that_the_page_equals():
    for kind in ("toml", "python"):
        assert all(f'"{value}"' in export(kind, MIXED) for value in EXACT.values())


def changed(**changes):
    return {**settings("ring", ["STGT"]), **changes}


def ring(**changes):
    return {"kind": "ring", **changes}


KILL = {"kind": "kill", "round": 3}
WRONG = {
    "n=2: give a whole number from 3 to 8.": changed(n=2),
    "settings has no 'n': give it.": {name: value for name, value in changed().items() if name != "n"},
    "settings='more': choose from 'n', ": changed(more=1),
    "graph.kind='rign': choose from 'ring', ": changed(graph={"kind": "rign"}),
    "graph.lost=0.2: only links of an undirected": changed(graph={"kind": "directed", "lost": 0.2}),
    "graph.edges: some nodes are not connected": changed(graph={"kind": "edges", "edges": [[0, 1], [2, 3]]}),
    "graph.sampled=6: give a whole number from 1 to 5.": changed(graph={"kind": "server", "sampled": 6}),
    "methods: nodes 0 and 1 of server(5, 1 sampled) never": changed(graph={"kind": "server", "sampled": 1}),
    "methods[0].gamma=-1: give a finite number above 0": changed(methods=[{"name": "STGT", "gamma": -1, "tau": 2}]),
    "methods[0].beta=3: give a finite number above 0": changed(
        methods=[{"name": "STGT", "gamma": 0.1, "tau": 2, "beta": 3}]
    ),
    "methods must be a list of 1 to 3 entries.": changed(methods=[]),
    "problem.centres must be a list of 5 to 5 entries.": changed(
        problem={"spread": 1, "seed": 0, "noise": 0, "centres": [[0, 0]]}
    ),
    "events: node 1 fails twice": changed(events=[{**KILL, "node": 1}, {**KILL, "node": 1}]),
    "events: at least two nodes must stay.": changed(events=[{**KILL, "node": i} for i in range(4)]),
    "events[0].round=50: give a whole number from 0 to 49.": changed(events=[{"kind": "repair", "round": 50}]),
    "events: nodes can fail only where a server calls all": changed(
        graph={"kind": "server", "sampled": 2}, events=[{**KILL, "node": 1}]
    ),
    "events: Scaffold needs more than sums of 0": changed(
        methods=[{"name": "Scaffold", "gamma": 0.1, "tau": 2}], events=[{**KILL, "node": 1}]
    ),
    "events: without node 1 the graph has separate parts": changed(
        graph={"kind": "edges", "edges": [[0, 1], [1, 2], [2, 3], [3, 4]]}, events=[{**KILL, "node": 1}]
    ),
}


@pytest.mark.parametrize("error", WRONG)
def test_what_cannot_be_computed_is_said(error):
    found = json.loads(answer(json.dumps({"id": 1, "settings": WRONG[error]})))
    assert list(found) == ["error"]
    assert found["error"].startswith(error)
    assert "\n" not in found["error"]


def test_a_spec_cannot_hold_nodes_that_fail():
    found = json.loads(answer(json.dumps({"id": 1, "export": "toml", "settings": FAILING})))
    assert found["error"].startswith("events: a spec file cannot hold nodes that fail")


def test_the_lines_shown_are_the_library_s():
    """Each part stands in the file that is named, except for its docstring."""
    methods = [{"name": "LED", "momentum": 0.5}, "STGT_adjoint", "Scaffold"]
    for run in simulate(settings("ring", methods))["runs"]:
        for part in run["source"]["lines"]:
            assert part["code"].startswith(f"def {part['part']}(self")
            assert '"""' not in part["code"]
    source = simulate(settings("ring", ["LED"]))["runs"][0]["source"]
    text = (ROOT / "src" / source["file"]).read_text()
    merge = next(part["code"] for part in source["lines"] if part["part"] == "merge")
    assert source["name"] == "LED"
    assert "\n".join(f"    {line}" for line in merge.splitlines()) in text
