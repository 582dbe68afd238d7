"""A read-only status page of one node, only on the loopback address of its machine."""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stgt.torch.addresses import LOOPBACK

REFRESH = 2  # seconds between two requests of a browser
SHOWN = 10  # events on the page


def serve(status: Callable[[], Mapping[str, Any]], port: int) -> str:
    """Serves `status()` as /status.json and as a page. Returns the page's address. It ends with the process."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if host not in (LOOPBACK, "localhost"):  # another site's script may have sent the browser here
                self.send_error(403)
                return
            if self.path not in ("/", "/status.json"):
                self.send_error(404)
                return
            found = status()
            kind, text = ("text/html", _page(found)) if self.path == "/" else ("application/json", json.dumps(found))
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing: requests do not belong in the training's output."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise ValueError(f"port={port} cannot be used ({error.strerror}): give another, or 0 for any.") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{LOOPBACK}:{server.server_address[1]}"


def _page(status: Mapping[str, Any]) -> str:
    numbers = {name: value for name, value in status.items() if not isinstance(value, list)}
    rows = "".join(f"<tr><th>{_text(name)}<td>{_text(value)}" for name, value in numbers.items())
    members = "".join(f"<li>{_text(one)}" for one in status.get("members", []))
    events = "".join(f"<li>{_event(one)}" for one in reversed(status.get("events", [])[-SHOWN:]))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH}">'
        "<title>stgt</title><style>body{font:1rem/1.5 system-ui;margin:2rem;max-width:60rem;color-scheme:light dark}"
        "th{text-align:left;padding-right:2rem;font-weight:normal;opacity:.7}</style>"
        f"<h1>Round {_text(status.get('round', 0))}</h1><table>{rows}</table>"
        f"<h2>Members</h2><ol>{members}</ol><h2>Last changes</h2><ul>{events or '<li>none'}</ul></html>"
    )


def _event(event: Mapping[str, Any]) -> str:
    changes = [f"{what} {', '.join(event[what])}" for what in ("lost", "left", "joined") if event.get(what)]
    words = "; ".join([*changes, *filter(None, [event.get("cause")])]) or "the same members, in a new group"
    moment = time.strftime("%H:%M:%S", time.localtime(event["time"]))
    return _text(f"{moment}, round {event['round']}: {event['members']} members ({words}); {event['seconds']:.2f} s")


def _text(value: Any) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
