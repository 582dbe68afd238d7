"""This process as a node that may train with others, which it finds with the lighthouse of its environment."""

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
    """This process as one of the nodes that may train together: its id, its store, and the lighthouse's address."""

    def __init__(self, lighthouses: list[str], timeout: float, node: str = ""):
        os.environ.setdefault("RUST_LOG", "warn")  # otherwise torchft logs every connection
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
        self.terminated: float | None = None  # time of SIGTERM
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        """Makes the node leave in an orderly way. A second SIGTERM ends the process as usual."""
        self.terminated = time.monotonic()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def join(timeout: float, node: str = "") -> None:
    """Makes this process a node that may train with others, which it finds with the lighthouse of its environment."""
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
    """This process's node, if init(elastic=True) was called."""
    return _node
