"""Studies: what their folders hold, what protects them, and how they go on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from specs import command, write_own_data, write_rows, write_spec
from typer.testing import CliRunner

import stgt
from stgt.cli import app
from stgt.study import Folder, load_comparison, load_spec, load_study, plan

TREE = {
    "run": ["01-st-gt", "02-proxskip", "03-scaffold"],
    "sweep": [f"{name}.{part}" for name in ("01-st-gt", "02-proxskip", "03-scaffold") for part in (1, 2)],
}


def cli(*arguments: object):
    """The command line in this process; what it prints has no line breaks of the terminal's."""
    found = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})
    if isinstance(found.exception, Exception) and not isinstance(found.exception, ValueError):
        raise found.exception
    return found


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    found = cli("sweep", write_spec(folder, "sweep"), "--out", folder / "out", "--workers", 1)
    assert found.exit_code == 0, found.output
    return folder / "out"


def test_a_folder_has_what_was_run_and_found(swept):
    assert {path.name for path in swept.iterdir() if path.is_dir()} == {
        f"{name}.{part}" for name in ("01-st-gt", "02-proxskip", "03-scaffold") for part in (1, 2)
    }
    record = json.loads((swept / "run.json").read_text())
    assert (record["kind"], record["status"], record["seeds"]) == ("sweep", "finished", [0, 1])
    assert record["versions"]["stgt"] == stgt.__version__
    assert load_spec(swept / "spec.toml") == Folder.open(swept).spec, "what was run can be read and run again"
    assert (swept / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(table(swept / "summary.csv")) == 15


def test_the_table_has_what_the_library_finds(swept):
    """A row for each setting, seed and round, in the same bits as `stgt.sweep` has them."""
    spec = load_spec(swept / "spec.toml")
    made = plan("sweep", spec, swept / "spec.toml").batches[0]
    gammas = [one.gamma for one in made.algorithms]
    assert gammas == [0.02, 0.05, 0.1], "a grid of five is two batches, whatever the number of workers"
    traces = stgt.sweep(made.algorithms[0], made.problem, made.topology, 40, 2, grid={"gamma": gammas}, engine="numpy")
    rows = table(swept / "01-st-gt.1" / "metrics.csv")
    assert [(row["setting"], int(row["seed"]), int(row["round"])) for row in rows] == [
        (f"gamma={gamma:g}", seed, r) for r in range(41) for gamma in gammas for seed in (0, 1)
    ]
    assert {row["method"] for row in rows} == {"ST-GT"}
    for name in ("residual", "consensus", "floats"):
        found = np.array([float(row[name]) for row in rows]).reshape(41, 3, 2)
        np.testing.assert_array_equal(found, np.stack([trace[name] for trace in traces]).transpose(2, 0, 1))


def test_rows_can_be_thinned(tmp_path):
    found = cli("run", write_spec(tmp_path, "run"), "--out", tmp_path / "out", "--set", "every=15")
    assert found.exit_code == 0, found.output
    rounds = {int(row["round"]) for row in table(tmp_path / "out" / "01-st-gt" / "metrics.csv")}
    assert rounds == {0, 15, 30, 40}, "and the end"


def test_tau_can_be_swept(tmp_path):
    """What shapes the program makes a batch of its own."""
    spec = write_spec(tmp_path, "compare")
    batches = plan("compare", load_spec(spec, ["grid.tau=[1, 4]", "runs.1.algorithm.p=0.3"]), spec).batches
    assert [batch.settings for batch in batches if batch.method == "ST-GT"] == [
        tuple(f"gamma={gamma}, tau={tau}" for gamma in ("0.05", "0.1", "0.2")) for tau in (1, 4)
    ]


def test_the_number_of_workers_changes_no_bit(swept, tmp_path):
    found = cli("sweep", write_spec(tmp_path, "sweep"), "--out", tmp_path / "out", "--workers", 3)
    assert found.exit_code == 0
    tables = sorted(path.relative_to(swept) for path in swept.glob("*/metrics.csv"))
    assert len(tables) == 6
    for name in tables:
        assert (tmp_path / "out" / name).read_bytes() == (swept / name).read_bytes()


def test_a_comparison_is_the_librarys(tmp_path):
    spec = write_spec(tmp_path, "compare")
    assert cli("compare", spec, "--out", tmp_path / "out").exit_code == 0
    found = load_comparison(Folder.open(tmp_path / "out"))
    made = plan("compare", load_spec(spec), spec).batches
    methods = [(batch.algorithms[0], batch.topology) for batch in made]
    grid = {"gamma": [0.05, 0.1, 0.2]}
    options = {"grid": grid, "engine": "numpy"}
    direct = stgt.compare(methods, made[0].problem, made[0].topology, 40, 2, **options)
    assert found.ranking == direct.ranking
    assert [row["chosen"] for row in found.table] == [row["chosen"] for row in direct.table]
    assert [row["error"] for row in found.table] == [row["error"] for row in direct.table]
    assert found.caption == direct.caption
    assert "Chosen on seeds 0, 1; all numbers are of the fresh seeds 2, 3." in found.caption
    report = load_study(tmp_path / "out", theory=False)
    shown = report.comparison
    assert (shown.verdict, shown.ranking, shown.cells()) == (direct.verdict, direct.ranking, direct.cells())


def test_a_comparison_without_its_fresh_runs_says_so_and_goes_on_to_the_same(tmp_path):
    """As if it had been killed while the second stage was made."""
    out, spec = tmp_path / "out", write_spec(tmp_path, "compare")
    assert cli("compare", spec, "--out", out).exit_code == 0
    fresh = out / "02-proxskip-fresh"
    wanted = {name: (out / name).read_bytes() for name in ("summary.csv", "02-proxskip-fresh/metrics.csv")}
    shutil.rmtree(fresh)
    (out / "summary.csv").unlink()
    found = load_comparison(Folder.open(out))
    assert "No fresh seeds were run: all numbers are of seeds 0, 1, which make the best look too good" in found.caption
    assert {trace.seeds for trace in found.best.values()} == {(0, 1)}
    assert cli("compare", "--resume", out).exit_code == 0
    assert {name: (out / name).read_bytes() for name in wanted} == wanted


def test_a_longer_comparison_may_choose_another_setting(tmp_path):
    """The fresh runs of one setting are no beginning of another's. At first the largest stepsize is best, later the
    least, as its noise is."""
    spec = write_spec(tmp_path, "compare")
    given = ["--set", "problem.noise=1.0", "--set", "outputs=[]"]
    for name, rounds in (("long", 30), ("short", 2)):
        assert cli("compare", spec, "--out", tmp_path / name, "--set", f"rounds={rounds}", *given).exit_code == 0
    before = load_comparison(Folder.open(tmp_path / "short")).best
    assert cli("compare", "--resume", tmp_path / "short", "--set", "rounds=30").exit_code == 0
    after = load_comparison(Folder.open(tmp_path / "short")).best
    assert before["ST-GT"].algorithm.gamma > after["ST-GT"].algorithm.gamma
    for file in (tmp_path / "long").glob("*/metrics.csv"):
        assert (tmp_path / "short" / file.relative_to(tmp_path / "long")).read_bytes() == file.read_bytes()


@pytest.mark.thorough
def test_a_comparison_may_end_at_its_target(tmp_path):
    spec, given = write_spec(tmp_path, "compare"), ["--set", "rounds=400", "--set", "target=0.02"]
    for name, more in (("whole", ()), ("short", ("--set", "stop=true"))):
        assert cli("compare", spec, "--out", tmp_path / name, *given, *more).exit_code == 0
    whole, short = (load_comparison(Folder.open(tmp_path / name)) for name in ("whole", "short"))
    assert short.ranking == whole.ranking
    assert short.best["ST-GT"].rounds < whole.best["ST-GT"].rounds == 400
    assert "finished" in cli("show", tmp_path / "short").output
    assert "without a target" in str(cli("compare", spec, "--set", "stop=true", "--out", tmp_path / "no").exception)


def test_what_is_compared_has_one_problem(tmp_path):
    spec = write_spec(tmp_path, "compare")
    found = cli("compare", spec, "--set", "runs.1.rounds=7", "--out", tmp_path / "out")
    assert "rounds differs between the runs" in str(found.exception)
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_overwritten(swept, tmp_path):
    before = (swept / "run.json").read_bytes()
    spec = write_spec(tmp_path, "sweep")
    found = cli("sweep", spec, "--out", swept)
    assert f"--out {swept} holds a run that is finished" in str(found.exception)
    assert (swept / "run.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "is not empty" in str(cli("sweep", spec, "--out", tmp_path / "mine").exception)


def test_an_unfinished_run_is_continued_by_the_command_that_is_named(tmp_path):
    out, spec = tmp_path / "out", write_spec(tmp_path, "run")
    assert cli("run", spec, "--out", out).exit_code == 0
    Folder.open(out).end(finished=False)
    advice = f"give another folder, `stgt run --resume {out}` to continue it, or --force for a new one."
    assert str(cli("run", spec, "--out", out).exception).endswith(advice)
    assert cli("run", "--resume", out).exit_code == 0
    assert Folder.open(out).finished


def test_force_begins_anew(tmp_path):
    out = tmp_path / "out"
    assert cli("run", write_spec(tmp_path, "run"), "--out", out).exit_code == 0
    assert cli("sweep", write_spec(tmp_path, "sweep", rounds=5), "--out", out, "--force").exit_code == 0
    assert {path.name for path in out.iterdir() if path.is_dir()} == set(TREE["sweep"]), (
        "nothing of the old one is left"
    )
    assert Folder.open(out).kind == "sweep"


def test_a_finished_run_can_be_made_longer(tmp_path):
    """To what it would have been, had it been asked for at once."""
    spec = write_spec(tmp_path, "run")
    assert cli("run", spec, "--out", tmp_path / "long", "--set", "rounds=60").exit_code == 0
    assert cli("run", spec, "--out", tmp_path / "short").exit_code == 0
    assert cli("run", "--resume", tmp_path / "short", "--set", "rounds=60").exit_code == 0
    for name in TREE["run"]:
        one, other = (tmp_path / which / name / "metrics.csv" for which in ("short", "long"))
        assert one.read_bytes() == other.read_bytes()
    assert load_spec(tmp_path / "short" / "spec.toml") == load_spec(tmp_path / "long" / "spec.toml")


@pytest.mark.parametrize(("old", "new"), [("gamma = 0.1", "gamma = 0.5"), ("rounds = 40", "rounds = 60"), ("[", "[[[")])
@pytest.mark.sampled
def test_an_edited_spec_is_neither_ignored_nor_obeyed(tmp_path, old, new):
    out = tmp_path / "out"
    assert cli("run", write_spec(tmp_path, "run"), "--out", out).exit_code == 0
    file, metrics = out / "spec.toml", out / TREE["run"][0] / "metrics.csv"
    text, before = file.read_text(), metrics.read_bytes()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert f"{file} was edited, but a resumed run keeps its spec" in str(cli("run", "--resume", out).exception)
    assert metrics.read_bytes() == before
    for same in (f"# a note\n{text}", None):
        file.unlink() if same is None else file.write_text(same)
        assert cli("run", "--resume", out).exit_code == 0
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "rounds=5"], "the run already has 40 rounds; give more"),
        (["--set", "algorithm.gamma=0.2"], "only rounds=… may be set"),
        (["other.toml"], "leave other.toml out"),
    ],
)
def test_what_goes_on_stays_what_it_is(swept, arguments, words):
    assert words in str(cli("sweep", "--resume", swept, *arguments).exception)


