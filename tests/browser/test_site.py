"""The site of `make docs` in a browser: it asks nothing of other hosts, complains of nothing and fits the window."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serve

ROOT = Path(__file__).parents[2]
PAGES = ["", "tutorials/compare/", "which_algorithm/", "equations/", "led/", "notebooks/theory/", "api/theory/"]
pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the site is served, built anew and strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    with serve(folder) as found:
        yield found


@pytest.fixture
def window(browser, request):
    """A page of the given scheme and width, with what it asked for and what it complained of."""
    scheme, width = request.param
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda said: page.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("response", lambda reply: page.complaints.append(reply.url) if reply.status >= 400 else None)
    yield page
    context.close()


KINDS = [(scheme, width) for scheme in ("light", "dark") for width in (1400, 420)]


@pytest.mark.parametrize("window", KINDS, indirect=True, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_pages(address, window, tmp_path):
    colours = {}
    for name in PAGES:
        window.goto(address + name, wait_until="networkidle")
        sizes = window.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert sizes[0] <= sizes[1], f"{name} is {sizes[0]} pixels wide in a window of {sizes[1]}"
        broken = window.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
        assert broken == [], f"pictures of {name}"
        assert window.locator("article h1").count() == 1
        colours[name] = window.evaluate("getComputedStyle(document.body).backgroundColor")
        window.screenshot(path=tmp_path / f"{name.strip('/').replace('/', '-') or 'home'}.png")
    assert len(set(colours.values())) == 1
    outside = [url for url in window.asked if not url.startswith((address, "data:", "blob:"))]
    assert outside == []
    assert window.complaints == []


@pytest.mark.parametrize("window", [("light", 1400), ("dark", 1400)], indirect=True, ids=["light", "dark"])
def test_the_scheme_is_the_reader_s(address, window):
    """By the reader's own preference, and the other one by a click."""
    window.goto(address)
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    before = window.evaluate(shade)
    dark = window.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (before < 384) == dark
    window.locator("form.md-header__option label:visible").click()
    window.wait_for_function(f"({shade} < 384) !== {str(dark).lower()}")


@pytest.mark.parametrize("window", KINDS[:2], indirect=True, ids=lambda kind: str(kind[1]))
def test_search_finds_scaffold(address, window):
    window.goto(address, wait_until="networkidle")
    if window.viewport_size["width"] < 900:
        window.locator("label.md-header__button[for=__search]").click()
    field = window.locator("input.md-search__input")
    field.click()
    field.press_sequentially("Scaffold")
    first = window.locator("ol.md-search-result__list a.md-search-result__link").first
    first.wait_for(timeout=20_000)
    found = window.locator("ol.md-search-result__list").inner_text()
    assert "Why your Scaffold explodes" in found
    assert window.complaints == []
