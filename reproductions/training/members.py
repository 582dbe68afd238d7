"""Trainings of LeNet on MNIST with nodes that are killed and come back: each a process, with a lighthouse.

The experiment `elastic-mnist` starts `python -m reproductions.training.members SETTINGS`. SETTINGS is JSON with the
runs, their changes and the folder of the data. The measurements and events of each run are written to a file.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import reproductions.training.models  # noqa: F401
from reproductions.images import load_images
from reproductions.training.forked import PAUSE, Forked, free_port, lighthouse, prepare, say
from stgt.torch import DistributedOptimizer, init
from stgt.torch.train import Batches, LabelledData, Training, as_tensors, build_model, build_optimizer, evaluate

TRAINING_SAMPLE = 2048  # training images on which the loss is measured
TIME_OUT = 30.0  # seconds until a node without progress counts as lost, also on a busy machine
LIMITS = {"heartbeat_timeout_ms": 2000, "join_timeout_ms": 5000, "quorum_tick_ms": 50}
STILL = 180.0  # a run stops after this many seconds without a round


def node(
    run: Training, images: LabelledData, part: np.ndarray, place: int, nodes: int, folder: Path, joins: bool
) -> None:
    """Trains with the others to the last round, on the samples `part` of the data set.

    Args:
        place: the number of the node whose batches it uses.
        nodes: the initial number of nodes; they wait for each other before they begin.
        folder: the folder to which two of the nodes write the mean model for each measurement.
        joins: does it join later?
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    init(elastic=True, timeout=TIME_OUT)
    algorithm = run.build_algorithm()
    batches = Batches(images, part, run.batch, run.seed, place)
    torch.manual_seed(run.seed)
    model = build_model(run.model, images)
    if not joins:
        (folder / f"ready-{place}").touch()
        while len(list(folder.glob("ready-*"))) < nodes:
            time.sleep(PAUSE)
    opt = DistributedOptimizer(
        build_optimizer(run, model), algorithm, run.topology.name, model=model, min_nodes=nodes // 2 + 1
    )
    say("begins", round=opt.round)

    while True:
        if opt.taken == 0:
            say("round", round=opt.round, members=[str(one).partition(":")[0] for one in opt.members])
            if opt.round % run.evaluate_every == 0 or opt.round >= run.rounds:
                with opt.averaged():
                    if opt.rank < 2:  # two, because one of them may be killed now
                        torch.save(model.state_dict(), folder / f"model-{opt.round}-{place}.writing")
                        (folder / f"model-{opt.round}-{place}.writing").rename(folder / f"model-{opt.round}-{place}")
            if opt.round >= run.rounds:
                break
        x, y = batches.at(opt.round * algorithm.tau + opt.taken)
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        opt.step()
    say("ends", events=list(opt.membership.events), **opt.metrics())


def train(run: Training, images: LabelledData, changes: list[dict[str, Any]], nodes: int, tell: Any) -> dict[str, Any]:
    """A run with its changes, each {"round", "do": "kill" or "join", "node": whose data}; returns the measurements."""
    parts = run.data.parts(images.y_train, nodes)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        address = f"127.0.0.1:{free_port()}"
        light = Forked("lighthouse", folder, lambda: lighthouse(address, **LIMITS))
        there: dict[int, Forked] = {}
        gone: list[Forked] = []

        def start(place: int, joins: bool) -> None:
            environment = {"STGT_NODE": f"n{place}", "TORCHFT_LIGHTHOUSE": f"http://{address}"}
            given = run, images, parts[place], place, nodes, folder, joins
            there[place] = Forked(f"n{place}", folder, node, *given, environment=environment)

        try:
            for place in range(nodes):
                start(place, False)
            r, moved, left, done = 0, time.monotonic(), list(changes), []
            while any(one.poll() is None for one in there.values()):
                now = max((line["round"] for one in there.values() for line in one.said("round")[-1:]), default=0)
                if now > r:
                    r, moved = now, time.monotonic()
                    tell(r)
                if left and r >= left[0]["round"]:
                    change = left.pop(0)
                    place = change["node"]
                    if change["do"] == "kill":
                        there[place].send(signal.SIGKILL)
                        gone.append(there.pop(place))
                    else:
                        start(place, True)
                    done.append({**change, "at": r, "time": time.time()})
                if time.monotonic() - moved > STILL or os.getppid() == 1:
                    words = "\n".join(f"{one.name}: {one.last_words()}" for one in there.values())
                    raise TimeoutError(f"no round for {STILL:g} s, after round {r}:\n{words}")
                time.sleep(PAUSE)
            for one in there.values():
                if one.poll():
                    raise RuntimeError(f"{one.name} ended with code {one.exit_code}:\n{one.last_words()}")
            return _found(there, gone, done) | {"curve": _measured(run, images, folder, _members(there))}
        finally:
            for one in (*there.values(), *gone, light):
                one.end()


def _members(there: dict[int, Forked]) -> dict[int, int]:
    """The number of nodes that took part, by round."""
    return {line["round"]: len(line["members"]) for one in there.values() for line in one.said("round")}


def _measured(run: Training, images: LabelledData, folder: Path, members: dict[int, int]) -> list[dict[str, float]]:
    """A row for each round in which the mean model was written."""
    sample = np.random.default_rng(run.data.seed).permutation(len(images.y_train))[:TRAINING_SAMPLE]
    train = as_tensors(images, images.x_train[sample], images.y_train[sample])
    test = as_tensors(images, images.x_test, images.y_test)
    model = build_model(run.model, images).eval()
    files = {int(file.name.split("-")[1]): file for file in folder.glob("model-*-*") if not file.suffix}
    rows = []
    for r in sorted(files):
        model.load_state_dict(torch.load(files[r], weights_only=True))
        rows.append(
            {
                "round": r,
                "train_loss": evaluate(model, *train)[0] / len(train[1]),
                "test_accuracy": evaluate(model, *test)[1] / len(test[1]),
                "members": members[r],
            }
        )
    return rows


def _found(there: dict[int, Forked], gone: list[Forked], done: list[dict[str, Any]]) -> dict[str, Any]:
    """The changes, the rounds from which they had an effect, and their costs."""
    for change in done:
        if change["do"] == "join":
            begun = there[change["node"]].said("begins") if change["node"] in there else []
            begun += [line for one in gone if one.name == f"n{change['node']}" for line in one.said("begins")]
            change["takes_part_from"] = max((line["round"] for line in begun), default=None)
        del change["time"]
    ends = {one.name: one.said("ends")[-1] for one in there.values()}
    first = next(iter(ends.values()))
    return {
        "changes": done,
        "events": first["events"],
        "seconds_lost": max(end["seconds_lost"] for end in ends.values()),
        "rounds_alone": {name: end["rounds_alone"] for name, end in ends.items()},
        "sum_c": max(end.get("sum_c", 0.0) for end in ends.values()),
    }


def main(given: str) -> None:
    """All runs, one after another; runs in the folder are not run again."""
    told = json.loads(Path(given).read_text())
    images = load_images("mnist", told["data_dir"])
    prepare()
    begun = sum(one["rounds"] for one in told["runs"] if Path(one["file"]).exists())
    for one in told["runs"]:
        file = Path(one["file"])
        if file.exists():
            continue
        run = Training.model_validate(one["run"])
        found = train(
            run, images, one["changes"], told["nodes"], lambda r, before=begun: say("done", rounds=before + r)
        )
        begun += one["rounds"]
        writing = file.with_suffix(".new")
        writing.write_text(json.dumps(found))
        writing.replace(file)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1])
