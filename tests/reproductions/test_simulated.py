"""Runs of a spec: simulated once, predicted exactly, compared with care."""

import numpy as np
import pytest

import stgt
from reproductions.simulated import lower, simulate_run, simulate_runs
from stgt.study.spec.runs import RunSpec


def run(label="ST-GT", topology=None, gamma=0.1, **options) -> RunSpec:
    return RunSpec.model_validate(
        {
            "label": label,
            "algorithm": {"name": "STGT", "gamma": gamma, "tau": 3},
            "problem": {"name": "ridge", "n": 6, "p": 2},
            "topology": topology or {"name": "exponential"},
            "rounds": 40,
            "seeds": 3,
            **options,
        }
    )


@pytest.mark.release
def test_plain_matrices_are_the_same_run():
    one = simulate_run(run(topology={"name": "one_peer_exponential"}))
    problem, topology = stgt.problems.ridge(n=6, p=2), stgt.topology.one_peer_exponential(6)
    trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=3), problem, topology, 40, 3)
    np.testing.assert_allclose(one.trace.residual, trace.residual, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(one.trace["floats"], trace["floats"])
    assert one.made.topology.name == one.trace.topology.name == topology.name
    exact = stgt.theory.steady_state(stgt.STGT(gamma=0.1, tau=3), problem, topology)
    assert one.exact == pytest.approx(exact.residual)
    assert one.radius == pytest.approx(stgt.theory.spectral_radius(stgt.STGT(gamma=0.1, tau=3), problem, topology))


def test_runs_that_differ_in_labels_only_are_run_once():
    seen = []
    runs = [run("a"), run("b", reading="other"), run("c", gamma=0.2)]
    found = simulate_runs(runs, lambda done, total: seen.append(done / total))
    assert [one.run for one in found] == runs
    assert found[0].trace is found[1].trace
    assert found[0].trace is not found[2].trace
    assert seen[-1] == 1
    assert seen == sorted(seen)


def test_a_run_at_the_optimum_shows_noise_only():
    """Without noise it stays there, trackers and Scaffold alike."""
    quiet = {"problem": {"name": "ridge", "n": 6, "p": 2, "noise": 0.0}, "x0": "optimum"}
    for algorithm, topology in (("STGT", {"name": "ring"}), ("Scaffold", {"name": "server", "sampled": 2})):
        one = simulate_run(run(topology=topology, algorithm={"name": algorithm, "gamma": 0.1, "tau": 3}, **quiet))
        assert one.trace.residual.max() < 1e-12


def test_who_is_lower():
    near, far = simulate_run(run(gamma=0.05)), simulate_run(run(gamma=0.2))
    growing = simulate_run(run(gamma=5.0))
    assert growing.growing
    assert growing.summary()["exact"] is None
    assert lower(near, far)
    assert not lower(far, near)
    assert not lower(near, near), "a tie is not lower"
    assert lower(near, growing)
    assert not lower(growing, near)
    assert not lower(growing, growing)


def test_a_row_whose_error_is_not_finite_says_since_when():
    """After two rounds of γ = 1e5 the models are still finite, their squares are not: both are single precision."""
    one = simulate_run(run(gamma=1e5, rounds=2))
    assert np.isfinite(one.trace.x).all()
    assert one.trace.diverged.all()
    assert [(row["error"], row["diverged_at"]) for row in one.rows()] == [(None, 2)] * 3
    assert one.summary()["diverged"] == 3
    assert [row["diverged_at"] for row in simulate_run(run()).rows()] == [None] * 3


def test_what_theory_does_not_reach_is_simulated_only():
    """Aug-DGM exchanges twice by one matching, which takes fourth moments."""
    parts = {"algorithm": {"name": "AugDGM", "gamma": 0.1}, "topology": {"name": "random_matching"}}
    twice = simulate_run(run(**parts))
    assert twice.exact is None
    assert twice.level == pytest.approx(twice.errors.mean())
    assert {"error", "low", "high", "diverged", "settled"} == set(twice.summary())
