"""The command line, as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stgt
from stgt.cli import app
from stgt.experiments import ridge_demo
from stgt.report import curves

STGT = Path(sys.executable).with_name("stgt")


def run(*arguments, **options):
    return subprocess.run([STGT, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.fixture
def short_demo(monkeypatch):
    """The demo as it is, with fewer rounds."""
    monkeypatch.setattr(ridge_demo, "ROUNDS", 12)


@pytest.mark.usefixtures("short_demo")
def test_demo_prints_a_table_and_writes_a_figure(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    for word in ("ST-GT", "FlexGT (first)", "FlexGT (last)", "Scaffold", "0 of 20"):
        assert word in result.output
    assert "rounds of all runs" not in result.output, "no progress bar where there is no terminal"
    assert (tmp_path / "new" / "convergence.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new" / "convergence.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["convergence.pdf", "convergence.png"]


@pytest.mark.usefixtures("short_demo")
def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "convergence.png").write_text("mine")
    result = run("demo", "--out", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.strip().endswith("is not empty: give another folder, or --force to overwrite what is there.")
    assert (tmp_path / "convergence.png").read_text() == "mine"
    assert CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--force"]).exit_code == 0
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        result = run("demo", "--out", str(out))
        assert result.returncode == 2
        assert result.stderr.startswith("stgt: --out")
        assert len(result.stderr.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_unknown_command_and_list():
    assert run("demonstrate").returncode == 2
    listed = run("list")
    assert listed.returncode == 0
    assert "STGT" in listed.stdout
    assert "exponential" in listed.stdout


def test_a_diverging_run_can_be_drawn(tmp_path):
    """Its curve ends where a seed leaves the finite numbers; no warning on the way."""
    problem = stgt.problems.ridge(n=4, p=2, scale="none")
    trace = stgt.simulate(stgt.DPSGD(gamma=9.0), problem, stgt.topology.ring(4), 200, 3)
    assert trace.diverged.all()
    written = curves({"D-PSGD": trace}, tmp_path / "picture")
    assert [path.name for path in written] == ["picture.png", "picture.pdf"]
