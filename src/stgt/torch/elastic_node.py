"""This process as one that may train with others, wherever the lighthouse is that its environment names."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from uuid import uuid4

from stgt.torch.addresses import interface_of, open_store, towards
from stgt.torch.elastic_group import STORE_TIMEOUT

_node: ElasticNode | None = None


class ElasticNode:
    """This process among those that may train together: its id, its store, and where the lighthouse is."""

    def __init__(self, lighthouses: list[str], timeout: float, node: str = ""):
        os.environ.setdefault("RUST_LOG", "warn")  # torchft says else that it connects
        try:
            import torchft.coordination  # noqa: F401
        except ImportError as error:
            raise ImportError("init(elastic=True) needs torchft: pip install 'stgt[elastic]'.") from error
        self.lighthouses, self.timeout = lighthouses, timeout
        name = node or os.environ.get("STGT_NODE", "") or f"{socket.gethostname()}-{os.getpid()}"
        self.name, self.id = name, f"{name}:{uuid4().hex[:8]}"
        self.secret = os.environ.get("STGT_RUN_SECRET", "")
        host = towards(lighthouses[0])
        if interface := interface_of(host):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self.store = open_store(host, STORE_TIMEOUT)
        self.address = f"{host}:{self.store.port}"
        self.taken = False  # has an optimiser been made?
        self.terminated: float | None = None  # when SIGTERM came
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        """The training leaves in order; a second SIGTERM ends the process as ever."""
        self.terminated = time.monotonic()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def join(timeout: float, node: str = "") -> None:
    """Makes this process one that may train with others, wherever the lighthouse is that the environment names."""
    global _node
    given = os.environ.get("TORCHFT_LIGHTHOUSE", "")
    if not given:
        raise ValueError(
            "TORCHFT_LIGHTHOUSE is not in the environment: start one with `stgt lighthouse`, and give its address, "
            "such as TORCHFT_LIGHTHOUSE=http://host:29510; several, separated by commas, are tried in that order."
        )
    if _node is not None:
        raise ValueError("init(elastic=True) was called before: call it once, before all else.")
    _node = ElasticNode([one.strip() for one in given.split(",") if one.strip()], timeout, node)


def elastic_node() -> ElasticNode | None:
    """This process's part, if init(elastic=True) was called."""
    return _node
