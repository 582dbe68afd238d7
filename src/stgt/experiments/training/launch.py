"""Starting a training on this machine with torchrun, and following it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from stgt.experiments.training.spec import TrainingSpec
from stgt.files import write_text
from stgt.problems.images import load_images
from stgt.progress import Progress
from stgt.specs import make_algorithm, make_topology, spec_text


def launch(
    spec: TrainingSpec,
    nodes: int,
    out: Path,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    max_restarts: int = 0,
    timeout: float = 300.0,
    scripts: Iterable[Path] = (),
    progress: Progress | None = None,
) -> None:
    """Runs a spec in `nodes` processes of one thread each; a ValueError has the words of what failed.

    What can be checked without them is checked before they start.

    Args:
        spec: what to train.
        nodes: how many processes, each a node.
        out: folder for the results; a training that was broken off there goes on.
        data_dir: folder with the data set.
        download: fetch it there if it is missing.
        max_restarts: how often torchrun starts the processes again after one has died.
        timeout: seconds without progress after which a node counts as lost.
        scripts: each process imports them first, for the methods and topologies that they register.
        progress: called with the rounds done and in all.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError("training needs PyTorch: pip install 'stgt[torch]'.")
    for run in spec.runs:
        make_algorithm(run.algorithm)
        make_topology(run.topology.model_dump(), nodes)
    for name in {run.data.name for run in spec.runs}:
        load_images(name, data_dir, download)
    path = claim_folder(out, spec)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nodes}"]
    command += [f"--max-restarts={max_restarts}", "-m", "stgt.train", "--spec", str(path), "--out", str(out)]
    command += ["--timeout", str(timeout)]
    command += ["--data-dir", str(data_dir)] if data_dir is not None else []
    command += [word for script in scripts for word in ("--import", str(script))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.3)
                if progress is not None:
                    _follow(out / "progress.json", progress)
        finally:
            if process.poll() is None:  # an interrupt: torchrun ends its processes
                process.terminate()
                process.wait()
        if process.returncode:
            errors.seek(0)
            raise ValueError(_reason(errors.read().splitlines()))


def claim_folder(out: Path, runs: TrainingSpec) -> Path:
    """Makes the folder and writes the spec into it; a ValueError if it holds the runs of another one."""
    text, path = spec_text(runs), out / "spec.toml"
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") != text:
                raise ValueError(f"out {out} holds the runs of another spec: give another folder.")
            return path
        return write_text(path, text)
    except OSError as error:
        raise ValueError(f"out {out} cannot be written ({error.strerror}): give another folder.") from None


def _follow(path: Path, progress: Progress) -> None:
    try:
        at = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    progress(at["done"], at["total"])


def _reason(lines: list[str]) -> str:
    """The first sentence that a process gave; without one, the last lines of what was printed."""
    said = [line.split("stgt: ", 1)[1] for line in lines if line.startswith("stgt: ")]
    if said:
        return said[0]
    return "the training ended without a word of its own: " + " / ".join(lines[-3:])
