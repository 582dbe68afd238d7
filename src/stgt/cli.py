"""The command line: parse, call, print."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from stgt.flags import in_flags
from stgt.progress import bar

if TYPE_CHECKING:
    from click import Context

    from stgt.experiments import RunSpec
    from stgt.theory import Advice


class Commands(TyperGroup):
    """The commands, whose errors speak of the flags of the one that was called."""

    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            called = self.commands[str(ctx.invoked_subcommand)]
            raise ValueError(in_flags(str(error), called)) from error


app = typer.Typer(
    cls=Commands,
    help="Decentralised and federated optimisation with local updates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(markup=False, emoji=False)  # brackets in names, paths and sentences are just brackets


Imports = Annotated[
    list[Path] | None,
    typer.Option("--import", help="Python script that registers methods, topologies or problems; repeat for more."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite what the folder holds.")] = False,
) -> None:
    """Compare ST-GT, FlexGT and Scaffold on the paper's ridge problem, over 20 seeds."""
    from stgt.experiments import demo as run
    from stgt.experiments import summary
    from stgt.experiments.ridge_demo import TITLE
    from stgt.files import output_folder
    from stgt.report import curves

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
        table.add_row(row.method, _plus_minus(row.error, row.half_width), f"{row.floats:.0f}", row.diverged)
    console.print(table)
    for path in curves(traces, folder / "convergence", title=TITLE):
        console.print(f"wrote {path}")
    lost = [f"{row.method} from round {row.lost_at} on" for row in rows if row.lost_at is not None]
    if lost:
        print(f"stgt: the demo has no result: not finite are {', '.join(lost)}.", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="convergence, local-updates, topology, frontier, directed, heterogeneity, relaxed, table1, cifar10, "
            "mnist, federated."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; NAME if left out.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite what the folder holds.")] = False,
    readings: Annotated[
        list[str] | None, typer.Option("--reading", help="A reading of the paper; repeat for more.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, where some is needed.")] = None,
    scale: Annotated[str | None, typer.Option(help="small, paper (cifar10 only) or grid.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train, instead of the scale's own.", min=1)] = None,
    batch: Annotated[int | None, typer.Option(help="Images a batch, for cifar10.", min=1)] = None,
) -> None:
    """Run one of the paper's experiments: figures, results.csv, the spec it ran, and claims.json."""
    from stgt.experiments import divergences, write_outcome
    from stgt.experiments.reproduce import prepared, works_in
    from stgt.files import output_folder

    experiment = prepared(name, readings, data_dir, scale=scale, rounds=rounds, batch=batch)
    folder = output_folder(out or Path(name), force)
    with bar(name, console) as tick:
        outcome = experiment(progress=tick, **works_in(name, folder / "runs"))
    table = Table("claim", "reading", "holds", "what")
    for claim in outcome.claims:
        table.add_row(claim.id, claim.reading, "yes" if claim.holds else "NO", claim.claim)
    console.print(table)
    for path in write_outcome(outcome, folder):
        console.print(f"wrote {path}")
    for sentence in divergences(outcome):
        console.print(f"warning: {sentence}", style="bold")


