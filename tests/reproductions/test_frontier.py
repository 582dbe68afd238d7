"""`frontier`: what a frontier is, how two are compared, and that claims follow from the numbers."""

import numpy as np
import pytest

from reproductions import frontier, write_outcome
from reproductions.frontier import METHODS, SERVER, Probe, errors_at, lower_left, ratio_at_equal_rate
from stgt import NotCovered
from stgt.study import RunSpec, build_run, load_spec
from stgt.theory import SteadyState

RUN = RunSpec.model_validate(
    {"algorithm": {"name": "STGT"}, "problem": {"name": "ridge", "n": 4, "p": 2}, "topology": {"name": "ring"}}
)


def probe(rounds, error):
    return Probe(RUN, 1.0, float(np.exp(-1 / rounds)), error)


def line(*rounds, factor=1.0, power=-1.0):
    """A frontier whose error is factor·rounds^power."""
    return lower_left(probe(r, factor * r**power) for r in rounds)


def test_a_frontier_is_what_nothing_beats():
    better, slower, worse = probe(10.0, 1.0), probe(20.0, 0.5), probe(15.0, 2.0)
    same_rate, unstable = probe(20.0, 0.7), Probe(RUN, 1.0, 1.1, 0.1)
    assert lower_left([worse, unstable, slower, same_rate, better]) == [better, slower]


def test_power_laws_are_interpolated_exactly():
    of = line(2, 8, 32, factor=3.0)
    np.testing.assert_allclose(errors_at(of, np.array([4.0, 20.0])), [3 / 4, 3 / 20])
    assert np.isnan(errors_at(of, np.array([1.0, 33.0]))).all(), "nothing is said outside of its range"


def test_two_frontiers_over_the_rates_that_both_reach():
    """3r⁻¹ over 2r⁻² is 1.5r, from the fastest common rate, 4, to the slowest, 32."""
    ratio = ratio_at_equal_rate(line(2, 8, 32, factor=3.0), line(4, 16, 64, factor=2.0, power=-2.0))
    assert (ratio[0], ratio[-1]) == (pytest.approx(6), pytest.approx(48))
    assert len(ratio_at_equal_rate(line(2, 3), line(4, 5))) == 0


@pytest.mark.parametrize("turn", [0.002, 0.05, 0.5, 20.0])
def test_the_search_ends_at_the_turn(turn):
    """radius = |1 − reach/turn| has its least at the turn: nothing beyond it, and what is next to it within 2 %."""
    found = frontier._search(lambda reach: abs(1 - reach / turn), lambda done: None)
    reaches = list(found)
    assert reaches == sorted(reaches)
    if turn < frontier.REACHES[0]:
        assert reaches == []
        return
    assert reaches[0] == frontier.REACHES[0]
    assert reaches[-1] <= turn
    assert reaches[-1] > 0.98 * min(turn, frontier.REACHES[-1])
    assert len(reaches) <= len(frontier.REACHES) + frontier.NARROWINGS + 1


# By the algorithm's label: the γη_sτL of its fastest rate, and its error at γη_sτL = r as a multiple of r.
TURNS = {"ST-GT": 1.0, "FlexGT (first)": 2.0, "FlexGT (last)": 0.5, "K-GT": 0.5, "D-PSGD (ATC)": 5.0, "Scaffold": 1.0}
FACTORS = {"ST-GT": 1.0, "FlexGT (first)": 1.5, "FlexGT (last)": 2.0, "K-GT": 1.0, "D-PSGD (ATC)": 5.0, "Scaffold": 4.0}


@pytest.fixture
def told(monkeypatch):
    """A theory that says what stands above, in which 10/r rounds shrink by e up to the turn; random or not as told."""
    random = {"refused": True}

    def reach(algorithm, problem):
        return algorithm.gamma * getattr(algorithm, "eta_s", 1.0) * algorithm.tau * problem.L

    def radius(algorithm, problem, topology):
        if topology.random and random["refused"]:
            raise NotCovered("it is random.")
        r, turn = reach(algorithm, problem), TURNS.get(algorithm.label, 1.0)
        return float(np.exp(-r / 10)) if r <= turn else float(np.exp(-turn / 10)) + (r - turn)

    def steady(algorithm, problem, topology):
        return SteadyState(FACTORS.get(algorithm.label, 1.0) * reach(algorithm, problem), 0.0, 0.0)

    monkeypatch.setattr(frontier.theory, "spectral_radius", radius)
    monkeypatch.setattr(frontier.theory, "steady_state", steady)
    return random


