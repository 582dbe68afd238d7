"""Theorem 1 where W_r is random, with the expectation over all that can happen: plain and adjoint ST-GT."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_theorems import DRAWS, GRAPHS, NOISE, P, _factor, _forms, _mixture, _noise, _problem

import stgt
from stgt import theory
from stgt.simulator.metrics import lyapunov_coefficients
from test_moments import failures, matchings


@settings(max_examples=20)
@given(shape=DRAWS["shape"], seed=DRAWS["seed"], fraction=DRAWS["fraction"], adjoint=st.booleans())
def test_theorem_1_on_random_graphs(shape, seed, fraction, adjoint):
    """W_r drawn from three matrices, one of which is not connected at all, plain and adjoint."""
    n, tau = shape
    rng = np.random.default_rng(seed)
    problem = _problem(n, rng)
    matrices = [_mixture(n, rng), GRAPHS["directed ring"](n, rng), np.eye(n)]
    k = theory.constants(problem, stgt.topology.any_of(matrices), tau)
    assert _theorem_1_holds(problem, [(1 / 3, W) for W in matrices], k, fraction, adjoint)


def _theorem_1_holds(problem, outcomes, k, times=1.0, adjoint=False):
    """E V⁺ ≤ factor · V + noise for all states, over outcomes (chance, W_r), at `times` the stepsize k allows."""
    allowed = theory.stepsize(k).limit
    bound = theory.theorem1(k, min(times, 1.0) * allowed)
    gamma = times * allowed
    c_x, c_y = lyapunov_coefficients(gamma, k.tau, k.L, k.n, k.rho)
    chances = [chance for chance, _ in outcomes]
    rounds = [stgt.topology.sequence([W, np.full(W.shape, 1 / len(W))]) for _, W in outcomes]  # the first one counts
    cases = [_forms(problem, topology, k.tau, gamma, adjoint) for topology in rounds]
    noise = np.average([_noise(case, c_x, c_y) for case in cases], weights=chances)
    decrease = min(k.mu * gamma * k.tau / 2, (1 - k.rho) / 8)
    return _factor(cases, c_x, c_y, chances) < 1 - decrease + 1e-12 and (times > 1 or noise <= bound.noise)


def _distinct(outcomes):
    """The same law with equal matrices taken together."""
    chances = {}
    for chance, W in outcomes:
        key = np.round(W, 12).tobytes()
        chances[key] = (chances.get(key, (0.0, W))[0] + chance, W)
    return list(chances.values())


LAWS = {
    "matching of 4": (stgt.topology.random_matching(4), matchings(4)),
    "matching of 5": (stgt.topology.random_matching(5), matchings(5)),
    "lossy ring": (
        stgt.topology.unreliable(stgt.topology.ring(4), 0.3),
        failures(stgt.topology.ring(4).matrix(0), 0.3, 0),
    ),
    "lossy nodes": (
        stgt.topology.unreliable(stgt.topology.ring(4), 0.3, 0.4),
        failures(stgt.topology.ring(4).matrix(0), 0.3, 0.4),
    ),
}


@pytest.mark.parametrize("adjoint", [False, True], ids=["plain", "adjoint"])
@pytest.mark.parametrize("law", LAWS)
def test_theorem_1_on_matchings_and_lossy_rings(law, adjoint):
    """The expectation over all that can happen; ρ from the moments."""
    topology, outcomes = LAWS[law]
    problem = _problem(topology.n, np.random.default_rng(topology.n))
    k = theory.constants(problem, topology, 3)
    outcomes = _distinct(outcomes)
    assert _theorem_1_holds(problem, outcomes, k, 1.0, adjoint)
    assert not _theorem_1_holds(problem, outcomes, k, 1000, adjoint)


def test_theorem_1_fails_with_too_small_a_rho():
    """A ring that hears once in 500 rounds at the stepsize and in the V of one that never fails: V grows."""
    ring = stgt.topology.ring(4)
    steep = _problem(4, np.random.default_rng(0))
    # Flat, so that gamma is not so small that rounding is all there is; the theorem knows gamma·tau·L only.
    problem = stgt.problems.Quadratic(1e-4 * steep.data["A"], np.ones((4, P)), NOISE)
    outcomes = _distinct(failures(ring.matrix(0), 0.998, 0))
    topology = stgt.topology.unreliable(ring, 0.998)
    assert _theorem_1_holds(problem, outcomes, theory.constants(problem, topology, 3))
    assert not _theorem_1_holds(problem, outcomes, theory.constants(problem, topology, 3, rho=theory.rho(ring)))


@pytest.mark.parametrize("adjoint", [False, True], ids=["plain", "adjoint"])
def test_the_lemmas_need_the_side_they_mix_with(adjoint):
    """E‖D⁺‖² → ‖E[WᵀW] − J‖ for D and, as γ → 0, E‖Υ⁺‖² → the same, or ‖E[WWᵀ] − J‖ in the adjoint form."""
    A = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    matrices = [A.T, A[[0, 2, 1, 3]].T]
    squares = [sum(W.T @ W for W in matrices) / 2, sum(W @ W.T for W in matrices) / 2]
    sides = [np.linalg.norm(square - 1 / 4, 2) for square in squares]
    problem = _problem(4, np.random.default_rng(0))
    rounds = [stgt.topology.sequence([W, np.full((4, 4), 1 / 4)]) for W in matrices]  # the first one counts
    cases = [_forms(problem, topology, 3, 1e-6, adjoint) for topology in rounds]
    for name, expected in (("consensus", sides[0]), ("tracking", sides[1] if adjoint else sides[0])):
        before, after = cases[0].square(name), sum(case.square(name, after=True) for case in cases) / 2
        others = sum(cases[0].square(other) for other in ("mean", "consensus", "tracking") if other != name)
        # Generalised eigenvalue on the states in which only this part differs from zero.
        values, vectors = np.linalg.eigh(others)
        alone = vectors[:, values < 1e-9 * values[-1]]
        found = np.linalg.eigvals(np.linalg.solve(alone.T @ before @ alone, alone.T @ after @ alone)).real.max()
        assert found == pytest.approx(expected, abs=1e-3)
    assert theory.rho(stgt.topology.any_of(matrices)) == pytest.approx(max(sides), abs=1e-12)
