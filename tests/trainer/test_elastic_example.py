"""examples/elastic.py as a reader starts it: three nodes, one killed, one started again, one stopped in order."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from nodes import HERE, python_environment

pytest.importorskip("torchft")
pytestmark = pytest.mark.release
EXAMPLE = str(HERE.parents[1] / "examples" / "elastic.py")
LIGHTHOUSE = ["-c", "from stgt.cli import main; main()", "lighthouse", "--port", "0", "--silence", "3"]


class Started:
    """A node, and what it has printed."""

    def __init__(self, folder, name, environment):
        self.log = folder / f"{name}.log"
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE], cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, words: str, seconds: float = 150) -> None:
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, self.text[-3000:]
            assert self.process.poll() is None, self.text[-3000:]
            time.sleep(0.02)


def test_the_example_trains_on(tmp_path):
    environment = python_environment() | {"ROUNDS": "1500"}
    lighthouse = subprocess.Popen(
        [sys.executable, *LIGHTHOUSE], stdout=subprocess.PIPE, text=True, env=python_environment()
    )
    everybody = []

    def start(site: int) -> Started:
        everybody.append(Started(tmp_path, f"{len(everybody)}", environment | {"SITE": str(site)}))
        return everybody[-1]

    try:
        environment["TORCHFT_LIGHTHOUSE"] = re.search(r"http://\S+", lighthouse.stdout.readline())[0]
        first, second, third = (start(site) for site in range(3))
        first.wait_for("round 200: ")
        second.process.kill()
        first.wait_for("2 members from round")
        back = start(1)
        back.wait_for("nodes, accuracy")
        third.process.send_signal(signal.SIGTERM)
        assert third.process.wait(60) == 128 + signal.SIGTERM, third.text[-3000:]
        assert first.process.wait(200) == back.process.wait(200) == 0, first.text[-3000:] + back.text[-3000:]
        assert "SIGTERM" in first.text
        assert "joined" in first.text
        last = [line for line in first.text.splitlines() if line.startswith("round ")][-1]
        accuracy = float(last.split()[-1])
        assert accuracy > 0.95  # of all classes: none of the sites has more than two of the six
        assert os.listdir(tmp_path / "runs" / "elastic")
    finally:
        for process in (*(one.process for one in everybody), lighthouse):
            process.kill()
            process.wait()
        lighthouse.stdout.close()
