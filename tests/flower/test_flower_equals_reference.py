"""A federation on Flower makes the reference's iterates, sample by sample."""

from dataclasses import replace

import federation
import numpy as np
import pytest
from flwr.app import ConfigRecord

import stgt
from stgt.flower import Strategy, simulate

ROUNDS, TAU = 20, 3
SAMPLED = stgt.topology.server(federation.CLIENTS, sampled=2)
EVERYBODY = stgt.topology.server(federation.CLIENTS)
METHODS = {
    "Scaffold+": stgt.ScaffoldPlus(tau=TAU, gamma_g=0.8, gamma_c=0.6),
    "Scaffold": stgt.Scaffold(tau=TAU, gamma_g=0.9),
    "FedAvg": stgt.FedAvg(tau=TAU),
    "FedProx": stgt.FedProx(tau=TAU, mu_prox=0.3),
    "ST-GT": stgt.STGT(tau=TAU),
    "K-GT": stgt.KGT(tau=TAU, eta_s=0.8),
    "D-PSGD": stgt.DPSGD(tau=TAU, atc=True),
}


def run(algorithm, topology, rounds=ROUNDS, app=federation.app, **options):
    strategy = Strategy(algorithm, topology, **options)
    result = simulate(strategy, app, federation.initial(), num_rounds=rounds, train_config=ConfigRecord({"tau": TAU}))
    return strategy, federation.vector(result.arrays)


@pytest.mark.parametrize("topology", [SAMPLED, EVERYBODY], ids=["sampled", "everybody"])
@pytest.mark.parametrize("name", METHODS)
def test_flower_makes_the_reference_s_iterates(name, topology):
    method = METHODS[name]
    _, found = run(method, topology)
    expected = federation.reference(replace(method, gamma=federation.LR), topology, ROUNDS)
    np.testing.assert_allclose(found, expected["x"].mean(axis=0), rtol=0, atol=1e-12)


def test_full_participation_with_rates_one_is_st_gt_with_w_j():
    _, found = run(stgt.ScaffoldPlus(tau=TAU, gamma_g=1.0, gamma_c=1.0), EVERYBODY)
    complete = stgt.topology.complete(federation.CLIENTS)
    expected = federation.reference(stgt.STGT(gamma=federation.LR, tau=TAU), complete, ROUNDS)
    np.testing.assert_allclose(found, expected["x"].mean(axis=0), rtol=0, atol=1e-12)