def test_another_command_does_not_go_on_with_it(swept):
    found = cli("run", "--resume", swept)
    assert f"--resume {swept} was written by `stgt sweep`: use `stgt sweep --resume {swept}`" in str(found.exception)


def test_changed_data_are_noticed(tmp_path):
    """A run that has begun does not go on with other data."""
    spec, rows = write_own_data(tmp_path)
    assert cli("run", spec, "--out", tmp_path / "out").exit_code == 0
    (digest,) = json.loads((tmp_path / "out" / "run.json").read_text())["data"].values()
    assert len(digest) == 64
    write_rows(tmp_path, rows * 1.01)
    found = cli("run", "--resume", tmp_path / "out", "--set", "rounds=9")
    assert "different one" in str(found.exception)


def test_a_method_of_ones_own_goes_on_with_its_script(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "from dataclasses import dataclass\nimport stgt\n\n\n@stgt.register\n@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(stgt.DPSGD):\n    pass\n"
    )
    spec = write_spec(tmp_path, "run")
    out = tmp_path / "out"
    given = ["--set", "runs.0.algorithm.name=Mine", "--import", script]
    assert cli("run", spec, "--out", out, *given).exit_code == 0
    assert f"--import {script}" in str(cli("run", "--resume", out, "--set", "rounds=50").exception)
    assert cli("run", "--resume", out, "--set", "rounds=50", "--import", script).exit_code == 0


