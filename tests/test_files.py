"""Files are written whole or not at all, where the user says and with the user's rights."""

import errno
import os

import pytest

import stgt
from stgt._internal.files import write_atomically, write_text


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert write_text(tmp_path / "link.txt", "new") == tmp_path / "link.txt"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_rights_are_those_of_any_new_file(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "file.txt", "words")
    finally:
        os.umask(before)
    assert (tmp_path / "file.txt").stat().st_mode & 0o777 == mode


def test_what_fails_leaves_what_was_there(tmp_path):
    def half(file):
        file.write_text("half of it")
        raise OSError("full")

    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "file.txt", half)
    assert (tmp_path / "file.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_what_is_durable_is_on_the_disk_before_it_has_its_name(tmp_path, synced, monkeypatch):
    """Then its folder, and the folders that have the names of those that were made."""
    replace = os.replace

    def noted(source, target):
        synced.append("named")
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    path = write_atomically(tmp_path / "a" / "b" / "file.txt", lambda file: file.write_text("words"), durable=True)
    folders = [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    assert synced == [path.stat().st_ino, "named", *(folder.stat().st_ino for folder in folders)]
    synced.clear()
    write_text(path, "what is written every round")
    assert synced == ["named"]


def test_a_folder_that_the_file_system_does_not_sync(tmp_path, monkeypatch):
    def refuse(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", refuse)
    number = errno.EINVAL
    write_atomically(tmp_path / "file.txt", lambda file: file.write_text("words"), durable=True)
    assert (tmp_path / "file.txt").read_text() == "words"
    number = errno.EIO
    with pytest.raises(OSError, match="refused"):
        write_atomically(tmp_path / "file.txt", lambda file: file.write_text("words"), durable=True)


def test_a_run_is_saved_to_the_disk(tmp_path, synced):
    problem = stgt.problems.Quadratic([[[1.0]]], [[0.0]])
    trace = stgt.simulate(stgt.DPSGD(gamma=0.5), problem, stgt.topology.complete(1), 2, engine="numpy")
    path = trace.save(tmp_path / "run.stgt")
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]
