"""`directed`: where the tracker's transpose matters, on small graphs, and the rule that says where."""

import numpy as np
import pytest

import stgt
from stgt.experiments.directed import directed, widest_angle
from stgt.experiments.outcome import write_outcome

PROBLEM = stgt.problems.ridge(n=8, p=1, mu=0.1)
GAMMA = 30 / (50 * PROBLEM.L)


def radius(topology, **options):
    plain = stgt.topology.sequence([topology.matrix(r) for r in range(topology.period)])  # one program for all graphs
    return stgt.theory.spectral_radius(stgt.STGT(gamma=GAMMA, tau=50, **options), PROBLEM, plain)


@pytest.mark.thorough
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