def test_a_narrow_terminal_has_room_for_the_names(swept):
    shown = CliRunner().invoke(app, ["show", str(swept)], env={"COLUMNS": "80"})
    assert shown.output.count("ST-GT") >= 5


def test_show_and_json(swept):
    shown = cli("show", swept)
    assert "a small study: finished" in shown.output
    assert shown.output.count("gamma=0.05") >= 3
    answer = json.loads(cli("show", swept, "--json").output)
    assert (answer["kind"], answer["status"], len(answer["rows"])) == ("sweep", "finished", 15)
    best = min(answer["rows"], key=lambda row: row["error"])
    assert answer["ranking"][0][0] == best["method"]


def test_json_is_all_that_a_script_reads(tmp_path):
    """What is for people goes to stderr."""
    found = cli("run", write_spec(tmp_path, "run", rounds=3), "--out", tmp_path / "out", "--json")
    assert json.loads(found.stdout)["folder"] == str(tmp_path / "out")
    assert "3 methods" in found.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "run.json").write_text("{"), "run.json is damaged"),
        (lambda folder: (folder / "run.json").write_text('{"kind": "run"}'), "run.json is damaged"),
        (lambda folder: (folder / "run.json").write_text('{"format": 2}'), "run.json has format 2, not 1"),
        (lambda folder: (folder / "run.json").unlink(), "is not a run"),
        (lambda folder: (folder / "01-st-gt" / "state.stgt").write_bytes(b"x"), "is cut off"),
    ],
)
def test_a_damaged_folder_is_a_sentence(tmp_path, change, words):
    assert cli("run", write_spec(tmp_path, "run", rounds=3), "--out", tmp_path / "out").exit_code == 0
    change(tmp_path / "out")
    for arguments in (["show", tmp_path / "out"], ["run", "--resume", tmp_path / "out"]):
        assert words in str(cli(*arguments).exception)


