"""`stgt reproduce` and `stgt check`, as a user meets them."""

import csv
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproductions import EXPERIMENTS, Claim, Outcome, paper_figures
from stgt.cli import app
from stgt.study import RunSpec, Spec, load_spec

STGT = Path(sys.executable).with_name("stgt")
SPEC = """
rounds = 100
target = 0.1
[algorithm]
name = "STGT"
gamma = 0.4
tau = 50
[problem]
name = "ridge"
n = 16
p = 4
mu = 0.1
[topology]
name = "ring"
directed = true
"""


def refused(*arguments, **options) -> str:
    """The one sentence with which a command is refused."""
    result = subprocess.run([STGT, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("stgt: ")
    assert sentence.endswith((".", "?"))
    return sentence


@pytest.fixture
def short(monkeypatch):
    """`convergence` as it is, with fewer rounds and seeds."""
    short = partial(paper_figures.convergence, rounds=12, seeds=3)
    monkeypatch.setitem(EXPERIMENTS, "convergence", short)


@pytest.mark.usefixtures("short")
@pytest.mark.release
def test_everything_is_written(tmp_path):
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["reproduce", "convergence", "--out", str(out), "--reading", "normalised"])
    assert result.exit_code == 0, result.output
    names = {f"convergence-{name}.{kind}" for name in ("normalised", "costs-normalised") for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} == names | {"results.csv", "curves.csv", "spec.toml", "claims.json"}
    claims = json.loads((out / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["C1", "C2", "C3"]
    for claim in claims:
        assert {"id", "claim", "reading", "holds", "figures"} <= set(claim)
        assert isinstance(claim["holds"], bool)
        assert claim["reading"] == "normalised"
        assert claim["id"] in result.output
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert len(rows) == 2 * 4 * 3, "a row for each s, method and seed"
    assert {row["method"] for row in rows} == {"ST-GT", "FlexGT", "Scaffold", "centralised"}
    curves = list(csv.DictReader((out / "curves.csv").read_text().splitlines()))
    assert len(curves) == 2 * 4 * 13
    spec = load_spec(out / "spec.toml")
    assert spec.experiment == "convergence"
    assert len(spec.runs) == 8


def test_a_run_that_diverges_is_said(tmp_path, monkeypatch):
    names = {"reading": "printed", "graph": "ring(4)", "gamma": 0.4}
    rows = [
        {**names, "method": "A", "seed": k, "error": None, "diverged_at": at} for k, at in enumerate((31, 17, None))
    ]
    rows += [{**names, "method": "B", "seed": 0, "error": 1.0, "diverged_at": None}]
    parts = {"algorithm": {"name": "STGT"}, "problem": {"name": "ridge"}, "topology": {"name": "ring"}}
    spec = Spec(runs=(RunSpec.model_validate(parts),))
    claims = [Claim("C", "A's error is the lowest.", "printed", False, {"A": {"error": None, "diverged": 2}})]
    monkeypatch.setitem(EXPERIMENTS, "convergence", lambda progress: Outcome(spec, rows, claims, []))
    result = CliRunner().invoke(app, ["reproduce", "convergence", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "printed, A, ring(4), gamma 0.4: 2 of 3 runs diverged, from round 17 on." in words
    assert words.count("warning: ") == 1
    assert (tmp_path / "new" / "claims.json").exists()


@pytest.mark.thorough
def test_what_is_wrong_is_one_sentence_and_nothing_is_touched(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "claims.json").write_text("mine")
    assert "NAME='convergance': choose from 'convergence'" in refused(
        "reproduce", "convergance", "--out", tmp_path / "a"
    )
    assert "is not empty" in refused("reproduce", "convergence", "--out", mine)
    assert "is a file" in refused("reproduce", "table1", "--out", mine / "claims.json")
    assert "cannot be written" in refused("reproduce", "table1", "--out", mine / "claims.json" / "below")
    assert "--reading='print': choose from" in refused(
        "reproduce", "convergence", "--reading", "print", "--out", tmp_path / "a"
    )
    assert "--reading is not an option of table1" in refused(
        "reproduce", "table1", "--reading", "printed", "--out", tmp_path / "a"
    )
    assert "--data-dir was left out" in refused("reproduce", "heterogeneity", "--out", mine, "--force")
    assert "holds no a9a or a9a.bz2" in refused(
        "reproduce", "heterogeneity", "--out", mine, "--force", "--data-dir", tmp_path
    )
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}
    assert (mine / "claims.json").read_text() == "mine"
    assert len(list(mine.iterdir())) == 1


def test_check_names_the_directed_graph(tmp_path):
    (tmp_path / "run.toml").write_text(SPEC)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml")])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    for part in (
        "NO, spectral radius 1.03",
        "is unstable at gamma=0.4",
        "The reason is that",
        "not reached",
    ):
        assert part in words


def test_check_refuses_a_wrong_spec(tmp_path):
    (tmp_path / "run.toml").write_text(SPEC.replace("STGT", "SGTG"))
    assert "algorithm.name='SGTG': choose from" in refused("check", tmp_path / "run.toml")
    assert "cannot be read" in refused("check", tmp_path / "none.toml")
