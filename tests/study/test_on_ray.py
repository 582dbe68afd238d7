"""A comparison on a Ray cluster of two workers is the one on one core, to the bit, also when a worker is killed."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest
from specs import command, stgt, write_spec

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(300)
TASK = "ray::_work"


ROUNDS = 400


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The same comparison on one core, without Ray."""
    folder = tmp_path_factory.mktemp("alone")
    done = stgt("compare", write_spec(folder, "compare", rounds=ROUNDS), "--out", folder / "out", "--workers", 1)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def assert_same_tables(one: Path, other: Path) -> None:
    names = sorted(path.relative_to(one) for path in one.glob("*/metrics.csv"))
    assert len(names) == 6, "three methods, and again on fresh seeds"
    for name in (*names, Path("summary.csv")):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def tasks(process: psutil.Process) -> list[psutil.Process]:
    """The workers that are at work."""
    found = []
    for one in process.children(recursive=True):
        try:
            if one.cmdline()[:1] == [TASK]:
                found.append(one)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


@pytest.mark.release
def test_two_workers_make_what_one_core_makes_also_when_one_is_killed(alone, tmp_path):
    spec = write_spec(tmp_path, "compare", rounds=ROUNDS)
    process = subprocess.Popen(
        command("compare", spec, "--out", tmp_path / "out", "--ray", "local"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 200
    killed = 0
    while process.poll() is None and not killed:
        assert time.monotonic() < end
        if [*tmp_path.glob("out/*/state.stgt")]:  # something is kept already
            for one in tasks(psutil.Process(process.pid))[:1]:
                one.kill()
                killed += 1
        time.sleep(0.05)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert killed == 1
    assert "a worker was lost; another continues from round" in " ".join(out.split())
    assert_same_tables(alone, tmp_path / "out")


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path):
    done = stgt("sweep", write_spec(tmp_path, "sweep"), "--out", tmp_path / "out", "--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert "--ray='127.0.0.1:1' cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
