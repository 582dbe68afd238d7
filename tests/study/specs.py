"""Small specs for studies, on either engine, and the command line in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np

TEXT = """
name = "a small study"
rounds = {rounds}
seeds = 2
engine = "{engine}"
[problem]
name = "ridge"
n = 6
p = 3
noise = 0.1
[topology]
name = "random_matching"
seed = 3
[algorithm]
tau = 3
{shared}
[[runs]]
algorithm = {{name = "STGT"}}
[[runs]]
algorithm = {{name = "ProxSkip", tau = 1, p = 0.5}}
[[runs]]
algorithm = {{name = "ScaffoldPlus"}}
topology = {{name = "server", sampled = 2}}
"""
SHARED = {
    "run": "gamma = 0.1",
    "sweep": "[grid]\ngamma = [0.02, 0.05, 0.1, 0.15, 0.2]",
    "compare": "[grid]\ngamma = [0.05, 0.1, 0.2]",
}
# States are saved often, and Ctrl-C is heard also by what a shell's background job has started.
FAST = """import signal, stgt.study.execution as e
e.INTERVAL = {interval}
signal.signal(signal.SIGINT, signal.default_int_handler)
from stgt.cli import main
main()"""


def write_spec(folder: Path, kind: str, engine: str = "numpy", rounds: int = 40) -> Path:
    path = folder / "study.toml"
    path.write_text(TEXT.format(rounds=rounds, engine=engine, shared=SHARED[kind]))
    return path


def command(*arguments: object, interval: float = 0.02) -> list[str]:
    """The command line as a process of its own."""
    return [sys.executable, "-c", FAST.format(interval=interval), *map(str, arguments)]


def stgt(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **options)


def write_own_data(folder: Path) -> tuple[Path, np.ndarray]:
    """A spec with data of the user's own, and the rows of its file data.csv."""
    rows = np.random.default_rng(0).normal(size=(40, 3))
    rows[:, 2] = rows[:, 0] > 0
    write_rows(folder, rows)
    path = folder / "own.toml"
    path.write_text(
        'rounds = 5\nseeds = 1\nengine = "numpy"\nalgorithm = {name = "STGT", gamma = 0.1}\n'
        'problem = {name = "logistic", data = "data.csv", n = 4, l2 = 0.1}\ntopology = {name = "ring"}\n'
    )
    return path, rows


def write_rows(folder: Path, rows: np.ndarray) -> None:
    np.savetxt(folder / "data.csv", rows, delimiter=",", header="a,b,y", comments="")