@pytest.mark.parametrize("name", ["..", ".", "", "../precious", "/tmp", "01-st-gt/../..", "x"])
@pytest.mark.sampled(3)
def test_a_folder_of_somebody_elses_removes_nothing_outside(tmp_path, name):
    """Its run.json may say anything; --force removes batches, and no other folder."""
    (tmp_path / "precious").mkdir()
    spec = write_spec(tmp_path, "run", rounds=3)
    assert cli("run", spec, "--out", tmp_path / "out").exit_code == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    record["batches"][0]["folder"] = name
    (tmp_path / "out" / "run.json").write_text(json.dumps(record))
    found = cli("run", spec, "--out", tmp_path / "out", "--force")
    assert "run.json is damaged" in str(found.exception)
    assert (tmp_path / "precious").is_dir()
    assert (tmp_path / "out" / "run.json").is_file()


@pytest.mark.parametrize("key", ["name", "status", "rule", "spec", "batches", "kind", "started"])
@pytest.mark.parametrize("value", [None, 3, [{}], {"x": 1}])
def test_a_record_that_says_nonsense_is_a_sentence(swept, tmp_path, key, value):
    record = json.loads((swept / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, key: value}))
    assert str(cli("show", tmp_path).exception).endswith("run it again into another one.")


def test_who_does_not_get_the_folder_changes_nothing_in_it(tmp_path):
    """A longer run is not asked for while another process makes this one."""
    process = running(tmp_path)
    try:
        found = cli("run", "--resume", tmp_path / "out", "--set", "rounds=200000")
        assert "being written by another process" in str(found.exception)
        assert {run.rounds for run in Folder.open(tmp_path / "out").spec.runs} == {100_000}
    finally:
        process.kill()
        process.communicate()


def test_a_divergence_is_a_result(tmp_path):
    found = cli(
        "run", write_spec(tmp_path, "run", rounds=300), "--out", tmp_path / "out", "--set", "algorithm.gamma=50.0"
    )
    assert found.exit_code == 0, found.output
    assert "ST-GT at its best diverges." in found.output
    assert (tmp_path / "out" / "curves.png").exists()
    assert json.loads(cli("show", tmp_path / "out", "--json").output)["rows"][0]["error"] is None


def running(folder: Path, rounds: int = 100_000) -> subprocess.Popen:
    """A study that takes minutes, once it has something to show."""
    spec = write_spec(folder, "run", rounds=rounds)
    process = subprocess.Popen(
        command("run", spec, "--out", folder / "out"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while len([*folder.glob("out/*/state.stgt")]) < 1:
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    return process


def test_control_c_keeps_what_was_done_and_says_how_to_go_on(tmp_path):
    process = running(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith(f"Continue with: stgt run --resume {tmp_path / 'out'}")
    assert "interrupted after" in " ".join(out.split())
    assert Folder.open(tmp_path / "out").state == "interrupted"
    assert "Traceback" not in errors


def test_two_processes_do_not_write_one_folder(tmp_path):
    process = running(tmp_path)
    try:
        assert Folder.open(tmp_path / "out").state == "running"
        assert "being written by another process" in str(cli("run", "--resume", tmp_path / "out").exception)
        spec = write_spec(tmp_path, "run")
        assert "being written" in str(cli("run", spec, "--out", tmp_path / "out", "--force").exception)
    finally:
        process.kill()
        process.communicate()
    assert Folder.open(tmp_path / "out").state == "killed"
