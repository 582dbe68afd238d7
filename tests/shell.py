"""Whether a command line of the documentation could be run: the program, what it is given, and its options exist."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import typer
from click import Group, UsageError

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
    if "/" in program:
        return None if os.access(ROOT / program, os.X_OK) else f"{program} is no program of this repository"
    return f"{program}: say in tests/shell.py how to look at it, or call the block text"


def stgt_line(arguments: list[str], files: set[str]) -> str | None:
    """Click's own words, without running anything."""
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    name = arguments[0] if arguments else ""
    if name not in group.commands:
        return f"there is no stgt {name}"
    try:
        if "--help" not in arguments:
            group.commands[name].make_context(name, arguments[1:], parent=None)
    except UsageError as error:
        return f"stgt {name}: {error.format_message()}"
    return None


def make_line(arguments: list[str], files: set[str]) -> str | None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    return None if set(arguments) <= set(targets) else f"the Makefile has no {arguments}"


def pip_line(arguments: list[str], files: set[str]) -> str | None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for wanted in arguments[1:]:
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


def path_line(arguments: list[str], files: set[str]) -> str | None:
    return None if (ROOT / arguments[-1]).exists() else f"there is no {arguments[-1]}"


LOOKS: dict[str, Callable[[list[str], set[str]], str | None]] = {
    "stgt": stgt_line,
    ".venv/bin/stgt": stgt_line,
    "make": make_line,
    "pip": pip_line,
    "torchrun": torchrun_line,
    "python": python_line,
    "flwr": path_line,
}
