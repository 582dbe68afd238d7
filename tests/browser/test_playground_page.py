"""Each control of the playground's page changes what is asked of the engine, and the page shows the answer.

The engine runs in this process, behind a worker that asks for it over HTTP: Python in the browser has its own tests.
"""

import pytest
from playground_server import curves, number, position, tell, to_end

from playground.engine.result import simulate
from playground.engine.settings import check, stories

pytestmark = pytest.mark.release

SLIDERS = {
    "tau": ("4", lambda s: [one["tau"] for one in s["methods"]], [4, 4]),
    "gamma": ("-1.3", lambda s: [one["gamma"] for one in s["methods"]], [0.05, 0.05]),  # 10^−1.3 = 0.0501…
    "momentum": ("0.3", lambda s: [one["momentum"] for one in s["methods"]], [0.3, 0]),  # of the drawn one
    "n": ("7", lambda s: s["n"], 7),
    "spread": ("0.5", lambda s: s["problem"]["spread"], 0.5),
    "noise": ("0.1", lambda s: s["problem"]["noise"], 0.1),
    "sampled": ("3", lambda s: s["graph"]["sampled"], 3),
    "rounds": ("90", lambda s: s["rounds"], 90),
}


@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_changes_the_run(playground, after, name):
    page = playground()
    value, read, expected = SLIDERS[name]
    asked = after(page, lambda: page.locator(f"#{name}").fill(value))
    assert read(asked) == expected
    to_end(page)
    errors = [max(run["error"][-1], 1e-16) for run in simulate(asked)["runs"]]
    assert [number(text) for text in curves(page)] == pytest.approx(errors, rel=0.06, abs=0)  # two digits


def test_beta_and_link_loss(playground, after):
    """They have an effect only for trackers and LED, and only where links are undirected."""
    page = playground()
    assert page.locator("#beta").is_disabled()
    assert page.locator("#lost").is_disabled()
    after(page, lambda: page.locator("#draw-1").check())
    assert after(page, lambda: page.locator("#beta").fill("0.5"))["methods"][0]["beta"] == 0.5
    after(page, lambda: page.click("[data-preset=ring]"))
    assert after(page, lambda: page.locator("#lost").fill("0.2"))["graph"]["lost"] == 0.2


PRESETS = {"ring": 5, "exponential": 10, "one_peer": 10, "server": 5, "directed": 5, "lossy": 5}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_draws_its_graph(playground, after, name):
    """The links of five nodes: 5 of a ring, all 10 pairs at hops 1 and 2 or more, 5 to a server."""
    page = playground()
    after(page, lambda: page.locator("#draw-1").check())
    asked = after(page, lambda: page.click(f"[data-preset={name}]"))
    assert asked["graph"]["kind"] == ("ring" if name == "lossy" else name)
    assert (asked["graph"]["lost"] > 0) == (name == "lossy")
    assert page.locator("#graph .link").count() == PRESETS[name]
    assert page.locator("[data-preset][aria-pressed=true]").get_attribute("data-preset") == name
    assert check(asked).graph(range(5)).name == page.inner_text("#graph-name")


def test_links_are_added_and_removed(playground, after):
    page = playground()
    tell(page, 2)
    asked = after(page, lambda: page.locator("[data-pair='0-2']").dispatch_event("click"))
    assert asked["graph"]["kind"] == "edges"
    assert sorted(map(sorted, asked["graph"]["edges"])) == [[0, 1], [0, 2], [0, 4], [1, 2], [2, 3], [3, 4]]
    page.select_option("#link-from", "1")
    page.select_option("#link-to", "2")
    asked = after(page, lambda: page.click("#link"))
    assert sorted(map(sorted, asked["graph"]["edges"])) == [[0, 1], [0, 2], [0, 4], [2, 3], [3, 4]]
    page.select_option("#link-from", "1")
    page.select_option("#link-to", "0")
    after(page, lambda: page.click("#link"))  # node 1 has no link any more
    assert "not connected" in page.inner_text("#notice.bad")


