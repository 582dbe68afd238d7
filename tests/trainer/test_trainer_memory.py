"""How many buffers of the model's size a node keeps: what `cost` says, the gradients' included."""

import pytest
import torch
from scenarios_use import Quadratic

import stgt
from stgt.torch import DistributedOptimizer

METHODS = {
    "ST-GT": (stgt.STGT(tau=4, beta=0.25), 4),
    "LED": (stgt.LED(tau=4), 3),
    "FedAvg": (stgt.FedAvg(tau=4), 2),
    "outer ST-GT": (stgt.Outer(stgt.STGT(tau=4)), 5),
    "outer LED": (stgt.Outer(stgt.LED(tau=4)), 5),
    "DiLoCo": (stgt.DiLoCo(tau=4), 4),
    "FedAdam": (stgt.FedAdam(tau=4), 5),
    "adaptive LED": (stgt.Adaptive(stgt.LED(tau=4)), 6),
}


@pytest.mark.parametrize("name", METHODS)
def test_buffers_are_what_cost_says(alone, name):
    algorithm, expected = METHODS[name]
    assert algorithm.cost().buffers == expected
    model = Quadratic()
    opt = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), algorithm, "complete", model=model)
    for bucket in opt.buckets:
        kept = [bucket.x, *bucket.state.values(), bucket.first, bucket.total]
        storages = {one.untyped_storage().data_ptr() for one in kept if one is not None}
        assert len(storages) + 1 == expected
        assert bool({"start", "direction"} & algorithm.spec().reads) == (bucket.state["x"] is not bucket.x)
