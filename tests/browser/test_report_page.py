"""The page of a report in a browser: it draws, it answers, it asks for nothing, and runs no script of anybody's."""

import numpy as np
import pytest

import stgt
from stgt._internal.statistics import error_interval
from stgt.simulator import Rule
from stgt.study.report import Network, write_page
from studies import BOTH, HOSTILE, SCRIPT, descent, descents, hostile, study, with_values

PLOT = "#curves-0 .plot"
WIDE_ENOUGH = "document.scrollingElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two methods, one with a grid in which a run diverges; a round is 2 + 3 + 64/32 = 7 s of modelled time."""
    runs = {"grid": [*descents([0.25, 0.5]), *descents([3.0], rounds=1100)], "slow": descent(0.25)}
    graphs = {"grid": stgt.topology.one_peer_exponential(8), "slow": BOTH}
    network = Network(gradient=2, latency=3, bandwidth=32)
    made = study(runs, kind="compare", rule=Rule("residual"), topologies=graphs, network=network)
    return write_page([made], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    return write_page([hostile(), hostile()], tmp_path_factory.mktemp("page") / "report.html", title=HOSTILE)


def drawn(page, plot=PLOT):
    """The lines of a plot, x and y, by the number of the curve, and the title of its x axis."""
    page.wait_for_selector(f"{plot} .main-svg")
    lines = "plot.data.filter(one => one.hoverinfo !== 'skip').map(one => [one.x, one.y])"
    return page.eval_on_selector(plot, f"plot => [{lines}, plot.layout.xaxis.title.text]")


@pytest.mark.release
def test_the_curves_are_what_was_measured(visit, comparison):
    """γ = ½ on x²/2 from 1: the residual is 4^−r, the best of its grid."""
    page = visit(comparison)
    lines, title = drawn(page)
    assert title == "communication round"
    assert lines[0][0] == list(range(21))
    assert lines[0][1] == pytest.approx([4.0**-r for r in range(21)], rel=1e-4)
    assert page.locator(f"{PLOT} .scatterlayer path.js-line").count() == 2
    assert page.locator("#curves-0 .legend button").all_inner_texts() == ["grid, gamma=0.5", "slow, gamma=0.25"]


@pytest.mark.release
def test_bands_end_where_their_intervals_do(visit, tmp_path):
    """Three seeds: on a logarithmic axis bands that reach 0 or below end at the bottom, and the page says so."""
    values = np.tile(np.array([0.5, 1.0, 1.5])[:, None], (1, 11))
    own = np.tile(np.array([0.01, 1.0, 1000.0])[:, None], (1, 11)) * np.linspace(1, 200, 11)
    made = study({"only": with_values(descent(0.5), residual=values, own=own)})
    page = visit(write_page([made], tmp_path / "report.html"))
    page.wait_for_selector(f"{PLOT} .main-svg")
    _, low, high = map(float, error_interval(values[:, 0]))
    band = "plot => plot.data.find(one => one.hoverinfo === 'skip').y"
    found = page.eval_on_selector(PLOT, band)
    assert (min(found), max(found)) == pytest.approx((low, high), rel=1e-4)
    said = "plot => (plot.layout.annotations || []).map(one => one.text)"
    assert page.eval_on_selector(PLOT, said) == []
    page.select_option("#curves-0 [name=metric]", "own")
    assert page.eval_on_selector(PLOT, "plot => plot.layout.yaxis.type") == "log"
    assert min(page.eval_on_selector(PLOT, band)) == pytest.approx(own[:, 0].mean() / 2, rel=1e-4)
    assert page.eval_on_selector(PLOT, said) == ["this axis cannot show values ≤ 0: bands end at its bottom"]


@pytest.mark.release
def test_what_is_drawn_can_be_chosen(visit, comparison):
    """Both nodes compute a gradient and send a number of 8 bytes a round; f is half the residual."""
    page = visit(comparison)
    drawn(page)
    page.select_option("#curves-0 [name=over]", "gradients")
    assert drawn(page)[0][0][0] == [2 * r for r in range(21)]
    page.select_option("#curves-0 [name=over]", "megabytes")
    assert drawn(page)[0][0][0] == pytest.approx([16e-6 * r for r in range(21)])
    page.select_option("#curves-0 [name=metric]", "loss")
    assert drawn(page)[0][0][1] == pytest.approx([4.0**-r / 2 for r in range(21)], rel=1e-4)
    assert page.eval_on_selector(PLOT, "plot => plot.layout.yaxis.type") == "log"
    page.uncheck("#curves-0 [name=log]")
    assert page.eval_on_selector(PLOT, "plot => plot.layout.yaxis.type") == "linear"
    first = page.locator("#curves-0 .legend button").first
    first.focus()
    page.keyboard.press("Enter")
    assert first.get_attribute("aria-pressed") == "false"
    assert len(drawn(page)[0]) == 1
    first.click()
    assert len(drawn(page)[0]) == 2


@pytest.mark.release
def test_modelled_time_follows_its_formula(visit, comparison):
    page = visit(comparison)
    drawn(page)
    page.select_option("#curves-0 [name=over]", "time")
    assert drawn(page)[0][0][0] == [7 * r for r in range(21)]
    assert page.locator("td.seconds").first.inner_text() == "140 s"
    page.fill("#curves-0 [name=gradient]", "0.5")
    assert drawn(page)[0][0][0] == [5.5 * r for r in range(21)]
    page.fill("#curves-0 [name=latency]", "0")
    assert drawn(page)[0][0][0] == [2.5 * r for r in range(21)]
    page.fill("#curves-0 [name=bandwidth]", "0.000064")
    assert drawn(page)[0][0][0] == pytest.approx([1.5 * r for r in range(21)])
    assert page.locator("td.seconds").first.inner_text() == "30 s"
    for nonsense in ("", "0", "-3"):
        page.fill("#curves-0 [name=bandwidth]", nonsense)
        assert drawn(page)[0][0][0] == pytest.approx([1.5 * r for r in range(21)])


@pytest.mark.release
def test_the_grid_marks_what_diverged(visit, comparison):
    page = visit(comparison)
    drawn(page, "#grid-0 .plot")
    code = "plot => plot.data.filter(one => one.yaxis === 'y2').map(one => [one.x, one.text])"
    ((places, words),) = page.eval_on_selector("#grid-0 .plot", code)
    assert places == [3]
    assert words == ["<b>grid</b><br>gamma=3<br>seeds that diverged: 1"]


@pytest.mark.release
def test_the_rounds_of_a_schedule_have_a_slider(visit, comparison):
    page = visit(comparison)
    figure = page.locator("figure", has_text="one_peer_exponential(8)")
    assert figure.locator(".round:visible").count() == 1
    assert "round 0" in figure.locator(".round:visible").inner_html()
    figure.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert "round 1" in figure.locator(".round:visible").inner_html()


@pytest.mark.release
@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_wide_and_narrow(visit, comparison, attack, width, scheme):
    backgrounds = {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 20, 24)"}
    other = {"light": "dark", "dark": "light"}[scheme]
    for path in (comparison, attack):
        page = visit(path, width=width, scheme=scheme)
        drawn(page)
        for element in page.locator("details").all():
            element.evaluate("one => { one.open = true; }")
        assert page.evaluate(WIDE_ENOUGH)
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == backgrounds[scheme]
        page.click("#theme")
        assert page.evaluate(background) == backgrounds[other]
        ink = page.eval_on_selector(PLOT, "plot => plot.layout.font.color")
        assert ink == {"light": "#1b1f24", "dark": "#e6eaef"}[other], "the plot is drawn in the other colours too"
        assert page.evaluate(WIDE_ENOUGH)


def test_whatever_is_shown_is_shown_literally(visit, attack):
    """The fixture fails on any dialog or request; here the words are found as they are, in Plotly's labels too."""
    page = visit(attack)
    drawn(page)
    assert page.title() == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert page.locator("#curves-0 .legend button").first.inner_text() == f"{SCRIPT}, gamma=0.5"
    page.select_option("#curves-0 [name=metric]", HOSTILE)
    assert page.locator(f"{PLOT} .ytitle").text_content() == HOSTILE
    page.hover(f"{PLOT} .nsewdrag", position={"x": 300, "y": 200})
    code = "plot => Plotly.Fx.hover(plot, [{curveNumber: 0, pointNumber: 3}])"
    page.eval_on_selector(PLOT, code)
    told = page.locator(f"{PLOT} .hoverlayer .hovertext").text_content()
    assert f"{SCRIPT}, gamma=0.5" in told
    assert HOSTILE in told
    assert page.locator(f"{PLOT} a").count() == 0
    offered = page.locator(f"{PLOT} .modebar-btn").evaluate_all("buttons => buttons.map(one => one.ariaLabel)")
    assert offered == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"], "none that sends the numbers anywhere"


@pytest.mark.release
def test_a_picture_can_be_kept(visit, comparison):
    """Plotly makes it in the page, which its policy allows."""
    page = visit(comparison)
    drawn(page)
    page.hover(PLOT)
    with page.expect_download() as kept:
        page.click(f"{PLOT} .modebar-btn >> nth=0")
    assert kept.value.suggested_filename.endswith(".png")


@pytest.mark.release
def test_tables_need_no_script(visit, comparison):
    page = visit(comparison, java_script_enabled=False)
    assert page.locator("table").first.is_visible()
    assert page.locator(".plot").first.is_hidden()
    assert page.locator(".round:visible").count() == 4
    assert "rounds = 20" in page.locator("pre").inner_text()


@pytest.mark.release
def test_the_policy_stops_what_would_slip_through(browser, comparison, tmp_path):
    """A page into whose text scripts and requests are put by hand runs none of them."""
    slipped = "<script>document.title = 'a'</script><img src='https://example.invalid/x' onerror='document.title=1'>"
    path = tmp_path / "slipped.html"
    path.write_text(comparison.read_text(encoding="utf-8").replace("</main>", f"{slipped}</main>"), encoding="utf-8")
    page = browser.new_page()
    refused = []
    page.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
    page.goto(path.as_uri())
    page.wait_for_selector(f"{PLOT} .main-svg")
    assert page.title() == "a study"
    assert refused == [("https://example.invalid/x", "csp")]
    page.close()


@pytest.mark.release
def test_paper_is_white(visit, comparison):
    page = visit(comparison, scheme="dark")
    drawn(page)
    ink = "plot => plot.layout.font.color"
    assert page.eval_on_selector(PLOT, ink) == "#e6eaef"
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.eval_on_selector(PLOT, ink) == "#1b1f24"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.eval_on_selector(PLOT, ink) == "#e6eaef"
