"""Makes docs/images/playground.gif from the page: `python -m playground.gif` with playwright and a browser installed.

The page is served from this folder, without Python in the browser: each act's run is computed here.
"""

from __future__ import annotations

import io
import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from playground.engine.result import simulate
from playground.engine.settings import stories

FOLDER = Path(__file__).parent
TARGET = FOLDER.parent / "docs" / "images" / "playground.gif"
SIZE = (800, 496)
COLOURS = 96
PAUSE = 1600  # ms at the end of an act
ACTS = {  # a title and, one after the other, (rounds, in how many parts each is shown, ms of a part), of a story
    0: ("FedAvg: each node drifts, the mean stops next to x*", [(3, 11, 80), (13, 2, 100)]),
    1: ("ST-GT: the corrections cancel the drift", [(3, 11, 80), (22, 2, 100)]),
}
STYLE = """
header, .stories, .transport, .about, .column:last-child, #notice, .spectrum-card, #presets, .graph-card .row,
.graph-card .note, #error-bytes, .card-head .phase { display: none !important; }
main { padding: 6px; }
.board { grid-template-columns: 500px 280px; gap: 8px; }
.column { display: contents; }
.card { border-radius: 8px; box-shadow: none; }
.stage-card { grid-row: 1 / 3; grid-column: 1; }
.graph-card { grid-column: 2; grid-row: 1; }
.errors-card { grid-column: 2; grid-row: 2; }
.plane { height: 372px; }
#graph { height: 150px; }
.chart { height: 168px; }
.curves { font-size: 12px; }
.graph-card, .errors-card { padding-block: 0.5rem; }
.legend { font-size: 11.5px; gap: 0 0.8rem; padding-block: 0.3rem; }
"""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.path != "/default.json":
            super().do_GET()
            return
        body = self.server.page.encode()  # pyright: ignore[reportAttributeAccessIssue]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)


def frames(page: Page, ticks: int, plan: list[tuple[int, int, int]]) -> list[tuple[Image.Image, int]]:
    """The pictures of an act, each with its milliseconds."""
    positions, begun = [], 0
    for rounds, parts, length in plan:
        positions += [((begun + k / parts) * ticks, length) for k in range(rounds * parts)]
        begun += rounds
    positions.append((begun * ticks, PAUSE))
    found = []
    for position, length in positions:
        page.locator("#scrubber").evaluate(
            "(scrubber, value) => { scrubber.value = value; scrubber.dispatchEvent(new Event('input')); }", position
        )
        shot = page.screenshot(clip={"x": 0, "y": 0, "width": SIZE[0], "height": SIZE[1]})
        found.append((Image.open(io.BytesIO(shot)).convert("RGB"), length))
    return found


def main() -> None:
    server = ThreadingHTTPServer(("localhost", 0), partial(Handler, directory=str(FOLDER)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pictures = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(color_scheme="light", reduced_motion="reduce").new_page()
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
        for story, (title, plan) in ACTS.items():
            settings = stories()[story]["settings"]
            default = {"settings": settings, "result": simulate(settings), "live": False}
            server.page = json.dumps(default)  # pyright: ignore[reportAttributeAccessIssue]
            page.goto(f"http://localhost:{server.server_address[1]}/")
            page.wait_for_selector("body[data-shown]")
            page.add_style_tag(content=STYLE)
            page.locator("#stage-title").evaluate("(heading, title) => { heading.textContent = title; }", title)
            page.wait_for_timeout(500)
            pictures += frames(page, settings["methods"][0]["tau"] + 1, plan)
        browser.close()
    server.shutdown()
    images, lengths = zip(*pictures, strict=True)
    # One palette for all pictures, so that what does not move does not change.
    sample = Image.new("RGB", (SIZE[0], 4 * SIZE[1]))
    for k in range(4):
        sample.paste(images[k * (len(images) - 1) // 3], (0, k * SIZE[1]))
    palette = sample.quantize(COLOURS, dither=Image.Dither.NONE)
    flat = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    flat[0].save(TARGET, save_all=True, append_images=flat[1:], duration=list(lengths), loop=0, optimize=True)
    print(f"{TARGET.name}: {len(flat)} pictures, {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
