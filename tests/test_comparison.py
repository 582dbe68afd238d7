"""Which method is better: the rule, the choice, the table and the figure."""

import os
import signal
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import stgt
from catalogue import logistic, quadratic
from stgt.simulator import Rule
from stgt.simulator.choice import fresh_seeds
from stgt.study import load_study
from stgt.study.comparison import Comparison
from stgt.study.report import band, write_page
from studies import with_values

# Gradient descent on x²/2 from x = 1: x_r = (1 − γ)^r, the residual (1 − γ)^2r. Every node is alike.
LINE = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
BOTH = stgt.topology.complete(2)
ROUND = np.arange(101)


def descents(gammas, rounds=20, method=stgt.DPSGD):
    options = {"x0": [1.0], "engine": "numpy", "grid": {"gamma": gammas}}
    return stgt.sweep(method(gamma=0.1), LINE, BOTH, rounds, **options)


def test_the_lowest_error_after_the_budget():
    found = stgt.best(descents([0.25, 0.5, 0.75, 1.75]))
    assert found["D-PSGD"].algorithm.gamma == 0.75, "(1 − γ)² is least there"


def test_the_fewest_rounds_gradients_or_floats_to_a_target():
    """4^−r ≤ 1/64 from r = 3 on for γ = ½; (9/16)^r from r = 8 on for γ = ¼."""
    traces = descents([0.25, 0.5])
    rule = Rule("residual", target=1 / 64)
    assert [rule.score(trace) for trace in traces] == [8, 3]
    # A gradient at each of two nodes and a number each way a round.
    assert [Rule("residual", target=1 / 64, cost=cost).score(traces[1]) for cost in ("gradients", "floats")] == [6, 6]
    assert Rule("residual", target=1e-30).score(traces[0]) == np.inf
    assert stgt.best(traces, target=1 / 64)["D-PSGD"].algorithm.gamma == 0.5
    assert str(rule) == "fewest communication rounds until the mean over the seeds of residual is at most 0.015625"


def test_rounds_in_which_nothing_is_sent_cost_no_round():
    """Every node is alike, so that ProxSkip is gradient descent whatever its coin: (9/16)^r ≤ 1e-10 from r = 41 on.

    A round that communicates sends two messages.
    """
    options = {"seeds": 8, "x0": [1.0], "engine": "numpy", "target": 1e-10}
    found = stgt.compare([stgt.ProxSkip(gamma=0.25, p=0.1), stgt.DPSGD(gamma=0.25)], LINE, BOTH, 60, **options)
    rare, always = found.best["ProxSkip"], found.best["D-PSGD"]
    assert found.rule.reached(rare) == found.rule.reached(always) == 41
    talked = rare["messages"] / 2
    assert 0 < talked[:, 41].mean() < 41 / 4, "1 of 10 in the mean"
    np.testing.assert_array_equal(rare["communications"], talked)
    np.testing.assert_array_equal(always["communications"], np.tile(np.arange(61), (8, 1)))
    assert [found.rule.score(trace) for trace in (rare, always)] == [talked[:, 41].mean(), 41]
    assert [row["rounds"] for row in found.table] == [talked[:, 41].mean(), 41]
    assert found.cells()[1][3] == f"{talked[:, 41].mean():.0f}"
    line = band("", rare, over="rounds", per_node=True)
    np.testing.assert_allclose(line.x, talked.mean(axis=0), err_msg="all nodes share a round")


def test_a_round_whose_links_all_fail_is_no_communication_round():
    lossy = stgt.topology.unreliable(BOTH, link=0.7)
    trace = stgt.simulate(stgt.DPSGD(gamma=0.25), LINE, lossy, 40, seeds=3, engine="numpy")
    assert trace["messages"][:, -1].min() > 0
    np.testing.assert_array_equal(trace["communications"], trace["messages"] / 2)
    assert (trace["communications"][:, -1] < 40).all()


