"""Models and optimisers of all kinds at the clients, against the method written out."""

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import ArrayRecord
from quadratics import CENTRES, CLIENTS, CURVES, LR, OPTIMUM, FatefulGrid, P
from torch import nn

import stgt
from stgt.flower import Strategy, Task, run_in_process

EVERYBODY = stgt.topology.server(CLIENTS)
STEPS = [1, 2, 3, 5, 7]


def run(method, app, rounds, topology=EVERYBODY, arrays=None):
    strategy = Strategy(method, topology)
    return strategy, run_in_process(strategy, app, arrays or quadratics.initial(), num_rounds=rounds)


# -- unequal steps -----------------------------------------------------------------------------------------------------


def unequal(exhausted):
    """Each client takes its own number of steps: given by `steps`, or by the end of its loader."""
    if exhausted:
        return quadratics.app_of(lambda partition: quadratics.task(partition, batches=STEPS[partition]))
    return quadratics.app_of(lambda partition: quadratics.task(partition, steps=STEPS[partition]))


@pytest.mark.parametrize("exhausted", [False, True], ids=["steps", "loader"])
def test_scaffold_plus_with_unequal_steps_goes_to_the_optimum(exhausted):
    _, result = run(stgt.ScaffoldPlus(tau=7, gamma_c=1.0), unequal(exhausted), 30)
    np.testing.assert_allclose(quadratics.vector(result.arrays), OPTIMUM, rtol=0, atol=1e-5)
    assert result.train_metrics_clientapp[30]["steps"] == np.mean(STEPS)


def test_fedavg_with_unequal_steps_goes_elsewhere():
    """Its fixed point has Σ_i (1 − (1 − γ a_i)^τ_i)(x − b_i) = 0."""
    pull = 1 - (1 - LR * CURVES) ** np.array(STEPS)[:, None]
    wrong = (pull * CENTRES).sum(axis=0) / pull.sum(axis=0)
    _, result = run(stgt.FedAvg(tau=7), unequal(False), 30)
    np.testing.assert_allclose(quadratics.vector(result.arrays), wrong, rtol=0, atol=1e-5)
    assert np.abs(wrong - OPTIMUM).max() > 0.05


def test_no_batch_at_all_is_one_sentence():
    app = quadratics.app_of(lambda partition: quadratics.task(partition, batches=0))
    with pytest.raises(ValueError, match=r"no round counted; .*give Task batches with at least one\.$"):
        run(stgt.FedAvg(tau=2), app, 1)


# -- other optimisers --------------------------------------------------------------------------------------------------


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)


def literal_steps(kind, x, gradient, tau):
    """x after tau steps and the mean of the gradients they were made with, by the optimisers' published formulas."""
    x, total, first, second = x.copy(), 0.0, np.zeros(P), np.zeros(P)
    for k in range(1, tau + 1):
        g = gradient(x)
        total = total + g
        if kind is momentum:
            first = g if k == 1 else 0.5 * first + g
            x = x - 0.05 * first
        else:
            x = x - 0.02 * 0.1 * x
            first, second = 0.8 * first + 0.2 * g, 0.9 * second + 0.1 * g**2
            x = x - 0.02 * (first / (1 - 0.8**k)) / (np.sqrt(second / (1 - 0.9**k)) + 1e-3)
    return x, total / tau


