"""Models of which a part is trained: the rest is sent once, or not at all; LoRA."""

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import ArrayRecord
from quadratics import CLIENTS, FatefulGrid, RestartGrid

import stgt
from stgt.flower import Strategy, Task, client_app

EVERYBODY = stgt.topology.server(CLIENTS)
PLUS = stgt.ScaffoldPlus(tau=3)
METHODS = [PLUS, stgt.STGT(tau=3), stgt.FedAvg(tau=3)]
NAMED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
ROWS = torch.tensor(np.random.default_rng(2).normal(size=(CLIENTS, 6, 8)))
LABELS = torch.tensor(np.random.default_rng(3).normal(size=(CLIENTS, 6, 5)))


class Adapted(torch.nn.Module):
    """y = (W + B A) x with a frozen W of 40 numbers and a constant buffer, as LoRA has it."""

    def __init__(self, base=0):
        super().__init__()
        draw = torch.Generator().manual_seed(base)
        self.base = torch.nn.Parameter(torch.randn(5, 8, generator=draw, dtype=torch.float64), requires_grad=False)
        self.down = torch.nn.Parameter(torch.ones(2, 8, dtype=torch.float64) / 8)
        self.up = torch.nn.Parameter(torch.zeros(5, 2, dtype=torch.float64))
        self.register_buffer("shift", torch.full((5,), 0.5, dtype=torch.float64))

    def forward(self, x):
        return x @ (self.base + self.up @ self.down).T + self.shift


def loss(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def task(partition, base=0):
    model = Adapted(base)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = ROWS[partition], LABELS[partition]
    return Task(
        model, torch.optim.SGD(trained, lr=0.05), [batch] * 3, loss, evaluate=lambda m: {"loss": loss(m, batch)}
    )


def run(method, arrays, make=task, grid=FatefulGrid, rounds=4, **options):
    strategy, made = Strategy(method, EVERYBODY, **options), grid(quadratics.app_of(make))
    return strategy.start(made, arrays, num_rounds=rounds), made


def adapters():
    return ArrayRecord({name: value.detach() for name, value in Adapted().named_parameters() if value.requires_grad})


def sent_names(grid, kind="train"):
    """The names of all arrays in each message, round by round."""
    rounds = {}
    for message in grid.sends(kind):
        names = {name for record in message.content.array_records.values() for name in record}
        rounds.setdefault(message.content["stgt"]["round"], set()).update(names)
    return list(rounds.values())


@NAMED
def test_only_what_is_trained_is_known_to_the_server_and_sent(method):
    """LoRA: the base model never travels; what comes of it is what comes of the whole model."""
    result, grid = run(method, adapters())
    whole, _ = run(method, Adapted())
    assert set(result.arrays) == {"down", "up"}
    for name in ("down", "up"):
        np.testing.assert_array_equal(result.arrays[name].numpy(), whole.arrays[name].numpy())
    assert np.abs(result.arrays["up"].numpy()).max() > 1e-3
    assert sent_names(grid) == [{"down", "up"}] * 4
    assert all(set(reply.content["end"]) == {"down", "up"} for reply in grid.replied if "end" in reply.content)


@NAMED
@pytest.mark.parametrize("whole", [True, False], ids=["the model", "its arrays"])
def test_frozen_weights_go_down_once(method, whole):
    """The clients' own are drawn otherwise: they train on the server's, which they keep from the first round on."""
    arrays = Adapted() if whole else ArrayRecord(Adapted().state_dict())
    result, grid = run(method, arrays, lambda i: task(i, base=7 + i), evaluate=CLIENTS)
    same, _ = run(method, Adapted())
    for name in Adapted().state_dict():
        np.testing.assert_array_equal(result.arrays[name].numpy(), same.arrays[name].numpy())
    assert sent_names(grid) == [{"down", "up", "base", "shift"}, *[{"down", "up"}] * 3]
    assert sent_names(grid, "evaluate") == [{"down", "up"}] * 4
    assert all(not one.absent for one in result.history)
    # What they evaluate is the server's model with its own base.
    model = Adapted()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    expected = np.mean([float(loss(model, (ROWS[i], LABELS[i])).detach()) for i in range(CLIENTS)])
    assert result.history[-1].evaluation["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_client_that_starts_again_is_sent_the_frozen_weights_again(tmp_path):
    result, grid = run(PLUS, Adapted(), grid=RestartGrid, rounds=7)
    assert [(one.round, a.client, a.reason) for one in result.history for a in one.absent] == [(4, 1, "lost")]
    assert ["base" in names for names in sent_names(grid)] == [True, False, False, False, True, False, False]
    # ... unless it keeps them on disk.
    strategy, grid = Strategy(PLUS, EVERYBODY), RestartGrid(quadratics.app_of(task, state_dir=tmp_path))
    kept = strategy.start(grid, Adapted(), num_rounds=7)
    assert all(not one.absent for one in kept.history)
    assert ["base" in names for names in sent_names(grid)] == [True] + [False] * 6


def test_what_is_known_of_another_run_is_not_taken_for_this_one_s(tmp_path):
    """The folder holds the frozen weights of another federation: the digest differs."""
    for base in (3, 0):
        strategy, grid = Strategy(PLUS, EVERYBODY), FatefulGrid(quadratics.app_of(task, state_dir=tmp_path))
        result = strategy.start(grid, Adapted(base), num_rounds=2)
        assert all(not one.absent for one in result.history)
        assert sent_names(grid)[0] >= {"base"}
    same, _ = run(PLUS, Adapted(0), rounds=2)
    np.testing.assert_array_equal(result.arrays["up"].numpy(), same.arrays["up"].numpy())


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8, dtype=torch.float64)
        self.head = torch.nn.Linear(8, 5, dtype=torch.float64)

    def forward(self, x):
        return self.head(self.norm(x))


def test_a_buffer_that_the_server_does_not_know_must_not_change():
    def make(partition, mode=True):
        model = Normed()
        model.norm.train(mode)
        model.train = lambda mode=True: model  # the user decides
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return Task(model, optimizer, [(ROWS[partition], LABELS[partition])], loss)

    arrays = ArrayRecord({name: value.detach() for name, value in Normed().named_parameters()})
    with pytest.raises(
        ValueError, match=r"norm\.running_mean, a buffer, changed in training and is not in the server's"
    ):
        run(PLUS, arrays, make, rounds=1)
    result, _ = run(PLUS, arrays, lambda i: make(i, mode=False), rounds=1)
    assert result.history[0].taken == list(range(CLIENTS))


def test_a_trained_parameter_that_the_server_does_not_know_is_one_sentence():
    arrays = ArrayRecord({"down": Adapted().down.detach()})
    with pytest.raises(ValueError, match=r"up is only in the client's model: give both sides the same one\."):
        run(PLUS, arrays, rounds=1)
    with pytest.raises(ValueError, match=r"setup returned a NoneType: return a stgt\.flower\.Task\."):
        Strategy(PLUS, EVERYBODY).start(FatefulGrid(client_app(lambda context, config: None)), Adapted(), num_rounds=1)
