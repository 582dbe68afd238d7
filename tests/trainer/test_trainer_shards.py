"""A node's part of a checkpoint as files, in a world of one."""

import os
from pathlib import Path

import pytest
import torch
from scenarios_use import Quadratic, loss_of

import stgt
from stgt._internal import container
from stgt.torch import DistributedOptimizer
from stgt.torch.finite import first_nonfinite
from stgt.torch.shards import Shards, ShardStatus, Version

METADATA = {"nodes": 8}


def written(folder: Path, *versions: Version, confirmed: bool = True) -> Shards:
    shards = Shards(folder, 3, "")
    for version in versions:
        shards.write(version, {"c": torch.arange(4.0)}, METADATA)
        if confirmed:
            shards.confirm(version)
    return shards


def test_no_byte_may_differ(tmp_path):
    version = Version(3, 1)
    shards = written(tmp_path, version)
    assert shards.status(version, container.verify) == ShardStatus("whole", True, 8)
    path = shards.path(version, "safetensors")
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        found = shards.status(version, container.verify)
        assert (found.state, found.final) == ("damaged", True), at
    path.write_bytes(content[:-1])
    assert shards.status(version) == ShardStatus("damaged", True)
    path.write_bytes(content)
    assert shards.status(version, container.verify).state == "whole"


def test_what_is_not_there_and_what_cannot_be_read(tmp_path):
    version = Version(3, 1)
    shards = written(tmp_path, version)
    shards.path(version, "safetensors").unlink()
    assert shards.status(version) == ShardStatus("missing", True)  # the mark tells that there was one
    shards.path(version, "safetensors").mkdir()
    assert shards.status(version) == ShardStatus("unreadable", True)
    shards.path(version, "safetensors").rmdir()
    shards.path(version, "complete").unlink()
    (tmp_path / version.folder / ".node-0003-abcdefgh.safetensors").touch()
    (tmp_path / version.folder / ".node-0003-gan-abcdefgh.safetensors").touch()  # another optimiser's
    assert shards.survey(8) == {version: {3: ShardStatus("missing", False)}}
    shards.remove(version)
    assert [path.name for path in (tmp_path / version.folder).iterdir()] == [".node-0003-gan-abcdefgh.safetensors"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [(1, ["9", "12"]), (2, ["6", "9", "12"]), (3, ["3", "6", "9", "12"]), (9, ["3", "6", "9", "12"])],
)
def test_what_is_kept(tmp_path, keep, left):
    """3 is complete, 4 half written, 6 complete at its second attempt, 7 and 12 half written; 9 is the newest."""
    written(tmp_path, Version(3, 1), Version(6, 1), Version(6, 2), Version(9, 1))
    shards = written(tmp_path, Version(4, 1), Version(7, 1), Version(12, 1), confirmed=False)
    statuses = shards.survey(8)
    del statuses[9, 1]
    shards.prune(statuses, Version(9, 1), keep)
    names = {"6": Version(6, 2).folder, **{str(step): Version(step, 1).folder for step in (3, 9, 12)}}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[one] for one in left)


def test_a_damaged_one_does_not_count_as_kept(tmp_path):
    shards = written(tmp_path, Version(3, 1), Version(6, 1), Version(9, 1))
    shards.path(Version(6, 1), "safetensors").write_bytes(b"")
    statuses = shards.survey(8)
    del statuses[9, 1]
    shards.prune(statuses, Version(9, 1), 2)
    assert sorted(version.step for version in shards.survey(8)) == [3, 6, 9]


# -- in a training -----------------------------------------------------------------------------------------------------


def started(**options):
    model = Quadratic()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, DistributedOptimizer(base, stgt.STGT(tau=3), "complete", model=model, **options)


def walk(model, opt, steps):
    for _ in range(steps):
        opt.zero_grad()
        loss_of(model, 0).backward()
        opt.step()


def test_a_newer_format_is_refused(alone, tmp_path, monkeypatch):
    _, opt = started()
    with monkeypatch.context() as patched:
        patched.setattr(container, "FORMAT", 2)
        opt.save(tmp_path)
    with pytest.raises(ValueError, match=r"no checkpoint that is whole .* \(step 0 is of a newer stgt at rank 0\)"):
        opt.load(tmp_path)


def test_the_counters_go_on(alone, tmp_path):
    model, opt = started()
    walk(model, opt, 7)
    opt._exchange.bytes_sent, opt._exchange.seconds_exchanging, opt._exchange.seconds_waiting = 1000, 20.0, 3.0
    opt.seconds_computing = 50.0
    opt.save(tmp_path)
    state = opt.state_dict()
    for load in (lambda opt: opt.load(tmp_path), lambda opt: opt.load_state_dict(state)):
        del model, opt
        model, opt = started()
        load(opt)
        walk(model, opt, 3)
        found = opt.metrics()
        assert opt.steps_taken == 10
        assert found["bytes_sent"] == 1000  # a world of one sends nothing
        assert 50.0 < found["seconds_computing"] < 60.0
        assert 20.0 <= found["seconds_exchanging"] < 30.0
        assert 3.0 <= found["seconds_waiting"] < 13.0


def test_nobody_else_may_read_a_checkpoint(alone, tmp_path):
    _, opt = started()
    before = os.umask(0o022)
    try:
        opt.save(tmp_path / "new")
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*")}
    files = {f"node-0000.{ending}": 0o600 for ending in ("safetensors", "complete")}
    assert found == {"step-0000000000": 0o700, **files}


def test_a_checkpoint_is_on_the_disk_before_the_one_before_goes(alone, tmp_path, synced, monkeypatch):
    """The files, the folder that has their names, and the folder that has its name."""
    model, opt = started()
    opt.save(tmp_path / "new", keep=1)
    walk(model, opt, 3)
    monkeypatch.setattr(Shards, "remove", lambda shards, version: synced.append("removed"))
    synced.clear()
    opt.save(tmp_path / "new", keep=1)
    here = tmp_path / "new" / "step-0000000003"
    data = here / "node-0000.safetensors"
    names = {path.stat().st_ino: path.name for path in (data, here, here.parent)}
    assert [names.get(one, one) for one in synced] == [data.name, here.name, "new", "removed"]


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "a.b", None, "a\n"])
def test_names_that_cannot_be_files(alone, name):
    with pytest.raises(ValueError, match="use letters, digits, - and _ only"):
        started(name=name)


def test_what_is_not_finite_is_found():
    """float16 ends at 65504: sums of finite numbers that are no numbers do not count, and integers never."""
    large = torch.full((4,), 6e4, dtype=torch.float16)
    huge = torch.full((4,), 3e38)
    fine = {"a": large, "b": huge, "c": torch.arange(3), "d": torch.zeros(0), "e": torch.tensor([True])}
    assert first_nonfinite(fine.items()) == ""
    for value, word in ((torch.inf, "infinite"), (-torch.inf, "infinite"), (torch.nan, "NaN")):
        bad = huge.clone()
        bad[2] = value
        assert first_nonfinite({**fine, "bad": bad, "worse": bad}.items()) == f"bad is not finite ({word})"
    assert first_nonfinite([("both", torch.tensor([torch.inf, -torch.inf]))]) == "both is not finite (infinite)"
