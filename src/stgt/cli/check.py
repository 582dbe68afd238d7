"""`check`: predictions of the theory for a run, before it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from stgt._internal.progress import bar
from stgt.cli.common import AsJson, DataDir, Imports, Sets, app, console, import_scripts, number, plain

if TYPE_CHECKING:
    from stgt.study import Batch
    from stgt.theory import Advice


@app.command()
def check(
    spec: Annotated[
        Path, typer.Argument(help=escape("TOML file with [algorithm], [problem], [topology]; target = 1e-3."))
    ],
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    scripts: Imports = None,
) -> None:
    """Predict whether a run is stable, its steady-state error, the largest safe gamma, and the bytes it sends.

    If the spec has a grid, it predicts each combination.

    Examples:
        stgt check spec.toml
        stgt check spec.toml --set algorithm.gamma=0.1 --set target=1e-3
        stgt check spec.toml --import my_methods.py --data-dir DATA
    """
    from stgt.study import load_spec, plan

    import_scripts(scripts)
    given = load_spec(spec, sets or ())
    answers = []
    for group in plan("check", given, spec, data_dir).methods.values():
        run, topology = given.runs[group[0].run], group[0].topology
        predictions = _predictions(group, run.target)
        title = f"{group[0].method} on {topology.name}: {next(iter(predictions.values())).basis}"
        if as_json:
            answers += [{"method": group[0].method, "setting": key, **asdict(one)} for key, one in predictions.items()]
            continue
        console.print(_table(title, predictions, run.target, run.rounds))
        for words, one in predictions.items():
            for sentence in one.warnings:
                where = f"{words}: " if len(predictions) > 1 else ""
                console.print(f"warning: {where}{sentence}", style="bold", soft_wrap=True)
    if as_json:
        rows = [{key: plain(value) for key, value in answer.items()} for answer in answers]
        print(json.dumps(rows, ensure_ascii=False))


def _predictions(group: list[Batch], target: float | None) -> dict[str, Advice]:
    """The prediction for each setting of a method."""
    from stgt.theory.advice import check_all

    first, words = group[0], [one for batch in group for one in batch.settings]
    algorithms = [one for batch in group for one in batch.algorithms]
    with bar(group[0].method, console) as tick:
        options = {"oracle": first.options["oracle"], "target": target, "progress": tick}
        found = check_all(algorithms, first.problem, first.topology, **options)
    return dict(zip(words, found, strict=True))


def _table(title: str, predictions: dict[str, Advice], target: float | None, rounds: int) -> Table:
    """A row for each number and a column for each setting. Numbers that all settings share are in the caption."""
    several = [_rows(one, target, rounds, short=len(predictions) > 1) for one in predictions.values()]
    shared = [] if len(several) == 1 else [name for name in several[0] if len({rows[name] for rows in several}) == 1]
    caption = "\n".join(f"{name}: {several[0][name]}" for name in shared)
    table = Table(title=title, title_justify="left", caption=caption or None, caption_justify="left")
    table.show_header = len(several) > 1
    for words in ("", *predictions):
        table.add_column(words)
    for name in several[0]:
        if name not in shared:
            table.add_row(name, *(rows[name] for rows in several))
    return table


def _rows(advice: Advice, target: float | None, rounds: int, short: bool) -> dict[str, str]:
    answer = {True: "yes", False: "NO", None: "unknown"}[advice.stable]
    radius = "" if advice.radius is None else f"{'' if short else 'spectral radius '}{advice.radius:.6f}"
    unknown = answer if advice.stable is None else None
    rows = {
        "stable, radius" if short else "stable": answer if advice.radius is None else f"{answer}, {radius}",
        "steady-state E‖x̄−x*‖²": unknown or number(advice.error),
        "largest safe gamma": unknown or number(advice.largest_gamma),
        "Theorem's limit on gamma": number(advice.theorem_gamma),
        "bytes a node sends": f"{advice.bytes_a_round:,.0f} a round, {advice.bytes_a_round * rounds:,.0f} in all",
        "bytes a node receives": f"{advice.bytes_received:,.0f} a round, {advice.bytes_received * rounds:,.0f} in all",
        "L, mu, σ², ρ": ", ".join(number(value) for value in (advice.L, advice.mu, advice.sigma2, advice.rho)),
    }
    if target is not None:
        reached = advice.rounds_to_target
        rows[f"rounds to {target:g}"] = unknown or ("not reached" if reached is None else f"{reached:,}")
    return rows
