"""Nodes as processes of their own: a world that runs scenarios, and scripts that can be killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Listener
from pathlib import Path

HERE = Path(__file__).parent
PORTS = count(20_000 + os.getpid() % 10_000)


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: nobody has taken it when the node does."""
    while True:
        port = next(PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def python_environment() -> dict[str, str]:
    """Python finds the tests' modules, and has one thread, as several processes share the cores."""
    paths = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")]))
    return os.environ | {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths}


def node_environment(rank: int, nodes: int, port: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Forker:
    """The process that all nodes are forked from."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "forker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=python_environment(),
        )
        self.lock = threading.Lock()

    def ask(self, *words):
        with self.lock:
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def start(self, folder: Path, nodes: int, script: str, *arguments: str) -> list["Node"]:
        """A process for each rank, whose output goes to node-RANK.log in `folder`."""
        folder.mkdir(exist_ok=True)
        port = free_port()
        return [Node(self, folder, node_environment(rank, nodes, port), script, *arguments) for rank in range(nodes)]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


class Node:
    """One forked process."""

    def __init__(self, forker: Forker, folder: Path, environment: dict[str, str], script: str, *arguments: str):
        self.forker, self.log = forker, folder / f"node-{environment['RANK']}.log"
        self.number = forker.ask("start", str(self.log), environment, script, *arguments)
        self.exit_code: int | None = None

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def poll(self) -> int | None:
        if self.exit_code is None:
            self.exit_code = self.forker.ask("poll", self.number)
        return self.exit_code

    def wait_for(self, words: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not any(words in line for line in self.lines):
            assert time.monotonic() < end, self.lines
            assert self.poll() is None, self.lines
            time.sleep(0.02)

    def finish(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while self.poll() is None:
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)
        return self.exit_code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.number, signal.SIGKILL)


def stop(nodes: list[Node]) -> None:
    for node in nodes:
        node.kill()
    for node in nodes:
        node.finish(10)


class World:
    """Nodes that run scenarios together."""

    def __init__(self, forker: Forker, nodes: int):
        self.folder = tempfile.TemporaryDirectory()
        address = str(Path(self.folder.name) / "socket")
        with Listener(address, backlog=nodes) as listener:
            self.nodes = forker.start(Path(self.folder.name), nodes, "node", address)
            connections = [listener.accept() for _ in self.nodes]
        self.connections = [one for _, one in sorted((one.recv(), one) for one in connections)]

    def ask(self, scenario: str, **arguments) -> list[dict]:
        """Each node's answer: {"result": …}, or {"error": …} with a ValueError's words."""
        try:
            for connection in self.connections:
                connection.send((scenario, arguments))
            answers = [connection.recv() for connection in self.connections]
        except (EOFError, OSError):
            raise AssertionError([(node.poll(), node.lines[-12:]) for node in self.nodes]) from None
        for answer in answers:
            assert "crash" not in answer, answer["crash"]
        return answers

    def run(self, scenario: str, **arguments) -> list:
        """Each node's result."""
        answers = self.ask(scenario, **arguments)
        for answer in answers:
            assert "error" not in answer, answer["error"]
        return [answer["result"] for answer in answers]

    def close(self) -> None:
        stop(self.nodes)
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()
