"""Files are written whole or not at all, where the user says and with the user's rights."""

import os

import pytest

from stgt.files import write_atomically, write_text


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
