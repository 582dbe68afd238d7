"""What is made of studies afterwards: pages, lists, and what the theory says of them."""

import json
import re
import shutil
import threading
import time

import pytest
from specs import write_own_data, write_spec
from typer.testing import CliRunner

import stgt
from stgt.cli import app
from stgt.study import load_study, result

HOSTILE = "</script><script>alert(1)</script>"


def cli(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    spec = write_spec(folder, "compare")
    found = cli("compare", spec, "--out", folder / "runs" / "one", "--set", f"name={HOSTILE}")
    assert found.exit_code == 0, found.output
    return folder / "runs" / "one"


def test_a_report_is_one_page_and_overwrites_nothing(compared, tmp_path):
    page = tmp_path / "report.html"
    assert cli("report", compared, "--out", page).exit_code == 0
    text = page.read_text()
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    again = cli("report", compared, "--out", page)
    assert f"--out {page} already exists" in str(again.exception)
    assert cli("report", compared, compared, "--out", page, "--force", "--no-theory").exit_code == 0
    assert "2 studies" in page.read_text()


def test_a_report_says_at_once_that_it_cannot_be_written(compared, tmp_path, monkeypatch):
    monkeypatch.setattr("stgt.study.load_study", None)
    (tmp_path / "file").touch()
    for out, words in (
        (tmp_path / "file" / "page.html", "cannot be written"),
        (tmp_path, "is a folder: give a file."),
    ):
        assert f"--out {out} {words}" in str(cli("report", compared, "--out", out, "--force").exception)


def test_a_study_has_what_the_theory_says(compared):
    """Of ST-GT at its best exactly; of matchings the error is that of the noise alone, as tracking is exact."""
    found = load_study(compared)
    advice = found.advice["ST-GT"]
    made = found.topologies["ST-GT"]
    best = found.comparison.best["ST-GT"].algorithm
    ridge = stgt.problems.ridge(n=6, p=3, noise=0.1)
    assert advice.error == pytest.approx(stgt.theory.steady_state(best, ridge, made).residual)


def test_a_report_does_not_wait_for_the_theory(compared, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(result, "PATIENCE", 1)
    monkeypatch.setattr("stgt.theory.check", lambda *_, **__: released.wait(60))
    began = time.monotonic()
    advice = load_study(compared).advice
    assert time.monotonic() - began < 30
    assert set(advice.values()) == {"no prediction within 1 s; `stgt check` computes without a limit"}
    released.set()


def test_a_computation_that_was_given_up_ends_at_its_next_tick(compared, monkeypatch):
    """The prediction without the stepsizes is there by then, and is used."""
    ended, quick = threading.Event(), stgt.theory.check

    def slow(*parts, progress=None, **options):
        if progress is None:
            return quick(*parts, **options)
        try:
            while True:
                progress(0, 1)
                time.sleep(0.05)
        finally:
            ended.set()

    monkeypatch.setattr(result, "PATIENCE", 1)
    monkeypatch.setattr(result, "SOON", 1e9)
    monkeypatch.setattr("stgt.theory.check", slow)
    assert all(one.largest_gamma is None for one in load_study(compared).advice.values())
    assert ended.wait(10)


def test_a_bug_in_the_theory_is_not_hidden(compared, monkeypatch):
    monkeypatch.setattr("stgt.theory.check", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_study(compared)


def test_what_is_outside_the_theory_is_said_to_be(tmp_path):
    """By `stgt check` and on a report's page, where FedAdam is one method of a study."""
    spec = write_spec(tmp_path, "run", rounds=3)
    spec.write_text(spec.read_text().replace('"ScaffoldPlus"', '"FedAdam", lr = 0.05'))
    words = "FedAdam makes a step that is not linear in the models and gradients, so the theory says nothing"
    checked = cli("check", spec)
    assert checked.exit_code == 0, checked.output
    _, table = checked.output.split("FedAdam on server(6, 2 sampled): outside the theory")
    assert f"warning: {words}" in table
    assert all(re.search(rf"{row}\s+│ unknown", table) for row in ("stable", "steady-state.*", "largest safe gamma"))
    assert re.search(r"rounds to 0\.1\s+│ unknown", cli("check", spec, "--set", "target=0.1").output)
    assert cli("run", spec, "--out", tmp_path / "out").exit_code == 0
    assert load_study(tmp_path / "out").advice["FedAdam"].stable is None
    assert cli("report", tmp_path / "out", "--out", tmp_path / "page.html").exit_code == 0
    assert words in (tmp_path / "page.html").read_text()


def test_a_page_can_be_made_when_the_data_are_gone(tmp_path):
    spec, _ = write_own_data(tmp_path)
    assert cli("run", spec, "--out", tmp_path / "out").exit_code == 0
    (tmp_path / "data.csv").unlink()
    (words,) = load_study(tmp_path / "out").advice.values()
    assert "data.csv" in words
    assert cli("report", tmp_path / "out", "--out", tmp_path / "page.html").exit_code == 0


def test_a_spec_says_what_is_written(tmp_path):
    spec = write_spec(tmp_path, "run", rounds=3)
    found = cli("run", spec, "--out", tmp_path / "out", "--set", 'outputs=["report"]')
    assert found.exit_code == 0, found.output
    names = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert names == {".lock", "run.json", "spec.toml", "report.html"}


def test_runs_are_listed(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "runs" / "deeper" / "copy")
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "run.json").write_text("[]")
    (listed,) = json.loads(cli("list", "runs", "--below", tmp_path / "runs", "--json").output)
    assert (listed["kind"], listed["state"], listed["name"]) == ("compare", "finished", HOSTILE)
    words = cli("list", "runs", "--below", tmp_path / "runs").output
    assert all(name in words for name in ("ST-GT", "ProxSkip", "Scaffold⁺", "finished"))
    assert "no runs in" in cli("list", "runs", "--below", tmp_path / "none").output


def test_check_looks_at_a_whole_grid(tmp_path):
    """The same numbers as the library's for each value."""
    spec = write_spec(tmp_path, "compare")
    (tmp_path / "one.toml").write_text(
        spec.read_text().split("[[runs]]")[0].replace("tau = 3", 'tau = 3\nname = "STGT"')
    )
    rows = json.loads(cli("check", tmp_path / "one.toml", "--json").output)
    assert [row["setting"] for row in rows] == ["gamma=0.05", "gamma=0.1", "gamma=0.2"]
    ridge, graph = stgt.problems.ridge(n=6, p=3, noise=0.1), stgt.topology.random_matching(6, seed=3)
    for row, gamma in zip(rows, (0.05, 0.1, 0.2), strict=True):
        method = stgt.STGT(gamma=gamma, tau=3)
        assert row["radius"] == pytest.approx(stgt.theory.spectral_radius(method, ridge, graph))
    words = cli("check", tmp_path / "one.toml").output
    assert "gamma=0.05" in words
    assert "largest safe gamma" in words
