"""Rounds per second of several libraries, on one core: `python benchmarks/peers.py`; docs/peers.md has the results.

Each library runs in its own virtual environment, which the first run creates, with a driver in benchmarks/peers. The
measurements alternate, A B C … A B C …, because machines are noisy: compare only within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import stgt

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from environments import PEERS, Peer, PeerError, made

DRIVERS = Path(__file__).parent / "peers"
N, P, MU, NOISE, SAMPLED, ROUNDS = 32, 10, 0.5, 0.1, 16, 20
TIME_OUT = 900
TITLES = {
    "K-GT": f"K-GT, ring of {N}, tau = 50, with noise",
    "Scaffold": f"Scaffold, {SAMPLED} of {N} workers per round, tau = 50, with noise",
    "DIGing": f"Gradient tracking (DIGing), ring of {N}, one step per round, without noise",
}
HEADINGS = ("library", "rounds/s", "range", "stgt is", "first round", "models differ by")


@dataclass
class Row:
    """The measurements of one library with one method."""

    peer: Peer
    method: str
    rates: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    difference: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""


def setting(method: str, compared: bool, seconds: float) -> dict[str, Any]:
    """The setting for a driver. To compare the models, it has no noise and all workers take part."""
    problem = stgt.problems.ridge(n=N, p=P, mu=MU, noise=NOISE)
    one_step = method == "DIGing"
    return {
        "method": method,
        "theta": problem.data["theta"].tolist(),
        "d": problem.data["d"].tolist(),
        "W": stgt.topology.ring(N).matrix(0).tolist(),
        "mu": MU,
        "gamma": 0.1 if one_step else 0.4,
        "tau": 1 if one_step else 50,
        "sampled": N if compared else SAMPLED,
        "sigma": 0.0 if compared or one_step else NOISE**0.5,
        "rounds": ROUNDS if compared else 0,
        "seconds": seconds,
    }


def driven(peer: Peer, python: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The driver's answer, with `start`: the seconds from its start to the end of its first round."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "setting.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(given))
        command = [*peer.launcher(python, N), str(DRIVERS / peer.driver), str(asked), str(answer)]
        before = time.time()
        with open(Path(folder) / "log.txt", "w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
            try:
                process.wait(TIME_OUT)
            except subprocess.TimeoutExpired:
                raise PeerError(f"its driver took more than {TIME_OUT} s") from None
            finally:
                if process.poll() is None:  # also after Ctrl-C
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
        if not answer.exists():
            raise PeerError(f"its driver ended with code {process.returncode}: {lines[-1] if lines else 'no output'}")
        found = json.loads(answer.read_text())
    return {**found, "start": found["first"] - before}


def compared(rows: list[Row], pythons: dict[str, Path], console: Console) -> None:
    """Fills in the difference of each library's models from stgt's in float64, after ROUNDS rounds."""
    exact = {}
    for row in rows:
        with console.status(f"{row.peer.name}: the models of {row.method}"):
            try:
                found = driven(row.peer, pythons[row.peer.name], setting(row.method, True, 0.0))
            except PeerError as error:
                row.failure = str(error)
                continue
        models = np.array(found["models"])
        row.difference = float(abs(models - exact.setdefault(row.method, models)).max())
        row.versions = {"Python": found["python"], **found["versions"]}


def timed(rows: list[Row], pythons: dict[str, Path], turns: int, seconds: float, console: Console) -> list[float]:
    """Fills in the rates, turn by turn; returns the machine's load before each of them."""
    loads = []
    for turn in range(turns):
        for row in rows:
            if row.failure:
                continue
            loads.append(os.getloadavg()[0])
            with console.status(f"turn {turn + 1} of {turns}: {row.peer.name}, {row.method}"):
                try:
                    found = driven(row.peer, pythons[row.peer.name], setting(row.method, False, seconds))
                except PeerError as error:
                    row.failure = str(error)
                    continue
            row.rates.append(found["rounds"] / found["seconds"])
            row.starts.append(found["start"])
    return loads


def short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 20 else f"{rate:.1f}"


def cells(row: Row, ours: Row) -> tuple[str, ...]:
    middle = statistics.median(row.rates)
    ratio = statistics.median(ours.rates) / middle
    return (
        row.peer.name,
        short(middle),
        f"{short(min(row.rates))} – {short(max(row.rates))}",
        "" if row is ours else f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times",
        f"{statistics.median(row.starts):.1f} s",
        "" if row is ours or row.difference is None else f"{row.difference:.0e}",
    )


def printed(rows: list[Row], markdown: bool, console: Console) -> None:
    for method, title in TITLES.items():
        measured = [row for row in rows if row.method == method and row.rates and not row.failure]
        ours = next((row for row in measured if row.peer.name == "stgt"), None)
        if ours is None:
            continue
        lines = [cells(row, ours) for row in measured]
        if markdown:
            print(f"\n**{title}**\n\n| {' | '.join(HEADINGS)} |\n|---{'|--:' * (len(HEADINGS) - 1)}|")
            print("\n".join(f"| {' | '.join(line)} |" for line in lines))
            continue
        table = Table(title=title)
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "library" else "right")
        for line in lines:
            table.add_row(*line)
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stgt" / "peers"
    parser.add_argument("--envs", type=Path, default=cache, help="folder of the environments (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[peer.name for peer in PEERS], help="in addition to stgt"
    )
    parser.add_argument("--turns", type=int, default=3, help="measurements of each library (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="the duration of each measurement (%(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args()
    console = Console(stderr=options.markdown)

    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OMP_NUM_THREADS"] = "1"
    pythons, wanted = {}, [p for p in PEERS if not options.only or p.name in (*options.only, "stgt")]
    for peer in wanted:
        with console.status(f"{peer.name}: create its environment"):
            try:
                pythons[peer.name] = made(peer, options.envs)
            except PeerError as error:
                console.print(f"{peer.name} is skipped: {error}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the drivers inherit it

    rows = [Row(peer, method) for method in TITLES for peer in wanted if peer.name in pythons and method in peer.runs]
    compared(rows, pythons, console)
    loads = timed(rows, pythons, options.turns, options.seconds, console)
    printed(rows, options.markdown, console)
    for row in rows:
        if row.failure:
            console.print(f"{row.peer.name}, {row.method}, is left out: {row.failure}")
    for name in dict.fromkeys(row.peer.name for row in rows if row.versions):
        versions = next(row.versions for row in rows if row.peer.name == name)
        console.print(f"{name}: " + ", ".join(f"{package} {number}" for package, number in versions.items()))
    if loads:
        console.print(f"load before the measurements: {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    wrong = [row for row in rows if row.difference is not None and row.difference > row.peer.rounding]
    for row in wrong:
        console.print(f"{row.peer.name}, {row.method}: the models differ by {row.difference:.1e}, beyond rounding.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
