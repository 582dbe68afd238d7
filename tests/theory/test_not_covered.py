"""Only `NotCovered` turns an exact answer into an estimate or into None; a bug stays an error."""

import pytest

import stgt
from catalogue import least_squares, quadratic
from reproductions import simulated
from stgt import theory
from stgt.simulator import trace as traces
from stgt.theory import advice, assumptions, relaxation

RANDOM = stgt.topology.random_matching(4)
METHOD = stgt.STGT(gamma=0.05, tau=2)


def raising(kind):
    def fails(*_, **__):
        raise kind("what was asked")

    return fails


def asks_for_advice(monkeypatch, kind):
    monkeypatch.setattr(advice, "exact_map", raising(kind))
    return theory.check(METHOD, quadratic(4, 2, noise=0.1), RANDOM).basis == "an estimate, from short runs"


def test_samples_without_replacement_are_not_covered():
    with pytest.raises(stgt.NotCovered, match=r"oracle=Shuffled\(batch=2\): .*give Minibatch\(2\)"):
        theory.check(METHOD, least_squares(4), stgt.topology.ring(4), oracle=stgt.oracles.Shuffled(2))


def asks_for_beta(monkeypatch, kind):
    monkeypatch.setattr(relaxation, "largest_beta", raising(kind))
    return relaxation.too_large(stgt.LED(gamma=0.1), stgt.topology.ring(4)) is None


def asks_for_constants(monkeypatch, kind):
    monkeypatch.setattr(assumptions, "period_contraction", raising(kind))
    apart = stgt.topology.one_peer_exponential(4)  # ρ = 1 in every round
    return theory.constants(quadratic(4, 2), apart, 1).period_rho is None


def asks_for_rho(monkeypatch, kind):
    monkeypatch.setattr(traces, "contraction", raising(kind))
    run = stgt.simulate(METHOD, quadratic(4, 2), stgt.topology.ring(4), 1, engine="numpy")
    return run.rho is None


def asks_for_a_prediction(monkeypatch, kind):
    monkeypatch.setattr(simulated.theory, "spectral_radius", raising(kind))

    class Made:
        algorithm, problem, topology = METHOD, quadratic(4, 2), stgt.topology.ring(4)

    return simulated.predict(Made()) is None


@pytest.mark.parametrize(
    "asked", [asks_for_advice, asks_for_beta, asks_for_constants, asks_for_rho, asks_for_a_prediction]
)
def test_only_not_covered_leads_to_an_estimate(monkeypatch, asked):
    assert asked(monkeypatch, stgt.NotCovered)
    with pytest.raises(ValueError, match="what was asked"):
        asked(monkeypatch, ValueError)
