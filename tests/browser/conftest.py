"""A browser without a window, where there is one."""

import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")  # while it is open no other test of the process may start an event loop
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser was found: install one of {', '.join(NAMES)} to run the tests of pages.")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed.")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens a file; after the test, whatever it asked for, complained of or popped up is an error."""
    contexts, seen = [], []

    def go(path, *, width=1400, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        address = path.as_uri()
        inside = (address, "blob:", "data:")  # the last two are in the page's own memory
        page.on("request", lambda one: None if one.url.startswith(inside) else seen.append(f"request {one.url}"))
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (seen.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert seen == []
