"""How a training ends before its time: which words, which exit code, what stays, and how it goes on from there."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_lost_nodes import child_of
from test_train_checks import spec
from test_train_command import ROOT, STGT, command, write_spec
from test_train_record import points
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from stgt._internal import container
from stgt.torch import shards
from stgt.torch.train import launcher

REGISTER = ROOT / "reproductions" / "register.py"


def save_checkpoint(folder: Path, r: int, nodes: int, written: int) -> None:
    for node in range(written):
        path = folder / f"step-{5 * r:010d}" / f"node-{node:04d}.safetensors"
        container.write(path, shards.KIND, {}, {"round": r, "nodes": nodes})


def failed(tmp_path, exitcode: int, error: str = "", rank: int = 1) -> dict[int, ProcessFailure]:
    """How a process ended, and what `record` wrote of its exception."""
    path = tmp_path / f"error-{rank}.json"
    path.unlink(missing_ok=True)
    if error:
        path.write_text(json.dumps({"message": {"message": error, "extraInfo": {"timestamp": "1795000000"}}}))
    return {rank: ProcessFailure(rank, 4000 + rank, exitcode, str(path))}


def why(tmp_path, failures: dict[int, ProcessFailure], *printed: str) -> tuple[str, int]:
    found = launcher.reason_of(failures, printed, tmp_path, spec({}))
    return str(found), found.code


LOST = "LostNodeError: rank 1 was lost: its connection was closed."


def test_a_killed_process_is_named_with_its_signal_and_the_checkpoint_to_go_on_from(tmp_path):
    failures = failed(tmp_path, -9) | failed(tmp_path, 3, LOST, rank=2)
    words, code = why(tmp_path, failures)
    assert words == (
        "rank 1 (process 4001) was killed by SIGKILL, which is what the system does when it runs out of memory "
        "(`dmesg` shows it). There is no checkpoint of 'run 0': the same command starts that run again; "
        "checkpoint_every = 10 in the spec would write one every ten rounds."
    )
    assert code == 3
    checkpoints = tmp_path / "run-0" / "checkpoints"
    save_checkpoint(checkpoints, 4, nodes=2, written=2)
    save_checkpoint(checkpoints, 6, nodes=2, written=1)  # not complete
    words, _ = why(tmp_path, failures)
    assert words.endswith(
        f". The same command continues from round 4 of 'run 0', whose checkpoint is {checkpoints / 'step-0000000020'}."
    )
    words, _ = why(tmp_path, failed(tmp_path, -15) | failed(tmp_path, -11, rank=2))
    assert words.startswith("rank 2 (process 4002) was killed by SIGSEGV. ")  # the other one by the agent, for that


def test_what_a_process_says_of_itself_comes_before_what_others_say_of_it(tmp_path):
    lost = failed(tmp_path, 3, LOST.replace("its connection was closed", "it ended its training in round 3"), rank=0)
    mendable = failed(tmp_path, 2, "ValueError: classes=1: give more.")
    assert why(tmp_path, lost | mendable) == ("classes=1: give more.", 2)
    crashed = failed(tmp_path, 1, "TypeError: no.", rank=2)
    assert why(tmp_path, lost | crashed) == ("rank 2 failed: TypeError: no.", 1)
    words, code = why(tmp_path, lost | failed(tmp_path, 2))
    assert words.startswith("rank 1 was lost: it ended its training in round 3. There is no")
    assert code == 3
    silent = why(tmp_path, failed(tmp_path, 1), "b", "c", "d")
    assert silent == ("the training ended without an error of its own: b / c / d", 1)
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "not-finite.txt").write_text("rank 2, round 3: conv1.weight is not finite.\n")
    words, code = why(tmp_path, lost)
    assert words == "run 0: rank 2, round 3: conv1.weight is not finite. There is no earlier checkpoint."
    assert code == 4


def curve(folder: Path) -> list[dict[str, str]]:
    """A run's curve without the times, which differ from run to run."""
    rows = list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def run_folder(out: Path) -> Path:
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return folder


