"""`list` and `schema`: the registered names, and the runs in a folder."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from stgt.cli.common import Imports, app, console, import_scripts

# The kinds of names, and the module that registers those of the library. Only scripts register models and data sets.
KINDS = {
    "algorithms": "algorithms",
    "topologies": "topology",
    "problems": "problems",
    "oracles": "oracles",
    "metrics": "simulator",
    "models": "",
    "datasets": "",
}


@app.command(name="list")
def list_names(
    what: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)} or runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, with a description of each.")] = False,
    below: Annotated[Path, typer.Option(help="The folder with the runs.")] = Path("runs"),
    scripts: Imports = None,
) -> None:
    """List the names for spec files, including your own, or the runs in a folder.

    `stgt list algorithms` prints a line about each algorithm.

    Examples:
        stgt list
        stgt list algorithms --import my_methods.py
        stgt list models --import my_model.py
        stgt list runs
    """
    from stgt._internal.checks import check_choice

    import_scripts(scripts)
    if what is not None and check_choice(what, "what", (*KINDS, "runs")) == "runs":
        _list_runs(below, as_json)
        return
    kinds = [what] if what else list(KINDS)
    if as_json:
        print(json.dumps({kind: _described(kind) for kind in kinds}, indent=2, ensure_ascii=False))
        return
    for kind in kinds:
        if what is None:
            if names := _described(kind):
                console.print(f"{kind}:", ", ".join(names))
            continue
        table = Table("name", "description")
        for name, words in _described(kind).items():
            table.add_row(name, words)
        console.print(table)


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="run, for the specs of run, sweep, compare and check; or train.")] = "run",
    scripts: Imports = None,
) -> None:
    """Print the JSON schema of spec files. With it, an editor completes and checks them.

    Put `#:schema ./stgt.schema.json` in the first line of a spec.

    Examples:
        stgt schema > stgt.schema.json
        stgt schema train > train.schema.json
    """
    from stgt._internal.checks import check_choice
    from stgt.study.spec.schema import spec_schema

    import_scripts(scripts)
    print(json.dumps(spec_schema(check_choice(kind, "kind", ("run", "train"))), indent=2, ensure_ascii=False))


def _list_runs(below: Path, as_json: bool) -> None:
    """The studies in a folder with their status, newest first."""
    from stgt.study import list_folders

    names = ("folder", "name", "kind", "state", "begun", "methods")
    rows = [
        (str(one.path), one.name, one.kind, one.state, one.record["started"], ", ".join(one.methods))
        for one in list_folders(below)
    ]
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], ensure_ascii=False))
        return
    if not rows:
        console.print(f"no runs in {below}: `stgt run`, `sweep` and `compare` write them there.")
        return
    table = Table(*names)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _described(kind: str) -> dict[str, str]:
    """A description of each name of a kind."""
    from stgt._internal import registry

    known: registry.Registry = getattr(registry, kind.upper())
    names = getattr(import_module(f"stgt.{KINDS[kind]}"), f"list_{kind}")() if KINDS[kind] else known.names()
    return {name: registry.summary(known.find(name, "name")) for name in names}
