"""torchrun --nproc-per-node 8 -m stgt.train --spec SPEC.toml --data-dir DATA --out RUNS"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.markup import escape
from typer.main import get_command

from stgt.experiments.training.launch import claim_folder
from stgt.experiments.training.node_training import NodeTraining
from stgt.experiments.training.spec import TrainingSpec, load_training
from stgt.files import write_text
from stgt.flags import in_flags
from stgt.problems.images import Images, load_images
from stgt.registry import import_script
from stgt.torch import LostNodeError, init

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train(
    spec: Annotated[Path, typer.Option(help=escape("TOML file with one run, or several as [[runs]]."))],
    out: Annotated[Path, typer.Option(help="Folder for curves, checkpoints and models; an unfinished one goes on.")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch the data set into --data-dir if it is not there.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which a node counts as lost.")] = 300.0,
    scripts: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Python script that registers methods or topologies; repeat for more."),
    ] = None,
) -> None:
    """Train image classifiers over the processes that torchrun started."""
    for script in scripts or ():
        import_script(script)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # several processes share this machine's cores
    runs = load_training(spec)
    claim_folder(out, runs)
    fetches = download and os.environ.get("LOCAL_RANK", "0") == "0"
    images = load_sets(runs, data_dir, download) if fetches or not download else {}
    rank = init(timeout=timeout)
    if download:
        dist.barrier()  # one process of each host has fetched what the others now read
        images = images or load_sets(runs, data_dir)
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    total, done = sum(run.rounds for run in runs.runs), 0
    for run in runs.runs:
        folder = out / run.folder
        finished: list[Any] = [(folder / "model.safetensors").exists()]
        dist.broadcast_object_list(finished, src=0)
        if not finished[0]:

            def tick(r: int, before: int = done) -> None:
                if rank == 0:
                    write_text(out / "progress.json", json.dumps({"done": before + r, "total": total}))

            NodeTraining(run, images[run.data.name], device).train(folder, tick)
        done += run.rounds
    dist.barrier()
    dist.destroy_process_group()


def load_sets(runs: TrainingSpec, data_dir: Path | None, download: bool = False) -> dict[str, Images]:
    """The data sets of all runs, by name."""
    return {name: load_images(name, data_dir, download) for name in {run.data.name for run in runs.runs}}


def main() -> None:
    """What the user can mend is one sentence and exit code 2; a lost node is one sentence and exit code 3."""
    rank = os.environ.get("RANK", "0")
    try:
        app()
    except ValueError as error:
        # All processes of a host find the same fault before they have joined: one of them says it.
        if dist.is_initialized() or os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"stgt: {in_flags(str(error), get_command(app))}", file=sys.stderr, flush=True)
        sys.exit(2)
    except LostNodeError as error:
        print(f"stgt: {error}", file=sys.stderr, flush=True)
        os._exit(3)  # the backend's connections are broken: leaving in good order could wait for them
    except Exception as error:
        print(f"stgt: rank {rank} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise


if __name__ == "__main__":
    main()
