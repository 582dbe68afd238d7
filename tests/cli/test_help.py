"""What the command line tells of itself: help, version, exit codes, near names, and the shell's completion."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import stgt
from reproductions import EXPERIMENTS
from stgt.cli import app
from stgt.cli.common import complete_reproductions, complete_topologies
from stgt.topology import list_topologies
from stgt.torch.train import launcher

STGT = Path(sys.executable).with_name("stgt")
COMMANDS = get_command(app).commands


def printed(*arguments) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"}, prog_name="stgt")
    assert result.exit_code == 0, result.output
    return result.output


def completions(words: str) -> list[str]:
    """What bash offers for the last of the words."""
    count = len(words.split(" ")) - 1
    asked = {"_STGT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    return CliRunner().invoke(app, [], env=asked, prog_name="stgt").output.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_by_examples(name):
    """The lines of the examples are lines of the help, and begin with the command and flags that it has."""
    lines = [line.strip() for line in printed(name, "--help").splitlines()]
    examples = [line for line in lines[lines.index("Examples:") :] if line.startswith("stgt ")]
    flags = {flag for parameter in COMMANDS[name].params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert examples
    for example in examples:
        assert example.split()[1] == name
        assert {word for word in example.split() if word.startswith("--")} <= flags


def test_the_help_of_all_is_tidy():
    words = printed("--help")
    for name, command in COMMANDS.items():
        assert re.search(rf"│ {name} +{re.escape(command.help.partition('.')[0])}", words)
    assert "Examples" not in words
    for option in ("--version", "--install-completion", "--show-completion"):
        assert option in words


def test_exit_codes_are_documented():
    lines = [line.split(maxsplit=1) for line in printed("--help").partition("Exit codes:")[2].splitlines()]
    codes = {int(line[0]): line[1].strip() for line in lines if line}
    assert codes == {
        0: "done",
        launcher.FAILED: "something failed",
        launcher.BAD_INPUT: "wrong input",
        launcher.LOST: "a process was killed or lost",
        launcher.NONFINITE: "numbers are not finite",
        128 + signal.SIGINT: "stopped by Ctrl-C; finished work is kept",
    }


def test_ctrl_c_is_130(tmp_path):
    """`check` reads its spec from a pipe that nobody writes to."""
    pipe = tmp_path / "spec.toml"
    os.mkfifo(pipe)
    process = subprocess.Popen([STGT, "check", pipe], stderr=subprocess.PIPE, text=True)
    with pipe.open("w"):  # waits until it is read
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 130


def test_version():
    assert printed("--version") == f"stgt {stgt.__version__}\n"


def test_reproduce_names_what_there_is():
    words = " ".join(printed("reproduce", "--help").replace("│", " ").split())
    assert f"One of {', '.join(EXPERIMENTS)}." in words
    assert complete_reproductions("relaxed") == ["relaxed", "relaxed-mnist", "relaxed-cifar10"]
    assert complete_reproductions("") == list(EXPERIMENTS)


def test_topologies_are_completed():
    assert complete_topologies("") == list_topologies()
    assert complete_topologies("ex") == ["exponential"]
    assert complete_topologies("no such") == []


def test_the_shell_completes():
    assert set(completions("stgt ")) == set(COMMANDS)
    assert completions("stgt reproduce relaxed-") == ["relaxed-mnist", "relaxed-cifar10"]
    assert completions("stgt check --da") == ["--data-dir"]
    script = subprocess.run([STGT, "--show-completion", "bash"], capture_output=True, text=True, check=True).stdout
    assert "_STGT_COMPLETE=complete_bash" in script


@pytest.mark.parametrize(
    ("arguments", "near"), [(["chek"], "Did you mean 'check'"), (["check", "--data"], "Did you mean --data-dir?")]
)
def test_a_near_name_is_said(arguments, near):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert near in result.output
