"""The playground's page in use: player, keys, stories, links, themes, and what can go wrong."""

from math import cos, pi, sin
from pathlib import Path

import pytest
from playground_server import clock, curves, number, position, tell, to_end

from playground.engine.settings import stories

pytestmark = pytest.mark.release


def test_the_player(playground):
    """A round has ten local steps and an exchange: eleven ticks."""
    page = playground()
    for button, expected in [("step", 1), ("step", 2), ("round", 11), ("back", 10), ("round", 11), ("round", 22)]:
        page.click(f"#{button}")
        assert position(page) == expected
    assert clock(page) == "round 2 / 40"
    assert "After 2 rounds the errors are: FedAvg" in page.inner_text("#summary")
    page.click("#reset")
    assert position(page) == 0
    page.locator("#scrubber").fill("10.5")
    assert "exchange" in page.inner_text("#phase")
    assert page.locator(".part.running").get_attribute("data-part") == "merge"
    assert page.locator("#graph .messages circle[visibility=visible]").count() == 5
    page.locator("#scrubber").fill("3")
    assert page.locator(".part.running").get_attribute("data-part") == "correction"


def test_the_keys(playground):
    page = playground()
    page.locator("body").press("ArrowRight")
    assert position(page) == 1
    for key, expected in [
        ("Shift+ArrowRight", 11),
        ("ArrowLeft", 10),
        ("Shift+ArrowLeft", 0),
        ("End", 440),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        assert position(page) == expected
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Play"


def test_every_control_has_a_name_and_a_visible_focus(playground):
    page = playground()
    unnamed = """[...document.querySelectorAll('button, input, select, [tabindex="0"], svg[role]')].filter(one =>
        !(one.ariaLabel || one.labels?.length || one.textContent.trim())).map(one => one.outerHTML)"""
    assert page.evaluate(unnamed) == []
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate("""() => { const one = document.activeElement, at = getComputedStyle(one);
            const inside = one.querySelector('.hit, circle');
            const marked = at.outlineStyle !== 'none' || (inside && getComputedStyle(inside).strokeWidth === '3px');
            return [one.id || one.dataset.node || one.tagName, marked]; }""")
        assert found[1] or found[0] == "BODY", f"the focus on {found[0]} is not visible"
        reached.add(found[0])
    assert {"play", "step", "back", "round", "reset", "scrubber", "speed", "tau", "gamma", "kill", "repair"} <= reached


def test_motion(playground):
    """It plays by itself; not if the reader wants no motion, and then a round at a time."""
    page = playground(motion="no-preference")
    page.wait_for_function("Number(document.getElementById('scrubber').value) > 2")
    page.select_option("#speed", "8")
    page.click("#play")
    still = position(page)
    page.wait_for_timeout(200)
    assert position(page) == still
    page = playground()
    page.wait_for_timeout(300)
    assert position(page) == 0
    page.select_option("#speed", "8")
    page.click("#play")
    page.wait_for_function("Number(document.getElementById('scrubber').value) >= 22")
    page.click("#play")
    assert position(page) % 11 == 0


@pytest.mark.parametrize("number_of_story", range(1, 5))
def test_what_the_stories_say(playground, after, number_of_story):
    page = playground()
    tell(page, number_of_story)
    told = stories()[number_of_story - 1]
    assert page.inner_text("#story-text") == told["text"]
    to_end(page)
    words = page.inner_text("#spectrum-words")
    if number_of_story == 1:  # off by the norm of (mean over τ steps of the local fixed points) − x*
        assert page.locator("#stage .gap").get_attribute("visibility") == "visible"
        assert number(curves(page)[0]) > 0.1
    elif number_of_story == 2:
        assert number(curves(page)[0]) < 1e-6 < 0.1 < number(curves(page)[1])
        assert "stays inside" in words
    elif number_of_story == 3:
        assert "leaves the circle" in words
        after(page, lambda: page.locator("#draw-1").check())
        assert "stays inside" in page.inner_text("#spectrum-words")
    else:
        kill, repair = (event["round"] for event in told["settings"]["events"])
        for round_, sums, wrong in [
            (kill, False, False),
            (repair - 1, True, True),
            (told["settings"]["rounds"], False, False),
        ]:
            page.locator("#scrubber").fill(str(11 * round_ + (0 if round_ != kill else -1)))
            assert (page.inner_text("#gauge-value") != "0") == sums
            assert (page.locator("#stage .gap").get_attribute("visibility") == "visible") == wrong
        assert number(curves(page)[0]) < 1e-6


def test_a_link_carries_the_settings(playground, after, server):
    page = playground()
    tell(page, 4)
    after(page, lambda: page.locator("#stage .centre[data-node='0']").press("ArrowLeft"))
    after(page, lambda: page.locator("[data-pair='0-2']").dispatch_event("click"))
    asked = after(page, lambda: page.locator("#draw-1").check())
    page.click("#share summary")
    page.click("#copy-link")
    page.wait_for_selector("#notice:not([hidden])")
    link = page.evaluate("navigator.clipboard.readText()")
    assert len(link) < 250
    again = playground()
    assert after(again, lambda: again.goto(link)) == asked
    assert again.locator("#draw-1").is_checked()


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("#v=2&n=5", "version"),
        ("#v=1&n=99&g=ring&p=1,1,0&m=STGT,0.1,5,1,0&r=40", "the number of nodes"),
        ("#v=1&n=5&g=heap&p=1,1,0&m=STGT,0.1,5,1,0&r=40", "the graph"),
        ("#v=1&n=5&g=ring&p=1,1,0&m=SGD,0.1,5,1,0&r=40", "a method"),
        ("#v=1&n=5&g=ring&p=1,1,0&m=STGT,0.1,5,1,0&r=40&k=50r", "an event's round"),
    ],
)
def test_an_invalid_link(playground, server, link, words):
    page = playground(link)
    notice = page.inner_text("#notice.bad")
    assert "cannot be read" in notice
    assert words in notice
    assert server.asked == []
    assert page.locator("#stage .model").count() == 5