@pytest.mark.parametrize("kind", [momentum, adamw], ids=["momentum", "AdamW"])
def test_scaffold_plus_over_another_optimiser_is_its_formula(kind):
    tau, rounds, gamma_g, gamma_c, topology = 3, 6, 0.9, 0.7, stgt.topology.server(CLIENTS, sampled=2)
    x, c, own = np.zeros(P), np.zeros(P), np.zeros((CLIENTS, P))
    for r in range(rounds):
        moves, changes = [], []
        for i in topology.called(r, 0, range(CLIENTS)):
            corrected = lambda y, i=i: CURVES[i] * (y - CENTRES[i]) + c - own[i]  # noqa: B023, E731
            end, direction = literal_steps(kind, x, corrected, tau)
            moves.append(end - x)
            changes.append(direction - c)
            own[i] = own[i] + changes[-1]
        x, c = x + gamma_g * np.mean(moves, axis=0), c + gamma_c * np.mean(changes, axis=0)
    method = stgt.ScaffoldPlus(tau=tau, gamma_g=gamma_g, gamma_c=gamma_c)
    app = quadratics.app_of(lambda partition: quadratics.task(partition, kind))
    strategy, result = run(method, app, rounds, topology)
    np.testing.assert_allclose(quadratics.vector(result.arrays), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.held(strategy, "c"), c, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_hooks_of_the_optimiser_are_called_at_each_step(momentum):
    """One that halves the gradients makes the run in which the loss is halved, to the bit. A scheduler, which warns if
    it comes before the first step, finds the steps."""
    calls = []

    def make(partition, hooked):
        task = quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))
        schedule, seen = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.5), []

        def halve(optimizer, args, kwargs):
            for parameter in task.model.parameters():
                parameter.grad *= 0.5

        def loss(model, batch):
            if seen:
                schedule.step()
            seen.append(batch)
            return quadratics.loss(model, batch) * (1.0 if hooked else 0.5)

        task.loss = loss
        if hooked:
            task.optimizer.register_step_pre_hook(halve)
            task.optimizer.register_step_post_hook(lambda *_: calls.append(partition))
        return task

    hooked, plain = (
        run(stgt.FedAvg(tau=3), quadratics.app_of(lambda i, which=which: make(i, which)), 2) for which in (True, False)
    )
    np.testing.assert_array_equal(quadratics.vector(hooked[1].arrays), quadratics.vector(plain[1].arrays))
    assert len(calls) == 2 * 3 * CLIENTS


def test_parameter_groups_may_have_different_stepsizes():
    rates = np.array([0.1, 0.1, 0.1, 0.02])
    x, c, own = np.zeros(P), np.zeros(P), np.zeros((CLIENTS, P))
    for _ in range(8):
        ends = np.tile(x, (CLIENTS, 1))
        for _ in range(3):
            ends = ends - rates * (CURVES * (ends - CENTRES) + c - own)
        change = (x - ends) / (3 * rates) - c
        x, c, own = ends.mean(axis=0), c + change.mean(axis=0), own + change

    def groups(model):
        return torch.optim.SGD([{"params": [model.u], "lr": 0.1}, {"params": [model.v], "lr": 0.02}])

    app = quadratics.app_of(lambda partition: quadratics.task(partition, groups))
    _, result = run(stgt.ScaffoldPlus(tau=3), app, 8)
    np.testing.assert_allclose(quadratics.vector(result.arrays), x, rtol=0, atol=1e-13)


def test_single_precision_stays_single_and_close():
    app = quadratics.app_of(lambda partition: quadratics.task(partition, dtype=torch.float32))
    strategy, result = run(stgt.ScaffoldPlus(tau=3), app, 30, arrays=quadratics.initial(torch.float32))
    found = quadratics.vector(result.arrays)
    assert found.dtype == np.float32
    assert {
        array.dtype for view in strategy.server_state.views.values() for one in view.values() for array in one.values()
    } == {np.dtype(np.float32)}
    np.testing.assert_allclose(found, OPTIMUM, rtol=0, atol=1e-4)


# -- other models ------------------------------------------------------------------------------------------------------


class Frozen(quadratics.Point):
    """Its last coordinate is not trained."""

    def __init__(self):
        super().__init__()
        self.v.requires_grad_(False)
        self.v.fill_(0.25)


def test_frozen_parameters_stay_where_they_are():
    def make(partition):
        task = quadratics.task(partition)
        model = Frozen()
        return Task(model, quadratics.sgd(model), task.batches, task.loss)

    arrays = ArrayRecord(Frozen().state_dict())
    strategy, result = run(stgt.ScaffoldPlus(tau=3), quadratics.app_of(make), 30, arrays=arrays)
    found = quadratics.vector(result.arrays)
    assert found[3] == 0.25
    np.testing.assert_allclose(found[:3], OPTIMUM[:3], rtol=0, atol=1e-4)
    assert strategy.server_state.trained == {"u"}


