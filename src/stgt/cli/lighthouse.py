"""`lighthouse`: where the nodes of an elastic training find one another."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from stgt.cli.common import app, print_line

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@app.command()
def lighthouse(
    bind: Annotated[
        str, typer.Option(help="Address of this machine to listen on; 0.0.0.0 lets other machines reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 29510,
    silence: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which a node counts as lost.")
    ] = 0.6,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log who asks, and each answer.")] = False,
) -> None:
    """Start a lighthouse: the nodes of an elastic training ask it who takes part. Runs until Ctrl-C.

    It is torchft's, with time limits that let a training go on within a second. Models and data do not pass through it,
    and the members train on while it is down. Whoever reaches its port can join: see SECURITY.md.

    Examples:
        stgt lighthouse
        stgt lighthouse --bind 0.0.0.0 --port 29510
        stgt lighthouse --bind 10.0.0.1 --silence 3
    """
    from stgt.torch.lighthouse import start

    server, address = start(bind, port, silence, verbose)
    asked_to_end = threading.Event()
    signal.signal(
        signal.SIGTERM, lambda *_: asked_to_end.set()
    )  # as process 1 of a container nothing else would end it
    print_line(f"lighthouse: start each node with TORCHFT_LIGHTHOUSE={address}")
    who = "this machine alone reaches it, --bind 0.0.0.0 lets others" if bind in LOOPBACK else "open to who reaches it"
    print_line(f"status page: {address}/ ({who}); Ctrl-C ends it, and the members train on")
    try:
        asked_to_end.wait()
    finally:
        server.shutdown()
