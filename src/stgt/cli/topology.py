"""`topology`: a picture of a graph or a schedule, and its numbers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from stgt._internal.checks import InputError
from stgt._internal.progress import bar
from stgt.cli.common import Imports, app, complete_topologies, console, import_scripts, number, print_line

if TYPE_CHECKING:
    from stgt.study.report.topology_stats import TopologyStats

ENDINGS = (".png", ".pdf", ".gif")


@app.command()
def topology(
    name: Annotated[
        str, typer.Argument(help="The name, such as exponential; see `stgt list`.", autocompletion=complete_topologies)
    ],
    n: Annotated[int, typer.Option(help="Number of nodes, if the topology takes it.", min=1)] = 32,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An argument of the topology, such as neighbors=3; repeat for more."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Picture to write; by default NAME.png.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to compute; by default three periods.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite existing pictures.")] = False,
    scripts: Imports = None,
) -> None:
    """Draw a graph or a schedule, and print its degree, ρ, spectral gap, eigenvalues and speed of agreement.

    It writes PNG and PDF, and a GIF if the rounds differ. With very many nodes, it draws only the numbers.

    Examples:
        stgt topology exponential --n 32 --set neighbors=3
        stgt topology one_peer_exponential --n 16 -o peers.png
        stgt topology random_matching --n 20 --set seed=7 --rounds 30
    """
    from stgt.study.report.topology_figure import animate, draw_topology
    from stgt.study.report.topology_stats import topology_stats
    from stgt.study.spec import build_topology

    import_scripts(scripts)
    built = build_topology({"name": name, **_arguments(settings or [])}, n)
    stem = _stem(out or Path(name))
    changes = built.period != 1
    files = [Path(f"{stem}{ending}") for ending in (ENDINGS if changes else ENDINGS[:2])]
    there = [path for path in files if path.exists()]
    if there and not force:
        raise InputError("out", there[0], " exists: give another file, or {other} to overwrite it.", other="force=True")
    found = topology_stats(built, rounds)
    if not as_json:
        console.print(_table(found))
    with bar(f"drawing {built.name}"):
        written = draw_topology(found, stem)
        if changes and found.drawing is not None:
            written.append(animate(found, files[2]))
    if as_json:
        print(json.dumps({**_plain(found), "files": [str(path) for path in written]}, indent=2, allow_nan=False))
        return
    for what, reason in found.unknown.items():
        print_line(f"no {what}: {reason}.")
    for path in written:
        print_line(f"wrote {path}")


def _arguments(settings: list[str]) -> dict[str, Any]:
    """The arguments by key, from key=value; each value is TOML, or a word without quotes."""
    found: dict[str, Any] = {}
    for given in settings:
        key, equals, value = given.partition("=")
        if not equals or not key.strip():
            raise InputError("settings", given, "give a name and a value, such as neighbors=3.")
        if value.strip().isidentifier() and value.strip() not in ("true", "false", "inf", "nan"):
            value = json.dumps(value.strip())
        try:
            found |= tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            raise InputError("settings", given, f"{value} is not a TOML value, such as 3, 0.5 or [1, 2].") from None
    return found


def _stem(out: Path) -> Path:
    return out.with_suffix("") if out.suffix in ENDINGS else out


def _table(found: TopologyStats) -> Table:
    from stgt.study.report.topology_stats import messages, near_one

    topology, rho = found.topology, found.rho
    period = "random, drawn again each round" if topology.random else "none: it never repeats"
    if topology.period is not None:
        period = "1, static" if topology.period == 1 else f"{topology.period:,}"
    interval = "" if rho is None or rho.exact else f" ({number(rho.low)} to {number(rho.high)} from {rho.draws} draws)"
    rows = {
        "nodes": f"{topology.n:,}",
        "degree": f"{topology.degree:,}",
        "period": period,
        "links": "symmetric" if topology.symmetric else "directed",
        "messages a round": messages(found),
        "ρ = ‖E[WᵀW] − J‖": "unknown" if rho is None else near_one(rho) + interval,
        "spectral gap 1 − |λ₂|": "unknown" if found.gap is None else number(found.gap),
    }
    if found.period_rho is not None:
        rows["ρ of a whole period"] = number(found.period_rho)
    if found.distances is not None:
        end = found.agreed_after
        left = f"{near_one(float(found.distances[-1]))} after {found.rounds:,} rounds"
        rows["distance to agreement"] = left if end is None else f"0 after {end:,} rounds"
    table = Table(title=topology.name, show_header=False, title_justify="left")
    for key, value in rows.items():
        table.add_row(key, value)
    return table


def _plain(found: TopologyStats) -> dict[str, Any]:
    topology = found.topology
    return {
        "name": topology.name,
        "n": topology.n,
        "degree": topology.degree,
        "period": topology.period,
        "random": topology.random,
        "symmetric": topology.symmetric,
        "doubly_stochastic": topology.doubly_stochastic,
        "messages_a_round": found.messages,
        "rho": None if found.rho is None else float(found.rho),
        "rho_is_exact": None if found.rho is None else found.rho.exact,
        "spectral_gap": found.gap,
        "rho_of_a_period": found.period_rho,
        "rounds": found.rounds,
        "distances": None if found.distances is None else found.distances.tolist(),
        "eigenvalues": {
            name: [[float(one.real), float(one.imag)] for one in values] for name, values in found.eigenvalues.items()
        },
        "unknown": found.unknown,
    }
