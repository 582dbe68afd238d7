"""Starting a training on this machine with torchrun, and following it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from reproductions.images import load_images
from stgt._internal.progress import Progress
from stgt.study.spec.training import TrainingSpec
from stgt.torch.train.failure_report import MENDABLE, why
from stgt.torch.train.lines import Lines
from stgt.torch.train.run_folder import PROGRESS, claim_folder, not_finite, unfinished


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
    say: Callable[[str], None] | None = None,
) -> None:
    """Runs a spec in `nodes` processes of one thread each.

    What can be checked without them is checked before they start and before the folder is claimed: a ValueError.
    A StoppedTrainingError says what ended a training; without a finished round it leaves nothing behind. A run that
    leaves the finite numbers is over, the others are made all the same, and then it is said.

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
        say: called with a line for each measurement.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError("training needs PyTorch: pip install 'stgt[torch]'.")
    from stgt.torch.train.preflight import check_ready

    images = {name: load_images(name, data_dir, download) for name in {run.data.name for run in spec.runs}}
    check_ready(spec, nodes, images)
    claim = claim_folder(out, spec)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nodes}"]
    command += [
        f"--max-restarts={max_restarts}",
        "-m",
        "stgt.torch.train",
        "--spec",
        str(claim.spec),
        "--out",
        str(out),
    ]
    command += ["--timeout", str(timeout)]
    command += ["--data-dir", str(data_dir)] if data_dir is not None else []
    command += [word for script in scripts for word in ("--import", str(script))]
    lines = Lines(spec, out)

    def follow() -> None:
        if progress is not None:
            _follow(out / PROGRESS, progress)
        if say is not None:
            for line in lines.new():
                say(line)

    try:
        while True:
            diverged = not_finite(out, spec)
            code, printed = _run(command, follow)
            if code == 0:
                return
            # The processes that lost a node to it have ended as well: others make the runs that are left.
            if not_finite(out, spec) == diverged or not unfinished(out, spec):
                break
        stopped = why(printed, code, out, spec)
        raise ValueError(str(stopped)) if stopped.code == MENDABLE else stopped
    finally:
        if not (out / PROGRESS).exists():
            claim.give_back()


def _run(command: Sequence[str], follow: Callable[[], None]) -> tuple[int, list[str]]:
    """Runs torchrun to its end, calling `follow` now and then; its exit code and the lines of its errors."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.3)
                follow()
        finally:
            if process.poll() is None:  # an interrupt: torchrun ends its processes
                process.terminate()
                process.wait()
        follow()
        errors.seek(0)
        return process.returncode, errors.read().splitlines()


def _follow(path: Path, progress: Progress) -> None:
    try:
        at = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    progress(at["done"], at["total"])
