"""The page of a report: what it says, that it needs nothing else, and that whatever it shows is shown literally."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import numpy as np
import pytest

import stgt
from stgt.simulator import Rule, Trace
from stgt.study.report import Network, write_page
from stgt.study.report.downsample import POINTS, curve, curves, drawn_rounds, points, share
from stgt.study.report.page import page
from studies import BOTH, HOSTILE, LINE, SCRIPT, descent, descents, hostile, study, with_values

VOID = {"meta", "link", "input", "path", "circle", "rect"}


class Reader(HTMLParser):
    """The elements of a page with their attributes, the text outside scripts and styles, and the scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts, self.within, self.rows = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self.within.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.within.pop() == tag

    def handle_data(self, data):
        if self.within and self.within[-1] == "script":
            kind, text = self.scripts.pop()
            self.scripts.append((kind, text + data))
        elif not self.within or self.within[-1] != "style":
            self.text.append(data)
            if "td" in self.within:
                self.rows[-1][-1] += data.strip()

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def data(self):
        ((_, text),) = [one for one in self.scripts if one[0] == "application/json"]
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def cells(shown, method):
    """The cells of a method in the first table, from its setting on."""
    return next(row for row in shown.rows if row and row[0] == method)[1:]


def read(*studies, **options):
    return Reader(page(studies, **options))


FAST, SLOW = descent(0.5), descent(0.25)


