"""A world of one process, started without torchrun."""

from typing import Any, ClassVar

import pytest
import torch
from scenarios_use import Quadratic, data, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import stgt
from stgt.torch import DistributedOptimizer, init


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_world_of_one_is_gradient_descent(alone, compiled):
    model = Quadratic()
    forward = torch.compile(model, backend="aot_eager") if compiled else model
    opt = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), stgt.STGT(tau=2), "complete", model=model)
    for _ in range(6):
        opt.zero_grad()
        loss_of(forward, 0).backward()
        opt.step()
    a, b = data(0)
    expected = b / a * (1 - (1 - 0.1 * a) ** 6)  # the closed form of x ← x − 0.1 (a x − b) from 0
    torch.testing.assert_close(model().detach(), expected, rtol=1e-12, atol=1e-12)
    assert opt.metrics()["consensus"] == 0.0
    assert opt.metrics()["bytes_sent"] == 0.0


BASES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5),
}


@pytest.mark.parametrize("method", [stgt.FedAvg(tau=2), stgt.STGT(tau=2), stgt.FlexGT(tau=2, snapshot="last")])
@pytest.mark.parametrize("base", BASES)
def test_a_world_of_one_does_what_torch_does(alone, base, method):
    """Weight decay, a parameter that is used in the second half only, .grad, and the hooks of the optimiser inside."""

    def trained(wrap):
        used, late = (torch.nn.Parameter(torch.ones(40, dtype=torch.float64)) for _ in range(2))
        inner, fired, grads = BASES[base]([used, late]), [], []
        inner.register_step_pre_hook(lambda one, args, kwargs: fired.append((one is inner, len(args), kwargs)))
        inner.register_step_post_hook(lambda one, args, kwargs: fired.append(late[0].item()))
        opt = wrap(inner)
        for step in range(8):
            opt.zero_grad()
            loss = (used - 2).square().sum() + (late.pow(4).sum() if step >= 4 else 0.0)
            loss.backward()
            opt.step()
            grads.append([None if one.grad is None else one.grad.clone() for one in (used, late)])
            if step < 4:
                assert late.grad is None
                assert bool((late == 1).all())
        return [used, late], fired, grads

    found = trained(lambda inner: DistributedOptimizer(inner, method, "complete", model=None))
    torch.testing.assert_close(found, trained(lambda inner: inner), rtol=1e-12, atol=1e-12)


def test_tensors_without_values_are_refused_by_name(alone):
    sharded, empty = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    for model, said in ((sharded, "^weight is a DTensor, of which"), (empty, "^weight is on the meta device and has")):
        with pytest.raises(ValueError, match=said):
            DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), stgt.STGT(tau=2), "complete", model=model)


class Quantised(torch.optim.SGD):
    """Keeps its state as 8-bit optimisers do: bytes and tables in a dict of its own, beside numbers."""

    kept: ClassVar[dict[str, Any]] = {
        "quantised": {"bytes": torch.arange(3, dtype=torch.uint8), "table": torch.ones(2), 7: [None, (1, True)]},
        "flag": False, "scale": 0.5, "codes": torch.arange(4, dtype=torch.int32),
    }  # fmt: skip

    def step(self, closure=None):
        self.state[self.param_groups[0]["params"][0]] |= self.kept
        return super().step(closure)

    def load_state_dict(self, state_dict):  # torch's own makes numbers of the parameter's dtype of all tensors
        (self.state[self.param_groups[0]["params"][0]],) = state_dict["state"].values()


def test_a_checkpoint_holds_any_state_of_the_optimiser_inside(alone, tmp_path):
    def made():
        base = Quantised([torch.nn.Parameter(torch.ones(3))], lr=0.1)
        return DistributedOptimizer(base, stgt.STGT(), "complete", model=None)

    opt = made()
    opt.step()
    opt.save(tmp_path)
    again = made()
    del opt
    again.load(tmp_path)
    (found,) = again.base.state.values()
    assert found.keys() == Quantised.kept.keys()
    torch.testing.assert_close(found, Quantised.kept, rtol=0, atol=0)
    found["odd"] = {"one": object()}
    with pytest.raises(ValueError, match=r"0\.odd\.one of the optimiser's state is of type object: use"):
        again.save(tmp_path)


def test_a_group_that_is_added_to_the_optimiser_inside_is_refused(alone):
    model = Quadratic()
    base = torch.optim.SGD([model.u], lr=0.1)
    opt = DistributedOptimizer(base, stgt.STGT(tau=2), "complete", model=model)
    base.add_param_group({"params": [model.v]})
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match="a parameter group cannot be added later"):
        opt.step()


def test_a_second_init_is_refused(alone):
    with pytest.raises(ValueError, match="a process group exists already"):
        init()
