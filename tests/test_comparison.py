"""Which method is better: the rule, the choice, the table and the figure."""

import os
import signal
from xml.etree import ElementTree

import numpy as np
import pytest

import stgt
from catalogue import logistic, quadratic
from stgt.engines import Rule

# Gradient descent on x²/2 from x = 1: x_r = (1 − γ)^r, the residual (1 − γ)^2r. Every node is alike.
LINE = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
BOTH = stgt.topology.complete(2)


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
    assert str(rule) == "fewest rounds until the mean over the seeds of residual is at most 0.015625"


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
    assert len(frame) == 12
    assert frame.best.sum() == 3
    assert frame[frame.remark == "diverges"].chosen.unique().tolist() == ["gamma=5"]


@pytest.mark.parametrize("x", ["rounds", "floats"])
def test_its_figure_is_drawn(comparison, tmp_path, x):
    files = comparison.curves(tmp_path / x, x=x)
    assert [file.suffix for file in files] == [".png", ".pdf"]
    assert all(file.stat().st_size > 5000 for file in files)


def test_curves_of_a_list_and_over_costs(comparison, tmp_path):
    from stgt.report import band, curves

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

    methods = [stgt.STGT(gamma=0.1), stgt.DPSGD(gamma=0.1)]
    try:
        found = stgt.compare(methods, LINE, BOTH, 20_000, engine="numpy", progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert sent
    assert all(trace.interrupted and trace.rounds < 20_000 for trace in found.best.values())
    assert "interrupted" in repr(found)
    if len({trace.rounds for trace in found.best.values()}) > 1:
        assert "Interrupted: the methods made different numbers of rounds." in repr(found)
