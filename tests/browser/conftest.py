"""A browser without a window, where there is one."""

import shutil

import pytest
from playground_server import served

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


@pytest.fixture(scope="module")
def server():
    with served() as found:
        yield found


@pytest.fixture
def playground(browser, server):
    """Opens the page; after the test, a message on the console or a request to another host is an error."""
    contexts, seen = [], []
    server.asked, server.worker, server.default["live"] = [], "asks", True
    address = server.address

    def go(hash="", *, width=1400, scheme="light", motion="reduce", worker="asks", live=True):
        server.worker, server.default["live"] = worker, live
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion=motion)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        inside = (address, "blob:")
        page.on("request", lambda one: None if one.url.startswith(inside) else seen.append(f"request {one.url}"))
        page.on("response", lambda reply: seen.append(reply.url) if reply.status >= 400 else None)
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.goto(address + hash)
        page.wait_for_selector("body[data-shown]")
        return page

    yield go
    for context in contexts:
        context.close()
    assert seen == []


@pytest.fixture
def after(server):
    """The settings that a page asks for after an action, once it shows their result."""

    def changed(page, act):
        before = len(server.asked)
        act()
        for _ in range(200):
            if len(server.asked) > before:
                break
            page.wait_for_timeout(25)
        page.wait_for_function("!document.body.classList.contains('busy')")
        return server.asked[-1]

    return changed
