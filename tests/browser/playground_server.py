"""The playground's page, served with an engine in this process, and what tests read of it."""

import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from serving import Quiet

from playground.engine.result import simulate
from playground.engine.settings import stories
from playground.engine.worker import answer

FOLDER = Path(__file__).parents[2] / "playground"
ASKS = """
onmessage = async ({data}) => {
  const reply = await fetch("answer", {method: "POST", body: JSON.stringify(data)});
  postMessage({id: data.id, ...await reply.json()});
};
postMessage({ready: true, seconds: {}});
"""
WORKERS = {
    "asks": ASKS,
    "fails": "throw new Error('no Python')",
    "refuses": "postMessage({error: 'no Python'})",
    "": "",
}


class Handler(Quiet):
    def do_GET(self):
        name = self.path.strip("/")
        if name == "default.json":
            self.reply(json.dumps(self.server.default).encode(), "application/json")
        elif name.startswith("story-"):
            settings = stories()[int(name[6:-5])]["settings"]
            self.reply(json.dumps({"settings": settings, "result": simulate(settings)}).encode(), "application/json")
        elif name == "worker.js":
            self.reply(WORKERS[self.server.worker].encode(), "text/javascript")
        else:
            super().do_GET()

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append(json.loads(asked)["settings"])
        self.reply(answer(asked).encode(), "application/json")

    def reply(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served():
    """A server of the page; `asked` has all settings that its worker got, `worker` names the worker."""
    server = ThreadingHTTPServer(("localhost", 0), partial(Handler, directory=str(FOLDER)))
    settings = stories()[0]["settings"]
    server.default = {"settings": settings, "result": simulate(settings), "live": True}
    server.address = f"http://localhost:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def clock(page):
    return page.inner_text("#clock")


def position(page):
    return float(page.input_value("#scrubber"))


def curves(page):
    """The numbers of the methods, in the reader's order."""
    return [text.split()[-1] for text in page.locator("#curves li").all_inner_texts()]


def number(text):
    """A number as the page writes it: 0.131, 1.2·10⁻⁵, or 10⁻¹⁶ for all below."""
    digits, _, power = text.replace("10⁻", "·10⁻").replace("··", "·").partition("·10")
    return float(digits or 1) * 10 ** int(power.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")) or 0)


def tell(page, number):
    """Chooses a story, and waits until it is shown."""
    before = int(page.get_attribute("body", "data-shown"))
    page.click(f"#stories button:nth-child({number})")
    page.wait_for_function("before => Number(document.body.dataset.shown) > before", arg=before)


def to_end(page):
    page.locator("#scrubber").press("End")
