import gc
import os
import struct
import sys
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

for folder in (".", "paper"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

from sampling import Case, choose, share  # noqa: E402

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two workers run on two cores

# What is tested is compiled by this process, and once: what measures a run is often the same program for many methods.
COMPILED = tempfile.TemporaryDirectory(prefix="stgt-compiled-")
os.environ["STGT_CACHE"] = COMPILED.name
import stgt.simulator.program  # noqa: E402, F401

os.environ["STGT_CACHE"] = ""  # the processes that it starts compile by themselves

TESTS = count()  # that this process has made

settings.register_profile("stgt", deadline=None, derandomize=True)
settings.load_profile("stgt")


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", help="K/N: of the files with tests marked release, every Nth, from K on")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """`@pytest.mark.sampled(k, each="NAMES OF PARAMETERS")` and `--share`: see sampling.py."""
    marked = [item for item in items if item.get_closest_marker("sampled")]
    for item, chosen in zip(marked, choose([case_of(item) for item in marked]), strict=True):
        if not chosen:
            item.add_marker("thorough")
    long = [item for item in items if item.get_closest_marker("release")]
    mine = share([str(item.path) for item in long], config.getoption("--share"))
    others = {item for item in long if str(item.path) not in mine}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def pytest_sessionfinish(session, exitstatus):
    """A share may have no tests."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--share") != "0/1":
        session.exitstatus = pytest.ExitCode.OK


def case_of(item) -> Case:
    mark = item.get_closest_marker("sampled")
    each = tuple(str(item.callspec.params[name]) for name in mark.kwargs.get("each", "").split())
    return Case(item.name, (item.function, *each), *mark.args)


def pytest_unconfigure():
    COMPILED.cleanup()


def pytest_collection_finish():
    """What was imported stays: nobody need look through it for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nobody_has_pressed_ctrl_c():
    """Of late: a second time soon after the first interrupts what runs then."""
    drive = sys.modules.get("stgt.simulator.drive")
    if drive is not None:
        drive._presses.last, drive._presses.pending = -np.inf, False


@pytest.fixture(autouse=True)
def compiled_programs_are_few():
    """Each keeps memory mapped, of which a process may have 65,530 pieces: the compiler crashes beyond."""
    yield
    maps = Path("/proc/self/maps")
    if next(TESTS) % 20 or "jax" not in sys.modules or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > 30_000:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture
def synced(monkeypatch):
    """The inodes of all files and folders that are synced to the disk, in order."""
    inodes = []
    monkeypatch.setattr(os, "fsync", lambda handle: inodes.append(os.fstat(handle).st_ino))
    return inodes


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A folder with MNIST's files unpacked, whose digit k is a bright bar in rows 2k and 2k + 1."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    folder.mkdir()
    for part, size in (("train", 60_000), ("t10k", 10_000)):
        labels = np.arange(size, dtype=np.uint8) % 10
        images = np.zeros((size, 28, 28), dtype=np.uint8)
        for offset in (0, 1):
            images[np.arange(size), 2 * labels + offset] = 200
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, size, 28, 28) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, size) + labels.tobytes())
    return folder.parent
