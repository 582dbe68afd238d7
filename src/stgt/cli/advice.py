"""`check`: what the theory says of a run before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from stgt.cli.common import Imports, app, console, import_scripts, number
from stgt.progress import bar

if TYPE_CHECKING:
    from stgt.experiments import RunSpec
    from stgt.theory import Advice


@app.command()
def check(
    spec: Annotated[
        Path, typer.Argument(help=escape("TOML file with [algorithm], [problem], [topology]; target = 1e-3."))
    ],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with LIBSVM's files, if the problem needs one.")] = None,
    scripts: Imports = None,
) -> None:
    """Say before a run whether it is stable, its error in the long run, the largest safe gamma, and what it sends.

    Examples:
        stgt check spec.toml
        stgt check spec.toml --import my_methods.py --data-dir DATA
    """
    from stgt.experiments import load_spec, make_all
    from stgt.theory import check as look

    import_scripts(scripts)
    given = load_spec(spec)
    for run, made in zip(given.runs, make_all(given, spec, data_dir), strict=True):
        with bar(f"{made.algorithm.label} on {made.topology.name}", console) as tick:
            advice = look(*made.objects, target=run.target, progress=tick)
        console.print(_advice_table(f"{made.algorithm.label} on {made.topology.name}: {advice.basis}", advice, run))
        for sentence in advice.warnings:
            console.print(f"warning: {sentence}", style="bold")


def _advice_table(title: str, advice: Advice, run: RunSpec) -> Table:
    answer = {True: "yes", False: "NO", None: "unknown"}[advice.stable]
    rows = {
        "stable": answer if advice.radius is None else f"{answer}, spectral radius {advice.radius:.6f}",
        "steady-state E‖x̄−x*‖²": number(advice.error),
        "largest safe gamma": number(advice.largest_gamma),
        "Theorem's limit on gamma": number(advice.theorem_gamma),
        "bytes a node sends": f"{advice.bytes_a_round:,.0f} a round, {advice.bytes_a_round * run.rounds:,.0f} in all",
        "L, mu, σ², ρ": ", ".join(number(value) for value in (advice.L, advice.mu, advice.sigma2, advice.rho)),
    }
    if run.target is not None:
        reached = advice.rounds_to_target
        rows[f"rounds to {run.target:g}"] = "not reached" if reached is None else f"{reached:,}"
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
