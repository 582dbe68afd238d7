"""The paper's two figures, at a tiny size: readings, panels, and what claims rest on."""

from dataclasses import replace

import numpy as np
import pytest

from reproductions import paper_figures, readings
from reproductions.paper_claims import METHODS, convergence_claims
from reproductions.paper_figures import TAUS, convergence, local_updates
from reproductions.readings import READINGS, choose_readings
from reproductions.simulated import Prediction, SimulatedRun, simulate_run
from stgt.study.report import Figure, Line, Panel, draw, long_band
from stgt.study.spec import Named

TINY = (Named(name="ring"), Named(name="exponential"))


@pytest.fixture
def tiny(monkeypatch):
    """Every reading with 8 nodes, of which a server calls 2 and 4; its graphs are a ring and the exponential graph."""
    monkeypatch.setattr(readings, "NODES", 8)
    monkeypatch.setattr(paper_figures, "SAMPLED", (2, 4))
    for name, reading in READINGS.items():
        monkeypatch.setitem(READINGS, name, replace(reading, graphs=TINY))


def assert_no_panel_is_empty(figure: Figure):
    for panel in figure.panels:
        for line in panel.lines:
            assert len(line.x) >= 2, (figure.name, panel.title, line.label)
            assert np.isfinite(line.y).all()
            assert line.x[0] == 0, "round 0 is visible"


def test_every_reading_keeps_gamma_tau():
    """γτ = 20 as printed, 20/32 where a node's gradient is its part of the mean's."""
    for reading in choose_readings():
        products = [reading.gamma(tau) * tau for tau in TAUS]
        np.testing.assert_allclose(products, products[0], rtol=1e-12)
        if reading.stepsize != "theorem":
            assert products[0] == pytest.approx(0.625 if reading.stepsize == "mean" else 20.0)


@pytest.mark.release
@pytest.mark.usefixtures("tiny")
def test_a_reading_that_diverges_has_a_picture_of_it(tmp_path):
    """With γL above 2 in some direction an error grows by (1 − γL)² a step, whatever else happens."""
    outcome = convergence(["printed"], rounds=3, seeds=2)
    (figure,) = outcome.figures
    assert_no_panel_is_empty(figure)
    assert "No run stays finite" in figure.notes[0]
    for panel in figure.panels:
        for line in panel.lines:
            assert (np.diff(line.y) > 0).all()
            assert line.y[-1] < 1e200
    assert not any(claim.holds for claim in outcome.claims)
    assert all(path.stat().st_size > 0 for path in draw(figure, tmp_path / "printed"))


@pytest.mark.usefixtures("tiny")
@pytest.mark.thorough
def test_figures_say_what_a_reader_must_know(tmp_path):
    outcome = local_updates(["scalar-noise"], rounds=6, seeds=3)
    (figure,) = outcome.figures
    assert_no_panel_is_empty(figure)
    labels = [line.label for line in figure.panels[0].lines if line.label]
    assert labels == ["τ = 25, γ = 0.1", "τ = 50, γ = 0.05", "τ = 100, γ = 0.025"], "20/(8τ)"
    assert "reading “scalar-noise”" in figure.title
    assert outcome.claims[0].figures["ring(8)"]["decided by"] in ("exact values", "95 % intervals")
    draw(figure, tmp_path / figure.name)


@pytest.mark.release
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", READINGS)
def test_every_reading_is_drawn_and_judged(name, tmp_path):
    for experiment in (convergence, local_updates):
        outcome = experiment([name], rounds=40, seeds=3)
        for figure in outcome.figures:
            assert_no_panel_is_empty(figure)
            draw(figure, tmp_path / figure.name)
        for claim in outcome.claims:
            for of in claim.figures.values():
                for one in of.values() if isinstance(of, dict) else ():
                    if isinstance(one, dict) and "error" in one:
                        assert {"error", "low", "high", "diverged", "settled"} <= set(one)


def test_scaffold_computes_its_share_of_the_gradients(monkeypatch):
    """s of n workers take τ steps each: s τ/n gradients a node and round, where others take τ."""
    monkeypatch.setattr(readings, "NODES", 8)
    hyper = {"gamma": 0.01, "tau": 5}
    reading = READINGS["normalised"]
    scaffold = reading.run("", {"name": "Scaffold", **hyper}, {"name": "server", "sampled": 2}, rounds=12, seeds=2)
    line = long_band("Scaffold", simulate_run(scaffold).trace, over="gradients", per_node=True)
    np.testing.assert_allclose(line.x, 1.25 * np.array([*range(12), 12]), err_msg="windows of one round up to 16")


