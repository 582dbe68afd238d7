"""`stgt lighthouse`: a process that says its address, answers there, and ends when it is asked to."""

import inspect
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from stgt.cli.lighthouse import lighthouse
from stgt.torch.lighthouse import PORT, SILENCE

pytest.importorskip("torchft")
STGT = Path(sys.executable).with_name("stgt")


@contextmanager
def started(*arguments):
    """The process, and the two lines that it prints at first."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's job in the background ignores it, and its children
    process = subprocess.Popen(
        [STGT, "lighthouse", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, [process.stdout.readline() for _ in range(2)]
    finally:
        process.kill()
        process.communicate()


def address_in(line: str) -> str:
    return re.search(r"http://[\w.-]+:\d+", line)[0]


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_answers_until_it_is_asked_to_end(sign, code):
    with started("--port", "0") as (process, (first, second)):
        address = address_in(first)
        assert first == f"lighthouse: start each node with TORCHFT_LIGHTHOUSE={address}\n"
        assert address.startswith("http://127.0.0.1:")  # by default no other machine reaches it
        assert f"status page: {address}/" in second
        with urlopen(f"{address}/status", timeout=20) as page:
            assert "quorum_id: 0" in page.read().decode()
        process.send_signal(sign)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == code


def test_a_port_in_use_is_one_sentence():
    with started("--port", "0") as (_, (first, _)):
        port = address_in(first).rpartition(":")[2]
        second = subprocess.run([STGT, "lighthouse", "--port", port], capture_output=True, text=True, timeout=60)
    assert (second.returncode, second.stdout) == (2, "")
    (line,) = second.stderr.splitlines()
    assert line.startswith(f"stgt: the lighthouse cannot listen on 127.0.0.1:{port} (")
    assert line.endswith("give another --port or --bind.")


def test_without_torchft_it_says_what_to_install():
    code = "import sys; sys.modules['torchft.coordination'] = None; from stgt.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "lighthouse"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stgt: a lighthouse needs torchft: pip install 'stgt[elastic]'.\n"


def test_its_defaults_are_those_that_the_nodes_know():
    defaults = {name: one.default for name, one in inspect.signature(lighthouse).parameters.items()}
    assert (defaults["port"], defaults["silence"]) == (PORT, SILENCE)
