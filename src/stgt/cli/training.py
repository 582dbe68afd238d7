"""`train`: classifiers in several processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from stgt._internal.progress import bar
from stgt.cli.common import Imports, Sets, app, console, find_clone, import_scripts, print_line


@app.command()
def train(
    spec: Annotated[Path, typer.Argument(help=escape("TOML file with one run, or several as [[runs]]."))],
    out: Annotated[
        Path, typer.Option(help="Folder for curves, checkpoints and models; an unfinished run in it continues.")
    ],
    nodes: Annotated[int, typer.Option(help="The number of processes; each is a node.", min=1)] = 8,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set.")] = None,
    download: Annotated[bool, typer.Option(help="Download the data set to --data-dir if it is missing.")] = False,
    max_restarts: Annotated[int, typer.Option(help="How often to restart after a process has died.", min=0)] = 0,
    sets: Sets = None,
    scripts: Imports = None,
) -> None:
    """Train classifiers in several processes of this machine; for several machines see `torchrun -m stgt.torch.train`.

    The model and the data set of a spec are functions that your script registers.

    Examples:
        stgt train spec.toml --out runs/own --nodes 4 --import my_model.py
        stgt train examples/mnist.toml --out runs/mnist --data-dir DATA --download
    The same command again continues a stopped run. A clone has the models and data sets of examples/.
    """
    from stgt._internal.files import read_table

    try:
        from stgt.torch.train import StoppedTrainingError, launch, load_training
        from stgt.torch.train.preflight import cautions
        from stgt.torch.train.run_folder import left_out
    except ImportError as error:  # from torch or safetensors
        raise ValueError("training needs PyTorch: pip install 'stgt[torch]'.") from error
    clone = find_clone()
    scripts = [*([clone / "reproductions" / "register.py"] if clone else ()), *(scripts or ())]
    import_scripts(scripts)
    runs = load_training(spec, sets or ())
    for sentence in (*cautions(runs), *left_out()):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    options = {"data_dir": data_dir, "download": download, "max_restarts": max_restarts, "scripts": scripts}
    try:
        with bar("rounds", console) as tick:
            launch(runs, nodes, out, progress=tick, print_line=print_line, **options)
    except StoppedTrainingError as error:
        print(f"stgt: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    table = Table("run", "rounds", "training loss", "test accuracy", "own models", "MB sent per node")
    for run in runs.runs:
        row = read_table(out / run.folder / "curve.csv")[-1]
        table.add_row(
            run.name,
            f"{float(row['round']):.0f}",
            f"{float(row['train_loss']):.4f}",
            f"{float(row['test_accuracy']):.2%}",
            f"{float(row['own_accuracy']):.2%}",
            f"{float(row['bytes_sent']) / 1e6:.1f}",
        )
    console.print(table)
    print_line(f"wrote curve.csv, curve.png and model.safetensors of each run below {out}")