def test_what_shapes_the_program_can_be_varied():
    """τ steps a round: the residual is (1 − γ)^2rτ."""
    grid, options = {"gamma": [0.25, 0.5], "tau": [1, 2]}, {"x0": [1.0], "engine": "numpy"}
    traces = stgt.sweep(stgt.DPSGD(), LINE, BOTH, 8, grid=grid, **options)
    pairs = [(0.25, 1), (0.25, 2), (0.5, 1), (0.5, 2)]
    assert [(trace.algorithm.gamma, trace.algorithm.tau) for trace in traces] == pairs
    for trace, (gamma, tau) in zip(traces, pairs, strict=True):
        np.testing.assert_allclose(trace.residual[0], (1 - gamma) ** (2 * tau * np.arange(9)), rtol=1e-12)
    longer = stgt.sweep(stgt.DPSGD(), LINE, BOTH, 4, grid=grid, resume=traces, engine="numpy")
    np.testing.assert_allclose(longer[1].residual[0, -1], 0.75**48, rtol=1e-12)
    found = stgt.compare([stgt.DPSGD()], LINE, BOTH, 8, grid=grid, **options)
    tried = [row["chosen"] for row in found.rows if not row["best"]]  # which is of a fresh seed
    assert tried == [f"gamma={gamma:g}, tau={tau}" for gamma, tau in pairs]
    assert found.table[0]["chosen"] == "gamma=0.5, tau=2"


def test_runs_end_when_the_target_has_decided(tmp_path):
    """4^−r ≤ 1e-10 from r = 17 on for γ = ½; (9/16)^r from r = 41 on for γ = ¼; for γ = 0.01 it is more than 1,000.

    Every method ends at the first multiple of 32 rounds at which its best setting is there and no other can be cheaper.
    """
    options = {"x0": [1.0], "engine": "numpy", "target": 1e-10, "seeds": 3}
    methods, grid = [stgt.DPSGD(), stgt.STGT()], {"gamma": [0.01, 0.25, 0.5]}
    whole = stgt.compare(methods, LINE, BOTH, 300, grid=grid, **options)
    short = stgt.compare(methods, LINE, BOTH, 300, grid=grid, stop=True, folder=tmp_path / "out", **options)
    assert {trace.rounds for traces in short.runs.values() for trace in traces} == {32}
    assert short.table[0]["rounds"] == 17
    for name in ("chosen", "rounds", "gradients", "floats"):
        assert [row[name] for row in short.table] == [row[name] for row in whole.table]
    assert (short.ranking, short.verdict) == (whole.ranking, whole.verdict)
    assert "Runs ended when the target had decided" in short.caption
    assert "Interrupted" not in short.caption
    again = stgt.compare(methods, LINE, BOTH, 300, grid=grid, stop=True, folder=tmp_path / "out", **options)
    assert again.rows == short.rows
    assert load_study(tmp_path / "out").comparison.rows == short.rows
    # Here the faster of two settings needs 41 rounds.
    alone = stgt.compare([stgt.DPSGD()], LINE, BOTH, 300, grid={"gamma": [0.01, 0.25]}, stop=True, **options)
    assert {trace.rounds for trace in alone.runs["D-PSGD"]} == {64}
    never = stgt.compare([stgt.DPSGD(gamma=0.01)], LINE, BOTH, 100, stop=True, **options)
    assert never.best["D-PSGD"].rounds == 100
    assert "does not reach 1e-10 in 100 rounds" in never.table[0]["remark"]


def test_runs_go_on_until_every_seed_has_reached_the_target():
    problem = stgt.problems.ridge(n=4, p=2, noise=0.5)
    options = {"target": 0.05, "seeds": 8, "engine": "numpy"}
    whole, short = (
        stgt.compare(PAIR, problem, stgt.topology.ring(4), 2000, stop=stop, **options) for stop in (False, True)
    )
    for label, trace in short.best.items():
        assert trace.rounds < 2000
        assert (trace.residual <= 0.05).any(axis=1).all()
        np.testing.assert_array_equal(trace.residual, whole.best[label].residual[:, : trace.rounds + 1])
    assert short.ranking == whole.ranking, "so the intervals between methods are the same"