class Tied(nn.Module):
    """One weight and one BatchNorm, each under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3, affine=False, momentum=1.0, dtype=torch.float64)
        self.also = self.norm
        nn.init.eye_(self.first.weight)


def test_tied_weights_and_shared_modules_stay_one():
    def make(partition):
        model = Tied()
        rows = torch.full((2, 3), float(partition), dtype=torch.float64)

        def loss(model, rows):
            model.norm(rows)
            return (model.first.weight + model.second.weight).sum()

        return Task(model, torch.optim.SGD(model.parameters(), lr=0.1), [rows], loss)

    _, result = run(stgt.ScaffoldPlus(tau=1), quadratics.app_of(make), 3, arrays=ArrayRecord(Tied().state_dict()))
    # The gradient of w + w is 2 everywhere, three rounds of one step at 0.1.
    for name in ("first.weight", "second.weight"):
        np.testing.assert_allclose(result.arrays[name].numpy(), np.eye(3) - 3 * 0.1 * 2, rtol=0, atol=1e-14)
    # With momentum 1, the running mean is that of the last batch: partition, whose mean over 0 … 4 is 2.
    for name in ("norm.running_mean", "also.running_mean"):
        np.testing.assert_allclose(result.arrays[name].numpy(), np.full(3, 2.0), rtol=0, atol=1e-14)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2, momentum=1.0, dtype=torch.float64)
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(False))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


ROWS = np.random.default_rng(1).normal(size=(CLIENTS, 4, 2))


def normed(partition):
    model = Normed()

    def loss(model, rows):
        model.seen.fill_(partition == 1)
        return (model.norm(rows) * model.weight).square().sum()

    batches = [torch.tensor(ROWS[partition])] * (partition + 1)
    return Task(model, torch.optim.SGD(model.parameters(), lr=0.01), batches, loss)


@pytest.mark.parametrize("method", [stgt.ScaffoldPlus(tau=9), stgt.STGT(tau=9)], ids=lambda method: method.label)
def test_buffers_are_averaged_over_the_replies_and_not_tracked(method):
    grid = FatefulGrid(quadratics.app_of(normed), fate=lambda r, i: "lost" if i == 4 else "ok")
    strategy = Strategy(method, EVERYBODY)
    result = strategy.start(grid, ArrayRecord(Normed().state_dict()), num_rounds=3)
    found = {name: array.numpy() for name, array in result.arrays.items()}
    here = ROWS[:4]  # the fifth client is never called
    np.testing.assert_allclose(found["norm.running_mean"], here.mean(axis=1).mean(axis=0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(found["norm.running_var"], here.var(axis=1, ddof=1).mean(axis=0), rtol=0, atol=1e-14)
    # The counter follows the busiest of those called, four batches a round, and stays a whole number.
    assert found["norm.num_batches_tracked"].shape == ()
    assert found["norm.num_batches_tracked"].dtype == np.int64
    assert found["norm.num_batches_tracked"] == 12
    assert found["seen"].dtype == np.bool_
    assert found["seen"]
    assert "scratch" not in found
    assert strategy.server_state.trained == {"norm.weight", "norm.bias", "weight"}
    for view in strategy.server_state.views.values():
        assert all(set(arrays) == strategy.server_state.trained for arrays in view.values())
    for context in grid.contexts.values():
        for key, record in context.state.array_records.items():
            assert set(record) == (
                set(strategy.server_state.untrained) if key == "stgt.untrained" else strategy.server_state.trained
            )


class Image(nn.Module):
    def __init__(self, memory_format):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 2, dtype=torch.float64)
        with torch.no_grad():
            for value in self.parameters():
                value.copy_(torch.randn(value.shape, generator=draws, dtype=torch.float64))
        self.to(memory_format=memory_format)


def test_channels_last_weights_are_the_same_numbers_by_name():
    def app(memory_format):
        def make(partition):
            model = Image(memory_format)
            draws = torch.Generator().manual_seed(partition)
            batch = torch.randn(2, 3, 4, 4, generator=draws, dtype=torch.float64).to(memory_format=memory_format)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
            return Task(model, optimizer, [batch] * 2, lambda model, batch: model.conv(batch).square().mean())

        return quadratics.app_of(make)

    arrays = ArrayRecord(Image(torch.contiguous_format).state_dict())
    for method in (stgt.ScaffoldPlus(tau=2), stgt.STGT(tau=2)):
        _, last = run(method, app(torch.channels_last), 3, arrays=arrays)
        _, usual = run(method, app(torch.contiguous_format), 3, arrays=arrays)
        for name in arrays:
            np.testing.assert_allclose(last.arrays[name].numpy(), usual.arrays[name].numpy(), rtol=0, atol=1e-13)
            assert np.abs(last.arrays[name].numpy() - arrays[name].numpy()).max() > 1e-3