def test_what_a_page_says(tmp_path):
    """The last tenth of 21 values are two: (4^−19 + 4^−20)/2 and ((9/16)^19 + (9/16)^20)/2."""
    found = study({"slow": SLOW, "fast": FAST}, kind="compare", rule=Rule("residual"), topologies={"fast": BOTH})
    path = write_page([found], tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    shown = Reader(path.read_text(encoding="utf-8"))
    fast, slow = (4.0**-19 + 4.0**-20) / 2, ((9 / 16) ** 19 + (9 / 16) ** 20) / 2
    assert f"fast wins with a residual of {fast:.3g}; next is slow with {slow:.3g}" in shown.words
    assert shown.words.index("gamma=0.5") < shown.words.index("gamma=0.25"), "the winner first"
    for words in ("rounds = 20", "python 3.11", "complete(2)", "lowest residual", "Warnings of the theory"):
        assert words in shown.words
    assert [one["name"] for one in shown.data["studies"][0]["curves"]] == ["fast, gamma=0.5", "slow, gamma=0.25"]
    assert len([one for one in shown.elements if one[0] == "h1"]) == 1


def test_it_needs_nothing_else_and_runs_no_script_but_its_own():
    shown = read(hostile(), study({"fast": FAST}))
    for _, given in shown.elements:
        assert set(given) & {"src", "srcset", "action", "poster", "data", "style"} <= {"style"}
        assert given.get("href", "#").startswith(("#", "data:,"))
        assert not [name for name in given if name.startswith("on")]
    assert not [tag for tag, _ in shown.elements if tag in ("img", "iframe", "object", "embed", "base")]
    (policy,) = [one["content"] for tag, one in shown.elements if tag == "meta" and "http-equiv" in one]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
    run = [text for kind, text in shown.scripts if kind is None]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert re.findall(r"'sha256-([^']+)'", policy) == digests
    assert len(shown.scripts) == 3


def test_every_string_is_shown_literally():
    shown = read(hostile(), title=f"{SCRIPT} {HOSTILE}")
    assert shown.words.count(SCRIPT) >= 8
    assert shown.words.count(HOSTILE) >= 8
    found = shown.data["studies"][0]
    assert found["name"] == SCRIPT
    assert [one["name"] for one in found["metrics"]][-1] == HOSTILE
    assert {one["method"] for one in found["points"]} == {SCRIPT}
    assert found["curves"][0]["name"] == f"{SCRIPT}, gamma=0.5"


def test_half_a_character_is_no_error(tmp_path):
    """A folder's name may hold bytes that are no text."""
    path = write_page([study({"fast": FAST}, name="a\udcffb")], tmp_path / "report.html")
    assert Reader(path.read_text(encoding="utf-8")).words.startswith("a?b ")


def test_curves_of_long_runs_are_thinned_and_it_is_said():
    """0.99^r over 10,000 rounds: what is drawn lies on it, and begins and ends with it."""
    long = with_values(FAST, residual=np.tile(0.99 ** np.arange(10_001), (2, 1)))  # whose mean is exact
    methods = {f"method {i}": long for i in range(20)}
    found = study(methods, kind="compare", rule=Rule("residual"))
    text = page([found])
    bare = page([study({"fast": FAST})])
    assert len(text.encode()) - len(bare.encode()) < 2_000_000
    shown = Reader(text)
    assert "drawn at every 11th round" in shown.words
    for one in shown.data["studies"][0]["curves"]:
        assert len(one["rounds"]) <= POINTS
        assert (one["rounds"][0], one["rounds"][-1]) == (0, 10_000)
        np.testing.assert_allclose(one["values"]["residual"][0], 0.99 ** np.array(one["rounds"]), rtol=1e-4)
        mean, low, high = one["values"]["residual"]
        assert mean == low == high, "two seeds that agree"


@pytest.mark.parametrize("rounds", [1, 996, 997, 998, 999, 1000, 1001, 5000, 99_999])
def test_no_curve_has_too_many_points(rounds):
    lost = with_values(FAST, residual=np.where(np.arange(rounds + 1) < rounds - 1, 1.0, np.nan)[None])
    drawn = drawn_rounds(lost)
    assert len(drawn) <= POINTS
    assert {0, rounds, max(0, rounds - 2)} <= set(drawn), "the last round that is finite is drawn"


def test_what_is_not_finite():
    """|1 − γ| = 2 leaves double precision after 1024 / 2 rounds of the residual 4^r."""
    wild = descent(3.0, rounds=1100)
    found = study({"calm": SLOW, "wild": wild}, kind="compare", rule=Rule("residual"))
    assert found.comparison.order == ["calm", "wild"]
    assert "no other method stays finite" in found.comparison.verdict
    shown = read(found)
    mean = shown.data["studies"][0]["curves"][1]["values"]["residual"][0]
    last = max(k for k, value in enumerate(mean) if value is not None)
    assert all(value is not None for value in mean[: last + 1])
    assert None in mean
    assert "not finite" in shown.words
    assert f"diverged, from round {wild.diverged_at[0]:,} on" in shown.words
    assert study({"wild": wild}).comparison.verdict == "wild diverged."
    assert study({"wild": wild, "wilder": wild}).comparison.verdict == "Every method diverged."


def test_huge_numbers_are_no_warning():
    """Means and intervals of numbers near the largest double overflow, which is not said to be finite."""
    huge = with_values(FAST, residual=np.full((3, 5), 1.5e308))
    shown = read(study({"huge": huge}))
    assert shown.data["studies"][0]["curves"][0]["values"]["residual"][0] == [None] * 5


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([1.0, 1.0], [3.0, 3.0], "one wins with a residual of 1 [1, 1]; next is two with 3 [3, 3], 3 times as much."),
        # Without one seed the ratio is 1.1/1.3 or 0.9/1.1: its logarithm −0.18 ± 12.7 · 0.017 holds 0.
        ([0.9, 1.1], [1.1, 1.3], " does not differ significantly: the 95 % interval of the difference contains 0."),
        # The same multiple on every seed, though the intervals of the two meet.
        ([0.5, 1.0, 1.5], [0.6, 1.2, 1.8], ", 1.2 times as much."),
        ([1.0], [3.0], "(one seed, so the variation between seeds is unknown)"),
        ([1.0, 1.0], [np.nan, 1.0], "no other method stays finite"),
    ],
)
def test_who_won(first, second, words):
    def level(values):
        return with_values(FAST, residual=np.tile(np.array(values)[:, None], (1, 11)))

    found = study({"two": level(second), "one": level(first)}, kind="compare", rule=Rule("residual"))
    assert words in found.comparison.verdict
    assert found.comparison.verdict.startswith("one ")


def test_who_reached_the_target():
    """4^−r ≤ 1/64 from r = 3 on, (9/16)^r from r = 8 on; a gradient and a number of each of two nodes a round."""
    found = study({"slow": SLOW, "fast": FAST}, kind="compare", rule=Rule("residual", target=1 / 64))
    assert found.comparison.verdict == (
        "fast wins: it reaches a residual of 0.015625 with 3 communication rounds, slow with 8, 2.67 times as many."
    )
    fast = found.comparison.table[0]
    assert (fast["rounds"], fast["gradients"], fast["floats"]) == (3, 6, 6)
    assert cells(read(found), "fast")[4] == f"{6 * 8 / 1e6:.3g}", "MB: a number has 8 bytes"
    never = study({"slow": SLOW, "fast": FAST}, kind="compare", rule=Rule("residual", target=1e-30))
    assert never.comparison.verdict.startswith("No method reaches a residual of 1e-30; the closest, fast, ends at")
    alone = study({"slow": SLOW, "fast": FAST}, kind="compare", rule=Rule("residual", target=1e-10))
    assert alone.comparison.verdict == "fast is the only one that reaches a residual of 1e-10, after 17 rounds."


