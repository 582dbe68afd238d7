"""The Trainer's callback: a training that was killed goes on to where an uninterrupted one ends."""

import subprocess
import sys
import time

import pytest
import torch
from nodes import HERE, free_port, python_environment
from safetensors.torch import load_file

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]  # three to seven starts of transformers, one after another
SCRIPT = str(HERE / "trainer_node.py")
ROUNDS, TAU = 2000, 3  # more than the test waits for
QUIET = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


def torchrun(folder, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, SCRIPT, str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=python_environment() | QUIET,
        timeout=280,
    )


def rounds_of(text):
    """The words that follow "round R", by R."""
    lines = [line.split() for line in text.splitlines() if line.startswith("round ")]
    return {int(words[1]): words[2:] for words in lines}


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    first = torchrun(whole, "12")
    assert first.returncode == 0, first.stderr[-3000:]
    stopped = torchrun(killed, "12", "7")
    assert stopped.returncode != 0
    assert max(rounds_of(stopped.stdout)) == 7
    again = torchrun(killed, "12")
    assert again.returncode == 0, again.stderr[-3000:]
    made = rounds_of(again.stdout)
    assert sorted(made) == list(range(5, 13))  # from the checkpoint of round 4 on,
    assert {r: words for r, words in rounds_of(first.stdout).items() if r > 4} == made  # at the same steps and rates
    for rank in (0, 1):
        one, other = (load_file(folder / f"final-{rank}.safetensors") for folder in (whole, killed))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_elastic_node_comes_back(tmp_path):
    """One of three is killed and started again: it goes on at the others' step, with the rate that belongs to it."""
    pytest.importorskip("torchft")
    port, environment = free_port(), python_environment() | QUIET
    lighthouse = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from stgt.cli import main; main()",
            "lighthouse",
            "--port",
            str(port),
            "--silence",
            "3",
        ],
        stdout=subprocess.PIPE,
        env=environment,
    )
    lighthouse.stdout.readline()
    environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    nodes = {}

    def start(node, *arguments):
        log = tmp_path / f"node-{node}-{len(nodes)}.log"
        with log.open("w") as file:
            nodes[log] = subprocess.Popen(
                [sys.executable, SCRIPT, str(tmp_path), str(ROUNDS), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment | {"STGT_NODE": str(node)},
            )
        return log

    def wait_for(log, reached):
        end = time.monotonic() + 280
        while max(rounds_of(log.read_text()), default=0) < reached:
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)

    try:
        first, victim, third = start(0), start(1, "6"), start(2)
        assert nodes[victim].wait(280) == -9
        back = start(1)
        wait_for(first, 12)  # without it
        wait_for(back, 13)
        joined = min(rounds_of(back.read_text()))
        for log in (first, third, back):
            wait_for(log, joined + 8)  # past two checkpoints
            assert nodes[log].poll() is None
        theirs, its = rounds_of(first.read_text()), rounds_of(back.read_text())
        assert {words[-1] for words in theirs.values()} == {"2", "3"}
        assert {its[joined + k][-1] for k in range(8)} == {"3"}
        for made in (theirs, its):
            for _, step, _, rate, *_ in made.values():  # the Trainer's own schedule: a line that ends at its last step
                assert float(rate) == pytest.approx(1e-2 * (1 - int(step) / (10 * ROUNDS * TAU)), rel=1e-4)
        assert int(its[joined][1]) > 6 * TAU
    finally:
        for process in (*nodes.values(), lighthouse):
            process.kill()
            process.wait()
        lighthouse.stdout.close()