def test_methods_are_chosen(playground, after):
    page = playground()
    names = lambda asked: [one["name"] for one in asked["methods"]]  # noqa: E731
    assert len(names(after(page, lambda: page.click("#add-method")))) == 3
    assert page.locator("#add-method").is_disabled()
    asked = after(page, lambda: page.select_option("#method-2", "LED"))
    assert names(asked) == ["FedAvg", "STGT", "LED"]
    assert asked["methods"][2]["beta"] == 0.25
    assert names(after(page, lambda: page.locator("#draw-2").check())) == ["LED", "FedAvg", "STGT"]
    assert page.inner_text("#code-name") == "LED"
    assert [text.split()[0] for text in page.locator("#curves li").all_inner_texts()] == ["FedAvg", "ST-GT", "LED"]
    assert names(after(page, lambda: page.click("#remove-0"))) == ["LED", "STGT"]
    assert names(after(page, lambda: page.click("#remove-1"))) == ["STGT"]
    assert page.locator("#remove-0").is_disabled()


def test_the_data_change(playground, after):
    page = playground()
    seed = after(page, lambda: page.click("#new-data"))["problem"]["seed"]
    assert seed == stories()[0]["settings"]["problem"]["seed"] + 1


def test_a_minimiser_is_dragged(playground, after):
    """Two equal drags are twice one drag; the arrow keys move by a tenth."""
    page = playground()
    box = page.locator("#stage .centre[data-node='3'] path").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = simulate(stories()[0]["settings"])["problem"]["centres"]
    page.mouse.move(x, y)
    page.mouse.down()
    moved = [after(page, lambda k=k: page.mouse.move(x + 40 * k, y))["problem"]["centres"] for k in (1, 2)]
    page.mouse.up()
    steps = [one[3][0] - before[3][0] for one in moved]
    assert steps[0] > 0
    assert steps[1] == pytest.approx(2 * steps[0], abs=0.01)
    assert moved[1][3][1] == pytest.approx(before[3][1], abs=0.01)
    assert moved[1][0] == pytest.approx(before[0], abs=0.001)
    page.locator("#stage .centre[data-node='0']").focus()
    asked = after(page, lambda: page.keyboard.press("ArrowUp"))
    assert asked["problem"]["centres"][0][1] == pytest.approx(before[0][1] + 0.1, abs=0.002)
    assert position(page) == 0  # and not the playhead


def test_nodes_of_the_graph_are_arranged_and_chosen(playground):
    page = playground()
    node = page.locator("#graph .vertex[data-node='2']")
    box = node.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] - 30, box["y"] - 20)
    page.mouse.up()
    moved = node.bounding_box()
    assert moved["x"] < box["x"] - 20
    node.press("ArrowRight")
    assert node.bounding_box()["x"] > moved["x"]
    page.locator("#graph .vertex[data-node='4']").press("Enter")
    assert page.input_value("#victim") == "4"


def test_a_node_fails_at_the_playhead_and_is_undone(playground, after):
    page = playground()
    tell(page, 2)
    page.locator("#scrubber").fill(str(11 * 20 + 5))
    page.select_option("#victim", "3")
    assert after(page, lambda: page.click("#kill"))["events"] == [{"round": 21, "kind": "kill", "node": 3}]
    page.locator("#scrubber").fill(str(11 * 30))
    assert page.locator("#graph .vertex.dead").get_attribute("data-node") == "3"
    assert page.inner_text("#gauge-value") != "0"
    asked = after(page, lambda: page.click("#repair"))
    assert asked["events"][1] == {"round": 30, "kind": "repair"}
    to_end(page)
    assert page.inner_text("#gauge-value") == "0"
    assert len(after(page, lambda: page.click("#events .repair button"))["events"]) == 1
