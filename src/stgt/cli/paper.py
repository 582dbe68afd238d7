"""The paper's experiments: `demo` and `reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from typer.core import TyperArgument, TyperCommand

from stgt._internal.markup import interval, number
from stgt._internal.progress import bar
from stgt.cli.common import app, complete_reproductions, console, print_line, reproductions

if TYPE_CHECKING:
    from click import Context, HelpFormatter


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite the files in the folder.")] = False,
) -> None:
    """Draw the paper's figure: ST-GT, FlexGT and Scaffold on ridge regression, and methods that send fewer bytes.

    11 runs of 20 seeds on 32 nodes, each with its exact prediction: about half a minute.

    Examples:
        stgt demo
        stgt demo --out picture --force
    """
    from stgt._internal.files import output_folder
    from stgt.study.demo import BACKDROP, TARGET, figure
    from stgt.study.demo import demo as run
    from stgt.study.report import draw

    folder = output_folder(out, force)
    with bar("rounds of all runs", console) as tick:
        runs = run(tick)

    some = runs[0].trace
    size = f"{some.problem.n} nodes, tau={some.algorithm.tau}, gamma={some.algorithm.gamma}"
    table = Table(title=f"Ridge regression: {size}; {len(some.seeds)} seeds, {some.rounds} rounds", box=SIMPLE_HEAD)
    table.add_column("method")
    table.add_column("graph")
    for heading in ("error × 1000 [95 % interval]", "exact", "kB a node"):
        table.add_column(heading, justify="right")
    for one in runs:
        if one.method != BACKDROP:
            sent = one.bytes_to_target
            reached = "never" if sent is None else f"{sent / 1000:.1f}"
            exact = "?" if one.exact is None else number(1000 * one.exact)
            table.add_row(one.method, one.graph, interval(*(1000 * value for value in one.error)), exact, reached)
    console.print(table)
    print_line("error      ‖x̄ − x*‖², the squared distance of the mean model to the minimiser, over the last quarter")
    print_line("exact      the same from theory, without a run")
    print_line(
        f"kB a node  the kilobytes that a node sends, in single precision, until the error is {1000 * TARGET:g}/1000"
    )
    if moving := [f"{one.method} ({one.graph})" for one in runs if not one.settled]:
        print_line(f"not at the steady state after {some.rounds} rounds: {', '.join(moving)}")
    for path in draw(figure(runs), folder / "convergence"):
        print_line(f"wrote {path}")
    lost = [f"{one.method} from round {one.lost_at} on" for one in runs if one.lost_at is not None]
    if lost:
        print(f"stgt: the demo has no result, because these runs diverged: {', '.join(lost)}.", file=sys.stderr)
        raise typer.Exit(1)
    print_line("next: your own CSV file and graph, without Python: docs/tutorials/study.md")


class Reproduce(TyperCommand):
    """The command; its help lists the experiments, which are loaded only for that."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                names = ", ".join(complete_reproductions(""))
                parameter.help = (
                    f"One of {names}." if names else "The experiment; only a clone of the repository has them."
                )
        super().format_help(ctx, formatter)


@app.command(cls=Reproduce)
def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment.", autocompletion=complete_reproductions)],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default NAME.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the files in the folder.")] = False,
    readings: Annotated[
        list[str] | None, typer.Option("--reading", help="A reading of the paper; repeat for more.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, if the experiment needs it.")] = None,
    scale: Annotated[
        str | None, typer.Option(help="The size: small, grid, paper (cifar10), full or lenet (federated).")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of training, instead of those of the scale.", min=1)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images per batch, for cifar10.", min=1)] = None,
) -> None:
    """Run one of the paper's experiments, and write figures, results.csv, the spec and claims.json.

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
