"""Nodes that die or hang: the others stop in time, name them, and a restart ends where an undisturbed run ends."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import losses
import numpy as np
import pytest
from hosts import NoHostsError
from literal import NODES
from nodes import HERE, Node, free_port, node_environment, python_environment, stop
from safetensors.numpy import load_file
from torch.distributed import HashStore

from stgt.torch import failure_detector
from stgt.torch.node_status import JsonStore

ROUNDS = 14


def assert_named(node: Node, lost: int) -> None:
    said = [line for line in node.lines if line.startswith("stopped: ")]
    assert len(said) == 1, node.lines
    assert re.search(rf"rank {lost} was lost: .* round \d+", said[0]), said


def finals(folder: Path, nodes: int) -> np.ndarray:
    return np.stack([load_file(folder / f"final-{rank}.safetensors")["x"] for rank in range(nodes)])


class SlowStore(JsonStore):
    """A store that takes half a second to write once the first status is there, and sets an event."""

    asked = threading.Event()

    def put(self, key: str, value: Any) -> None:
        if value["heartbeat"]:
            self.asked.set()
            time.sleep(0.5)
        super().put(key, value)


def test_no_heartbeat_is_under_way_when_a_process_has_left(monkeypatch):
    # Back from the store's own code while the interpreter shuts down, the thread aborted a run that had gone well.
    monkeypatch.setattr(failure_detector, "HEARTBEAT_INTERVAL", 0.2)
    monkeypatch.setattr(failure_detector, "JsonStore", SlowStore)
    made = failure_detector.FailureDetector(0, 2, 30.0)
    store = made.open(lambda: (HashStore(), False))
    assert SlowStore.asked.wait(10)
    made.leave()
    assert not any(thread.is_alive() for thread in made._threads)
    assert json.loads(store.get("failure_detector/status/0"))["left"]


def check(ends: list[losses.Ends]) -> None:
    assert not {str(one.case): faults for one in ends if (faults := one.faults())}


def test_all_nodes_end_in_time_and_say_why(forker, tmp_path):
    check(losses.make(forker, [case for case in losses.SHARE if case.network == losses.ONE], tmp_path, 2.5))


@pytest.mark.thorough
def test_a_node_whose_network_is_cut_ends_as_the_others_do(forker, tmp_path):
    check(with_hosts(forker, [case for case in losses.SHARE if case.network == losses.THREE], tmp_path, 3.0))


@pytest.mark.release
def test_all_nodes_end_in_time_whatever_happens_to_one(forker, tmp_path):
    check(losses.make(forker, [case for case in losses.CASES if case.network == losses.ONE], tmp_path, 6.0))


@pytest.mark.release
def test_all_hosts_end_in_time_whatever_happens_to_one(forker, tmp_path):
    check(with_hosts(forker, [case for case in losses.CASES if case.network == losses.THREE], tmp_path, 6.0))


def with_hosts(forker, cases: list[losses.Case], folder: Path, timeout: float) -> list[losses.Ends]:
    try:
        return losses.make(forker, cases, folder, timeout)
    except NoHostsError as error:
        pytest.skip(f"three hosts: {error}")


@pytest.mark.release
def test_nodes_that_were_all_stopped_for_longer_than_the_timeout_go_on(forker, tmp_path):
    nodes = forker.start(tmp_path, 2, "resumable", str(tmp_path), "30", "2")
    try:
        nodes[0].wait_for("rank 0 round 2")
        for sign, seconds in ((signal.SIGSTOP, 4.0), (signal.SIGCONT, 0.0)):
            for node in nodes:
                os.kill(node.number, sign)
            time.sleep(seconds)
        assert [node.finish(60) for node in nodes] == [0, 0], [node.lines[-3:] for node in nodes]
    finally:
        stop(nodes)


def test_a_killed_node_is_named_and_a_restart_ends_at_the_same_weights(world, forker, tmp_path):
    nodes = forker.start(tmp_path, NODES, "resumable", str(tmp_path), str(ROUNDS), "30")
    try:
        nodes[5].wait_for("round 7")
        nodes[5].kill()
        assert nodes[5].finish(10) == -signal.SIGKILL
        killed = time.monotonic()
        for rank, node in enumerate(nodes):
            if rank != 5:
                assert node.finish(60) == 3, node.lines[-12:]
                assert_named(node, 5)
        assert time.monotonic() - killed < 30
    finally:
        stop(nodes)
    assert not list(tmp_path.glob("final-*"))
    again = forker.start(tmp_path, NODES, "resumable", str(tmp_path), str(ROUNDS), "20")
    assert [node.finish(120) for node in again] == [0] * NODES
    assert "rank 0 round 6" in again[0].lines  # not from the beginning
    assert "rank 0 round 0" not in again[0].lines
    undisturbed = world.run("resumable_training", rounds=ROUNDS)
    np.testing.assert_array_equal(finals(tmp_path, NODES), np.array(undisturbed))


@pytest.mark.release
def test_a_hanging_node_is_named_within_the_timeout(forker, tmp_path):
    timeout = 5.0
    nodes = forker.start(tmp_path, 4, "resumable", str(tmp_path), str(ROUNDS), str(timeout), "2", "3")
    try:
        nodes[2].wait_for("rank 2 round 3")
        hung = time.monotonic()
        for rank in (0, 1, 3):
            assert nodes[rank].finish(timeout + 30) == 3, nodes[rank].lines
            assert_named(nodes[rank], 2)
        assert timeout * 0.8 < time.monotonic() - hung < timeout + 20
    finally:
        stop(nodes)


@pytest.mark.release
def test_a_node_that_leaves_early_is_named(forker, tmp_path):
    port = free_port()
    nodes = [
        Node(forker, tmp_path, node_environment(rank, 2, port), "resumable", str(tmp_path), rounds, "20")
        for rank, rounds in enumerate(("9", "5"))
    ]
    assert nodes[1].finish(100) == 0
    assert nodes[0].finish(60) == 3
    assert any(
        "rank 1 was lost: it ended its training in round 5, before the others did" in line for line in nodes[0].lines
    ), nodes[0].lines


@pytest.mark.release
def test_torchrun_restarts_from_the_last_checkpoint(forker, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    run = subprocess.Popen(
        [*command, str(HERE / "resumable.py"), str(tmp_path / "killed"), str(ROUNDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=python_environment(),
    )
    seen, victim = [], None
    for line in run.stdout:
        seen.append(line.strip())
        if victim is None and "rank 1 round 7" in line:
            victim = child_of(run.pid, "1")
            os.kill(victim, signal.SIGKILL)
    run.stdout.close()
    assert run.wait(60) == 0
    assert victim is not None
    assert seen.count("rank 0 round 0") == 1
    assert seen.count("rank 0 round 6") == 2
    nodes = forker.start(tmp_path, 2, "resumable", str(tmp_path), str(ROUNDS))
    assert [node.finish(60) for node in nodes] == [0, 0]
    np.testing.assert_array_equal(finals(tmp_path / "killed", 2), finals(tmp_path, 2))


def child_of(parent: int, rank: str | None = None) -> int:
    """The process below `parent`; where there are several, the one whose environment has this RANK."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            right = rank is None or f"RANK={rank}".encode() in environment
            if int(stat.rsplit(")", 1)[1].split()[1]) == parent and right:
                return int(entry.name)
    raise AssertionError(f"no child of {parent} has RANK={rank}")
