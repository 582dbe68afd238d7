"""The command line: parse, call, print."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(
    help="Decentralised and federated optimisation with local updates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite what the folder holds.")] = False,
) -> None:
    """Compare ST-GT, FlexGT and Scaffold on the paper's ridge problem, over 20 seeds."""
    from stgt.experiments import demo as run
    from stgt.experiments import summary
    from stgt.experiments.ridge_demo import TITLE
    from stgt.report import curves, output_folder

    folder = output_folder(out, force)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("rounds of all runs", total=None)
        traces = run(lambda done, total: bar.update(task, completed=done, total=total))

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
        table.add_row(row.method, _plus_minus(row.error, row.half_width), f"{row.floats:.0f}", row.diverged)
    console.print(table)
    for path in curves(traces, folder / "convergence", title=TITLE):
        console.print(f"wrote {path}")


@app.command(name="list")
def list_names() -> None:
    """Name the algorithms and topologies there are."""
    from stgt import list_algorithms, list_topologies

    console.print("algorithms:", ", ".join(list_algorithms()))
    console.print("topologies:", ", ".join(list_topologies()))


def _plus_minus(value: float, half_width: float) -> str:
    """(1.32 ± 0.02)e-02: both numbers with one exponent."""
    if not math.isfinite(value) or value <= 0:
        return "not finite"
    exponent = math.floor(math.log10(value))
    return f"({value / 10**exponent:.2f} ± {half_width / 10**exponent:.2f})e{exponent:+03d}"


def main() -> None:
    """The entry point: what the user can mend is one sentence and exit code 2, not a traceback."""
    try:
        app()
    except ValueError as error:
        print(f"stgt: {error}", file=sys.stderr)
        sys.exit(2)