def ratios(outcome, id):
    (claim,) = [claim for claim in outcome.claims if claim.id == id]
    return claim.figures["ST-GT's error/the other's"]


def test_claims_follow_from_the_numbers(told, tmp_path):
    ticks = []
    outcome = frontier.frontier(lambda *at: ticks.append(at), graphs=["ring", "complete"], n=8, p=2, tau=5)
    assert {claim.id: claim.holds for claim in outcome.claims} == {"R1": True, "R2": False, "R3": True, "R4": True}
    first = ratios(outcome, "R1")["ring"]["FlexGT (first)"]
    assert (first["least"], first["most"]) == (pytest.approx(1 / 1.5), pytest.approx(1 / 1.5))
    assert ratios(outcome, "R2")["complete"]["K-GT (½)"]["most"] == pytest.approx(1), "equal is not below"
    (faster,) = [claim.figures for claim in outcome.claims if claim.id == "R4"]
    for method, turn in (("ST-GT", 1.0), ("K-GT (½)", 0.5)):
        least = faster["rounds to shrink by e, least"]["ring"][method]
        assert 10 / turn <= least < 10 / (0.98 * turn), "the search ends within 2 % of the turn"
    assert ticks[-1] == (pytest.approx(12), 12.0)
    left_out = [row for row in outcome.rows if row["note"]]
    assert [(row["graph"], row["method"], row["note"]) for row in left_out] == [
        (SERVER, "Scaffold", "it is random."),
        (SERVER, "FedAvg", "it is random."),
    ]
    assert "Left out: Scaffold, FedAvg, as it is random." in outcome.figures[0].title
    names = {path.name for path in write_outcome(outcome, tmp_path)}
    assert {"frontier.png", "frontier-ratio.pdf", "results.csv", "claims.json"} <= names
    assert load_spec(tmp_path / "spec.toml") == outcome.spec


def test_a_sampled_server_is_compared_where_the_theory_covers_it(told):
    told["refused"] = False
    outcome = frontier.frontier(graphs=["ring"], n=8, p=2, tau=5)
    assert {claim.id: claim.holds for claim in outcome.claims}["R5"]
    assert ratios(outcome, "R5")["ring"]["Scaffold"]["most"] == pytest.approx(1 / 4)
    assert {row["method"] for row in outcome.rows} == set(METHODS)
    assert [panel.title for panel in outcome.figures[0].panels] == ["ring", SERVER]


def test_a_frontier_is_exact():
    """One step with W = J and mean curvature a: x̄ shrinks by 1 − γa, and its error is γσ²/(na(2 − γa))."""
    ridge = {"name": "ridge", "n": 4, "p": 1, "mu": 0.5, "scale": "sqrt_p", "noise": 0.1}

    def run_at(reach, L):
        algorithm = {"name": "STGT", "gamma": reach / L}
        return RunSpec.model_validate({"algorithm": algorithm, "problem": ridge, "topology": {"name": "complete"}})

    found = frontier._study(run_at, lambda done, total: None)
    problem = build_run(run_at(1.0, 1.0)).problem
    a = np.mean(problem.gradients(problem.optimum + 1.0) - problem.gradients(problem.optimum))
    slowest = found[-1]
    gamma = frontier.REACHES[0] / problem.L
    assert slowest.reach == frontier.REACHES[0]
    assert slowest.rounds == pytest.approx(-1 / np.log(1 - gamma * a))
    assert slowest.error == pytest.approx(gamma * 0.1 / (4 * a * (2 - gamma * a)))


def test_bad_input():
    with pytest.raises(ValueError, match="graphs="):
        frontier.frontier(graphs=["line"])
    with pytest.raises(ValueError, match="n=8: the grid has 4 rows of 8"):
        frontier.frontier(graphs=["grid"], n=8)
