"""LeNet on MNIST, two classes a node. Nodes are killed and others join: is the final accuracy that without changes?

Eight processes and a lighthouse, started in the same way as by a user. The images of a killed node are missing until a
node joins that has them. So the choice of the killed nodes decides which digits no node has in the meantime.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.images import load_images
from reproductions.options import check_choice
from reproductions.outcome import Claim, Outcome, TableRow, finite
from reproductions.training.comparison import a_run
from stgt.study import Progress
from stgt.study.report import Figure, Line, Panel
from stgt.torch.train import Training, TrainingSpec

NODES, TAU, BATCH, LR, EVERY = 8, 5, 32, 0.1, 10
ENDS = 3  # the number of final measurements that count
SCALES = {"small": (150, 3)}  # rounds, seeds
STILL, DISTURBED = "undisturbed", "three killed, two joined"
# In shares of the rounds. With two of ten digits per node, nodes 3 and 4 have digits that no other node has. Node 6 has
# the same digits as node 1; its images never come back.
CHANGES = (
    (40 / 150, "kill", 4),
    (60 / 150, "join", 4),
    (70 / 150, "kill", 1),
    (90 / 150, "join", 1),
    (100 / 150, "kill", 6),
)
CLONE = Path(__file__).resolve().parents[1]


def elastic_mnist(
    *,
    scale: str = "small",
    rounds: int | None = None,
    data_dir: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Relaxed ST-GT with and without nodes that are lost and join, one process per node; claims E1 and E2.

    Args:
        scale: "small" is the only one.
        rounds: instead of 150; the changes come at the same fractions of the rounds.
        data_dir: the folder with MNIST's four files.
        folder: the folder of the finished runs; an interrupted experiment continues from it.
        progress: called with the finished and the total rounds.
    """
    if find_spec("torchft") is None:
        raise ImportError("elastic-mnist needs torchft: pip install 'stgt[elastic]'.")
    length, seeds = SCALES[check_choice(scale, "scale", SCALES)]
    length = rounds or length
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return elastic_mnist(
                scale=scale, rounds=rounds, data_dir=data_dir, folder=Path(temporary), progress=progress
            )
    runs = [_run(kind, length, seed) for seed in range(seeds) for kind in (STILL, DISTURBED)]
    found = _trained(runs, folder, data_dir, progress)
    labels = load_images("mnist", data_dir).y_train
    missing = {run.seed: digits_missing(run.data.parts(labels, NODES), labels) for run in runs}
    return _judged(runs, found, missing)


def _run(kind: str, rounds: int, seed: int) -> Training:
    return a_run(
        kind,
        LR,
        seed,
        data={"name": "mnist", "partition": "label", "classes": 2, "seed": seed},
        model={"name": "lenet"},
        algorithm={"name": "STGT", "beta": 0.25, "tau": TAU},
        topology={"name": "exponential"},
        batch=BATCH,
        rounds=rounds,
        evaluate_every=min(EVERY, rounds),
    )


def changes(rounds: int) -> list[dict[str, Any]]:
    """The changes in a disturbed run."""
    return [{"round": round(share * rounds), "do": do, "node": node} for share, do, node in CHANGES]


def digits_missing(parts: list[np.ndarray], labels: np.ndarray) -> list[dict[str, Any]]:
    """For each killed node: its digits, those that no other node has, and its share of all images."""
    held = [set(map(int, np.unique(labels[part]))) for part in parts]
    found = []
    for _, do, node in CHANGES:
        if do == "kill":
            others = set().union(*(one for k, one in enumerate(held) if k != node))
            share = len(parts[node]) / len(labels)
            found.append({"digits": sorted(held[node]), "nobody else's": sorted(held[node] - others), "share": share})
    return found


