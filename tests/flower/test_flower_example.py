"""examples/flower as a user starts it: a simulation on this machine, on made-up digits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deployment import ENVIRONMENT, ROOT, free_port, wait_for

from stgt.files import read_table

APP = ROOT / "examples" / "flower"
FLWR = Path(sys.executable).with_name("flwr")


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    """`flwr run` of the example with some config; what it starts and leaves running is ended after the tests."""
    home = tmp_path_factory.mktemp("flwr")
    environment = {
        **ENVIRONMENT,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }

    def run(config: str) -> str:
        command = [FLWR, "run", APP, "--stream", "--run-config", config]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
        return done.stdout + done.stderr

    yield run
    for process in _mentioning(str(home)):
        os.kill(process, signal.SIGTERM)
    wait_for(lambda: not _mentioning(str(home)), 30, "the local SuperLink is still there")


def _mentioning(text: str) -> list[int]:
    """The processes in whose command line a text occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.thorough
def test_flwr_run_trains_and_writes_the_curve(flwr, digits, tmp_path):
    out = tmp_path / "curve.csv"  # two SuperNodes are what Flower simulates if nothing is said
    printed = flwr(f"data-dir='{digits}' out='{out}' clients=2 sampled=2 classes=5 rounds=2 tau=20 lr=0.1")
    assert out.exists(), printed
    rows = read_table(out)
    assert [row["round"] for row in rows] == ["0", "1", "2"], printed
    assert list(rows[0]) == ["round", "test_accuracy", "test_loss"]
    assert float(rows[2]["test_accuracy"]) > float(rows[0]["test_accuracy"]) + 0.1, printed
    assert float(rows[2]["test_loss"]) < float(rows[0]["test_loss"])


def test_what_is_wrong_with_the_config_is_said_in_one_sentence(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    import task

    with pytest.raises(ValueError, match="method='adam': choose from 'scaffold-plus', 'scaffold', 'fedavg', 'fedprox'"):
        task.method({"method": "adam"})
    with pytest.raises(ValueError, match="data-dir='data': give an absolute path"):
        task.images({"data": "mnist", "data-dir": "data"})
    with pytest.raises(ValueError, match="data_dir was left out"):
        task.images({"data": "mnist", "data-dir": ""})
