"""torchft's lighthouse with time limits that let a training continue within a second after a node is lost."""

from __future__ import annotations

import os
import socket
from typing import Any

from stgt._internal.checks import check_number

PORT = 29510
SILENCE = 0.6  # seconds without a heartbeat after which a node counts as lost; stgt's nodes send one every 0.18 s
JOINING = 5.0  # seconds that a change of the members waits for nodes that send heartbeats and do not answer
TICK = 50  # milliseconds between two checks


def options(silence: float = SILENCE) -> dict[str, Any]:
    """The arguments of torchft's LighthouseServer."""
    return {
        "min_replicas": 1,  # each node gives the smallest number that may train, as min_nodes
        "join_timeout_ms": int(1000 * JOINING),
        "quorum_tick_ms": TICK,
        "heartbeat_timeout_ms": int(1000 * check_number(silence, "silence", above=0)),
    }


def start(host: str, port: int, silence: float = SILENCE, verbose: bool = False) -> tuple[Any, str]:
    """Starts a lighthouse in this process. Returns it, and the address for the nodes."""
    os.environ.setdefault("RUST_LOG", "info" if verbose else "warn")
    try:
        from torchft.coordination import LighthouseServer
    except ImportError as error:
        raise ImportError("a lighthouse needs torchft: pip install 'stgt[elastic]'.") from error
    try:
        server = LighthouseServer(bind=f"{host}:{port}", **options(silence))
    except RuntimeError as error:
        raise ValueError(
            f"the lighthouse cannot listen on {host}:{port} ({error}): give another --port or --bind."
        ) from None
    shown = socket.gethostname() if host in ("0.0.0.0", "[::]") else host
    return server, f"http://{shown}:{server.address().rsplit(':', 1)[1]}"