def _trained(
    runs: list[Training], folder: Path, data_dir: Path | None, progress: Progress | None
) -> list[dict[str, Any]]:
    """The measurements of each run; runs in the folder are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{'disturbed' if DISTURBED in run.label else 'undisturbed'}-{run.seed}.json" for run in runs]
    told = {
        "data_dir": str(data_dir),
        "nodes": NODES,
        "runs": [
            {
                "run": run.model_dump(mode="json", exclude_none=True),
                "rounds": run.rounds,
                "changes": changes(run.rounds) if DISTURBED in run.label else [],
                "file": str(file.resolve()),
            }
            for run, file in zip(runs, files, strict=True)
        ],
    }
    settings = folder / "settings.json"
    settings.write_text(json.dumps(told))
    paths = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "reproductions.training.members", str(settings)]
    total = sum(run.rounds for run in runs)
    with (
        open(folder / "errors.txt", "w+", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if progress is not None and line.startswith("@"):
                    progress(json.loads(line[1:])["rounds"], total)
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"a training ended early:\n{errors.read()}")
    return [json.loads(file.read_text()) for file in files]


def _judged(runs: list[Training], found: list[dict[str, Any]], missing: dict[int, list[dict[str, Any]]]) -> Outcome:
    rows: list[TableRow] = []
    curves: list[TableRow] = []
    for run, one in zip(runs, found, strict=True):
        names = {"method": run.label.split(" · ")[0], "lr": LR, "seed": run.seed}
        curves += [names | {"steps": row["round"] * TAU} | row for row in one["curve"]]
        last = one["curve"][-ENDS:]
        rows.append(
            {
                **names,
                "test_accuracy": float(np.mean([row["test_accuracy"] for row in last])),
                "train_loss": float(np.mean([row["train_loss"] for row in last])),
                "members": one["curve"][-1]["members"],
                "changes": len(one["changes"]),
                "sum_c": one["sum_c"],
                "seconds_lost": one["seconds_lost"],
                "rounds_alone": float(np.mean(list(one["rounds_alone"].values()))),
                "changes_at": " ".join(f"{change['do']}@{change['at']}" for change in one["changes"]),
            }
        )
    end = {kind: [row["test_accuracy"] for row in rows if row["method"] == kind] for kind in (STILL, DISTURBED)}
    return Outcome(TrainingSpec(runs=tuple(runs)), rows, _claims(end, missing), [_figure(curves, found)], curves)


def _claims(end: dict[str, list[float]], missing: dict[int, list[dict[str, Any]]]) -> list[Claim]:
    """The claims, from the accuracies of the seeds with and without changes, in the same order."""
    still, disturbed = (np.array(end[kind]) for kind in (STILL, DISTURBED))
    spread, lead = float(still.max() - still.min()), disturbed - still
    numbers = {
        "test_accuracy": {kind: [finite(value) for value in values] for kind, values in end.items()},
        "spread": finite(spread),
        "difference by seed": [finite(value) for value in lead],
        "killed": {str(seed): found for seed, found in missing.items()},
    }
    reading = "two classes a node; the third killed node has digits that another node has too"
    within = bool(np.isfinite(disturbed).all() and still.min() <= disturbed.mean() <= still.max())
    near = bool(np.isfinite(lead).all() and (abs(lead) <= spread).all())
    return [
        Claim(
            "E1",
            "With three of eight nodes killed and two joined during the run, the mean test accuracy is within the "
            "seeds' spread of the undisturbed run.",
            reading,
            within,
            numbers,
            "elastic-mnist",
        ),
        Claim(
            "E2",
            "In each seed, the disturbed run ends within that spread of the undisturbed run with the same partition.",
            reading,
            near,
            numbers,
            "elastic-mnist",
        ),
    ]


def _figure(curves: list[TableRow], found: list[dict[str, Any]]) -> Figure:
    """Test accuracy and error over the rounds, the mean and the range over the seeds, with the events."""
    kinds: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for kind in (STILL, DISTURBED):
        seeds: dict[int, dict[float, TableRow]] = {}
        for row in curves:
            if row["method"] == kind:
                seeds.setdefault(row["seed"], {})[row["round"]] = row
        x = sorted(set.intersection(*(set(one) for one in seeds.values())))
        kinds[kind] = np.array(x), np.array([[one[r]["test_accuracy"] for r in x] for one in seeds.values()])
    panels = []
    for place, (of, ylabel) in enumerate((((0, 1), "test accuracy of the mean model"), ((1, -1), "its test error"))):
        values = {kind: (x, of[0] + of[1] * seeds) for kind, (x, seeds) in kinds.items()}
        lines = [
            Line(kind, x, y.mean(axis=0), y.min(axis=0), y.max(axis=0), style=style)
            for style, (kind, (x, y)) in enumerate(values.items())
        ]
        lines += _marks(found, 0.02 if place == 0 else 0.013)
        panels.append(Panel("", f"round of {TAU} steps", ylabel, tuple(lines), ylog=place == 1))
    title = f"LeNet on MNIST: {NODES} nodes, 2 classes each; bands span the seeds"
    return Figure("elastic-mnist", tuple(panels), columns=2, title=title, shared=False)


def _marks(found: list[dict[str, Any]], height: float) -> list[Line]:
    """The rounds at which nodes were killed, and from which others took part."""
    events = [change for one in found for change in one["changes"]]
    killed = sorted({change["at"] for change in events if change["do"] == "kill"})
    joined = sorted({change["takes_part_from"] or change["at"] for change in events if change["do"] == "join"})
    return [
        Line(word, np.array(at), np.full(len(at), height), style=style, marked=True, joined=False)
        for style, (word, at) in enumerate((("killed (−9)", killed), ("joined", joined)), start=2)
    ]
