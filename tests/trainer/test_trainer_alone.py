"""A world of one process, started without torchrun."""

import pytest
import torch
from scenarios_use import Quadratic, data, loss_of

import stgt
from stgt.torch import DistributedOptimizer, init


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_world_of_one_is_gradient_descent(alone, compiled):
    model = Quadratic()
    forward = torch.compile(model, backend="aot_eager") if compiled else model
    opt = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), stgt.STGT(tau=2), "complete")
    for _ in range(6):
        opt.zero_grad()
        loss_of(forward, 0).backward()
        opt.step()
    a, b = data(0)
    expected = b / a * (1 - (1 - 0.1 * a) ** 6)  # the closed form of x ← x − 0.1 (a x − b) from 0
    torch.testing.assert_close(model().detach(), expected, rtol=1e-12, atol=1e-12)
    assert opt.metrics()["consensus_error"] == 0.0
    assert opt.metrics()["bytes_sent"] == 0.0


def test_a_second_init_is_refused(alone):
    with pytest.raises(ValueError, match="a process group exists already"):
        init()