def test_a_run_that_diverges(playground, after):
    """1 − γλ with γ = 2 and a curvature above 1 is below −1: each step makes the error larger."""
    page = playground()
    after(page, lambda: page.locator("#gamma").fill("0.3"))
    after(page, lambda: page.locator("#tau").fill("20"))
    to_end(page)
    assert "diverges" in page.inner_text("#notice.bad")
    assert "leaves the circle" in page.inner_text("#spectrum-words")
    assert "outside the picture" in page.inner_html("#stage")


@pytest.mark.parametrize("worker", ["fails", "refuses"])
def test_python_that_cannot_start(playground, worker):
    page = playground(worker=worker)
    page.wait_for_selector("#notice.bad")
    assert "could not be loaded" in page.inner_text("#notice")
    page.click("#round")
    assert clock(page) == "round 1 / 40"
    page.click("#share summary")
    page.click("#copy-python")
    assert "only the link" in page.inner_text("#notice")


def test_a_site_without_python(playground):
    page = playground(live=False, worker="fails")
    tell(page, 2)
    assert page.inner_text("#code-name") == "STGT"
    page.click("#new-data")
    assert "have no effect" in page.inner_text("#notice.bad")


def test_before_python_has_loaded(playground):
    page = playground(worker="")
    assert page.locator("#error-rounds .curve").count() == 2
    page.locator("#tau").fill("3")
    assert "Python is loading" in page.inner_text("#notice")


def test_what_can_be_taken_away(playground):
    page = playground()
    page.click("#share summary")
    page.click("#copy-python")
    page.wait_for_selector("#notice:not([hidden])")
    assert "import stgt" in page.evaluate("navigator.clipboard.readText()")
    page.click("#share summary")
    with page.expect_download() as download:
        page.click("#download-toml")
    assert download.value.suggested_filename == "spec.toml"
    assert "FedAvg" in Path(download.value.path()).read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1024, 1920])
def test_it_fits_the_window(playground, tmp_path, scheme, width):
    page = playground(width=width, scheme=scheme)
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    assert (page.evaluate(shade) < 384) == (scheme == "dark")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    page.click("#theme")
    assert (page.evaluate(shade) < 384) == (scheme == "light")


def test_the_picture_is_to_scale(playground):
    """Two minimisers are as far apart in the picture as in the plane, in one scale for both axes."""
    centres = [[2 + cos(2 * pi * k / 5), 1 + sin(2 * pi * k / 5)] for k in range(5)]
    text = ";".join(f"{x:.3f},{y:.3f}" for x, y in centres)
    page = playground(f"#v=1&n=5&g=ring&p=1,1,0&c={text}&m=STGT,0.1,5,1,0&r=40")
    page.wait_for_function("document.getElementById('code-name').textContent === 'STGT'")
    boxes = [page.locator(f"#stage .centre[data-node='{k}'] path").bounding_box() for k in range(5)]
    at = [(box["x"], box["y"]) for box in boxes]
    ratios = [
        (at[j][axis] - at[i][axis]) / (sign * (centres[j][axis] - centres[i][axis]))
        for i, j in [(0, 2), (1, 3)]
        for axis, sign in [(0, 1), (1, -1)]
    ]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=0.01)