@app.command()
def train(
    spec: Annotated[Path, typer.Argument(help=escape("TOML file with one run, or several as [[runs]]."))],
    out: Annotated[Path, typer.Option(help="Folder for curves, checkpoints and models; an unfinished one goes on.")],
    nodes: Annotated[int, typer.Option(help="How many processes, each a node.", min=1)] = 8,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch the data set into --data-dir if it is not there.")] = False,
    max_restarts: Annotated[int, typer.Option(help="How often to go on after a process has died.", min=0)] = 0,
    scripts: Imports = None,
) -> None:
    """Train image classifiers in several processes of this machine; for more machines see `torchrun -m stgt.train`.

    Exit code 2: the input can be mended; 3: a process was killed or lost; 4: numbers were not finite; 1: anything else.
    """
    from stgt.experiments.training.aftermath import StoppedTrainingError
    from stgt.experiments.training.launch import launch
    from stgt.experiments.training.record import left_out
    from stgt.experiments.training.spec import load_training
    from stgt.experiments.training.stability import cautions
    from stgt.files import read_table

    _import(scripts)
    runs = load_training(spec)
    for sentence in (*cautions(runs), *left_out()):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    options = {"data_dir": data_dir, "download": download, "max_restarts": max_restarts, "scripts": scripts or ()}
    try:
        with bar("rounds", console) as tick:
            launch(runs, nodes, out, progress=tick, say=_say, **options)
    except StoppedTrainingError as error:
        print(f"stgt: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    table = Table("run", "rounds", "training loss", "test accuracy", "own models", "MB a node sent")
    for run in runs.runs:
        row = read_table(out / run.folder / "curve.csv")[-1]
        table.add_row(
            run.name,
            f"{float(row['round']):.0f}",
            f"{float(row['train_loss']):.4f}",
            f"{float(row['test_accuracy']):.2%}",
            f"{float(row['own_accuracy']):.2%}",
            f"{float(row['bytes_sent']) / 1e6:.1f}",
        )
    console.print(table)
    _say(f"wrote curve.csv, curve.png and model.safetensors of each run below {out}")


@app.command()
def check(
    spec: Annotated[
        Path, typer.Argument(help=escape("TOML file with [algorithm], [problem], [topology]; target = 1e-3."))
    ],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with LIBSVM's files, if the problem needs one.")] = None,
    scripts: Imports = None,
) -> None:
    """Say before a run whether it is stable, its error in the long run, the largest safe gamma, and what it sends."""
    from stgt.experiments import load_spec, make
    from stgt.theory import check as look

    _import(scripts)
    for run in load_spec(spec).runs:
        made = make(run, data_dir)
        with bar(f"{made.algorithm.label} on {made.topology.name}", console) as tick:
            advice = look(*made.objects, target=run.target, progress=tick)
        console.print(_advice_table(f"{made.algorithm.label} on {made.topology.name}: {advice.basis}", advice, run))
        for sentence in advice.warnings:
            console.print(f"warning: {sentence}", style="bold")


@app.command(name="list")
def list_names(scripts: Imports = None) -> None:
    """Name the algorithms, topologies and problems there are."""
    from stgt.algorithms import list_algorithms
    from stgt.problems import list_problems
    from stgt.topology import list_topologies

    _import(scripts)
    console.print("algorithms:", ", ".join(list_algorithms()))
    console.print("topologies:", ", ".join(list_topologies()))
    console.print("problems:", ", ".join(list_problems()))


def _import(scripts: list[Path] | None) -> None:
    from stgt.registry import import_script

    for script in scripts or ():
        import_script(script)


def _say(line: str) -> None:
    """A line at once and in one piece, above a bar if there is one."""
    console.print(line, soft_wrap=True)


def _advice_table(title: str, advice: Advice, run: RunSpec) -> Table:
    answer = {True: "yes", False: "NO", None: "unknown"}[advice.stable]
    rows = {
        "stable": answer if advice.radius is None else f"{answer}, spectral radius {advice.radius:.6f}",
        "steady-state E‖x̄−x*‖²": _number(advice.error),
        "largest safe gamma": _number(advice.largest_gamma),
        "Theorem's limit on gamma": _number(advice.theorem_gamma),
        "bytes a node sends": f"{advice.bytes_a_round:,.0f} a round, {advice.bytes_a_round * run.rounds:,.0f} in all",
        "L, mu, σ², ρ": ", ".join(_number(value) for value in (advice.L, advice.mu, advice.sigma2, advice.rho)),
    }
    if run.target is not None:
        reached = advice.rounds_to_target
        rows[f"rounds to {run.target:g}"] = "not reached" if reached is None else f"{reached:,}"
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _number(value: float | None) -> str:
    return "none" if value is None or math.isnan(value) else f"{value:.4g}"


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
