"""What a notebook and a prompt show: short lines, and HTML that says what the arrays say."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace

import numpy as np
import pytest

import stgt
from stgt._internal.serialize import to_plain
from stgt.simulator.html import POINTS
from tests.catalogue import instances

T = stgt.topology
PROBLEM = stgt.problems.ridge(n=6, p=2)


def run(algorithm=None, problem=PROBLEM, topology=None, rounds=12, **options):
    algorithm = algorithm or stgt.STGT(gamma=0.1, tau=2)
    return stgt.simulate(algorithm, problem, topology or T.ring(6), rounds, engine="numpy", **options)


def parsed(thing):
    """All of the HTML as a tree: it is well-formed XML."""
    return ElementTree.fromstring(thing._repr_html_())


def words(tree):
    return " ".join("".join(tree.itertext()).split())


def tables(trace):
    """The tables, as dicts of rows by their first word."""
    rows = [[["".join(cell.itertext()) for cell in row] for row in one] for one in parsed(trace).iter("table")]
    return [{row[0]: row[1:] for row in table} for table in rows]


def curve(trace):
    """The sparkline's path, as strokes of points."""
    svg = parsed(trace).find("svg")
    assert svg is not None
    (path,) = [one.get("d") for one in svg.iter("path") if one.get("stroke-width")]
    strokes = [stroke.removesuffix("h0").split("L") for stroke in path.split("M")[1:]]
    return [[tuple(float(number) for number in point.split()) for point in stroke] for stroke in strokes]


def changed(trace, **values):
    """The same with other measurements."""
    return replace(trace, values={**trace.values, **values})


# -- a trace -------------------------------------------------------------------------------------------------------


def test_the_table_has_the_numbers_of_the_trace():
    trace = run(seeds=3)
    measured, counted = tables(trace)
    assert list(measured) == ["measured", "residual", "loss", "squared_gradient_norm", "consensus", "tracking", "sum_c"]
    for name in list(measured)[1:]:
        mean = trace[name].mean(axis=0)
        assert measured[name][0] == f"{mean[0]:.3g}"
        end, low, high = (float(one.strip("[],")) for one in measured[name][1].split())
        assert low < end < high
        assert abs(end - mean[-1]) < 0.05 * (mean[-1] - low), "two digits of the distance to the nearer end"
        assert measured[name][2] == f"{mean.min():.3g} (round {mean.argmin()})"
    assert counted["cost"] == ["network total", "per node"]
    for name in ("gradients", "messages", "floats"):
        total = trace[name][0, -1]
        assert counted[name] == [f"{total:,.0f}", f"{total / 6:,.0f}"]
    # 6 nodes, 12 rounds of 2 gradients; 2 links a node; 2 vectors of 2 floats along each.
    assert [counted[name][0] for name in ("gradients", "messages", "floats")] == ["144", "144", "576"]


def test_one_seed_has_no_interval():
    trace = run()
    measured, _ = tables(trace)
    assert measured["residual"][1] == f"{trace.residual[0, -1]:.3g}"
    assert "95 %" not in words(parsed(trace))


def test_counts_that_differ_between_seeds_are_called_a_mean():
    trace = run(stgt.ProxSkip(gamma=0.1), topology=T.server(6), rounds=40, seeds=4)
    trace = changed(trace, messages=np.outer([1.0, 2.0, 3.0, 4.0], np.arange(41)))
    assert tables(trace)[1]["messages"] == ["100, mean of the seeds", f"{100 / 6:.3g}"]


def test_rounds_that_communicate_are_told_from_others():
    trace = run(stgt.ProxSkip(gamma=0.1, p=0.3), rounds=40)
    assert f"40 rounds, {trace['messages'][0, -1] / 12:.0f} with communication" in words(parsed(trace)), "12 links"
    assert "with communication" not in words(parsed(run()))


def test_the_header_says_what_was_run():
    shown = words(parsed(run(seeds=2)))
    for fact in ("ST-GT(gamma=0.1, tau=2)", "ring(6)", "2 seeds", "12 rounds", "numpy, float64", PROBLEM.name):
        assert fact in shown
    assert "diverged" not in shown
    assert "interrupted" not in shown


def test_notes_and_interruptions_are_said():
    shown = words(parsed(replace(run(), interrupted=True, notes=("It is <i>another</i> one.",))))
    assert "interrupted after 12 rounds" in shown
    assert "It is <i>another</i> one." in shown


@pytest.mark.parametrize(
    ("gamma", "said"),
    [
        (stgt.schedules.cosine(0.1, rounds=50), "gamma=cosine(0.1, end=0.0, rounds=50)"),
        (lambda r: 0.1, "gamma: a function of the round"),
    ],
)
def test_stepsizes_that_change(gamma, said, tmp_path):
    trace = run(stgt.STGT(gamma=gamma), seeds=2)
    assert said in words(parsed(trace))
    assert said in words(parsed(stgt.Trace.load(trace.save(tmp_path / "run.stgt"))))


