"""`directed`: where the tracker's transpose matters, on small graphs, and the rule that says where."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import stgt
from reproductions import directed as experiment
from reproductions.directed import directed, widest_angle
from reproductions.outcome import write_outcome
from reproductions.simulated import Prediction

PROBLEM = stgt.problems.ridge(n=8, p=1, mu=0.1)
GAMMA = 30 / (50 * PROBLEM.L)


def radius(topology, **options):
    plain = stgt.topology.sequence([topology.matrix(r) for r in range(topology.period)])  # one program for all graphs
    return stgt.theory.spectral_radius(stgt.STGT(gamma=GAMMA, tau=50, **options), PROBLEM, plain)


@pytest.mark.release
def test_the_directed_ring(tmp_path):
    seen = []
    outcome = directed(
        progress=lambda done, total: seen.append(done / total),
        graphs=["directed ring"],
        n=8,
        p=1,
        rounds=400,
        seeds=20,
        grid=(0.3, 30.0),
        simulated=(1,),
    )
    assert {claim.id: claim.holds for claim in outcome.claims} == dict.fromkeys(
        ("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8"), True
    )
    assert max(seen) == 1
    figures = {claim.id: claim.figures for claim in outcome.claims}
    assert 0 < figures["D1"]["directed ring"]["unstable above γτL"] < 30
    rows = {(row["form"], row["gamma_tau_L"]): row for row in outcome.rows}
    assert len(rows) == 4
    assert rows["plain", 30.0]["exact"] is None
    assert rows["plain", 30.0]["radius"] == pytest.approx(radius(stgt.topology.ring(8, directed=True)), rel=1e-9)
    assert rows["adjoint", 30.0]["exact"] > rows["adjoint", 30.0]["exact_complete"] * 0.9
    assert [run.rounds for run in outcome.spec.runs] == [0, 400, 0, 400, 0, 0]
    names = {path.name for path in write_outcome(outcome, tmp_path)}
    assert {"directed.png", "directed-error.png", "spec.toml"} <= names


def test_angles_of_circulants():
    """1 − λ_k = (1 − e^{iφ})/2 on the directed ring, whose argument is −(90° − φ/2), φ = 360° k/n."""
    assert widest_angle(stgt.topology.ring(32, directed=True)) == pytest.approx(90 - 180 / 32)
    assert widest_angle(stgt.topology.ring(32)) == pytest.approx(0, abs=1e-6)
    assert widest_angle(stgt.topology.exponential(32)) < 45 < widest_angle(stgt.topology.circulant(32, [1, 4, 16]))


def test_a_run_that_left_the_finite_numbers_is_told_and_shows_no_exact_error():
    """Exactly stable, and yet not finite: the claim fails, and its numbers can be written as JSON."""
    residual = np.array([[1.0] * 5 + [np.inf] * 4, [1.0] * 9])
    simulated = SimpleNamespace(errors=np.array([np.inf, 1.0]), trace=SimpleNamespace(residual=residual, rounds=8))
    run = experiment._run({"name": "ring"}, "plain", 0.1, {"name": "ridge", "n": 8, "p": 1}, rounds=8)
    point = experiment.Point(run, 1.0, Prediction(0.5, 1.0, 1.0), simulated)
    _, holds, figures = experiment._simulated({"ring": {"plain": [point]}})
    assert not holds
    assert json.loads(json.dumps(figures, allow_nan=False))["ring, plain, γτL = 1"]["simulated/exact"] is None
    row = experiment._row("ring", "plain", point, 1.0)
    assert row["error"] is None
    assert (row["diverged"], row["diverged_at"]) == (1, 5)


@pytest.mark.parametrize("hops", [[1], [1, 2], [1, 2, 4], [1, 3], [1, -1]], ids=str)
def test_plain_is_unstable_beyond_45_degrees_and_adjoint_is_not(hops):
    graph = stgt.topology.circulant(8, hops)
    assert (radius(graph) > 1) == (widest_angle(graph) > 45)
    assert radius(graph, adjoint=True) < 1


def test_a_schedule_needs_its_matrices_twice():
    """z_r was made by W_{r−1}: c follows (I − W_r)(I − W_{r−1}), which is 0 for modes that only one of them sees."""
    peers = stgt.topology.one_peer_exponential(8)
    twice = stgt.topology.sequence([peers.matrix(r // 2) for r in range(6)])
    assert radius(peers) > 0.9999
    assert radius(peers, adjoint=True) > 0.9999
    assert radius(twice) < 0.999
    assert np.allclose(twice.matrix(1), peers.matrix(0))
