"""What is not finite, buffers that mean nothing when averaged, gradients that are gone, models that are not whole."""

import math

import numpy as np
import pytest
import scenarios
import torch
from literal import NODES, assert_same, simulate
from scenarios_use import Quadratic, loss_of
from torch.nn.parallel import DistributedDataParallel

import stgt
from stgt.torch import DistributedOptimizer, NonFiniteError
from stgt.torch.finite import first_nonfinite, is_finite

SKIPPED = [[2, 1], [5, 1], [3, 4], [2, 0]]


# -- what is not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["sgd", "momentum", "adamw"])
def test_a_skipped_round_is_one_in_which_the_node_stood_still(world, base):
    found = world.run("skipping", name="STGT", graph="static", base=base, rounds=6, skipped=SKIPPED)
    expected = simulate(base, rounds=6, skipped=tuple(map(tuple, SKIPPED)))
    assert_same([node["state"] for node in found], expected)
    assert [node["skipped"] for node in found] == [0, 0, 2, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("name", "graph", "options"),
    [
        ("FlexGT", "static", {}),
        ("FlexGT-last", "static", {}),
        ("KGT", "one-peer", {}),
        ("DIGing", "static", {"tau": 1}),
        ("ScaffoldPlus", "server", {}),
        ("Scaffold", "server-all", {}),
        ("ProxSkip", "static", {}),
        ("LED", "static", {}),
        ("Outer-STGT", "static", {}),
        ("DPSGD", "directed", {}),
        ("FedAvg", "server", {}),
        ("STGT", "static", {"early": True}),
        ("STGT", "complete", {"message_dtype": "bfloat16"}),
    ],
)
@pytest.mark.sampled(3)
def test_sums_stay_right_when_rounds_are_skipped(world, name, graph, options):
    skipped = [[node, r] for node in (1, 6) for r in (1, 2)]
    found = world.run("skipping", name=name, graph=graph, base="sgd", rounds=5, skipped=skipped, **options)
    assert any(node["skipped"] for node in found)
    for node in found:
        assert all(np.isfinite(value).all() for value in node["state"].values())
        assert node["metrics"].get("sum_c", 0.0) < 1e-6
        assert node["metrics"]["rounds_skipped"] == node["skipped"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_what_is_finite(dtype):
    large = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)  # its sum overflows
    assert is_finite(large)
    for bad in (math.nan, math.inf, -math.inf):
        spoiled = torch.zeros(1000, dtype=dtype)
        spoiled[137] = bad
        assert not is_finite(spoiled)
    both = torch.zeros(10, dtype=dtype)
    both[3], both[7] = math.inf, -math.inf
    assert not is_finite(both)
    assert first_nonfinite([("a", large), ("b", both), ("c", spoiled)]) == "b is not finite (infinite)"


@pytest.mark.parametrize("call", ["averaged", "evaluate", "metrics"])
def test_no_average_of_what_is_not_finite(alone, call):
    model = Quadratic()
    opt = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), stgt.STGT(tau=2), "complete", model=model)
    with torch.no_grad():
        model.v[1] = math.nan
    with pytest.raises(NonFiniteError, match=r"^rank 0: v is not finite \(NaN\)"):
        {"averaged": lambda: opt.averaged().__enter__(), "evaluate": lambda: opt.evaluate(lambda: 1.0)}.get(
            call, opt.metrics
        )()


def test_a_collective_that_fails_gives_the_model_back(alone, monkeypatch):
    model = Quadratic()
    opt = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), stgt.STGT(tau=2), "complete", model=model)
    with torch.no_grad():
        model.v += 1.0
    before = model().detach().clone()

    def broken(value):
        value.fill_(7.0)
        raise RuntimeError("no more")

    monkeypatch.setattr(opt.membership, "sum", broken)
    with pytest.raises(RuntimeError, match="no more"), opt.averaged():
        pass
    assert torch.equal(model(), before)


# -- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["average", "local", "none"])
def test_masks_and_constants_stay_to_the_bit(world, policy):
    found = world.run("several_buffers", policy=policy)
    W = scenarios.topology("static", NODES).matrix(0)
    mask = torch.full((4, 4), -torch.inf).triu(1).flatten().tolist()
    seen = np.zeros(NODES)
    for r in range(4):
        seen = seen + 2.0 * np.arange(NODES)
        if policy == "average":
            seen = W @ seen
        for rank, node in enumerate(found):
            after = node["after"][r]
            assert after["mask"] == mask
            assert after["table"] == [0.1 + (rank if policy == "none" else 0)] * 100
            np.testing.assert_allclose(after["seen"], seen[rank], rtol=1e-12)
            assert after["late"] == [2.0 * rank if r >= 2 else 0.0] * 2
    for node in found:
        assert node["inside"]["mask"] == mask
        told = ["buffer late was a constant in the first round and changes now: it will not be mixed"]
        assert node["told"] == ([] if policy == "none" else told)
        # Two neighbours hear two fields of the flat model, and of the buffers two statistics of 2 and the 3 of `seen`.
        sent = 2 * node["size"] + (2 + 2 + 3 if policy == "average" else 0)
        assert node["bytes"] == 4 * 2 * 8 * sent


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["none", "zeros", "backward"])
def test_no_tracking_error_without_the_last_gradients(world, what):
    for metrics in world.run("measured_after", what=what):
        assert "tracker_spread" not in metrics
        assert metrics["sum_c"] < 1e-12


def test_a_round_that_ends_after_zero_grad(world):
    for answer in world.ask("ended_after_zero_grad"):
        assert (
            answer["error"] == "end_round() after zero_grad(): FlexGT (last) reads the last gradients; call it before."
        )


# -- models ----------------------------------------------------------------------------------------------------------


def wrap(parameters, **options) -> DistributedOptimizer:
    return DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), stgt.STGT(tau=1), "complete", **options)


def test_a_head_alone_needs_its_model(alone):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    with pytest.raises(
        ValueError, match=r"^model= is missing: give the torch\.nn\.Module that is trained, or model=None"
    ):
        wrap(model[2].parameters())
    opt = wrap(model[2].parameters(), model=model)
    assert len(opt._frozen()) == 4
    assert opt.buffers.moving == ["1.running_mean", "1.running_var"]


def test_two_modules_need_one_around_them(alone):
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    both = [*one.parameters(), *two.parameters()]
    with pytest.raises(ValueError, match=r"^2 of the optimiser's 4 parameters are not in model"):
        wrap(both, model=one)
    assert len(wrap(both, model=torch.nn.ModuleList([one, two]))._frozen()) == 0


def test_loose_tensors_belong_to_no_model(alone):
    loose = [torch.nn.Parameter(torch.zeros(3))]
    assert wrap(loose, model=None).buffers.model is None
    with pytest.raises(ValueError, match=r"^model='weights': give the torch\.nn\.Module that is trained"):
        wrap(loose, model="weights")


def test_data_parallel_is_noticed(alone):
    model = Quadratic()
    wrapped = DistributedDataParallel(model)
    with pytest.raises(ValueError, match=r"^the model is wrapped in DistributedDataParallel"):
        wrap(model.parameters(), model=model)
    with pytest.raises(ValueError, match=r"^the model is wrapped in DistributedDataParallel"):
        wrap(wrapped.parameters(), model=model)


def test_data_parallel_is_noticed_later(alone):
    model = Quadratic()
    opt = wrap(model.parameters(), model=model)
    wrapped = DistributedDataParallel(model)
    loss_of(wrapped.module, 0).backward()
    with pytest.raises(ValueError, match=r"^the model is wrapped in DistributedDataParallel"):
        opt.step()