@pytest.mark.release
@pytest.mark.parametrize("saves", [True, False])
def test_a_killed_worker_is_named_and_the_same_command_goes_on(digits, tmp_path, saves):
    path, out, log = write_spec(tmp_path, rounds=60), tmp_path / "out", tmp_path / "log"
    if not saves:
        path.write_text(path.read_text().replace("checkpoint_every = 2\n", ""))
    train = ["train", path, "--nodes", "2", "--data-dir", digits, "--out"]
    with log.open("w") as stream:
        run = subprocess.Popen([STGT, *train, out], stdout=stream, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 120
            while "round 6 of 60" not in log.read_text():  # the line is there while the training goes on
                assert run.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            worker = child_of(run.pid, "1")
            os.kill(worker, signal.SIGKILL)
            killed = time.monotonic()
            _, errors = run.communicate(timeout=60)
        finally:
            run.kill()
            run.wait()
    assert time.monotonic() - killed < 45
    assert run.returncode == 3
    (said,) = errors.strip().splitlines()
    assert said.startswith(
        f"stgt: rank 1 (process {worker}) was killed by SIGKILL, which is what the system does when "
    )
    if not saves:
        assert "There is no checkpoint of 'STGT, lr 0.1'" in said
        return
    assert "The same command continues from round " in said
    assert Path(said.split("whose checkpoint is ")[1].removesuffix(".")).is_dir()
    assert int(said.split("continues from round ")[1].split()[0]) >= 4
    again, whole = command(*train, out), command(*train, tmp_path / "whole")
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert "round 0 of 60" not in again.stdout
    assert [line.split(", training")[0] for line in whole.stdout.splitlines() if ": round " in line] == [
        f"STGT, lr 0.1: round {r} of 60" for r in range(0, 61, 2)
    ]
    resumed, undisturbed = run_folder(out), run_folder(tmp_path / "whole")
    assert curve(resumed) == curve(undisturbed)
    assert points(resumed) == points(undisturbed)
    assert {one.name for one in resumed.iterdir() if not one.name.startswith("events")} == {
        one.name for one in undisturbed.iterdir() if not one.name.startswith("events")
    }
    for name, value in load_file(resumed / "model.safetensors").items():
        np.testing.assert_array_equal(value, load_file(undisturbed / "model.safetensors")[name])


@pytest.mark.release
def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(digits, tmp_path):
    out, log = tmp_path / "out", tmp_path / "stdout"
    train = ["train", write_spec(tmp_path, rounds=60), "--nodes", 2, "--data-dir", digits, "--out", out]
    with log.open("w") as stdout:
        run = subprocess.Popen([STGT, *map(str, train)], stdout=stdout, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 120
            while "round 4 of 60" not in log.read_text():
                assert run.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            workers = [child_of(run.pid, rank) for rank in ("0", "1")]
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=60)
        finally:
            run.kill()
            run.wait()
    assert (run.returncode, errors) == (130, "")
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    again = command(*train)
    assert again.returncode == 0, again.stderr
    assert "round 0 of 60" not in again.stdout
    assert [int(row["round"]) for row in curve(run_folder(out))] == list(range(0, 61, 2))


@pytest.mark.release
def test_a_killed_worker_is_started_again_if_that_was_asked_for(digits, tmp_path):
    out, log = tmp_path / "out", tmp_path / "stdout"
    train = ["train", write_spec(tmp_path, rounds=60), "--nodes", 2, "--data-dir", digits, "--out", out]
    with log.open("w") as stdout:
        started = [STGT, *map(str, train), "--max-restarts", "1"]
        run = subprocess.Popen(started, stdout=stdout, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 120
            while "round 4 of 60" not in log.read_text():
                assert run.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            os.kill(child_of(run.pid, "1"), signal.SIGKILL)
            _, errors = run.communicate(timeout=200)
        finally:
            run.kill()
            run.wait()
    assert (run.returncode, errors) == (0, "")
    said = [line.split(", training")[0] for line in log.read_text().splitlines() if ": round " in line]
    assert said == [f"STGT, lr 0.1: round {r} of 60" for r in range(0, 61, 2)]  # each measurement once


@pytest.mark.release
def test_a_run_that_is_not_finite_ends_with_code_4_and_the_others_are_made(digits, tmp_path):
    """Weight decay multiplies the weights by 1 − 1 · 11 = −10 a step: float32 ends after 38 steps, the loss before."""
    wild = write_spec(tmp_path, rounds=40, lr=1.0).read_text().replace("lr = 1.0", "lr = 1.0\nweight_decay = 11.0")
    tame = write_spec(tmp_path).read_text()
    text = "".join(f"\n[[runs]]\n{one.replace('[', '[runs.')}" for one in (wild, tame))
    path, out = tmp_path / "both.toml", tmp_path / "out"
    path.write_text(text.replace("every = 2", "every = 1"))
    for _ in range(2):  # and it stays so: a run is deterministic
        result = command("train", path, "--nodes", 2, "--data-dir", digits, "--out", out)
        assert result.returncode == 4, result.stderr
        warning, said = result.stderr.strip().splitlines()
        assert warning.startswith("warning: STGT, lr 1.0: lr · tau = 5; ")
        assert said.startswith("stgt: STGT, lr 1.0: ")
        assert "not finite" in said
        checkpoint = Path(said.split(" is ")[-1].removesuffix("."))
        for node in range(2):
            for name, value in load_file(checkpoint / f"node-{node:04d}.safetensors").items():
                assert np.isfinite(value).all(), name
        assert (out / "stgt-lr-0.1" / "model.safetensors").exists()
        assert not (out / "stgt-lr-1.0" / "model.safetensors").exists()
        assert (out / "curves.png").exists()


@pytest.mark.release
def test_torchrun_without_stgt_shows_the_lines_of_one_process(digits, tmp_path):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "stgt.torch.train",
    ]
    arguments = ["--spec", write_spec(tmp_path, lr=2.0), "--import", REGISTER, "--data-dir", digits]
    arguments += ["--out", tmp_path / "out"]
    result = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = [line.split(", training")[0] for line in result.stdout.splitlines() if line.startswith("STGT")]
    assert lines == [f"STGT, lr 2.0: round {r} of 6" for r in (0, 2, 4, 6)]
    assert result.stderr.count("warning: STGT, lr 2.0: lr · tau = 10; ") == 1


@pytest.mark.release
@pytest.mark.parametrize("launcher", ["stgt train", "torchrun"])
def test_what_only_the_processes_find_gives_the_folder_back(digits, tmp_path, launcher):
    script, out = tmp_path / "mine.py", tmp_path / "out"
    script.write_text(
        "import stgt.torch.validate\n"
        "def agree(*_):\n"
        "    raise ValueError('the nodes differ: make them alike.')\n"
        "stgt.torch.validate.agree = agree\n"
    )
    path = write_spec(tmp_path)
    if launcher == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        start += ["-m", "stgt.torch.train", "--spec", path, "--import", REGISTER]
    else:
        start = [STGT, "train", path, "--nodes", "2"]
    arguments = [*start, "--import", script, "--data-dir", digits, "--out", out]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == (2 if launcher == "stgt train" else 1), result.stderr
    assert "stgt: the nodes differ: make them alike." in result.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"mine.py", "spec.toml"}  # as if it had never been asked for