def test_an_error_that_grows_is_said():
    """|1 − γ| = 1.05: the residual is 1.05^2r."""
    found = study({"wild": descent(2.05, rounds=60)})
    assert found.comparison.verdict.endswith("after 60 rounds. Its residual grows.")
    assert found.comparison.table[0]["remark"] == "grows"


def test_modelled_time():
    """A round of one step and one number of 64 bits: 2 + 3 + 64/32 = 7 s; in the page as in the table."""
    network = Network(gradient=2, latency=3, bandwidth=32)
    found = study({"fast": FAST}, network=network)
    assert cells(read(found), "fast")[5] == f"{20 * 7} s"
    drawn = curve("fast", FAST, ["residual"])
    assert (drawn["steps"], drawn["bytes"], drawn["working"], drawn["communications"]) == (1, 8, 2, None)
    assert drawn["floats"] == [2 * r for r in range(21)]
    shown = read(found)
    assert vars(network) == shown.data["studies"][0]["network"]
    (cell,) = [given for tag, given in shown.elements if given.get("class") == "seconds"]
    assert [float(cell[f"data-{name}"]) for name in ("steps", "communications", "bits")] == [20, 20, 20 * 64]


def test_a_round_waits_for_those_who_work_and_only_if_anything_is_sent():
    """2 of 6 workers, each a vector of p = 2 up and one down a round, in single precision: 2 · 2 · 32 bits a worker."""
    problem = stgt.problems.Quadratic(np.tile(np.eye(2), (6, 1, 1)), np.zeros((6, 2)))
    server = stgt.topology.server(6, sampled=2)
    called = stgt.simulate(stgt.FedAvg(gamma=0.1, tau=3), problem, server, 4, engine="numpy", dtype="float32")
    assert share(called, 4) == {"steps": 12, "communications": 4, "bits": 4 * 2 * 2 * 32}
    ring = stgt.topology.ring(6)
    rare = stgt.simulate(stgt.ProxSkip(gamma=0.1, p=0.25), problem, ring, 40, seeds=3, engine="numpy")
    heard = np.diff(rare["floats"], axis=1) > 0
    assert 0 < heard.sum() < heard.size
    np.testing.assert_allclose(
        curve("ProxSkip", rare, [])["communications"][1:], heard.mean(axis=0).cumsum(), rtol=1e-4
    )
    alone = study({"ProxSkip": rare})
    assert alone.comparison.table[0]["rounds"] == pytest.approx(heard.sum() / 3)
    assert alone.comparison.verdict.endswith(f" after {heard.sum() / 3:.0f} rounds.")


def test_the_grid_of_a_sweep():
    """The residual (1 − γ)^40 after 20 rounds, the mean with the one before; γ = 3 doubles x each round."""
    runs = [*descents([0.25, 0.5]), *descents([3.0], rounds=1100)]
    found = study({"D-PSGD": runs}, kind="sweep")
    ends = {one["parameters"]["gamma"]: one for one in points(found.comparison)}
    for gamma in (0.25, 0.5):
        expected = ((1 - gamma) ** 38 + (1 - gamma) ** 40) / 2
        assert ends[gamma]["ends"]["residual"] == [pytest.approx(expected, rel=1e-4), None, None]
    assert ends[3.0]["ends"]["residual"] == [None, None, None]
    assert [ends[gamma]["lost"] for gamma in ends] == [0, 0, 1]
    assert [ends[gamma]["best"] for gamma in ends] == [False, True, False]
    assert [one["name"] for one in curves(found)] == [f"D-PSGD, gamma={gamma}" for gamma in ("0.25", "0.5", "3")]
    shown = read(found)
    assert "Final errors over the grid" in shown.words
    assert "All 3 runs" in shown.words
    many = study({"D-PSGD": descents(list(np.linspace(0.1, 0.5, 21)), rounds=2)}, kind="sweep")
    assert "There are 21 runs, more than 20, so only the best of each method is drawn." in read(many).words


