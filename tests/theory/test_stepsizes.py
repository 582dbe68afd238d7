"""The largest stable stepsize against closed forms and a plain scan; what a method conserves; what is not linear."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stgt
from catalogue import quadratic
from stgt import theory
from stgt.algorithms import MessageVar, RoundSpec, StateVar

METHODS = [
    stgt.STGT(tau=3),
    stgt.FlexGT(tau=4),
    stgt.DSGT(),
    stgt.DPSGD(tau=2),
    stgt.ProxSkip(tau=2),
    stgt.KGT(tau=5, eta_s=0.5),
]
GRAPHS = [
    stgt.topology.ring(4),
    stgt.topology.ring(4, directed=True),
    stgt.topology.one_peer_exponential(4),
    stgt.topology.complete(4),
]


@settings(max_examples=8, deadline=None)
@given(method=st.sampled_from(METHODS), graph=st.sampled_from(GRAPHS), seed=st.integers(0, 10**6))
def test_it_is_the_end_of_the_first_stable_interval(method, graph, seed):
    """Against 150 stepsizes, each looked at on its own, evenly spread over four decades."""
    problem = quadratic(4, 2, seed=seed)
    found = theory.largest_stable_stepsize(method, problem, graph)
    gammas = np.geomspace(1e-3, 10, 150) / (problem.L * method.tau)
    radii = [theory.spectral_radius(replace(method, gamma=gamma), problem, graph) for gamma in gammas]
    stable = np.array(radii) < 1 - 1e-12
    first = len(gammas) if stable.all() else int(np.argmin(stable))
    if first == 0:
        assert found <= gammas[0]
    elif first == len(gammas):
        assert found >= gammas[-1]
    else:
        assert gammas[first - 1] * (1 - 2e-3) <= found <= gammas[first] * (1 + 2e-3)


def test_no_cap_at_two_over_L():
    """DSGT on the complete graph: x̄ ← (I − γĀ)x̄, so 2/λ_max(Ā) = 1.924, and 2/L is 1.149."""
    problem = stgt.problems.ridge(n=16, p=4, mu=0.5)
    theta = problem.data["theta"]
    top = np.linalg.eigvalsh(2 / 16 * theta.T @ theta + 0.5 * np.eye(4))[-1]
    found = theory.largest_stable_stepsize(stgt.DSGT(), problem, stgt.topology.complete(16))
    assert float(found) == pytest.approx(2 / top, rel=1e-3)
    assert float(found) == pytest.approx(1.924, abs=2e-3)
    assert found > 1.6 * 2 / problem.L


def test_no_jump_over_a_gap():
    """ST-GT on the one-peer graph of 8 nodes is unstable for γ from about 0.78 to 1.18, and stable again above."""
    problem, graph = stgt.problems.ridge(n=8, p=2, mu=0.1), stgt.topology.one_peer_exponential(8)
    found = theory.largest_stable_stepsize(stgt.STGT(tau=20), problem, graph)
    ((low, high),) = found.gaps
    assert float(found) == low
    assert theory.spectral_radius(stgt.STGT(gamma=0.999 * low, tau=20), problem, graph) < 1
    for gamma in np.linspace(1.002 * low, 0.998 * high, 7):
        assert theory.spectral_radius(stgt.STGT(gamma=gamma, tau=20), problem, graph) > 1
    assert theory.spectral_radius(stgt.STGT(gamma=1.002 * high, tau=20), problem, graph) < 1
    advice = theory.check(stgt.STGT(gamma=1.01 * high, tau=20), problem, graph)
    assert advice.stable
    assert advice.largest_gamma == pytest.approx(low, rel=2e-3)
    assert any("is stable, but smaller ones are not" in sentence for sentence in advice.warnings)


def test_it_looks_no_further_than_it_is_told():
    problem, ring = quadratic(4, 2), stgt.topology.ring(4)
    assert float(theory.largest_stable_stepsize(stgt.STGT(tau=3), problem, ring, below=1e-4)) == 1e-4
    assert theory.largest_stable_stepsize(stgt.STGT(tau=3), problem, ring, below=1e-4).up_to == 1e-4


@pytest.mark.thorough
def test_both_ways_of_finding_the_radius_agree():
    """A state of 640 entries: which side of 1 the radius is on, and about where, against all eigenvalues."""
    from stgt.theory.stepsizes import Probe

    problem = stgt.problems.ridge(n=32, p=10)
    for graph in (stgt.topology.exponential(32), stgt.topology.ring(32), stgt.topology.exponential(32, neighbors=3)):
        probe = Probe(stgt.STGT(tau=50), problem, graph)
        for gamma in (1e-4, 0.01, 0.1, 0.4, 1.0):
            plain = theory.spectral_radius(stgt.STGT(gamma=gamma, tau=50), problem, graph)
            assert (probe.radius(gamma) < 1) == (plain < 1)
            assert probe.radius(gamma) == pytest.approx(plain, abs=1e-3)


@dataclass(frozen=True, kw_only=True)
class Undeclared(stgt.algorithms.Algorithm):
    """ST-GT that does not say what it conserves, and keeps twice its c."""

    def spec(self):
        messages = [MessageVar("x", replaces=True), MessageVar("z")]
        return RoundSpec(reads={"end", "direction"}, state=[StateVar("twice")], messages=messages)

    def correction(self, state, x):
        return state["twice"] / 2

    def message(self, state, local):
        return {"x": local.end, "z": local.direction}

    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "twice": state["twice"] + 2 * (mixed["z"] - local.direction)}


def test_what_is_conserved_is_found_from_the_map():
    """A method that declares nothing is judged as the one that does, also where rounds are random."""
    problem = quadratic(6, 2, noise=0.1)
    assert not Undeclared(gamma=0.1).spec().tracks
    for topology in (stgt.topology.ring(6), stgt.topology.random_matching(6)):
        plain, other = stgt.STGT(gamma=0.1, tau=3), Undeclared(gamma=0.1, tau=3)
        radius = theory.spectral_radius(plain, problem, topology)
        assert radius < 1
        assert theory.spectral_radius(other, problem, topology) == pytest.approx(radius, rel=1e-8)
        residual = theory.steady_state(plain, problem, topology).residual
        assert theory.steady_state(other, problem, topology).residual == pytest.approx(residual, rel=1e-8)


@dataclass(frozen=True, kw_only=True)
class Curved(Undeclared):
    def correction(self, state, x):
        return state["twice"] * x


def test_what_is_not_linear_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Curved uses more than .* not linear"):
        theory.spectral_radius(Curved(gamma=0.1), quadratic(4, 2), stgt.topology.ring(4))


def test_the_theorems_limit_is_for_whom_they_cover():
    problem, ring = quadratic(4, 2, noise=0.1), stgt.topology.ring(4)
    covered = [stgt.STGT(gamma=0.01, tau=2), stgt.KGT(gamma=0.01, tau=2), stgt.DSGT(gamma=0.01)]
    others = [stgt.FlexGT(gamma=0.01, tau=2), stgt.DPSGD(gamma=0.01), stgt.KGT(gamma=0.01, tau=2, eta_s=0.5)]
    assert all(theory.check(one, problem, ring).theorem_gamma for one in covered)
    assert not any(theory.check(one, problem, ring).theorem_gamma for one in others)
