"""`report`: runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stgt._internal.files import check_writable, writing
from stgt._internal.progress import bar, split_progress
from stgt.cli.common import Imports, app, import_scripts, say


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `stgt run`, `sweep` or `compare` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option(help="Overwrite the file if it is there.")] = False,
    title: Annotated[str, typer.Option(help="Above the page; the runs' names if left out.")] = "",
    theory: Annotated[bool, typer.Option(help="Predict each method at its best by the exact theory.")] = True,
    scripts: Imports = None,
) -> None:
    """Write a page on runs: interactive curves, a table with exact predictions, the graph and the spec.

    It is one file that needs no network, for a browser of any size, light or dark.

    Examples:
        stgt report runs/wine -o wine.html
        stgt report runs/a runs/b --title 'Ring and torus' --no-theory
    """
    from stgt.study import load_study
    from stgt.study.report import write_page

    if out.is_dir():
        raise ValueError(f"out {out} is a folder: give a file.")
    if out.exists() and not force:
        raise ValueError(f"out {out} is there already: give another file, or force=True to overwrite it.")
    with writing(out, "out"):
        check_writable(out.resolve().parent)  # before what takes time
    import_scripts(scripts)
    with bar("what the theory predicts") as tick:
        ticks = split_progress(tick, [1.0] * len(folders))
        studies = [load_study(folder, theory, part) for folder, part in zip(folders, ticks, strict=True)]
    say(f"wrote {write_page(studies, out, title)}")