def test_a_stopped_comparison_continues_to_the_same_bits(tmp_path):
    """It is interrupted before it may end, and ends where it would have ended."""
    whole = kept(tmp_path / "whole", rounds=300, target=1e-10, stop=True)
    for rounds in (20, 300):
        again = kept(tmp_path / "again", rounds=rounds, target=1e-10, stop=True)
    assert again.rows == whole.rows


def test_larger_may_be_better():
    traces = stgt.sweep(
        stgt.DPSGD(gamma=0.1), LINE, BOTH, 20, x0=[1.0], engine="numpy",
        grid={"gamma": [0.25, 0.5]}, metrics={"nearness": lambda x: 1 - abs(x[0])},
    )  # fmt: skip
    assert stgt.best(traces, by="nearness", largest=True)["D-PSGD"].algorithm.gamma == 0.5
    assert Rule("nearness", target=0.5, largest=True).score(traces[1]) == 1


def test_a_run_that_diverges_is_never_the_best_and_one_that_fails_is_noted():
    wild, calm = descents([3.0, 0.01], rounds=1100)
    assert stgt.best([wild, calm])["D-PSGD"].algorithm.gamma == 0.01
    assert stgt.best([wild])["D-PSGD"].notes == ("D-PSGD at its best diverges.",)
    assert stgt.best([calm], target=1e-300)["D-PSGD"].notes == ("D-PSGD at its best does not reach 1e-300.",)


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        (1.1 ** (2 * ROUND), True),
        (1.1 ** (2 * ROUND) * np.cos(2 * ROUND) ** 2, True),
        (0.9**ROUND + 1e-6 * 1.2**ROUND, True),
        (1 - 0.95**ROUND, False),
        (0.9**ROUND, False),
        (0.9**ROUND + 1e-9 * 1.2**ROUND, False),
        (-1 - 0.1 * 0.95**ROUND, False),
    ],
    ids=[
        "grows",
        "and swings",
        "falls first",
        "comes up to its floor",
        "falls",
        "grows below its start",
        "comes up to −1",
    ],
)
def test_growth_that_goes_on(values, grows):
    (trace,) = descents([0.5], rounds=len(ROUND) - 1)
    assert Rule("residual").grows(with_values(trace, residual=values[None])) == grows


