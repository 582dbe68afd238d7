"""Who can disturb a training from outside: its store and its connections listen to this machine alone, and a note that
is not signed with the run's secret counts as none."""

import os
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest
from nodes import Node, free_port, node_environment, stop
from torch.distributed import HashStore, TCPStore

from stgt.torch.notes import Notes, secret_of_run

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


def test_processes_of_one_machine_listen_to_it_alone_and_strangers_are_ignored(forker, tmp_path):
    port = free_port()
    nodes = [
        Node(forker, tmp_path, node_environment(rank, 2, port), "resumable", str(tmp_path), "30") for rank in (0, 1)
    ]
    try:
        nodes[0].wait_for("rank 0 round 2")
        for node in nodes:
            assert listening(node.number)
            assert listening(node.number) <= LOOPBACK
        stranger = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))
        reports = [f"watch/{name}" for name in ("lost", "report", "status/0", "status/1")]
        for _ in range(20):  # more often than a heartbeat writes its own
            for key in (*reports, *(f"watch/meeting/1/{number}/1" for number in range(20, 60))):
                stranger.set(key, '{"kind": "lost", "rank": 1, "round": 0, "why": "so I say", "call": "save()"}')
            time.sleep(0.05)
        assert [node.finish(60) for node in nodes] == [0, 0], [node.lines[-3:] for node in nodes]
    finally:
        stop(nodes)


def test_notes_are_signed_for_their_place():
    store = HashStore()
    ours, theirs = Notes(store, b"ours"), Notes(store, b"theirs")
    ours.put("a", {"n": 1})
    theirs.put("b", {"n": 2})
    store.set("c", store.get("a"))  # a true note in another place
    store.set("d", b"\xff\xfe")
    assert ours.get_all(["a", "b", "c", "d", "e"]) == [{"n": 1}, None, None, None, None]
    assert ours.put_first("a", {"n": 5}) == {"n": 1}
    assert ours.put_first("b", {"n": 6}) == {"n": 6}
    assert ours.get("b") == {"n": 6}


def test_where_the_secret_comes_from(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("STGT_SECRET", raising=False)
    store = HashStore()
    made, path = secret_of_run(store, 0, 2)
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made not in store.get("stgt-secret/0")
    assert secret_of_run(store, 1, 2) == (made, None)
    path.unlink()
    assert len(made) == 64
    monkeypatch.setenv("STGT_SECRET", "of several machines")
    assert secret_of_run(store, 1, 2) == (b"of several machines", None)
    monkeypatch.delenv("STGT_SECRET")
    assert secret_of_run(store, 1, 4) == (b"", None)


@pytest.mark.thorough
def test_a_missing_peer_is_named(forker, tmp_path):
    environment = node_environment(0, 2, free_port())
    node = Node(forker, tmp_path, environment, "resumable", str(tmp_path), "3", "3")
    try:
        assert node.finish(60) != 0
        assert any("rank 1 was lost: it has not joined for 3 s" in line for line in node.lines), node.lines
    finally:
        stop([node])