def test_a_logarithmic_axis_has_a_place_for_round_0(tmp_path):
    def scale(x):
        from matplotlib.figure import Figure as Canvas

        from stgt.study.report.figures import _panel

        axes = Canvas().subplots()
        _panel(axes, Panel("", "", "", (Line("", np.array(x), np.ones(len(x))),), xlog=True))
        return axes

    axes = scale([0, 1, 10, 300])
    assert axes.get_xscale() == "symlog"
    assert list(axes.get_xticks()) == [0, 1, 10, 100]
    assert axes.get_xlim()[0] == 0
    assert scale([0.1, 1, 10]).get_xscale() == "log"


class Known:
    """Runs with errors of one's choice, made from one short run."""

    def __init__(self):
        spec = READINGS["normalised"].run("", {"name": "DPSGD", "gamma": 0.01}, {"name": "complete"})
        small = {"problem": {"name": "ridge", "n": 4, "p": 1}, "rounds": 79, "seeds": 4}
        self.one = simulate_run(spec.model_copy(update={**small, "problem": Named.model_validate(small["problem"])}))

    def run(self, level: float, exact: float | None = None, slope: float = 0.0) -> SimulatedRun:
        """A run of 80 measurements around `level`, half of the seeds 1 % above, half 1 % below, that rises by
        `slope` a round."""
        seeds = level * (1 + 0.01 * np.array([1, -1, 1, -1]))
        values = seeds[:, None] + slope * (np.arange(80) - 69.5)  # the last quarter has its middle at 69.5
        predicted = None if exact is None else Prediction(0.9 if np.isfinite(exact) else 1.1, exact, exact)
        trace = replace(self.one.trace, values={**self.one.trace.values, "residual": values})
        return replace(self.one, trace=trace, predicted=predicted)


@pytest.fixture(scope="module")
def known():
    return Known()


def test_settled(known):
    assert known.run(2.0, exact=2.0).settled
    assert known.run(2.0, exact=2.02).settled, "inside the interval: 4 seeds with a deviation of 1.15 %, t = 5.84"
    assert not known.run(2.0, exact=3.0).settled
    assert not known.run(2.0, exact=np.inf).settled, "what grows does not settle"
    assert not known.run(2.0, exact=3.0, slope=0.0).settled, "a plateau is not the steady state if theory says so"
    assert known.run(2.0).settled
    assert not known.run(2.0, slope=0.01).settled, "all seeds rise by 0.1 from one eighth to the next"
    assert not known.run(np.inf).settled


def claims(known, few, many):
    runs = {
        s: {label: known.run(*value) for label, value in zip((*METHODS, "centralised"), values, strict=True)}
        for s, values in ((4, few), (16, many))
    }
    return {claim.id: claim for claim in convergence_claims(READINGS["exp5"], runs, "")}


def test_claims_rest_on_exact_values_where_there_are_any(known):
    """FlexGT's runs stand still at 0.05, its exact errors are 8 and 4 (C3); by the runs Scaffold would be above it."""
    few = [(1.0, 1.0), (0.05, 8.0), (3.0,), (0.9, 0.9)]
    many = [(0.95, 0.95), (0.05, 4.0), (1.5,), (0.9, 0.9)]
    found = claims(known, few, many)
    assert [found[id].holds for id in ("C1", "C2", "C3")] == [True, True, True]
    reasons = found["C1"].figures["decided by"]
    assert reasons["s=4: ST-GT below FlexGT"] == {"holds": True, "by": "exact values"}
    assert reasons["s=4: ST-GT below Scaffold"] == {"holds": True, "by": "95 % intervals"}
    assert found["C3"].figures["decided by"]["FlexGT to centralised"] == {"holds": True, "by": "exact values"}
    assert found["C3"].figures["largest/smallest error, s=4"] == pytest.approx(8.0)
    flexgt = found["C3"].figures["s=4"]["FlexGT"]
    assert (flexgt["exact"], flexgt["radius"], flexgt["settled"]) == (8.0, 0.9, False)
    assert flexgt["error"] == pytest.approx(0.05)
    assert flexgt["low"] < 0.05 < flexgt["high"]
    assert set(found["C1"].figures["s=16"]["Scaffold"]) == {"error", "low", "high", "diverged", "settled"}


def test_a_claim_fails_where_it_should(known):
    good = [(1.0, 1.0), (8.0, 8.0), (3.0,), (0.9, 0.9)]
    assert not claims(known, good, good)["C3"].holds, "Scaffold's interval is as far away as before"
    assert not claims(known, good, [(1.0, 1.0), (7.0, np.inf), (1.5,), (0.9, 0.9)])["C3"].holds
    swapped = claims(known, good, [(1.0, 1.0), (1.2, 1.2), (2.0,), (0.9, 0.9)])
    assert not swapped["C2"].holds
    assert swapped["C2"].figures["decided by"]["s=4: Scaffold below FlexGT"]["holds"]
    lost = claims(known, good, [(1.0, 1.0), (7.0, 7.0), (np.inf,), (0.9, 0.9)])
    assert lost["C2"].figures["decided by"]["s=16: Scaffold below FlexGT"] == {"holds": False, "by": "runs that grow"}
