"""The wrapped optimiser and the training loop's usual features, against nodes that are simulated literally."""

from dataclasses import replace

import numpy as np
import pytest
import scenarios
import torch
from literal import NODES, assert_same, simulate, simulate_led, simulate_method
from scenarios_use import data

import catalogue
from stgt.simulator.job import prepare
from stgt.simulator.reference import Run


@pytest.mark.parametrize("graph", ["static", "one-peer"])
@pytest.mark.parametrize("base", ["sgd", "momentum", "nesterov-decay", "adamw"])
@pytest.mark.sampled(3)
def test_any_torch_optimiser(world, base, graph):
    assert_same(world.run("quadratic", base=base, graph=graph), simulate(base, graph))


@pytest.mark.parametrize("base", ["adamw-foreach", "adamw-fused"])
def test_other_kernels_of_the_optimiser(world, base):
    assert_same(world.run("quadratic", base=base), simulate("adamw"), 1e-10)


# Σ_t μ^t (1 − dampening), by how many times lr a gradient moves the model in all.
GAINS = {"sgd": 1.0, "momentum": 1 / (1 - 0.9), "dampened": (1 - 0.2) / (1 - 0.5)}


@pytest.mark.parametrize("base", GAINS)
def test_led_behind_sgd_with_momentum(world, base):
    found = world.run("quadratic", name="LED", base=base, lr=0.05)
    assert_same(found, simulate_led(base, GAINS[base], lr=0.05))


