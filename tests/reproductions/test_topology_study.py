"""`topology`: what is predicted is what the theory says, and claims follow from the numbers."""

import numpy as np
import pytest

import stgt
from reproductions import topology_study
from reproductions.outcome import write_outcome
from reproductions.simulated import Prediction, SimulatedRun
from reproductions.topology_study import GRAPHS, METHODS, mixing_rounds, topology
from stgt.study import load_spec, spec_text
from stgt.study.spec.runs import build_run

# E‖x̄ − x*‖² by graph and method, in the moderate regime: n = 32, p = 4 (found by a NumPy transcription of the rounds).
ERRORS = {
    "ring": (1.0294e-4, 1.9793e-4, 2.7852e-4, 9.0612e-5),
    "hypercuboid": (1.1249e-4, 6.49e-4, 9.513e-4, 9.6626e-5),
    "complete": (1.0079e-4, 1.126e-4, 1.294e-4, 8.8643e-5),
}


@pytest.fixture
def told(monkeypatch):
    """The experiment with the errors above for predictions and nothing simulated; unstable where told."""
    unstable = set()
    problem, ring = stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4)
    trace = stgt.simulate(stgt.STGT(gamma=0.01), problem, ring, 4, 2, engine="numpy", metrics=["residual"])

    def one(run):
        graph = next(name for name, part in GRAPHS.items() if part["name"] == run.topology.name)
        error = ERRORS[graph][list(METHODS).index(run.label)]
        grows = (graph, run.label) in unstable
        predicted = Prediction(1.01, np.inf, np.inf) if grows else Prediction(0.9, error, 0.1)
        return SimulatedRun(run, build_run(run), trace, predicted)

    monkeypatch.setattr(topology_study, "simulate_runs", lambda runs, progress: [one(run) for run in runs])
    return unstable


def holds(outcome, regime="moderate"):
    return {claim.id: claim.holds for claim in outcome.claims if claim.reading == regime}


def test_claims_follow_from_the_numbers(told, tmp_path):
    outcome = topology(graphs=ERRORS, p=2)
    assert holds(outcome) == {"T1": True, "T2": True, "T3": True, "T5": True, "T6": False}
    figures = {claim.id: claim.figures for claim in outcome.claims}
    # τ(1.0294 − 1.0079)/(1.9793 − 1.126) = 1.260
    assert figures["T3"]["τ·(ST-GT's part)/(FlexGT's part)"]["ring"] == pytest.approx(1.260, abs=1e-3)
    assert figures["T2"]["largest/smallest"]["ST-GT"] == pytest.approx(1.1249 / 1.0079)
    assert len(outcome.rows) == 3 * 4 * 2 * 2, "a row for each graph, method, stepsize and seed"
    assert {row["mixing_rounds"] for row in outcome.rows} == {179, 5, 1}
    (tmp_path / "spec.toml").write_text(spec_text(outcome.spec))
    assert load_spec(tmp_path / "spec.toml") == outcome.spec
    names = {path.name for path in write_outcome(outcome, tmp_path)}
    assert {"topology.png", "topology-consensus.pdf", "results.csv", "claims.json"} <= names


def test_an_unstable_run_is_no_steady_state(told):
    told |= {("hypercuboid", "ST-GT"), ("ring", "FlexGT (first)")}
    outcome = topology(graphs=ERRORS, p=2)
    assert not holds(outcome)["T5"]
    assert not holds(outcome)["T6"]
    (part,) = [claim.figures for claim in outcome.claims if (claim.id, claim.reading) == ("T3", "paper")]
    assert part["τ·(ST-GT's part)/(FlexGT's part)"] == {}, "needs both methods on a graph"
    assert {row["exact"] for row in outcome.rows if row["graph"] == "ring(32)" and "first" in row["method"]} == {None}


def test_the_run_that_k_gt_shares_with_st_gt():
    """Both go as far in a round: γη_s is one number."""
    runs = [topology_study._run("ring", method, "paper", 1, 1, 2) for method in ("ST-GT", "K-GT (½, 2γ)")]
    a, b = (build_run(run).algorithm for run in runs)
    assert isinstance(b, stgt.KGT)
    assert a.gamma == b.gamma * b.eta_s


def test_rounds_to_average():
    n = 32
    rho = (1 / 3 + 2 / 3 * np.cos(2 * np.pi / n)) ** 2  # the ring's second eigenvalue, squared
    assert mixing_rounds(stgt.topology.ring(n)) == int(np.ceil(np.log(0.01) / np.log(rho)))
    assert mixing_rounds(stgt.topology.complete(n)) == 1
    assert mixing_rounds(stgt.topology.hypercuboid(n)) == 5
    with pytest.raises(ValueError, match="does not average"):
        mixing_rounds(stgt.topology.from_matrix(np.eye(2)))


def test_the_base_graph_of_one_neighbour_is_the_hypercuboid():
    a, b = stgt.topology.base_graph(32, 1), stgt.topology.hypercuboid(32)
    assert all(np.array_equal(a.matrix(r), b.matrix(r)) for r in range(5))
    with pytest.raises(ValueError, match="graphs="):
        topology(graphs=["line"])
