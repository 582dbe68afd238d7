"""The world of eight processes that the trainer's tests share."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODES = 8


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def node_environment(rank: int, nodes: int, port: int) -> dict[str, str]:
    """What torchrun would set."""
    return os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
    }


class World:
    """Eight nodes that run scenarios together."""

    def __init__(self, nodes: int):
        port = free_port()
        self.nodes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "node.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=node_environment(rank, nodes, port),
            )
            for rank in range(nodes)
        ]
        for node in self.nodes:
            assert node.stdout.readline().strip() == "ready"

    def ask(self, scenario: str, **arguments) -> list[dict]:
        """Each node's answer: {"result": …}, or {"error": …} with a ValueError's words."""
        for node in self.nodes:
            node.stdin.write(json.dumps([scenario, arguments]) + "\n")
            node.stdin.flush()
        answers = [json.loads(node.stdout.readline()) for node in self.nodes]
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
        for node in self.nodes:
            node.stdin.close()
        for node in self.nodes:
            try:
                node.wait(10)
            except subprocess.TimeoutExpired:
                node.kill()
            node.stdout.close()


@pytest.fixture(scope="session")
def world():
    made = World(NODES)
    yield made
    made.close()
