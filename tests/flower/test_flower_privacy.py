"""What is a client's own stays with it, and what travels is one model up and two down."""

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import ArrayRecord
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy, Task
from stgt.flower.protocol import size_of

METHODS = {
    "Scaffold+": stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7),
    "Scaffold": stgt.Scaffold(tau=2),
    "ST-GT": stgt.STGT(tau=2),
}
OPTIMIZERS = {
    "SGD": quadratics.sgd,
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", METHODS)
def test_a_client_s_own_state_is_in_no_message(name, optimizer):
    """By names: the records are the agreed ones. By content: no array that travels is one that a client keeps."""
    app = quadratics.app_of(lambda partition: quadratics.task(partition, OPTIMIZERS[optimizer]))
    grid = FatefulGrid(app)
    kept: list[np.ndarray] = []

    def remember(r, arrays):
        for context in grid.contexts.values():
            for key, record in context.state.array_records.items():
                # ST-GT's last direction is no secret: it is (start − end)/lr, or what the client sends with momentum.
                if key in ("stgt.before.own", "stgt.before.c", "stgt.pending.own"):
                    kept.extend(array.numpy() for array in record.values())

    strategy = Strategy(METHODS[name], stgt.topology.server(CLIENTS, sampled=3))
    strategy.start(grid, quadratics.initial(), num_rounds=6, evaluate_fn=remember)
    up = {"end", "buffers", "lr_sum", "metrics", "stgt"} | ({"direction"} if optimizer == "momentum" else set())
    for message, reply in zip(grid.sent, grid.replied, strict=True):
        if message.metadata.message_type == "train":
            assert set(message.content) <= {"view.x", "view.c", "view.z", "stgt", "config"}
            assert set(reply.content) == up
            assert set(reply.content["stgt"]) == {"partition", "round", "tied", "untrained"}
    travelled = [
        array.numpy()
        for message in grid.sent + grid.replied
        for key, record in message.content.array_records.items()
        if not (key == "direction" and message.content["stgt"]["round"] == 0)  # c = own = 0: both are the mean gradient
        for array in record.values()
    ]
    secrets = [array for array in kept if array.any()]
    assert len(secrets) > 10
    for secret in secrets:
        for array in travelled:
            same = secret.shape == array.shape and np.allclose(np.abs(secret), np.abs(array), rtol=1e-9, atol=0)
            assert not same


def test_the_own_state_survives_between_rounds_a_client_is_not_called_in():
    topology = stgt.topology.server(CLIENTS, sampled=1)
    grid = FatefulGrid(quadratics.app_of())
    strategy = Strategy(METHODS["Scaffold"], topology)
    called = [topology.called(r, 0, range(CLIENTS))[0] for r in range(12)]
    first = called[0]
    gap = next(r for r in range(2, 12) if called[r] == first)  # the next time the first client is called
    quadratics.start(strategy, grid, gap)
    own = quadratics.own_states(strategy, grid, "own")[first]
    # At the start c = own = 0, so its own state is the mean gradient along x ← x − lr a (x − b) from 0.
    a, b = quadratics.CURVES[first], quadratics.CENTRES[first]
    expected = a * (0 - b) * (1 + (1 - quadratics.LR * a)) / 2
    np.testing.assert_allclose(own, expected, rtol=0, atol=1e-14)


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(400, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 10)
        )

    def forward(self, x):
        return self.layers(x)


def wide(partition):
    model = Wide()
    batch = torch.randn(8, 400), torch.randint(10, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Task(model, optimizer, [batch] * 2, lambda model, b: torch.nn.functional.cross_entropy(model(b[0]), b[1]))


@pytest.mark.parametrize("name", METHODS)
def test_one_model_goes_up_and_two_go_down(name):
    grid = FatefulGrid(quadratics.app_of(wide), clients=3)
    strategy = Strategy(METHODS[name], stgt.topology.server(3))
    result = strategy.start(grid, ArrayRecord(Wide().state_dict()), num_rounds=2)
    model = sum(value.numel() for value in Wide().parameters())
    assert model > 200_000
    assert len(grid.sends()) == 6
    for message, reply in zip(grid.sent, grid.replied, strict=True):
        if message.metadata.message_type == "train":
            assert size_of(message.content) <= 2.05 * 4 * model
            assert size_of(reply.content) <= 1.02 * 4 * model
    last = result.train_metrics_clientapp[2]
    assert 2.0 * 4 * model < last["downlink-bytes"] <= 2.05 * 4 * model
    assert 4 * model < last["uplink-bytes"] <= 1.02 * 4 * model