def test_predictions_and_warnings():
    """D-PSGD on x²/2 is x ← (J − γ)x here: its modes are 1 − γ for the mean and −γ for the difference."""
    from stgt.theory import check

    advice = {"fast": check(FAST.algorithm, LINE, BOTH), "slow": "its rounds depend on each other."}
    shown = read(study({"fast": FAST, "slow": SLOW}, advice=advice))
    for words in ("yes (0.5)", "slow No prediction: its rounds depend on each other."):
        assert words in shown.words
    wild = descent(2.5)
    unstable = read(study({"wild": wild}, advice={"wild": check(wild.algorithm, LINE, BOTH)}))
    assert "no (2.5)" in unstable.words
    assert "is unstable at gamma=2.5: spectral radius 2.5000" in unstable.words


def test_traces_from_files(tmp_path):
    """What a file has of them is enough, even of a method that nobody knows here."""
    loaded = Trace.load(FAST.save(tmp_path / "run.stgt"))
    assert study({"fast": loaded}).comparison.verdict == study({"fast": FAST}).comparison.verdict
    path = with_unknown_class(FAST).save(tmp_path / "own.stgt")
    own = Trace.load(path)
    shown = read(study({"own": [own, Trace.load(path)]}, kind="sweep"))
    assert "own" in shown.words


def with_unknown_class(trace):
    @dataclass(frozen=True, kw_only=True)
    class Mine(stgt.DPSGD):
        """Registered nowhere."""

    return replace(trace, algorithm=Mine(gamma=0.5))


def test_several_studies_of_one_problem_are_drawn_together():
    other = stgt.problems.Quadratic(2 * np.ones((2, 1, 1)), np.zeros((2, 1)))
    apart = stgt.simulate(stgt.DPSGD(gamma=0.1), other, BOTH, 5, engine="numpy")
    one, two = study({"fast": FAST}, name="one"), study({"slow": SLOW}, name="two", status="interrupted after 9 rounds")
    shown = read(one, two, study({"apart": apart}, name="three"))
    assert shown.data["groups"] == [[0, 1]]
    for words in ("3 studies", "Best of one, two", "interrupted after 9 rounds", "not drawn together"):
        assert words in shown.words
    names = [given["id"] for _, given in shown.elements if "id" in given]
    assert len(names) == len(set(names))
    assert {given["href"][1:] for _, given in shown.elements if given.get("href", "").startswith("#")} <= set(names)
    assert "not drawn together" not in read(one, two).words
    mixed = study({"fast": FAST, "apart": apart})
    assert mixed.comparison.verdict == "2 runs on 2 problems, whose errors cannot be compared."


def test_a_method_that_did_not_measure_what_is_judged_is_last():
    blind = descent(0.5, metrics=["loss"])
    judged = study({"blind": blind, "slow": SLOW})
    assert judged.comparison.order == ["slow", "blind"]
    assert "residual was not measured: it was left out of metrics" in read(judged).words
    assert study({"blind": blind}).comparison.verdict == "residual was not measured."
    assert "Nothing was measured." in read(study({"a": descent(0.5, metrics=[])})).words


@pytest.mark.parametrize(
    ("topology", "words", "rounds"),
    [
        (stgt.topology.ring(5), "static", 1),
        (stgt.topology.one_peer_exponential(8), "period 3", 3),
        (stgt.topology.random_matching(6), "the first 12 rounds are drawn", 12),
        (stgt.topology.server(9, sampled=2), "a server samples 2 of 9 workers per round", 12),
        (stgt.topology.ring(65), "No picture: 65 nodes, and at most 64 are drawn.", 0),
    ],
)
def test_graphs(topology, words, rounds):
    shown = read(study({"fast": FAST, "slow": SLOW}, topologies={"fast": topology, "slow": topology}))
    assert words in shown.words
    assert "used by fast, slow" in shown.words
    assert len([one for one in shown.elements if one[0] == "svg"]) == rounds


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: write_page([], "a.html"), "studies is empty"),
        (lambda: write_page([study({"fast": FAST}, kind="try")], "a.html"), "kind='try': choose from 'run'"),
        (lambda: Network(bandwidth=0), "network.bandwidth=0: give a finite number above 0."),
        (lambda: Network(latency=float("nan")), "network.latency=nan"),
        (lambda: Network(gradient=-1), "network.gradient=-1: give a finite number of at least 0."),
    ],
)
def test_wrong_input(wrong, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        wrong()
    assert not list(tmp_path.iterdir())
