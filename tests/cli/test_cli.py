"""The command line, as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

import stgt
from stgt import cli
from stgt._internal.checks import InputError, in_flags
from stgt.cli import app
from stgt.study import demo as ridge_demo
from stgt.study.report import curves
from stgt.torch.train import __main__ as train

STGT = Path(sys.executable).with_name("stgt")


def run(*arguments, **options):
    return subprocess.run([STGT, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.fixture
def short_demo(monkeypatch):
    """The demo as it is, with fewer rounds."""
    monkeypatch.setattr(ridge_demo, "ROUNDS", 12)


@pytest.mark.usefixtures("short_demo")
@pytest.mark.thorough
def test_demo_prints_a_table_and_writes_a_figure(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    for words in ("ST-GT, β = ½", "FlexGT", "4 of 32 workers", "LED", "one peer a round", "never", "next:"):
        assert words in result.output
    assert "rounds of all runs" not in result.output, "no progress bar where there is no terminal"
    assert (tmp_path / "new" / "convergence.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new" / "convergence.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["convergence.pdf", "convergence.png"]


def test_a_demo_that_diverges_is_no_success(tmp_path, monkeypatch):
    """A first step of 1e30 times the gradient: its square is beyond single precision."""
    problem, grid = stgt.problems.ridge(n=4, p=2, scale="none"), {"gamma": [0.1, 1e30]}
    calm, wild = stgt.sweep(stgt.DPSGD(), problem, stgt.topology.ring(4), 200, 3, grid=grid)
    runs = [ridge_demo.DemoRun(name, "ring", 0, 0, one, None) for name, one in (("calm", calm), ("wild", wild))]
    monkeypatch.setattr("stgt.study.demo.demo", lambda progress: runs)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "new")])
    assert result.exit_code == 1
    assert "stgt: the demo has no result, because these runs diverged: wild from round 1 on." in result.output


def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "convergence.png").write_text("mine")
    result = run("demo", "--out", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.strip().endswith("is not empty: give another folder, or --force to overwrite what is there.")
    assert (tmp_path / "convergence.png").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.usefixtures("short_demo")
def test_it_is_overwritten_by_force(tmp_path):
    (tmp_path / "convergence.png").write_text("mine")
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


COMMANDS = {**get_command(cli.app).commands, "stgt.torch.train": get_command(train.app)}


@pytest.mark.parametrize(
    ("application", "arguments", "words"),
    [
        (cli.app, ["train"], "TOML file with one run, or several as [[runs]]."),
        (cli.app, ["check"], "TOML file with [algorithm], [problem], [topology]; target = 1e-3."),
        (train.app, [], "TOML file with one run, or several as [[runs]]."),
    ],
)
def test_help_prints_brackets(application, arguments, words):
    result = CliRunner().invoke(application, [*arguments, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert words in " ".join(result.output.split())


def test_no_help_is_read_as_markup():
    """What is in brackets is either escaped or printed as it stands."""
    for command in COMMANDS.values():
        for text in (command.help, command.epilog or "", *(parameter.help for parameter in command.params)):
            assert Text.from_markup(text).plain == text.replace("\\[", "[")


def test_what_is_printed_keeps_its_brackets(capsys):
    cli.console.print("pip install 'stgt[torch]' and [bold] [[runs]]")
    assert capsys.readouterr().out == "pip install 'stgt[torch]' and [bold] [[runs]]\n"


@pytest.mark.parametrize(
    ("command", "error", "expected"),
    [
        ("check", InputError("data_dir", hint=" was left out: give it."), "--data-dir was left out: give it."),
        ("demo", InputError("out", Path("a"), "give {other}.", other="force=True"), "--out a: give --force."),
        ("topology", InputError("path", Path("x.svg"), " ends in .svg."), "--out x.svg ends in .svg."),
        ("reproduce", InputError("readings", "x", "choose from 'y'."), "--reading='x': choose from 'y'."),
        ("reproduce", InputError("name", "x", "choose from 'y'."), "NAME='x': choose from 'y'."),
        ("stgt.torch.train", InputError("spec", Path("x.toml"), " cannot be read."), "--spec x.toml cannot be read."),
        ("train", InputError("data", "a", "give {other}.", other="data_dir"), "data='a': give --data-dir."),
        # Arguments of another command, entries of a table and sentences about no argument stay as they are.
        ("check", InputError("rounds", 9, "give fewer."), "rounds=9: give fewer."),
        ("demo", InputError("problem.out", 9, "give fewer."), "problem.out=9: give fewer."),
        ("demo", ValueError("out of memory."), "out of memory."),
    ],
)
def test_a_sentence_of_the_library_names_the_flag(command, error, expected):
    assert in_flags(error, COMMANDS[command]) == expected


@pytest.mark.thorough
def test_demo_and_check_work_without_torch(tmp_path):
    (tmp_path / "run.toml").write_text(
        'algorithm = {name = "STGT", gamma = 0.1}\nproblem = {name = "ridge", n = 4}\ntopology = {name = "ring"}\n'
    )
    code = "import sys; sys.modules['torch'] = sys.modules['flwr'] = None\n"
    code += "from stgt.cli import main; from stgt.study import demo as ridge_demo; ridge_demo.ROUNDS = 4; main()"
    for arguments, words in (
        (["demo", "--out", "here"], "convergence.png"),
        (["check", "run.toml"], "spectral radius"),
    ):
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert words in result.stdout


def test_training_without_torch_is_one_sentence(tmp_path):
    code = "import sys; sys.modules['torch'] = None\nfrom stgt.cli import main; main()"
    spec = Path(__file__).parents[2] / "examples" / "mnist.toml"
    command = [sys.executable, "-c", code, "train", str(spec), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "stgt: training needs PyTorch: pip install 'stgt[torch]'.\n"
