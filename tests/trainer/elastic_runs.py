"""An elastic training of forked processes with a lighthouse, whose nodes a test kills, stops, starts and asks."""

import json
import os
import signal
import time
from pathlib import Path

import torch
from elastic_node import minimiser
from hosts import Hosts
from nodes import Forker, Node, free_port, stop


def distance(line: dict, numbers: list[int]) -> float:
    """How far a node's model is from the minimiser over these nodes, by the normal equations."""
    return float((torch.tensor(line["x"], dtype=torch.float64) - minimiser(numbers)).abs().max())


class ElasticNode(Node):
    """A node that is started by itself, and prints what it does."""

    def said(self, what: str) -> list[dict]:
        """What it has printed of a kind: "begin", "round", "end", …"""
        text = self.log.read_text() if self.log.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()  # it may be writing the last line just now
        found = [json.loads(line[1:]) for line in whole if line.startswith("@")]
        return [one for one in found if one["what"] == what]

    def wait_until(self, what: str, seconds: float = 60, round: int = 0) -> dict:
        end = time.monotonic() + seconds
        while not any(one["round"] >= round for one in self.said(what)):
            assert time.monotonic() < end, self.lines[-20:]
            assert self.poll() is None or self.said(what), (self.exit_code, self.lines[-20:])
            time.sleep(0.01)
        return next(one for one in self.said(what) if one["round"] >= round)

    def send(self, sign: int) -> None:
        os.kill(self.number, sign)


class ElasticRun:
    """A lighthouse, and the nodes of one training by their numbers.

    With hosts, the lighthouse is on the first one, and node k on number k modulo the number of hosts.
    """

    def __init__(
        self, forker: Forker, folder: Path, script: str = "elastic_node", net: Hosts | None = None, **settings
    ):
        self.forker, self.folder, self.script, self.net, self.settings = forker, folder, script, net, settings
        self.address = net.addresses[0] if net else "127.0.0.1"
        self.port, self.nodes, self.lighthouse = free_port(), {}, None
        self.everybody: list[Node] = []
        self.stop = folder / "stop"  # has the round at which all nodes end
        folder.mkdir(exist_ok=True)
        self.start_lighthouse()

    def start_lighthouse(self) -> None:
        self.lighthouse = Node(
            self.forker, self.folder, {"RANK": f"lighthouse-{len(self.everybody)}", **self._host(0)},
            "elastic_lighthouse", f"{self.address}:{self.port}",
        )  # fmt: skip
        self.lighthouse.wait_for("http")
        self.everybody.append(self.lighthouse)

    def start(self, *numbers: int, **settings) -> list[ElasticNode]:
        for k in numbers:
            environment = {
                "RANK": f"{k}-{len(self.everybody)}",
                "STGT_NODE": f"n{k}",
                "TORCHFT_LIGHTHOUSE": f"http://{self.address}:{self.port}",
                **self._host(k),
            }
            told = json.dumps({"timeout": 20, "min_nodes": 2, "stop": str(self.stop), **self.settings, **settings})
            self.nodes[k] = ElasticNode(self.forker, self.folder, environment, self.script, told)
            self.everybody.append(self.nodes[k])
        return [self.nodes[k] for k in numbers]

    def _host(self, k: int) -> dict[str, str]:
        return {"NETNS": self.net.names[k % len(self.net.names)]} if self.net else {}

    def kill(self, *numbers: int) -> None:
        for k in numbers:
            self.nodes[k].send(signal.SIGKILL)

    def settle(self, *numbers: int, tolerance: float = 1e-10, seconds: float = 60) -> None:
        """Waits until these nodes are the members, and each is at their minimiser."""
        end, expected = time.monotonic() + seconds, sorted(numbers)
        for k in numbers:
            while not any(
                one["members"] == expected and distance(one, expected) < tolerance
                for one in self.nodes[k].said("round")[-1:]
            ):
                assert time.monotonic() < end, (k, self.nodes[k].lines[-20:])
                assert self.nodes[k].poll() is None, (k, self.nodes[k].exit_code, self.nodes[k].lines[-20:])
                time.sleep(0.05)

    def end(self, *numbers: int, seconds: float = 60) -> list[dict]:
        """Ends the training a little later, at all nodes in the same round; returns what these say then."""
        last = max(line["round"] for k in numbers for line in self.nodes[k].said("round")[-1:])
        writing = self.stop.with_suffix(".new")
        writing.write_text(str(last + 60))
        writing.replace(self.stop)
        return self.finish(*numbers, seconds=seconds)

    def finish(self, *numbers: int, seconds: float = 60) -> list[dict]:
        """What each of these nodes says at its end, which is in good order."""
        for k in numbers:
            assert self.nodes[k].finish(seconds) == 0, (k, self.nodes[k].lines[-30:])
        return [self.nodes[k].said("end")[0] for k in numbers]

    def close(self) -> None:
        for node in self.everybody:
            if node.poll() is None:
                os.kill(node.number, signal.SIGCONT)
        stop(self.everybody)
