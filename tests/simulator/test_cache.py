"""Compiled programs on disk: another process finds them, and whatever happens to them the result is the same."""

import os
import subprocess
import sys

import pytest

CODE = """
import stgt
problem, graph = stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4)
trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=2), problem, graph, 3, seeds=[5])
print(trace.x.tobytes().hex())
"""


def run(cache: str, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + CODE],
        env=os.environ | {"STGT_CACHE": cache, "TF_CPP_MIN_LOG_LEVEL": "1"},  # as JAX leaves it to its children
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.thorough
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    folder = tmp_path / "some" / "cache"
    first = run(str(folder))
    (processor,) = folder.iterdir()
    entries = {file.name: file.stat().st_mtime_ns for file in processor.iterdir()}
    assert any("_advance" in name for name in entries)
    assert oct(processor.stat().st_mode)[-3:] == "700"
    assert run(str(folder)) == first
    assert {file.name: file.stat().st_mtime_ns for file in processor.iterdir()} == entries
    assert run(str(folder), before="import jax") == first, "and nothing is printed, whoever imports JAX first"
    for file in processor.iterdir():
        file.write_bytes(file.read_bytes()[:10])
    assert run(str(folder)) == first, "half an entry is compiled anew"


@pytest.mark.parametrize("kind", ["none", "a file"])
def test_without_a_folder_it_compiles_anew(tmp_path, kind):
    (tmp_path / "file").write_text("")
    assert run("" if kind == "none" else str(tmp_path / "file")) != ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_oldest_programs_go(tmp_path, monkeypatch):
    from stgt.simulator import cache

    monkeypatch.setattr(cache, "LARGEST", 1000)
    for age, name in enumerate("abcdefgh"):
        file = tmp_path / name
        file.write_bytes(b"x" * 200)
        os.utime(file, (age, age))
    cache._prune(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g", "h"], "1,600 bytes became at most 500"
