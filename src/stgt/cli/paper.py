"""The paper's experiments: `demo` and `reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer.core import TyperArgument, TyperCommand

from stgt._internal.markup import interval
from stgt._internal.progress import bar
from stgt.cli.common import app, complete_reproductions, console, print_line, reproductions

if TYPE_CHECKING:
    from click import Context, HelpFormatter


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite what the folder holds.")] = False,
) -> None:
    """Compare ST-GT, FlexGT and Scaffold on the paper's ridge problem, over 20 seeds.

    Examples:
        stgt demo
        stgt demo --out picture --force
    """
    from stgt._internal.files import output_folder
    from stgt.study.demo import TITLE, summary
    from stgt.study.demo import demo as run
    from stgt.study.report import curves

    folder = output_folder(out, force)
    with bar("rounds of all runs", console) as tick:
        traces = run(tick)

    rows, some = summary(traces), next(iter(traces.values()))
    size = f"{some.problem.n} nodes, tau={some.algorithm.tau}, gamma={some.algorithm.gamma}, σ²={some.problem.noise}"
    table = Table(
        title=f"Ridge regression: {size}; {len(some.seeds)} seeds, {some.rounds} rounds",
        caption="\n".join(f"{row.method} on {row.graph}" for row in rows),
    )
    table.add_column("method")
    for heading in ("steady-state ‖x̄−x*‖², 95 %", "floats a node and round", "diverged"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.method, interval(row.error, row.low, row.high), f"{row.floats:.0f}", row.diverged)
    console.print(table)
    for path in curves(traces, folder / "convergence", title=TITLE):
        print_line(f"wrote {path}")
    lost = [f"{row.method} from round {row.lost_at} on" for row in rows if row.lost_at is not None]
    if lost:
        print(f"stgt: the demo has no result: not finite are {', '.join(lost)}.", file=sys.stderr)
        raise typer.Exit(1)


class Reproduce(TyperCommand):
    """The command whose help lists the experiments; they are loaded only for that."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                names = ", ".join(complete_reproductions(""))
                parameter.help = (
                    f"One of {names}." if names else "Which experiment; a clone of the repository has them."
                )
        super().format_help(ctx, formatter)


@app.command(cls=Reproduce)
def reproduce(
    name: Annotated[str, typer.Argument(help="Which experiment.", autocompletion=complete_reproductions)],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; NAME if left out.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite what the folder holds.")] = False,
    readings: Annotated[
        list[str] | None, typer.Option("--reading", help="A reading of the paper; repeat for more.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, where some is needed.")] = None,
    scale: Annotated[str | None, typer.Option(help="small, grid, paper (cifar10), full or lenet (federated).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train, instead of the scale's own.", min=1)] = None,
    batch: Annotated[int | None, typer.Option(help="Images a batch, for cifar10.", min=1)] = None,
) -> None:
    """Run one of the paper's experiments: figures, results.csv, the spec it ran, and claims.json.

    Examples:
        stgt reproduce convergence --reading printed --out figure-1
        stgt reproduce mnist --data-dir DATA --scale small
    """
    from stgt._internal.files import output_folder

    package = reproductions()
    experiment = package.prepared(name, readings, data_dir, scale=scale, rounds=rounds, batch=batch)
    folder = output_folder(out or Path(name), force)
    with bar(name, console) as tick:
        outcome = experiment(progress=tick, **package.works_in(name, folder / "runs"))
    table = Table("claim", "reading", "holds", "what")
    for claim in outcome.claims:
        table.add_row(claim.id, claim.reading, "yes" if claim.holds else "NO", claim.claim)
    console.print(table)
    for path in package.write_outcome(outcome, folder):
        print_line(f"wrote {path}")
    for sentence in package.divergences(outcome):
        console.print(f"warning: {sentence}", style="bold")