def test_a_loaded_trace_looks_the_same(tmp_path):
    trace = run(seeds=2, metrics={"own": lambda mean: mean.sum()})
    assert stgt.Trace.load(trace.save(tmp_path / "run.stgt"))._repr_html_() == trace._repr_html_()


def test_the_sparkline_goes_from_the_start_to_the_end_on_a_logarithmic_scale():
    trace = changed(run(rounds=4), residual=np.array([[1.0, 1e-1, 1e-2, 1e-4, 1e-3]]))
    (stroke,) = curve(trace)
    x, y = np.array(stroke).T
    np.testing.assert_allclose(np.diff(x), x[1] - x[0])
    # A decade is a quarter of the height, whose span is that of four decades.
    np.testing.assert_allclose((y - y[0]) / (y.max() - y.min()), [0, 0.25, 0.5, 1, 0.75], atol=1e-3)
    shown = words(parsed(trace).find("svg"))
    assert "logarithmic" in shown
    assert "from 1 to 0.001" in shown


def test_values_that_are_not_all_positive_are_on_a_linear_scale():
    trace = changed(run(rounds=4), residual=np.array([[4.0, 0.0, 1.0, 2.0, 3.0]]))
    (stroke,) = curve(trace)
    y = np.array(stroke)[:, 1]
    np.testing.assert_allclose((y - y[0]) / (y.max() - y.min()), [0, 1, 0.75, 0.5, 0.25], atol=1e-3)
    assert "linear" in words(parsed(trace).find("svg"))


def test_the_mean_over_the_seeds_is_drawn():
    both = np.array([[1.0, 0.5, 4.0], [3.0, 1.5, 4.0]])
    several = changed(run(rounds=2, seeds=2), residual=both)
    assert curve(several) == curve(changed(run(rounds=2), residual=both.mean(axis=0)[None]))


def test_gaps_are_left_where_nothing_is_finite():
    values = np.array([[1.0, 2.0, np.nan, 4.0, np.inf, 5.0, 6.0, np.nan]])
    assert [len(stroke) for stroke in curve(changed(run(rounds=7), residual=values))] == [2, 1, 2]


def test_a_long_run_is_drawn_by_few_points_and_keeps_its_extremes():
    values = np.ones((1, 10_001))
    values[0, 4321], values[0, 6000:6200] = 1e-6, np.nan
    trace = changed(run(rounds=0), residual=values)
    first, second = curve(trace)
    assert len(first) + len(second) <= POINTS + 4
    y = [point[1] for point in first]
    assert max(y) - min(y) > 50


def test_loss_or_the_first_measurement_stands_in_for_the_residual():
    assert "loss" in words(parsed(run(metrics=["consensus", "loss"])).find("svg"))
    assert "consensus" in words(parsed(run(metrics=["consensus"])).find("svg"))
    nothing = run(metrics=[])
    assert parsed(nothing).find("svg") is None
    assert len(tables(nothing)) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_run_that_diverges(seeds):
    trace = run(stgt.STGT(gamma=9.0, tau=3), rounds=250, seeds=seeds)
    assert trace.diverged.all()
    shown = words(parsed(trace))
    first = trace.diverged_at.min()
    assert (
        f"diverged, at round {first}" if seeds == 1 else f"3 of 3 seeds diverged, the first at round {first}"
    ) in shown
    assert tables(trace)[0]["residual"][1] == ("not finite" if seeds == 1 else "not finite in 3 of 3 seeds")
    assert len(curve(trace)) == 1


@pytest.mark.filterwarnings("error")
def test_odd_traces():
    for trace in (run(rounds=0), run(rounds=0, seeds=2), run(rounds=1)):
        assert len(curve(trace)) == 1
    never = changed(run(seeds=2), residual=np.full((2, 13), np.nan))
    assert "residual is not finite in any round" in words(parsed(never))
    assert tables(never)[0]["residual"] == ["not finite", "not finite in 2 of 2 seeds", "never finite"]
    huge = changed(run(rounds=1, seeds=2), residual=np.array([[-1.7e308, 1.7e308], [-1.7e308, 1.6e308]]))
    parsed(huge)


def test_a_metric_of_ones_own_has_its_range_and_its_name_is_escaped():
    trace = run(metrics=[{"<b>": lambda mean: -mean.sum()}], seeds=2)
    assert "<b>:" not in trace._repr_html_().replace("<b>ST-GT</b>", "")
    assert "&lt;b&gt;" in trace._repr_html_()
    mean = trace["<b>"].mean(axis=0)
    assert tables(trace)[0]["<b>"][2] == f"from {mean.min():.3g} to {mean.max():.3g}"
    assert "<b>" in words(parsed(trace).find("svg"))


