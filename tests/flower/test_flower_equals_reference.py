"""A federation on Flower makes the reference's iterates, sample by sample."""

from dataclasses import replace

import federation
import numpy as np
import pytest
from flwr.app import ConfigRecord

import catalogue
import stgt
from stgt.flower import Strategy, run_in_process

ROUNDS, TAU = 20, 3
SAMPLED = stgt.topology.server(federation.CLIENTS, sampled=2)
EVERYBODY = stgt.topology.server(federation.CLIENTS)
METHODS = [
    "STGT", "STGT-adjoint", "KGT", "DSGT", "PushPull", "NEXT", "DPSGD-atc", "FedAvg", "FedProx", "Scaffold-II",
    "ScaffoldPlus", "STGT-relaxed", "KGT-relaxed", "Scaffold-relaxed", "LED", "MomentumTracking",
]  # fmt: skip
BEYOND = {
    "DiLoCo": stgt.DiLoCo(tau=TAU),
    "NoLoCo": stgt.NoLoCo(tau=TAU),
    "Outer-FedAvg": stgt.Outer(stgt.FedAvg(tau=TAU), nesterov=False),
    "Outer-Scaffold": stgt.Outer(stgt.Scaffold(tau=TAU)),
    "Outer-ScaffoldPlus": stgt.Outer(stgt.ScaffoldPlus(tau=TAU, beta=0.25)),
    "Outer-FedDyn": stgt.Outer(stgt.FedDyn(tau=TAU, alpha=0.5)),
    "FedDyn": stgt.FedDyn(tau=TAU, alpha=0.5),
    "FedAvgM": stgt.FedAvgM(tau=TAU),
    "FedAdam": stgt.FedAdam(tau=TAU),
    "FedYogi": stgt.FedYogi(tau=TAU),
    "Adaptive-Scaffold": stgt.Adaptive(stgt.Scaffold(tau=TAU), rule="adagrad"),
    "Adaptive-ScaffoldPlus": stgt.Adaptive(stgt.ScaffoldPlus(tau=TAU, beta=0.25)),
    "Adaptive-FedDyn": stgt.Adaptive(stgt.FedDyn(tau=TAU, alpha=0.5), rule="yogi"),
    "D2": stgt.ExactDiffusion(lazy=False),
}


def method(name):
    return BEYOND[name] if name in BEYOND else replace(catalogue.instances(tau=TAU)[name], gamma=None)


def run(algorithm, topology, rounds=ROUNDS, app=federation.app, **options):
    strategy = Strategy(algorithm, topology, **options)
    result = run_in_process(
        strategy, app, federation.initial(), num_rounds=rounds, train_config=ConfigRecord({"tau": algorithm.tau})
    )
    return strategy, federation.vector(result.arrays)


@pytest.mark.parametrize("topology", [SAMPLED, EVERYBODY], ids=["sampled", "everybody"])
@pytest.mark.parametrize("name", [*METHODS, *BEYOND])
@pytest.mark.sampled(3, each="topology")
def test_flower_makes_the_reference_s_iterates(name, topology):
    algorithm = method(name)
    strategy, found = run(algorithm, topology)
    expected = federation.reference(replace(algorithm, gamma=federation.LR), topology, ROUNDS)
    np.testing.assert_allclose(found, expected["x"].mean(axis=0), rtol=0, atol=1e-12)
    for field in algorithm.spec().server_fields:
        (view,) = strategy.server_state.views.values()
        held = np.concatenate([view[field][name].reshape(-1) for name in ("a", "b", "c")])
        np.testing.assert_allclose(np.broadcast_to(held, expected[field].shape), expected[field], rtol=0, atol=1e-12)


def test_every_algorithm_is_compared_or_refused():
    for name in catalogue.instances():
        if name in (*METHODS, *BEYOND):
            Strategy(method(name), SAMPLED)
        else:
            with pytest.raises(ValueError, match=r", which Flower, whose server .* does not support: use "):
                Strategy(method(name), SAMPLED)


def test_full_participation_with_rates_one_is_st_gt_with_w_j():
    _, found = run(stgt.ScaffoldPlus(tau=TAU, gamma_g=1.0, gamma_c=1.0), EVERYBODY)
    complete = stgt.topology.complete(federation.CLIENTS)
    expected = federation.reference(stgt.STGT(gamma=federation.LR, tau=TAU), complete, ROUNDS)
    np.testing.assert_allclose(found, expected["x"].mean(axis=0), rtol=0, atol=1e-12)
