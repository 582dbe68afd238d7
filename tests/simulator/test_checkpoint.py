"""Runs that are saved as they go: killed at any moment, they go on to the bits of a run that nobody disturbed."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkpointed
import numpy as np
import pytest

import stgt
from bits import assert_same_bits
from catalogue import logistic, quadratic
from stgt._internal import container
from stgt.simulator import drive, trace
from stgt.simulator.store import CheckpointFile

PARTS = (stgt.STGT(gamma=0.05, tau=2), logistic(4), stgt.topology.random_matching(4))
ROUNDS = 21
LONGEST = 120  # seconds that a process may take, ten times what it needs on a slow machine


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C as in a terminal: what a shell starts in the background is born deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.stgt"


def run(rounds: int = ROUNDS, **options) -> stgt.Trace:
    return stgt.simulate(*PARTS, rounds, **{"seeds": 2, "engine": "numpy", **options})


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def process(folder: Path, engine: str, *more: str) -> Iterator[subprocess.Popen]:
    """checkpointed.py, which is ended after LONGEST whatever happens."""
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "STGT_CACHE": str(folder.parent / "compiled")}
    command = [sys.executable, checkpointed.__file__, engine, str(folder), *more]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as started:
        timer = threading.Timer(LONGEST, started.kill)
        timer.start()
        try:
            yield started
        finally:
            timer.cancel()
            started.kill()


def wait_for(started: subprocess.Popen, least: int) -> None:
    """Until it has made so many rounds."""
    for line in started.stdout:
        if int(line) >= least:
            return
    raise AssertionError(f"it ended before round {least}: {started.stderr.read()}")


def finish(started: subprocess.Popen) -> None:
    _, complaint = started.communicate("go on\n", timeout=LONGEST)
    assert started.returncode == 0, complaint


@pytest.mark.parametrize(
    ("engine", "kills"),
    [
        ("numpy", 3),
        pytest.param("numpy", 16, marks=pytest.mark.release),
        pytest.param("jax", 4, marks=pytest.mark.release),
    ],
)
def test_killed_at_random_moments(engine, kills, tmp_path):
    """kill −9 after random rounds and a few random milliseconds, in which a checkpoint is written or a round made."""
    folder, draw = tmp_path / "killed", random.Random(kills)
    folder.mkdir()
    rounds = sorted(draw.sample(range(1, checkpointed.PAUSE), kills))
    reached = 0
    for least in rounds:
        with process(folder, engine) as started:
            wait_for(started, max(least, reached + 1))
            time.sleep(draw.uniform(0.0, 0.01))
            started.kill()
            assert started.wait(LONGEST) == -signal.SIGKILL
        if (folder / "run.stgt").exists():
            left = stgt.Trace.load(folder / "run.stgt")
            assert least - 1 <= left.rounds <= checkpointed.PAUSE
            assert left.interrupted
            reached = left.rounds
    with process(folder, engine) as started:
        finish(started)
    whole = checkpointed.run(engine)
    assert_same_bits(stgt.Trace.load(folder / "result.stgt"), whole)
    assert_same_bits(stgt.Trace.load(folder / "run.stgt"), whole)
    assert [name for name in names(folder) if not name.startswith(".")] == ["result.stgt", "run.stgt"]


@pytest.mark.parametrize("engine", ["numpy", pytest.param("jax", marks=pytest.mark.release)])
def test_interrupted(engine, tmp_path):
    """Ctrl-C: the process goes on to its last line, with a trace so far that is marked, and resumes."""
    folder = tmp_path / "interrupted"
    folder.mkdir()
    with process(folder, engine) as started:
        wait_for(started, 30)
        started.send_signal(signal.SIGINT)
        finish(started)
    stopped = stgt.Trace.load(folder / "result.stgt")
    assert stopped.interrupted
    assert 30 <= stopped.rounds <= checkpointed.PAUSE
    assert_same_bits(stgt.Trace.load(folder / "run.stgt"), stopped)
    whole = checkpointed.run(engine)
    assert_same_bits(checkpointed.run(engine, checkpointed.ROUNDS - stopped.rounds, resume=stopped), whole)
    assert_same_bits(checkpointed.run(engine, checkpoint=folder / "run.stgt"), whole)


def test_interrupted_twice(tmp_path):
    """The first Ctrl-C only asks; while a callback sleeps nothing happens. The second one ends the process."""
    with process(tmp_path, "numpy", "sleeps") as started:
        wait_for(started, checkpointed.SLEEP)
        started.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert started.poll() is None
        for _ in range(LONGEST):
            started.send_signal(signal.SIGINT)
            time.sleep(0.5)
            if started.poll() is not None:
                break
        assert started.wait(LONGEST) != 0
        assert "KeyboardInterrupt" in started.stderr.read()
    assert stgt.Trace.load(tmp_path / "run.stgt").rounds == checkpointed.SLEEP - 1


class StoppedError(Exception):
    """Of a callback."""


def stop_at(last: int):
    def callback(r: int, state: dict[str, np.ndarray]) -> None:
        if r == last:
            raise StoppedError

    return callback


@pytest.mark.parametrize("engine", ["jax", "numpy"])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.sampled(each="engine")
def test_the_same_call_goes_on(engine, every, path):
    """A callback fails after round 15: what was saved before stands, a multiple of `every`."""
    whole = run(engine=engine)
    with pytest.raises(StoppedError):
        run(engine=engine, checkpoint=path, every=every, callback=stop_at(15 // every * every or 15))
    if every < 15:
        assert stgt.Trace.load(path).rounds == (14 if every == 1 else 8)
    assert_same_bits(run(engine=engine, checkpoint=path, every=every), whole)
    assert_same_bits(stgt.Trace.load(path), whole)
    assert names(path.parent) == ["run.stgt"]


def test_a_finished_run_returns_at_once(path):
    whole = run(checkpoint=path)
    content = stgt.Trace.load(path)

    def never(r: int, state: dict[str, np.ndarray]) -> None:
        raise AssertionError("a round was made")

    assert_same_bits(run(checkpoint=str(path), callback=never), whole)
    assert_same_bits(content, whole)
    assert_same_bits(run(30, checkpoint=path), run(30))


@pytest.mark.parametrize("engine", ["jax", "numpy"])
@pytest.mark.sampled
def test_a_schedule_that_ends_at_zero(engine, path):
    """cosine(…, rounds=6) has no stepsize for a seventh round, and a finished run needs none."""
    parts = (stgt.STGT(gamma=stgt.schedules.cosine(0.1, rounds=6)), *PARTS[1:])
    whole = stgt.simulate(*parts, 6, engine=engine, checkpoint=path)
    assert_same_bits(stgt.simulate(*parts, 6, engine=engine, checkpoint=path), whole)


@pytest.mark.parametrize(
    "options", [{"x0": np.ones(3)}, {"state0": {"c": np.outer([1.0, -1.0, 2.0, -2.0], np.ones(3))}}]
)
def test_what_the_run_begins_at_is_said_again(options, path):
    """The same call has it in it; another start is another run."""
    whole = run(**options)
    with pytest.raises(StoppedError):
        run(**options, checkpoint=path, every=1, callback=stop_at(9))
    with pytest.raises(ValueError, match="different one: it began with another x0 or state0"):
        run(checkpoint=path)
    with pytest.raises(ValueError, match="different one: it began with another x0 or state0"):
        run(checkpoint=path, x0=np.full(3, 2.0))
    assert_same_bits(run(**options, checkpoint=path), whole)
    loaded = stgt.Trace.load(path)
    assert_same_bits(run(4, resume=loaded), run(ROUNDS + 4, **options))


def test_a_resumed_run_with_a_checkpoint(path):
    """`rounds` counts from the trace that was given, also when the same call goes on from the file."""
    before = run(9, x0=np.ones(3))
    with pytest.raises(StoppedError):
        run(12, resume=before, checkpoint=path, every=1, callback=stop_at(15))
    assert stgt.Trace.load(path).rounds == 14
    assert_same_bits(run(12, resume=before, checkpoint=path), run(x0=np.ones(3)))


def test_a_sweep(path):
    options = {"grid": {"gamma": [0.02, 0.05, 0.1]}, "seeds": 2, "engine": "numpy"}
    whole = stgt.sweep(*PARTS, ROUNDS, **options)
    with pytest.raises(StoppedError):
        stgt.sweep(*PARTS, ROUNDS, **options, checkpoint=path, every=4, callback=stop_at(16))
    for _ in range(2):
        for one, other in zip(stgt.sweep(*PARTS, ROUNDS, **options, checkpoint=path), whole, strict=True):
            assert_same_bits(one, other)
    with pytest.raises(ValueError, match="holds the 3 runs of a sweep"):
        stgt.Trace.load(path)
    with pytest.raises(ValueError, match=r"checkpoint .* has 3 runs, and not 1: give another path"):
        run(checkpoint=path)


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(path):
    run(9, checkpoint=path)
    content = path.read_bytes()
    for options, words in (
        ({"dtype": "float32"}, "dtype is 'float32', and was 'float64'"),
        ({"seeds": 3}, r"seeds=3, but the run to resume has \[0, 1\]: give these"),
        ({"seeds": 1}, r"seeds=1, but the run to resume has \[0, 1\]: give these"),
        ({"rounds": 8}, "has 9 rounds, more than the 8 requested"),
        ({"rounds": 5, "resume": run(3, x0=np.ones(3))}, "has 9 rounds, more than the 8"),
        ({"resume": run(3, x0=np.ones(3))}, "does not continue the trace given as resume"),
        ({"oracle": stgt.oracles.Exact()}, "oracle.name is 'Exact'"),
    ):
        with pytest.raises(ValueError, match=words):
            run(checkpoint=path, **options)
    with pytest.raises(ValueError, match=r"problem\.name is 'Quadratic"):
        stgt.simulate(PARTS[0], quadratic(4, 3), PARTS[2], 21, checkpoint=path)
    assert path.read_bytes() == content
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=r"run\.stgt is cut off"):
        run(checkpoint=path)
    assert path.read_bytes() == content[:-100]


def test_what_a_killed_process_left_is_no_checkpoint(path):
    """A half-written temporary file lies beside it, as after a kill."""
    run(9, checkpoint=path)
    left = path.parent / ".run-abc123.stgt"
    left.write_bytes(path.read_bytes()[:500])
    assert_same_bits(run(checkpoint=path), run())
    path.unlink()
    assert_same_bits(run(checkpoint=path), run())
    assert left.exists(), "it may be somebody's who is writing"
    os.utime(left, (0, 0))
    run(checkpoint=path)
    assert names(path.parent) == ["run.stgt"]


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")

    def never(r: int, state: dict[str, np.ndarray]) -> None:
        raise AssertionError("a round was made")

    for place in (tmp_path / "file" / "run.stgt", Path("/proc/nowhere/run.stgt")):
        with pytest.raises(ValueError, match=r"checkpoint .* cannot be written \(.*\): give another path\.$"):
            run(checkpoint=place, callback=never)
    with pytest.raises(ValueError, match="is a folder: give the path of a file"):
        run(checkpoint=tmp_path, callback=never)
    assert run(checkpoint=tmp_path / "new" / "folder" / "run.stgt").rounds == ROUNDS


@pytest.mark.parametrize("times", [1, 1000])
def test_a_full_disk(times, path, monkeypatch):
    """It costs the checkpoint, with a warning, and not the run; the last good one is still there."""
    write, tried = container.write_atomically, []

    def full(path, fill, **options):
        def half(file):
            fill(file)
            os.truncate(file, 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        tried.append(len(tried))
        return write(path, half if 3 <= len(tried) < 3 + times else fill, **options)

    monkeypatch.setattr(container, "write_atomically", full)
    with pytest.warns(
        UserWarning, match=r"checkpoint: .*run\.stgt cannot be written \(No space left .* The run continues"
    ):
        found = run(checkpoint=path, every=5)
    assert_same_bits(found, run())
    assert len(tried) == 5
    assert stgt.Trace.load(path).rounds == (ROUNDS if times == 1 else 10)
    assert names(path.parent) == ["run.stgt"]


def test_what_a_graph_is_known_by_is_worked_out_once(path, monkeypatch):
    """ρ stands in every file, and of some random graphs it takes many draws: not at each checkpoint."""
    asked: list[stgt.topology.Topology] = []
    monkeypatch.setattr(trace, "contraction", lambda topology: asked.append(topology) or stgt.topology.Rho(0.5))
    graph = stgt.topology.random_matching(4, seed=9)
    assert stgt.simulate(*PARTS[:2], graph, 9, engine="numpy", checkpoint=path, every=1).rho == 0.5
    assert asked == [graph]


def test_without_a_number_of_rounds_it_is_saved_from_time_to_time(path, monkeypatch):
    """Every `interval` seconds: never in a run this short, and always if that is 0 and saving may take all the time.

    Each time `kept` is told, and at the end too.
    """
    seen: list[bool] = []
    kept: list[tuple[int, bool]] = []
    options = {"callback": lambda r, state: seen.append(path.exists())}
    run(checkpoint=path, **options)
    assert not any(seen)
    path.unlink()
    monkeypatch.setattr(drive, "SAVING", np.inf)
    seen.clear()
    often = CheckpointFile(path, 0.0, lambda traces: kept.append((traces[0].rounds, traces[0].interrupted)))
    run(checkpoint=often, **options)
    assert seen == [False] + [True] * (ROUNDS - 1)
    assert kept == [(r, r < ROUNDS) for r in range(1, ROUNDS + 1)]
