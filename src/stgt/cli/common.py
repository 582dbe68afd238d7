"""Shared code of all commands: the application, its console, options, and the format of numbers."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from stgt._internal.checks import in_flags

if TYPE_CHECKING:
    from click import Context


class Commands(TyperGroup):
    """The commands; errors name the flags of the one that was called."""

    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            raise ValueError(in_flags(error, self.commands[str(ctx.invoked_subcommand)])) from error


EXIT_CODES = """Exit codes:

0    done

1    something failed

2    wrong input

3    a process was killed or lost

4    numbers are not finite

130  stopped by Ctrl-C; finished work is kept"""

app = typer.Typer(
    cls=Commands,
    help="Decentralised and federated optimisation with local updates. `stgt COMMAND --help` has examples.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console(markup=False, emoji=False)  # brackets in names, paths and messages are not markup


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        console.print(f"stgt {version('stgt')}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options before the command."""


Imports = Annotated[
    list[Path] | None,
    typer.Option("--import", help="Python script that registers what you define, such as methods; repeat for more."),
]


Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="An entry of the spec to change, such as algorithm.gamma=0.1; repeat for more."),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with LIBSVM's files, if the problem needs one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for a script.")]


def import_scripts(scripts: list[Path] | None) -> None:
    """Imports the user's scripts, which register what they define."""
    from stgt._internal.registry import import_script

    for script in scripts or ():
        import_script(script)


def complete_topologies(incomplete: str) -> list[str]:
    """The topologies whose names begin with this text, for the shell."""
    from stgt.topology import list_topologies

    return [name for name in list_topologies() if name.startswith(incomplete)]


def reproductions() -> Any:
    """The package of the paper's experiments, which is next to `src` in a clone; a ValueError if it is missing."""
    clone = find_clone()
    if clone is None:
        raise ValueError(
            "the experiments are not part of the installed package: run this in a clone of the repository."
        )
    sys.path.insert(0, str(clone))
    return import_module("reproductions")


def find_clone() -> Path | None:
    """The folder of the repository, if the package was imported from a clone or the command runs in one."""
    places = (Path(__file__).parents[3], Path.cwd())
    return next((folder for folder in places if (folder / "reproductions" / "register.py").exists()), None)


def complete_reproductions(incomplete: str) -> list[str]:
    """The experiments whose names begin with this text, for the shell."""
    try:
        return [name for name in reproductions().EXPERIMENTS if name.startswith(incomplete)]
    except ValueError:
        return []


def print_line(line: str) -> None:
    """Prints a line immediately and without line breaks, above the progress bar if there is one."""
    console.print(line, soft_wrap=True)


def number(value: float | None) -> str:
    """Four digits, or "none"."""
    return "none" if value is None or math.isnan(value) else f"{value:.4g}"


def plain(value: Any) -> Any:
    """A value for JSON, with None for numbers that are not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
