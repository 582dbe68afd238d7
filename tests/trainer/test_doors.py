"""Who can reach a training from outside: its store and its connections listen to this machine alone. And who does not
come."""

import os
from pathlib import Path

import pytest
from nodes import Node, free_port, node_environment, stop

from stgt.torch import init

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
LISTENS = "0A"


def listening(process: int) -> set[str]:
    """The addresses that a process listens on, as /proc writes them."""
    held = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        held.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in held:
                found.add(fields[1].split(":")[0])
    return found


def test_processes_of_one_machine_listen_to_it_alone(forker, tmp_path):
    nodes = forker.start(tmp_path, 2, "resumable", str(tmp_path), "30")
    try:
        nodes[0].wait_for("rank 0 round 2")
        for node in nodes:
            assert listening(node.number)
            assert listening(node.number) <= LOOPBACK
    finally:
        stop(nodes)


def test_a_single_process_of_torchrun_trains_alone(forker, tmp_path):
    (node,) = forker.start(tmp_path, 1, "resumable", str(tmp_path), "2", "3")
    try:
        assert node.finish(30) == 0, node.lines
    finally:
        stop([node])


@pytest.mark.thorough
@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_peer_is_named(forker, tmp_path, missing):
    environment = node_environment(1 - missing, 2, free_port())
    node = Node(forker, tmp_path, environment, "resumable", str(tmp_path), "3", "3")
    try:
        assert node.finish(3 + 10) != 0
        (said,) = [line for line in node.lines if "was lost" in line]
        place = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={environment['MASTER_PORT']}"
        assert f"rank {missing} was lost: it has not joined for 3 s (is it started, and does {place} reach" in said
    finally:
        stop([node])


def test_tasks_of_slurm_that_do_not_know_one_another_are_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(ValueError, match=r"task 1 of 4 .*RANK=\$SLURM_PROCID WORLD_SIZE=\$SLURM_NTASKS"):
        init()
