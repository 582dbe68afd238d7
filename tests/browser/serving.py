"""A folder that is served on this machine while a browser looks at it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args) -> None:
        """Nothing: the browser reports what was asked for."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address at which the folder is served."""
    server = ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()