def test_no_colour_is_fixed():
    for html in (run()._repr_html_(), T.relay(6, 2)._repr_html_(), T.one_peer_exponential(6)._repr_html_()):
        assert set(re.findall(r'(?:fill|stroke)="(.*?)"', html)) <= {"currentColor", "none"}
        assert "background" not in html
        assert not re.search(r"[ ;\"]color:|id=", html)


def test_the_names_of_topologies_are_escaped():
    named = replace(T.ring(6), name="<script>")
    assert "<script>" not in run(topology=named)._repr_html_()


# -- at a prompt ---------------------------------------------------------------------------------------------------


W = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
TOPOLOGIES = [
    T.ring(200), T.exponential(200), T.complete(9), T.torus(20, 20), T.from_matrix(W), T.one_peer_exponential(100),
    T.server(9, 3), T.relay(9, 3), T.random_matching(9), T.unreliable(T.ring(9), link=0.1), T.sequence([W, np.eye(3)]),
    T.sequence([T.ring(5), T.random_matching(5)]), T.schedule(3, lambda r: W),
]  # fmt: skip


def public_objects():
    trace = run(seeds=2, metrics={"own": stgt.of_state(lambda state: state["x"].sum())})
    rows, labels = np.random.default_rng(0).standard_normal((60, 3)), np.arange(60) % 2
    logistic = stgt.problems.logistic(rows, labels, n=6, l2=0.1, batch=2)
    saga = run(stgt.GTSAGA(gamma=0.01), logistic, rounds=2)
    yield from [
        trace,
        trace.run_state,
        *trace.measured.values(),
        trace.oracle,
        trace.algorithm,
        trace.topology,
        trace.problem,
    ]
    yield from [trace.algorithm.cost(), trace.best(), logistic, logistic.model, saga, saga.run_state, saga.oracle]
    for topology in TOPOLOGIES:
        yield from (topology, topology.structure)
    yield stgt.AugDGM(gamma=tuple(np.linspace(0.1, 0.2, 100)))
    yield stgt.STGT(gamma=lambda r: 0.1)


def test_reprs_are_one_short_line():
    for thing in public_objects():
        shown = repr(thing)
        assert "\n" not in shown
        assert "array(" not in shown
        assert " at 0x" not in shown
        assert len(shown) < 250, shown


def test_the_words_of_a_repr():
    trace = run(seeds=2)
    assert repr(PROBLEM) == f"Problem({PROBLEM.name})"
    assert "n=6, p=2" in repr(PROBLEM)
    assert repr(replace(PROBLEM, name="mine")) == "Problem(mine, n=6, p=2)"
    assert str(PROBLEM) == PROBLEM.name
    assert repr(trace) == "Trace(ST-GT, ring(6), 2 seeds, 12 rounds)"
    assert repr(run(rounds=1)) == "Trace(ST-GT, ring(6), 1 seed, 1 round)"
    assert repr(trace.run_state) == "RunState(2 runs after 12 rounds: x, c)"
    assert list(run(metrics=["loss", {"own": lambda mean: 0.0}]).measured) == ["loss", "own"]
    assert repr(stgt.STGT(gamma=0.1)) == "STGT(gamma=0.1)"
    assert repr(T.from_matrix(W).structure) == "Dense(matrices=float64[1, 3, 3])"


@pytest.mark.parametrize("name", instances())
def test_the_repr_of_a_method_makes_it_again(name):
    method = instances()[name]
    assert eval(repr(method), vars(stgt)) == method


def test_the_repr_of_a_method_is_what_was_written():
    for words in (
        "FedAdam(gamma=0.1, tau=4)",
        "Outer(gamma=0.1, tau=20, method=STGT(beta=0.25), momentum=0.9)",
        "STGT(gamma=0.1)",
        "oracles.Minibatch(batch=8)",
        "oracles.Minibatch()",
    ):
        assert repr(eval(words, vars(stgt))) == words.removeprefix("oracles.")


def test_a_dataclass_of_ones_own_is_brief_too_and_may_have_its_own_words():
    @dataclass(frozen=True, kw_only=True)
    class Mine(stgt.Algorithm):
        shares: tuple[int, ...] = ()

    @dataclass(frozen=True, kw_only=True)
    class Named(Mine):
        def __repr__(self):
            return "named"

    mine = Mine(gamma=0.1, shares=tuple(range(100)))
    assert repr(mine).endswith("shares=(0, 1, 2, 3, 4, 5, 6, 7, … 100 in all))")
    assert repr(Named(gamma=0.1)) == "named"
    # What is compared between nodes leaves nothing out.
    assert to_plain(mine)["shares"] == list(range(100))
