"""A study that is killed at any moment is readable, and goes on to exactly what it would have been."""

import csv
import random
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from specs import command, stgt, write_spec
from typer.testing import CliRunner

from stgt.cli import app
from stgt.study import Folder

KINDS = ("run", "sweep", "compare")
NOT_SAME = ("seconds",)  # a clock's


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Makes a study of each kind once, without a disturbance: its folder, and the seconds that it took."""
    made = {}

    def study(kind: str, engine: str, rounds: int) -> tuple[Path, float]:
        if (kind, engine, rounds) not in made:
            folder = tmp_path_factory.mktemp(kind)
            spec, began = write_spec(folder, kind, engine, rounds), time.monotonic()
            done = stgt(kind, spec, "--out", folder / "whole")
            assert done.returncode == 0, done.stderr
            made[kind, engine, rounds] = folder, time.monotonic() - began
        return made[kind, engine, rounds]

    return study


def contents(folder: Path) -> dict[str, bytes]:
    """All files whose bytes must be the same."""
    names = [path for path in folder.glob("**/*") if path.name in ("metrics.csv", "summary.csv", "spec.toml")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def assert_same_study(one: Path, other: Path) -> None:
    assert contents(one) == contents(other)
    for (entry, first), (_, second) in zip(Folder.open(one).states(), Folder.open(other).states(), strict=True):
        for a, b in zip(first, second, strict=True):
            for name in a.values:
                np.testing.assert_array_equal(a.values[name], b.values[name], err_msg=f"{entry['folder']} {name}")
            for name in a.state:
                np.testing.assert_array_equal(a.state[name], b.state[name], err_msg=f"{entry['folder']} {name}")
            assert not a.interrupted
            assert not b.interrupted


def assert_readable(folder: Path) -> None:
    """Whatever is there can be read: `show` says what is known, and all lines of the tables are whole but the last."""
    if not (folder / "run.json").exists():
        return
    opened = Folder.open(folder)
    assert opened.state in ("killed", "finished")
    for _, traces in opened.states():
        assert traces[0].rounds > 0
    for table in folder.glob("*/metrics.csv"):
        text = table.read_text()
        rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
        assert {len(row) for row in rows} == {len(rows[0])}
        [float(row[4]) for row in rows[1:]]
    shown = CliRunner().invoke(app, ["show", str(folder)])
    if any(folder.glob("*/state.stgt")):
        assert shown.exit_code == 0, shown.output
    else:
        assert "holds no measurement yet" in str(shown.exception)


def killed(arguments: list[object], after: float) -> None:
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after)
    process.kill()
    process.wait()


def survives(kind: str, engine: str, whole: Path, seconds: float, moment: float, again: float) -> None:
    """Killed at a moment, then at another one when it goes on, then left alone."""
    folder = whole.parent / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    killed([kind, whole.parent / "study.toml", "--out", folder], moment * seconds)
    assert_readable(folder)
    if not (folder / "run.json").exists():  # before anything was written
        assert stgt(kind, whole.parent / "study.toml", "--out", folder, "--force").returncode == 0
    else:
        killed([kind, "--resume", folder], again * seconds)
        assert_readable(folder)
        done = stgt(kind, "--resume", folder)
        assert done.returncode == 0, done.stderr
    assert_same_study(whole, folder)


@pytest.mark.release
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_moments(undisturbed, kind):
    """Of the three kinds 21, and at as many more when they go on."""
    rng = random.Random(kind)
    for number in range(7):
        engine = "jax" if number == 6 else "numpy"
        folder, seconds = undisturbed(kind, engine, 80 if engine == "numpy" else 3000)
        survives(kind, engine, folder / "whole", seconds, rng.uniform(0.1, 1.05), rng.uniform(0.1, 1.05))