@pytest.mark.parametrize("base", GAINS)
def test_led_behind_sgd_with_momentum_finds_the_minimum(base):
    """Of Σ_i Σ_k (a_ik x_k²/2 − b_ik x_k), which is Σ_i b_i/Σ_i a_i; what the nodes do is `simulate_led`, see above."""
    A, B = (np.stack([part.numpy() for part in parts]) for parts in zip(*map(data, range(NODES)), strict=True))
    found = simulate_led(base, GAINS[base], rounds=600, lr=0.1 / GAINS[base])
    np.testing.assert_allclose(found["x"], np.tile(B.sum(axis=0) / A.sum(axis=0), (NODES, 1)), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.sampled(2)
def test_weights_of_every_precision_are_trained(world, dtype):
    """Two rounds of three steps, each rounded once to the weights' precision; what is conserved is kept in float32."""
    rounds, lr = 2, 0.05
    gains = {"sgd": 1.0, "momentum": GAINS["momentum"], "adamw": 1.0}
    found = world.run("precisions", dtype=dtype, bases=list(gains), rounds=rounds, lr=lr)
    for case in found[0]:
        base, name = case.split()
        if case == "adamw LED":
            assert "which it is not with AdamW" in found[0][case]
            continue
        expected = simulate_method(name, base, gains[base], rounds, lr)
        roundings = max(3 * rounds * torch.finfo(getattr(torch, dtype)).eps, 1e-12)
        got, conserved = (np.array([node[case][field] for node in found]) for field in ("x", "conserved"))
        np.testing.assert_allclose(got, expected, rtol=0, atol=roundings * np.abs(expected).max(), err_msg=case)
        assert np.abs(conserved.sum(axis=0)).max() < 1e-5, case


@pytest.mark.parametrize("name", ["STGT", "FlexGT-first", "FlexGT-last"])
def test_weight_decay_is_the_regularised_problem(world, name):
    """The catalogue's problem has l2 = 0.1, and weight_decay = 0.2 adds to it."""
    made = catalogue.logistic(NODES, p=scenarios.P, l2=0.1 + 0.2)
    algorithm = replace(scenarios.algorithm(name, 3), gamma=0.05)
    job = prepare([algorithm], made, scenarios.topology("static", NODES), 20, [0], dtype="float64", metrics=[])
    run = Run(job, algorithm, 0)
    for r in range(20):
        run.round(r)
    found = world.run("train", name=name, graph="static", dtype="float64", rounds=20, tau=3, base="decay")
    assert_same([node["state"] for node in found], run.state, 1e-10)


def test_groups_with_their_own_rates(world):
    """Each coordinate has its group's rate: x ← x − diag(lr)(g + c), and z is the mean of g + c either way."""
    rates = np.array([0.1] * 4 + [0.03] * 2)
    assert_same(world.run("quadratic", rates=[0.1, 0.03]), simulate(lr=rates))


@pytest.mark.parametrize("scheduler", ["wrapper", "base"])
def test_schedulers(world, scheduler):
    """z = Σ lr_t y_t / Σ lr_t where the rate changes after every step."""
    assert_same(world.run("quadratic", scheduler=scheduler), simulate(factor=0.9))


def test_scheduler_of_another_optimiser_does_not_warn(world):
    world.run("quadratic", scheduler="base", base="adamw", rounds=2)
    world.run("quadratic", scheduler="wrapper", base="adamw", rounds=2)


def test_gradient_clipping(world):
    assert_same(world.run("quadratic", clip=0.5), simulate(clip=0.5))


@pytest.mark.parametrize("base", ["sgd", "momentum"])
def test_a_parameter_without_a_gradient_at_one_node(world, base):
    """Its gradient counts as zero: the correction moves it to where the other nodes' losses want it."""
    assert_same(world.run("quadratic", base=base, absent=5), simulate(base, absent=5))


def test_gradient_accumulation(world):
    assert_same(world.run("quadratic", parts=4), simulate())


@pytest.mark.parametrize("zero", ["none", "zeros"])
def test_gradients_may_be_cleared_through_the_model(world, zero):
    assert_same(world.run("quadratic", zero=zero), simulate())


@pytest.mark.parametrize("base", ["sgd", "momentum"])
def test_a_step_that_the_scaler_skips_is_made_up_for(world, base):
    """Node 5 finds an infinity at its 2nd, 5th and 6th attempt; it makes its tau steps all the same."""
    found = world.run("quadratic", base=base, skipped=[5, 1, 4, 5])
    assert_same(found, simulate(base))
    assert {node["steps"] for node in found} == {24}


def test_unequal_numbers_of_local_steps(world):
    taus = [1 + i % 4 for i in range(NODES)]
    assert_same(world.run("quadratic", tau=taus), simulate(taus=taus))
    assert_same(world.run("quadratic", tau=taus, base="momentum"), simulate("momentum", taus=taus))


def test_rounds_ended_by_hand_and_loaders_that_run_out(world):
    counts = [2 + i % 3 for i in range(NODES)]
    found = world.run("ended_by_hand", counts=counts, rounds=5)
    assert_same(found, simulate(taus=counts, rounds=5))
    for rank, node in enumerate(found):
        assert node["round"] == 5
        batches = 1 + rank % 3
        assert node["seen"] == [k % batches for k in range(5 * counts[rank])]


@pytest.mark.parametrize("skipped", [-1, 3])
def test_epochs_of_loaders_of_unequal_lengths(world, skipped):
    """The longest has 5 batches: two epochs are 10 steps of every node, three rounds of three and one more."""
    lengths = [3 + i % 3 for i in range(NODES)]
    found = world.run("epochs", lengths=lengths, tau=3, skipped=skipped)
    expected = simulate(rounds=4, taus=(3,) * NODES, last=1)
    assert_same(found, expected)
    for rank, node in enumerate(found):
        assert node["stands"] == [3, 1]
        one = [k % lengths[rank] for k in range(5)]
        more = [5 % lengths[rank]] if rank == skipped else []  # it makes up for the step
        assert node["seen"] == one + more + one


def test_epochs_of_nodes_with_different_tau_end_with_a_round(world):
    taus = [1 + i % 4 for i in range(NODES)]
    found = world.run("epochs", lengths=[2] * NODES, tau=taus, count=1)  # two rounds of the node with tau = 1
    assert [node["stands"] for node in found] == [[2, 0]] * NODES
    assert_same(found, simulate(taus=taus, rounds=2))


@pytest.mark.parametrize("base", ["decay", "adamw"])
def test_layouts_and_odd_parameters(world, base):
    flat, last = (world.run("odd", channels_last=flag, base=base) for flag in (False, True))
    for one, two in zip(flat, last, strict=True):
        assert two["layouts"] == [True, True]
        assert two["tied"]
        for name, value in one["values"].items():
            np.testing.assert_allclose(two["values"][name], value, rtol=0, atol=1e-10, err_msg=name)
        # Rank 0's values, at every node: neither weight decay nor anything else moves what is frozen.
        assert one["values"]["frozen"] == [2.0] * 3
        assert one["values"]["outside"] == [5.0] * 2
        # One that is not used has no gradient: weight decay leaves it alone, as torch's own optimisers do.
        assert one["values"]["unused"] == [1.0] * 2
