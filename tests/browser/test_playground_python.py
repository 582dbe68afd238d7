"""Python in the browser: the playground as `make docs` builds it, with the library's methods in Pyodide."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from serving import serve
from typer.testing import CliRunner

from playground.engine.methods import KINDS
from playground.engine.settings import stories
from playground_reference import check_equal, settings
from stgt.cli import app

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]
GRAPHS = {
    "ring": {"kind": "ring"},
    "lossy": {"kind": "ring", "lost": 0.4},
    "exponential": {"kind": "exponential"},
    "one_peer": {"kind": "one_peer"},
    "directed": {"kind": "directed"},
    "server": {"kind": "server"},
    "sampled": {"kind": "server", "sampled": 3},
    "edges": {"kind": "edges", "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [1, 4]]},
}
# Asks a worker of the page one thing after the other.
ASK = """async messages => {
  const worker = new Worker("worker.js", {type: "module"});
  const next = () => new Promise((done, fail) => { worker.onmessage = e => done(e.data); worker.onerror = fail; });
  const replies = [await next()];
  for (const message of messages) { const reply = next(); worker.postMessage(message); replies.push(await reply); }
  worker.terminate();
  return replies;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the built page is served; skipped if there is no npm to take Pyodide from."""
    sys.path.insert(0, str(ROOT / "playground" / "build"))
    from hook import built

    folder, files = tmp_path_factory.mktemp("site"), built()
    if "pyodide/pyodide.mjs" not in files:
        pytest.skip("Pyodide could not be loaded: install Node.js with npm, and connect to a network.")
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(path, folder / name)
    with serve(folder) as found:
        yield found


@pytest.fixture
def page(browser, address):
    """The page; after the test, a message on the console or a request to another host is an error."""
    context, seen = browser.new_context(reduced_motion="reduce"), []
    page = context.new_page()
    page.on("request", lambda one: None if one.url.startswith((address, "blob:")) else seen.append(one.url))
    page.on("response", lambda reply: seen.append(reply.url) if reply.status >= 400 else None)
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.goto(address)
    page.wait_for_selector("body[data-shown]")
    yield page
    context.close()
    assert seen == []


def ask(page, *messages):
    """The worker's replies, after its first, which says that it is ready."""
    ready, *replies = page.evaluate(ASK, list(messages))
    assert ready["ready"], ready
    return ready["seconds"], replies


def computed(page, cases):
    _, replies = ask(page, *({"id": i, "settings": case} for i, case in enumerate(cases)))
    for number, (case, reply) in enumerate(zip(cases, replies, strict=True)):
        assert reply["id"] == number
        check_equal(case, reply["result"])


def test_the_stories_have_the_numbers_of_the_reference(page):
    computed(page, [story["settings"] for story in stories()])


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_graph_and_method_has_the_numbers_of_the_reference(page, graph):
    """Fifty rounds of all methods, with noise."""
    entries = [*KINDS, {"name": "STGT", "momentum": 0.5, "beta": 0.5}]
    computed(page, [settings(GRAPHS[graph], entries[i : i + 3]) for i in range(0, len(entries), 3)])


def test_nodes_that_fail_have_the_numbers_of_the_reference(page):
    events = [{"round": 9, "kind": "kill", "node": 1}, {"round": 30, "kind": "repair"}]
    computed(page, [settings(GRAPHS["ring"], ["STGT", "LED", "FedAvg"], events=events)])


def test_the_spec_that_is_downloaded_gives_the_numbers_of_the_page(page, tmp_path):
    """The page's own buttons, and `stgt run`."""
    given = stories()[1]["settings"]
    page.locator("#stories button").nth(1).click()
    page.wait_for_function("!document.body.classList.contains('busy')", timeout=120_000)
    page.locator("#share summary").click()
    with page.expect_download(timeout=120_000) as download:
        page.click("#download-toml")
    path = tmp_path / "spec.toml"
    download.value.save_as(path)
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    _, (reply,) = ask(page, {"id": 1, "settings": given})
    runs = reply["result"]["runs"]
    assert [run["label"] for run in runs] == ["ST-GT", "FedAvg", "LED"]
    for run, folder in zip(runs, sorted((tmp_path / "out").glob("0*")), strict=True):
        table = np.genfromtxt(folder / "metrics.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
        np.testing.assert_allclose(run["error"], table["residual"], rtol=1e-12, atol=1e-12)


def test_the_times_of_loading(page, address):
    """They are printed, not judged: a machine may be busy. The first run plays before Python is there."""
    shown = page.evaluate("performance.getEntriesByName('shown')[0]?.startTime ?? performance.now()")
    seconds, _ = ask(page)
    resources = page.evaluate("performance.getEntriesByType('resource').map(one => [one.name, one.transferSize])")
    sizes = {name.removeprefix(address): size for name, size in resources}
    print(
        f"\nshown after at most {shown / 1000:.2f} s; Python: {seconds}; bytes of the page alone: {sum(sizes.values())}"
    )
    assert page.locator("body[data-shown]").count() == 1


def test_errors_are_sentences(page):
    wrong = settings("ring", [{"name": "STGT", "gamma": -1.0}])
    _, (reply,) = ask(page, {"id": 7, "settings": wrong})
    assert reply == {"id": 7, "error": "methods[0].gamma=-1: give a finite number above 0 and up to 2."}
