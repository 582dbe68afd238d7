"""torchrun --nproc-per-node 8 -m stgt.torch.train --spec SPEC.toml --data-dir DATA --out RUNS"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from rich.markup import escape
from torch.distributed.elastic.multiprocessing.errors import record
from typer.main import get_command

from stgt._internal.checks import in_flags
from stgt._internal.files import write_text
from stgt._internal.registry import import_script
from stgt.study.spec.training import LabelledData, TrainingSpec, load_training
from stgt.torch import LostNodeError, NonFiniteError, init
from stgt.torch.membership import Membership
from stgt.torch.process_group import leave, report_failure
from stgt.torch.train.data import load_data
from stgt.torch.train.launcher import BAD_INPUT, LOST, NONFINITE
from stgt.torch.train.node_training import NodeTraining
from stgt.torch.train.preflight import cautions, check_ready
from stgt.torch.train.run_folder import (
    MODEL,
    NOT_FINITE,
    PROGRESS,
    RunFolder,
    create_run_folder,
    draw_runs,
    left_out,
    not_finite,
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train(
    spec: Annotated[Path, typer.Option(help=escape("TOML file with one run, or several as [[runs]]."))],
    out: Annotated[Path, typer.Option(help="Folder for curves, checkpoints and models; unfinished runs continue.")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch the data set into --data-dir if it is not there.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which a node counts as lost.")] = 300.0,
    scripts: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Python script that registers models, data sets or methods; repeat for more."),
    ] = None,
) -> None:
    """Train classifiers over the processes that torchrun started."""
    for script in scripts or ():
        import_script(script)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # several processes share this machine's cores
    runs = load_training(spec)
    # On each host, one process downloads the data, checks the spec and creates the folder.
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    data = load_data(runs, data_dir, download) if first or not download else {}
    folder = RunFolder(out, new=False)
    if first:
        check_ready(runs, int(os.environ.get("WORLD_SIZE", "1")), data)
        folder = create_run_folder(out, runs)
    world = World(runs, out)
    try:
        world.join(timeout)
        if download:
            world.membership.barrier("--download")  # one process per host has downloaded what the others read next
            data = data or load_data(runs, data_dir)
        world.train(data)
    finally:
        if not world.began:
            folder.remove_unused()


class World:
    """The processes that train the runs of a spec, one run after the other."""

    def __init__(self, runs: TrainingSpec, out: Path):
        self.runs, self.out = runs, out
        self.began = False  # has this process finished a round?
        self._before = 0  # rounds of the previous runs

    def join(self, timeout: float) -> None:
        """Waits for the other processes; rank 0 prints the warnings."""
        self.rank, self.membership = init(timeout=timeout), Membership()
        for sentence in (*cautions(self.runs), *left_out()) if self.rank == 0 else ():
            print(f"warning: {sentence}", file=sys.stderr, flush=True)
        nccl = dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def train(self, data: dict[str, LabelledData]) -> None:
        """Trains all unfinished runs. Raises a NonFiniteError at the end if one of them diverged."""
        for run in self.runs.runs:
            folder = self.out / run.folder
            if not self._anywhere((folder / MODEL).exists() or (folder / NOT_FINITE).exists()):
                try:
                    training = NodeTraining(run, data[run.data.name], self.device)
                    training.train(folder, self._tick, partial(print, flush=True))
                except NonFiniteError as error:
                    write_text(folder / NOT_FINITE, f"{error}\n")
                    raise
            self._before += run.rounds
        if self.rank == 0 and len(self.runs.runs) > 1:
            draw_runs(self.runs, self.membership.nodes, self.out)
        diverged = not_finite(self.out, self.runs)
        diverged_anywhere = self._anywhere(bool(diverged))
        dist.destroy_process_group()
        if diverged_anywhere:
            raise NonFiniteError("; ".join(diverged.values()) or "a run diverged on another host")

    def _tick(self, r: int) -> None:
        self.began = True
        if self.rank == 0:
            total = sum(run.rounds for run in self.runs.runs)
            write_text(self.out / PROGRESS, json.dumps({"done": self._before + r, "total": total}))

    def _anywhere(self, here: bool) -> bool:
        """Is it true at any node? Each host may have its own folder."""
        return any(self.membership.barrier("stgt train", here))


def main() -> None:
    """Ends a failed training with an error message and an exit code; `record` writes both where the launcher reads."""
    rank = os.environ.get("RANK", "0")
    try:
        record(app)()
    except ValueError as error:
        report_failure(error)
        # All processes of a host find the same error before they have joined: one of them prints it.
        if dist.is_initialized() or os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"stgt: {in_flags(error, get_command(app))}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    except NonFiniteError as error:
        report_failure(error)
        print(f"stgt: {error}", file=sys.stderr, flush=True)
        sys.exit(NONFINITE)
    except LostNodeError as error:
        print(f"stgt (a node was lost): {error}", file=sys.stderr, flush=True)
        leave()
        os._exit(LOST)  # the backend's connections are broken: a normal exit could wait for them
    except Exception as error:
        report_failure(error)
        print(f"stgt: rank {rank} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise


if __name__ == "__main__":
    main()
