"""`lighthouse`: the address at which the nodes of an elastic training find each other."""

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
        float, typer.Option(help="A node that sends nothing for this many seconds counts as lost.")
    ] = 0.6,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each request and its answer.")] = False,
) -> None:
    """Start a lighthouse: from it, the nodes of an elastic training learn which nodes take part.

    It runs until Ctrl-C. It is torchft's lighthouse, with time limits that let a training continue within a second.
    Models and data do not pass through it, and the members keep training while it is down. Anyone who can reach its
    port can join: see SECURITY.md.

    Examples:
        stgt lighthouse
        stgt lighthouse --bind 0.0.0.0 --port 29510
        stgt lighthouse --bind 10.0.0.1 --silence 3
    """
    from stgt.torch.lighthouse import start

    server, address = start(bind, port, silence, verbose)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())  # process 1 of a container ignores it otherwise
    print_line(f"lighthouse: start each node with TORCHFT_LIGHTHOUSE={address}")
    who = (
        "only this machine can reach it; --bind 0.0.0.0 opens it to others"
        if bind in LOOPBACK
        else "anyone who reaches it can join"
    )
    print_line(f"status page: {address}/ ({who}); Ctrl-C ends it, but the members keep training")
    try:
        asked_to_end.wait()
    finally:
        server.shutdown()
