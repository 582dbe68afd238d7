"""`run`, `sweep`, `compare`: a spec file becomes a folder of results; `show` prints it, `report` writes a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from stgt._internal.checks import InputError
from stgt._internal.files import check_writable, writing
from stgt._internal.markup import many
from stgt._internal.progress import bar, bars, split_progress
from stgt.cli.common import AsJson, DataDir, Imports, Sets, app, console, import_scripts, plain, print_line

if TYPE_CHECKING:
    from stgt.study import Folder, Plan
    from stgt.study.comparison import Comparison

SpecFile = Annotated[Path | None, typer.Argument(help="TOML file; not needed with --resume.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the results; by default runs/SPEC.")]
Resume = Annotated[Path | None, typer.Option(help="Continue the run in this folder, to the same bits.")]
Force = Annotated[bool, typer.Option(help="Overwrite the run in an existing folder.")]
Workers = Annotated[int | None, typer.Option(help="Runs at the same time; by default the number of cores.", min=1)]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Run on a Ray cluster: its address, such as auto or ray://host:10001; local starts a cluster here."
    ),
]


@app.command()
def run(
    spec: SpecFile = None,
    out: Out = None,
    resume: Resume = None,
    force: Force = False,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Workers = None,
    scripts: Imports = None,
) -> None:
    """Run a spec file, and write metrics.csv, the last state and a figure to a folder.

    If a run is killed or stopped by Ctrl-C, --resume continues it, to the same bits.

    Examples:
        stgt run study.toml --set rounds=100 --out runs/short
        stgt run --resume runs/short
    """
    _study("run", spec, out, resume, force, sets, data_dir, as_json, scripts, workers)


@app.command()
def sweep(
    spec: SpecFile = None,
    out: Out = None,
    resume: Resume = None,
    force: Force = False,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Workers = None,
    ray: Ray = None,
    scripts: Imports = None,
) -> None:
    """Run every combination of a spec's grid, on the cores of this machine or on a Ray cluster.

    Examples:
        stgt sweep study.toml --set 'grid.gamma=[0.01, 0.03, 0.1]'
        stgt sweep study.toml --ray auto
    """
    _study("sweep", spec, out, resume, force, sets, data_dir, as_json, scripts, workers, ray)


@app.command()
def compare(
    spec: SpecFile = None,
    out: Out = None,
    resume: Resume = None,
    force: Force = False,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Workers = None,
    ray: Ray = None,
    scripts: Imports = None,
) -> None:
    """Compare the methods of a spec, each at the best of its grid, by one rule.

    Examples:
        stgt compare examples/study/spec.toml --out runs/wine
        stgt compare --resume runs/wine
    """
    _study("compare", spec, out, resume, force, sets, data_dir, as_json, scripts, workers, ray)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of `stgt run`, `sweep` or `compare`.")],
    as_json: AsJson = False,
) -> None:
    """Show the results of a run, finished or not.

    Examples:
        stgt show runs/study
    """
    from stgt.study import Folder, load_comparison

    opened = Folder.open(folder)
    _print(opened, load_comparison(opened), as_json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `stgt run`, `sweep` or `compare`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    title: Annotated[str, typer.Option(help="Title of the page; by default the runs' names.")] = "",
    theory: Annotated[
        bool, typer.Option(help="Add the predictions of the exact theory for each method at its best.")
    ] = True,
    scripts: Imports = None,
) -> None:
    """Write a page about runs: interactive curves, a table with exact predictions, the graph and the spec.

    The page is one file for any browser, in light or dark colours. It needs no network.

    Examples:
        stgt report runs/wine -o wine.html
        stgt report runs/a runs/b --title 'Ring and torus' --no-theory
    """
    from stgt.study import load_study
    from stgt.study.report import write_page

    if out.is_dir():
        raise InputError("out", out, " is a folder: give a file.")
    if out.exists() and not force:
        raise InputError(
            "out", out, " already exists: give another file, or {other} to overwrite it.", other="force=True"
        )
    with writing(out, "out"):
        check_writable(out.resolve().parent)  # before the long computation
    import_scripts(scripts)
    with bar("predictions of the theory") as tick:
        ticks = split_progress(tick, [1.0] * len(folders))
        studies = [load_study(folder, theory, part) for folder, part in zip(folders, ticks, strict=True)]
    print_line(f"wrote {write_page(studies, out, title)}")


def _study(
    kind: str,
    spec: Path | None,
    out: Path | None,
    resume: Path | None,
    force: bool,
    sets: list[str] | None,
    data_dir: Path | None,
    as_json: bool,
    scripts: list[Path] | None,
    workers: int | None,
    ray: str | None = None,
) -> None:
    from stgt.study import LostWorkersError, execute, write_results

    out_console = Console(stderr=True, markup=False, emoji=False) if as_json else console
    import_scripts(scripts)
    remote = None
    if ray is not None:
        from stgt.study.ray import RayCluster

        remote = RayCluster(ray, out_console.print, scripts or ())
    planned, folder = _planned(kind, spec, out, resume, force, sets or (), data_dir, scripts or ())
    methods = len({batch.method for batch in planned.batches})
    amount = f"{many(methods, 'method')}, {many(planned.runs, 'run')} of {many(len(folder.record['seeds']), 'seed')}"
    out_console.print(f"{kind} {folder.name}: {amount}, into {folder.path}", soft_wrap=True)
    batches = [*planned.batches, *planned.fresh]
    numbers = {batch.folder: number for number, batch in enumerate(batches)}
    with bars(kind, [batch.work for batch in batches], out_console) as part:
        try:
            found, finished = execute(
                planned,
                folder,
                lambda batch: part(numbers[batch.folder], batch.title),
                workers=workers,
                remote=remote,
            )
        except LostWorkersError as error:
            print(f"stgt: {error} Continue with: stgt {kind} --resume {folder.path}", file=sys.stderr)
            raise typer.Exit(3) from None
    if finished:
        with bar("writing the results", out_console) as tick:
            written = write_results(folder, found, tick)
        for path in written:
            out_console.print(f"wrote {path}", soft_wrap=True)
    _print(folder, found, as_json)
    if not finished:
        print(
            f"stgt: stopped; its results so far are saved. Continue with: stgt {kind} --resume {folder.path}",
            file=sys.stderr,
        )
        raise typer.Exit(130)
    if planned.spec is not None and "report" not in planned.spec.outputs:
        out_console.print(f"Write a page of it: stgt report {folder.path} -o report.html", soft_wrap=True)


def _planned(
    kind: str,
    spec: Path | None,
    out: Path | None,
    resume: Path | None,
    force: bool,
    sets: Sequence[str],
    data_dir: Path | None,
    scripts: Sequence[Path],
) -> tuple[Plan, Folder]:
    """The plan, with a new folder or with the one to resume."""
    from stgt.study import Folder, load_spec, plan
    from stgt.study.run_folder import SPEC

    if resume is None:
        if spec is None:
            raise InputError("spec", hint=" was left out: give a TOML file, or --resume FOLDER to continue a run.")
        planned = plan(kind, load_spec(spec, sets), spec, data_dir)
        where = out or Path("runs") / spec.stem
        return planned, Folder.create(where, planned, force=force, scripts=scripts, data_dir=data_dir)
    if spec is not None:
        raise InputError("resume", hint=f" continues the run in {resume}: leave {spec} out.")
    folder = Folder.open(resume)
    if folder.kind != kind:
        raise InputError(
            "resume", hint=f" {resume} was written by `stgt {folder.kind}`: use `stgt {folder.kind} --resume {resume}`."
        )
    used, data = folder.record["scripts"], folder.record["data_dir"]
    if used and not scripts:
        raise InputError(
            "scripts", hint=f" was left out: {resume} was run with your own script; give --import {used[0]}."
        )
    return plan(kind, folder.longer_spec(sets), resume / SPEC, data_dir or (Path(data) if data else None)), folder


def _print(folder: Folder, found: Comparison, as_json: bool) -> None:
    from stgt.study.result import progress_of

    rows = found.rows if folder.kind == "sweep" else found.table
    if as_json:
        answer = {
            "folder": str(folder.path),
            "kind": folder.kind,
            "status": folder.state,
            "rule": str(found.rule),
            "ranking": found.ranking,
            "rows": [{key: plain(value) for key, value in row.items()} for row in found.rows],
        }
        print(json.dumps(answer, ensure_ascii=False))
        return
    head, *lines = found.cells(rows)
    table = Table(title=f"{folder.name}: {progress_of(folder)}", title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(head[:-1]):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i > 2, overflow="fold")
    for line in lines:
        table.add_row(*line[:-1])
    console.print(table)
    console.print(found.verdict, soft_wrap=True)
    console.print(found.caption, soft_wrap=True)
    for sentence in found.notes(rows):
        console.print(f"note: {sentence}", soft_wrap=True)