def test_noise_is_not_called_growth():
    """About a floor, from the optimum: five means that are alike rise one after the other in one of 5! = 120, and if
    noise lasts for a tenth of the rounds and is exponential, P(all others < X/4) = ∫ e^−x (1 − e^(−x/4))^9 dx = 1/715.
    """
    (trace,) = descents([0.5])
    for lasts, most in ((1, 1 / 120), (10, 1 / 120 + 1 / 715)):
        noise = np.random.default_rng(0).exponential(size=(600, 1, 100 // lasts)).repeat(lasts, axis=2)
        noise[:, :, 0] = 0.0
        called = np.mean([Rule("residual").grows(with_values(trace, residual=one)) for one in noise])
        assert called < most + 3 * np.sqrt(most / 600)


def test_a_method_whose_error_grows_says_so():
    """|1 − γ| = 1.05: the residual is 1.05^2r, and finite."""
    found = stgt.compare([stgt.DPSGD(gamma=2.05)], LINE, BOTH, 60, x0=[1.0], engine="numpy")
    assert found.table[0]["remark"] == "grows"
    aimed = stgt.compare([stgt.DPSGD(gamma=2.05)], LINE, BOTH, 60, x0=[1.0], engine="numpy", target=0.1)
    assert aimed.table[0]["remark"] == "does not reach 0.1; grows"


def test_methods_are_told_apart():
    traces = [*descents([0.25, 0.5]), *descents([0.25], method=stgt.FedAvg)]
    assert list(stgt.best(traces)) == ["D-PSGD", "FedAvg"]
    other = stgt.simulate(stgt.DPSGD(gamma=0.5, tau=2), LINE, BOTH, 3, engine="numpy")
    assert set(stgt.best([*traces, other])) == {"D-PSGD (tau=1)", "D-PSGD (tau=2)", "FedAvg"}
    server = stgt.simulate(stgt.FedAvg(gamma=0.5), LINE, stgt.topology.server(2, sampled=1), 3, engine="numpy")
    assert set(stgt.best([*traces, server])) == {"D-PSGD", "FedAvg (complete(2))", "FedAvg (server(2, 1 sampled))"}


@pytest.fixture(scope="module")
def comparison():
    problem, graph = quadratic(6, 2, noise=0.05), stgt.topology.ring(6)
    methods = [stgt.STGT(tau=3), stgt.DPSGD(tau=3), (stgt.Scaffold(tau=3), stgt.topology.server(6, sampled=3))]
    return stgt.compare(methods, problem, graph, 60, seeds=3, grid={"gamma": [0.02, 0.05, 0.1, 5.0], "gamma_g": [1.0]})


def test_compare_equals_sweeps(comparison):
    problem, graph = quadratic(6, 2, noise=0.05), stgt.topology.ring(6)
    alone = stgt.sweep(stgt.STGT(tau=3), problem, graph, 60, 3, grid={"gamma": [0.02, 0.05, 0.1, 5.0]})
    for one, other in zip(alone, comparison.runs["ST-GT"], strict=True):
        np.testing.assert_array_equal(one.residual, other.residual)
    scores = [comparison.rule.score(trace) for trace in alone]
    assert comparison.best["ST-GT"].algorithm.gamma == alone[int(np.argmin(scores))].algorithm.gamma
    assert comparison.runs["Scaffold"][0].topology.name == "server(6, 3 sampled)"
    assert [len(runs) for runs in comparison.losers.values()] == [3, 3, 3]


def test_what_is_reported_is_of_seeds_that_did_not_choose(comparison):
    """As many, the next ones, the same for all methods, in the bits that `simulate` has of them."""
    assert {run.seeds for runs in comparison.runs.values() for run in runs} == {(0, 1, 2)}
    assert {trace.seeds for trace in comparison.best.values()} == {(3, 4, 5)}
    best = comparison.best["ST-GT"]
    alone = stgt.simulate(best.algorithm, quadratic(6, 2, noise=0.05), stgt.topology.ring(6), 60, [3, 4, 5])
    np.testing.assert_array_equal(best.residual, alone.residual)
    assert "Chosen on seeds 0–2; all numbers are of the fresh seeds 3–5." in comparison.caption


def test_where_nothing_is_chosen_nothing_is_run_again():
    methods = [stgt.STGT(gamma=0.1), stgt.DPSGD(gamma=0.1)]
    found = stgt.compare(methods, LINE, BOTH, 3, 2, grid={"gamma": [0.2]}, engine="numpy")
    assert not found.fresh
    assert {trace.seeds for trace in found.best.values()} == {(0, 1)}
    assert "osen" not in found.caption


def test_fresh_seeds_stay_seeds():
    assert fresh_seeds([7, 3]) == (8, 9)
    assert fresh_seeds([2**32 - 2, 0]) == (2**32 - 1, 1), "below 2**32"


def levels(**errors):
    """Runs whose residual stays at what is given for each seed."""
    (trace,) = descents([0.5])
    return {
        name: with_values(trace, residual=np.tile(np.array(of, dtype=float)[:, None], (1, 11)))
        for name, of in errors.items()
    }


def test_methods_are_tied_where_their_seeds_do_not_tell_them_apart():
    """b is 1.2 a on each seed. c is a with its seeds exchanged: ln of the means' ratio is 0. d is far above."""
    runs = levels(a=[1, 2, 3], b=[1.2, 2.4, 3.6], c=[3, 1, 2.01], d=[10, 20, 31])
    rule = Rule("residual")
    assert rule.groups(runs) == [("a", "c"), ("b",), ("d",)]
    found = Comparison.of(rule, {name: [trace] for name, trace in runs.items()})
    assert found.ranking == rule.groups(runs)
    assert [(row["method"], row["remark"]) for row in found.table if row["remark"]] == [("c", "tied with a")]
    assert rule.tied(runs["a"], replace(runs["b"], seeds=(7, 8, 9))), "other seeds share no noise"


def test_one_seed_tells_nothing_of_chance():
    runs = levels(a=[1.0], b=[2.0])
    assert Rule("residual").tied(runs["a"], runs["b"]) is None
    found = Comparison.of(Rule("residual"), {name: [trace] for name, trace in runs.items()})
    assert found.ranking == [("a",), ("b",)]
    assert "One seed, so the variation between seeds is unknown." in found.caption


def test_costs_to_a_target_are_compared_seed_by_seed():
    """With γ = ½ and ¼ every seed takes 3 and 8 rounds; noise in the last bit decides nothing."""
    fast, slow = (trace.residual[0] for trace in descents([0.5, 0.25]))
    (trace,) = descents([0.5])
    runs = {
        "fast": with_values(trace, residual=np.stack([fast, fast, slow])),
        "slow": with_values(trace, residual=np.stack([slow, slow, fast])),
        "never": with_values(trace, residual=np.ones((3, 21))),
    }
    rule = Rule("residual", target=1 / 64)
    assert rule.tied(runs["fast"], runs["slow"]) is True
    assert rule.tied(runs["fast"], replace(runs["fast"], seeds=(0, 1, 2))) is True
    assert rule.tied(runs["fast"], runs["never"]) is None
    all_fast, all_slow = (with_values(trace, residual=np.tile(one, (3, 1))) for one in (fast, slow))
    assert rule.tied(all_fast, all_slow) is False


def test_its_table_is_sorted_and_says_what_it_judged_by(comparison):
    table = comparison.table
    errors = [row["error"] for row in table]
    assert errors == sorted(errors)
    best = comparison.best[table[0]["method"]]
    assert table[0]["error"] == pytest.approx(best.tail("residual", 0.1).mean())
    assert table[0]["floats"] == best["floats"][:, -1].mean()
    text = repr(comparison)
    assert "Best: lowest residual, a mean over the seeds and the last 10% of the rounds." in text
    assert all(label in text for label in comparison.runs)
    ElementTree.fromstring(f"<div>{comparison._repr_html_()}</div>")


def test_a_choice_at_the_end_of_the_grid_is_said():
    problem, graph = quadratic(6, 2), stgt.topology.ring(6)
    found = stgt.compare([stgt.STGT(tau=2)], problem, graph, 30, grid={"gamma": [0.001, 0.002, 0.004]}, engine="numpy")
    assert found.table[0]["remark"] == "largest gamma of the grid"


def test_its_frame_has_the_losers(comparison):
    pytest.importorskip("pandas")
    frame = comparison.to_pandas()
    assert len(frame) == 12 + 3, "the chosen ones again, on fresh seeds"
    assert frame[frame.best].seeds.tolist() == ["3–5"] * 3
    assert frame[frame.remark.str.contains("diverged, from round")].chosen.unique().tolist() == ["gamma=5"]


@pytest.mark.parametrize("x", ["rounds", "floats"])
def test_its_figure_is_drawn(comparison, tmp_path, x):
    files = comparison.curves(tmp_path / x, x=x)
    assert [file.suffix for file in files] == [".png", ".pdf"]
    assert all(file.stat().st_size > 5000 for file in files)


def test_the_size_the_ends_and_the_scales_of_the_axes_can_be_given(comparison, tmp_path, monkeypatch):
    from PIL import Image

    from stgt.study.report import figures

    (file,) = comparison.curves(tmp_path / "sized.png", size=(4, 3))
    with Image.open(file) as picture:
        assert picture.size == (4 * 160, 3 * 160), "160 dots an inch"
    drawn = []
    monkeypatch.setattr(figures, "save_pictures", lambda canvas, paths: drawn.append(canvas.axes[0]) or paths)
    comparison.curves("x", xlim=(2, 9), ylim=(None, 0.5), ylog=False)
    comparison.curves("x", xlim=(1, None), xlog=True)
    comparison.curves("x")
    assert (drawn[0].get_xlim(), drawn[0].get_ylim()[1]) == ((2, 9), 0.5)
    assert drawn[1].get_xlim()[0] == 1
    assert drawn[1].get_xlim()[1] == pytest.approx(drawn[2].get_xlim()[1])
    scales = [(axes.get_xscale(), axes.get_yscale()) for axes in drawn]
    assert scales == [("linear", "linear"), ("symlog", "log"), ("linear", "log")], "round 0 has a place too"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 4}, r"^size=4: give the width and the height in inches"),
        ({"size": (4, 0)}, "^size=0: give a finite number above 0"),
        ({"xlim": 9}, r"^xlim=9: give \(low, high\)"),
        ({"ylim": (2, 1)}, r"^ylim=\(2, 1\): give a low end that is below the high one"),
        ({"ylim": (0, 1)}, "^ylim=0: give a finite number above 0"),
        ({"ylog": "yes"}, "^ylog='yes': give True or False"),
    ],
)
def test_a_wrong_size_or_axis_is_refused(comparison, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        comparison.curves(tmp_path / "x", **options)
    assert not list(tmp_path.iterdir())


def test_a_band_ends_where_its_interval_does_also_on_a_logarithmic_axis():
    """A hundredth of the mean is drawn as such; at 0 and below there is no place, and the figure says so."""
    from matplotlib.figure import Figure

    from stgt.study.report import Line, Panel
    from stgt.study.report.figures import BELOW, _panel

    def drawn(low):
        axes = Figure().subplots()
        line = Line("", np.arange(3), np.ones(3), np.array(low), np.full(3, 2.0))
        _panel(axes, Panel("", "", "", (line,)))
        return axes, axes.collections[0].get_paths()[0].vertices[:, 1].min(), [text.get_text() for text in axes.texts]

    _, least, words = drawn([0.01, 0.5, 0.5])
    assert (least, words) == (0.01, [])
    axes, least, words = drawn([-1.0, 0.5, 0.5])
    assert least == axes.get_ylim()[0] == 0.25, "half of the least that is drawn"
    assert words == [BELOW]


def test_the_ending_says_which_picture(comparison, tmp_path):
    """The end of a number is none; another picture's is refused, and so is a place that cannot be written."""
    assert comparison.curves(tmp_path / "one.pdf") == [tmp_path / "one.pdf"]
    assert comparison.curves(tmp_path / "two.PNG") == [tmp_path / "two.PNG"]
    numbers = comparison.curves(tmp_path / "gamma=0.05")
    assert numbers == [tmp_path / "gamma=0.05.png", tmp_path / "gamma=0.05.pdf"]
    assert {path.name for path in tmp_path.iterdir()} == {"one.pdf", "two.PNG", *(path.name for path in numbers)}
    with pytest.raises(ValueError, match=r"path .*x\.svg ends in \.svg: end it in \.png or \.pdf"):
        comparison.curves(tmp_path / "x.svg")
    for attempt in (comparison.curves, comparison.best["ST-GT"].to_csv):
        with pytest.raises(ValueError, match=r"^path .* cannot be written \(.*\): give another one\.$"):
            attempt(tmp_path / "one.pdf" / "x")


def test_curves_of_a_list_and_over_costs(comparison, tmp_path):
    from stgt.study.report import curves

    runs = comparison.runs["ST-GT"][:3]
    assert curves(runs, tmp_path / "list", x="gradients", per_node=True)[0].exists()
    assert curves(runs[0], tmp_path / "one", x="seconds")[0].exists()
    line = band("", runs[0], over="floats", per_node=True)
    # Six nodes with two neighbours each say two vectors of two numbers a round: eight floats a node.
    np.testing.assert_allclose(line.x, 8 * np.arange(61))
    for traces, words in (([], "traces is empty"), ([3], "give a dict of traces by name, or a list")):
        with pytest.raises(ValueError, match=words):
            curves(traces, tmp_path / "none")
    with pytest.raises(ValueError, match="x='time': choose from 'rounds', 'gradients'"):
        curves(runs, tmp_path / "none", x="time")


def test_a_comparison_is_kept_in_a_file(comparison, tmp_path):
    """All of it: the table, the losers, the fresh seeds and the arrays, to the bit."""
    loaded = Comparison.load(comparison.save(tmp_path / "found.stgt"))
    assert repr(loaded) == repr(comparison)
    assert str(loaded.rows) == str(comparison.rows), "as text, as some numbers are NaN"
    assert loaded.fresh
    for name, runs in comparison.runs.items():
        for one, other in zip((*runs, comparison.best[name]), (*loaded.runs[name], loaded.best[name]), strict=True):
            assert all(np.array_equal(one[metric], other[metric], equal_nan=True) for metric in one)
    assert loaded.curves(tmp_path / "curves.png")[0].exists()
    again = Comparison.load(loaded.save(tmp_path / "again.stgt"))
    assert again.best["ST-GT"].notes == comparison.best["ST-GT"].notes
    alone = comparison.best["ST-GT"].save(tmp_path / "one.stgt")
    with pytest.raises(ValueError, match=r"one\.stgt is not a comparison of stgt: give another file\."):
        Comparison.load(alone)


def test_without_an_optimum_it_judges_by_the_loss():
    problem = logistic(4, l2=0.0, nonconvex=0.1)
    assert problem.solve is None
    options = {"grid": {"gamma": [0.1, 0.3]}, "engine": "numpy"}
    found = stgt.compare([stgt.STGT(), stgt.DPSGD()], problem, stgt.topology.ring(4), 10, **options)
    assert found.rule.metric == "loss"


def test_seconds_are_judged_one_method_at_a_time_and_shown():
    found = stgt.compare(
        [stgt.STGT(), stgt.DPSGD()], LINE, BOTH, 30, grid={"gamma": [0.3, 0.5]}, x0=[1.0], engine="numpy",
        target=1e-3, cost="seconds",
    )  # fmt: skip
    assert "seconds" in repr(found).splitlines()[0]
    assert found.table[0]["seconds"] <= found.table[1]["seconds"]


BAD = {
    "not a list": ({"algorithms": stgt.STGT(gamma=0.1)}, "give a list of them"),
    "no method": ({"algorithms": []}, "algorithms is empty"),
    "a class": ({"algorithms": [stgt.STGT]}, "give an instance"),
    "a grid of nothing": ({"grid": {"eta_s": [1.0]}}, "grid has eta_s: ST-GT has none of these"),
    "a list": ({"grid": [0.1]}, "give a dict of lists"),
    "a target of words": ({"target": "low"}, "target='low': give a number"),
    "no problem": ({"problem": None}, "problem=None: give a Problem"),
    "an unknown cost": ({"cost": "money", "target": 1.0}, "cost='money'"),
    "a cost without a target": ({"cost": "floats"}, "without a target"),
    "an unknown metric": ({"by": "speed"}, "by='speed': choose from residual, loss"),
    "one that is not there": ({"by": "tracking", "algorithms": [stgt.DPSGD(gamma=0.1)]}, "D-PSGD tracks no gradient: "),
    "one left out": ({"by": "loss", "metrics": ["residual"]}, "it was left out of metrics: choose from residual"),
    "a checkpoint": ({"checkpoint": "run.stgt"}, "checkpoint was given"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name):
    options, words = BAD[name]
    options = {"algorithms": [stgt.STGT(gamma=0.1)], "engine": "numpy", **options}
    with pytest.raises(ValueError, match=words) as caught:
        stgt.compare(options.pop("algorithms"), options.pop("problem", LINE), BOTH, 2, **options)
    assert "\n" not in str(caught.value)


def test_an_interrupt_ends_all_methods_where_they_are():
    # A test's process may ignore Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = []

    def interrupt(done, total):
        if not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    methods, grid = [stgt.STGT(gamma=0.1), stgt.DPSGD(gamma=0.1)], {"gamma": [0.1, 0.2]}
    try:
        found = stgt.compare(methods, LINE, BOTH, 20_000, grid=grid, engine="numpy", progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert sent
    assert all(trace.interrupted and trace.rounds < 20_000 for trace in found.best.values())
    assert "interrupted" in repr(found)
    assert "No fresh seeds were run: all numbers are of seed 0, which make the best look too good" in found.caption
    if len({trace.rounds for trace in found.best.values()}) > 1:
        assert "Interrupted: the methods made different numbers of rounds." in repr(found)


FOLDER = {"seeds": 2, "grid": {"gamma": [0.25, 0.5, 0.75], "tau": [1, 2]}, "x0": [1.0], "engine": "numpy"}
PAIR = [stgt.STGT(gamma=0.1), stgt.DPSGD(gamma=0.1)]


def kept(folder, rounds=30, methods=PAIR, problem=LINE, topology=BOTH, **changes):
    return stgt.compare(methods, problem, topology, rounds, folder=folder, **{**FOLDER, **changes})


def test_a_comparison_is_kept_in_a_folder_and_not_computed_again(tmp_path, monkeypatch):
    """It is what it is without a folder, to the bit; once finished it is read, as `stgt show` and `stgt report` do."""
    without = stgt.compare(PAIR, LINE, BOTH, 30, **FOLDER)
    first = kept(tmp_path / "out")
    assert repr(first) == repr(without)
    assert (tmp_path / "out" / "summary.csv").exists()
    monkeypatch.setattr("stgt.study.execution.run_together", None)
    again = kept(tmp_path / "out")
    assert repr(again) == repr(without)
    assert str(again.rows) == str(without.rows)
    assert again.best["ST-GT"].problem is LINE, "a loaded trace has the objects of the call"
    study = load_study(tmp_path / "out")
    assert repr(study.comparison) == repr(without)
    assert write_page([study], tmp_path / "page.html").exists()


def test_a_comparison_goes_on_from_its_folder_to_the_same_bits(tmp_path):
    """After Ctrl-C in the midst, and for more rounds than were asked for at first."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(done, total):
        if done > 0.3 * total and not stopped:
            stopped.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    stopped = []
    try:
        cut = kept(tmp_path / "out", 400, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert stopped
    assert not cut.fresh
    whole = stgt.compare(PAIR, LINE, BOTH, 400, **FOLDER)
    assert str(kept(tmp_path / "out", 400).rows) == str(whole.rows)
    kept(tmp_path / "short", 50)
    longer = kept(tmp_path / "short", 400)
    for name, traces in whole.runs.items():
        for one, other in zip(traces, longer.runs[name], strict=True):
            np.testing.assert_array_equal(one.residual, other.residual)
    assert str(longer.rows) == str(whole.rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 20}, r"rounds=20: .*out has 30 already; give at least as many\."),
        ({"seeds": 3}, r"holds another comparison: seeds is \[0, 1, 2\], and was \[0, 1\]"),
        ({"target": 1e-3}, r"rule\.target is 0\.001, and was None"),
        ({"grid": {"gamma": [0.25, 0.5]}}, r"methods\.ST-GT is \['gamma=0\.25', 'gamma=0\.5'\], and was"),
        ({"methods": PAIR[:1]}, r"methods\.D-PSGD is None, and was"),
        (
            {"problem": stgt.problems.Quadratic(2 * np.ones((2, 1, 1)), np.zeros((2, 1)))},
            "the run to resume is a different one",
        ),
        ({"topology": stgt.topology.ring(2)}, "the run to resume is a different one: topology"),
        ({"x0": [2.0]}, "it began with another x0 or state0"),
        ({"dtype": "float32"}, "dtype is 'float32', and was 'float64'"),
        ({"oracle": stgt.oracles.Noisy(0.1)}, "the run to resume is a different one: oracle"),
        ({"metrics": ["residual"]}, "the run to resume is a different one: measured"),
    ],
)
def test_a_changed_argument_is_refused_and_changes_nothing(tmp_path, change, words):
    kept(tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.glob("out/*/*")}
    with pytest.raises(ValueError, match=words):
        kept(tmp_path / "out", **change)
    assert {path: path.read_bytes() for path in tmp_path.glob("out/*/*")} == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="is not empty: give another folder"):
        kept(tmp_path)


def test_a_folder_is_refused_by_the_name_of_its_argument(tmp_path):
    (tmp_path / "precious").write_text("x")
    for path, why in ((tmp_path, "is not empty: give another folder"), (tmp_path / "precious", "is a file")):
        with pytest.raises(stgt.InputError, match=rf"^folder \S+ {why}"):
            stgt.compare([stgt.STGT(gamma=0.1)], stgt.problems.ridge(4, 2), stgt.topology.ring(4), 2, folder=path)
    assert (tmp_path / "precious").read_text() == "x"
