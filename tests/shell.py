"""Whether a command line of the documentation could be run: the program, what it is given, and its options exist."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import typer
from click import Command, Group, UsageError

from stgt.cli import app

ROOT = Path(__file__).parents[1]


def wrong(line: str, files: set[str]) -> str | None:
    """What is wrong with a command line, None if nothing is; `files` are those that its page writes itself."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, arguments = words[0], words[1:]
    if program in LOOKS:
        return LOOKS[program](arguments, files)
    if "/" in program and not os.access(ROOT / program, os.X_OK):
        return f"{program} is no program of this repository"
    if program.endswith("/deploy.sh"):
        return deploy_line(arguments)
    if "/" in program:
        return None
    return f"{program}: say in tests/shell.py how to look at it, or call the block text"


def stgt_line(arguments: list[str], files: set[str]) -> str | None:
    return click_line("stgt", typer.main.get_command(app), arguments)


def click_line(name: str, command: Command, arguments: list[str]) -> str | None:
    """Click's own words, without running anything."""
    while isinstance(command, Group):
        word, *arguments = arguments or [""]
        if word not in command.commands:
            return f"there is no {name} {word}"
        name, command = f"{name} {word}", command.commands[word]
    try:
        if "--help" not in arguments:
            command.make_context(name, arguments, parent=None)
    except UsageError as error:
        return f"{name}: {error.format_message()}"
    return None


def make_line(arguments: list[str], files: set[str]) -> str | None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    return None if set(arguments) <= set(targets) else f"the Makefile has no {arguments}"


def pip_line(arguments: list[str], files: set[str]) -> str | None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    given = arguments[1:]
    if "-c" in given:
        at = given.index("-c")
        if not (ROOT / given[at + 1]).is_file():
            return f"there is no {given[at + 1]}"
        del given[at : at + 2]
    for wanted in given:
        parts = re.fullmatch(r"(?:stgt|\.)(?:\[([\w,]+)\])?", wanted)
        if arguments[0] != "install" or parts is None or not set((parts[1] or "").split(",")) <= {"", *extras}:
            return f"pip install {wanted}: no such extra"
    return None


def torchrun_line(arguments: list[str], files: set[str]) -> str | None:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(arguments)
    if given.module:
        return None if importlib.util.find_spec(given.training_script) else f"no module {given.training_script}"
    return python_line([given.training_script], files)


def python_line(arguments: list[str], files: set[str]) -> str | None:
    if arguments[0] in files:
        return None
    path = ROOT / arguments[0]
    if not path.is_file():
        return f"there is no {arguments[0]}"
    ast.parse(path.read_text())
    return None


def flwr_line(arguments: list[str], files: set[str]) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of Typer
        from flwr.cli.app import app as flwr

    if arguments[0] == "run" and not (ROOT / arguments[1]).exists():
        return f"there is no {arguments[1]}"
    return click_line("flwr", typer.main.get_command(flwr), arguments)


def deploy_line(arguments: list[str]) -> str | None:
    """Its own table of words, and of how many arguments each needs."""
    needs = dict(re.findall(r"\[(\w+)\]=(\d)", (ROOT / "examples/flower/deploy.sh").read_text()))
    word = arguments[0] if arguments else ""
    if word not in needs or len(arguments) - 1 < int(needs[word]):
        return f"deploy.sh {' '.join(arguments)}: see its first lines"
    return None


LOOKS: dict[str, Callable[[list[str], set[str]], str | None]] = {
    "stgt": stgt_line,
    ".venv/bin/stgt": stgt_line,
    "make": make_line,
    "pip": pip_line,
    "torchrun": torchrun_line,
    "python": python_line,
    "flwr": flwr_line,
}
