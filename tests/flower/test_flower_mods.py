"""Flower's mods around the training: the model that they return is sent, and control variates follow it."""

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from quadratics import CENTRES, CLIENTS, CURVES, FatefulGrid, RestartGrid
from test_flower_protocol import assert_consistent

import stgt
from stgt.flower import Strategy, Task, client_app

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=3)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
METHODS = [PLUS, stgt.Scaffold(tau=2), stgt.STGT(tau=2)]
NAMED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
MOMENTUM = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)  # noqa: E731


def noisy(scale=1e-3, norm=10.0):
    """Noise with a standard deviation of `scale`."""
    return LocalDpMod(norm, sensitivity=scale / np.sqrt(2 * np.log(1.25 / 1e-5)), epsilon=1.0, delta=1e-5)


def app_with(*mods, make=quadratics.task, **options):
    return client_app(lambda context, config: make(context.node_config["partition-id"]), mods=mods, **options)


@NAMED
def test_noise_on_what_goes_up_is_no_lost_state_and_is_tracked(method, caplog):
    """c and own follow what was really sent: their proportion stays exact, whatever the noise."""
    np.random.seed(0)  # noqa: NPY002 - Flower's mod draws from it
    strategy, grid = Strategy(method, SAMPLED), FatefulGrid(app_with(noisy()))
    found = quadratics.start(strategy, grid, 12)
    assert "lost" not in caplog.text
    assert all(len(one.taken) == 3 for one in strategy.history)
    assert_consistent(strategy, grid)
    clean = quadratics.start(Strategy(method, SAMPLED), FatefulGrid(quadratics.app_of()), 12)
    assert 1e-5 < np.abs(found - clean).max() < 0.1


@NAMED
def test_a_noisy_client_that_starts_again_gets_its_state_back(method):
    np.random.seed(0)  # noqa: NPY002
    strategy, grid = Strategy(method, EVERYBODY), RestartGrid(app_with(noisy()))
    quadratics.start(strategy, grid, 8)
    assert [absence.reason for one in strategy.history for absence in one.absent] == ["lost"]
    assert_consistent(strategy, grid)


@pytest.mark.parametrize("mod", ["local", "fixed", "adaptive"])
def test_a_clipped_update_is_what_the_server_gets(mod):
    """The clipping norm is a tenth of the shortest way that a client goes in the first round."""
    steps = np.array([(1 - (1 - quadratics.LR * a) ** 2) * b for a, b in zip(CURVES, CENTRES, strict=True)])
    norm = 0.1 * np.linalg.norm(steps, axis=1).min()
    mods = {"local": noisy(0.0, norm), "fixed": fixedclipping_mod, "adaptive": adaptiveclipping_mod}
    strategy = Strategy(stgt.FedAvg(tau=2), EVERYBODY)
    result = strategy.start(
        FatefulGrid(app_with(mods[mod])),
        quadratics.initial(),
        num_rounds=1,
        train_config=ConfigRecord({"clipping_norm": float(norm)}),
    )
    expected = (steps * norm / np.linalg.norm(steps, axis=1)[:, None]).mean(axis=0)
    np.testing.assert_allclose(quadratics.vector(result.arrays), expected, rtol=1e-12, atol=0)
    assert result.history[0].taken == list(range(CLIENTS))


def test_mods_that_only_look_change_nothing():
    seen = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        seen.append((set(message.content), list(message.content["arrays"]), set(reply.content)))
        return reply

    for optimizer in (quadratics.sgd, MOMENTUM):
        make = lambda i, optimizer=optimizer: quadratics.task(i, optimizer)  # noqa: E731
        app = app_with(message_size_mod, arrays_size_mod, look, make=make)
        found = quadratics.start(Strategy(PLUS, SAMPLED), FatefulGrid(app), 4)
        plain = quadratics.start(Strategy(PLUS, SAMPLED), FatefulGrid(quadratics.app_of(make)), 4)
        np.testing.assert_array_equal(found, plain)
    assert all(row == ({"arrays", "config"}, ["u", "v"], {"arrays", "metrics"}) for row in seen)


def refused(app, arrays=None):
    strategy = Strategy(PLUS, EVERYBODY)
    with pytest.raises(ValueError, match="no round counted") as caught:
        strategy.start(FatefulGrid(app), arrays or quadratics.initial(), num_rounds=1)
    return str(caught.value)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)


def normed(partition):
    model = Normed()
    rows = torch.arange(8.0).reshape(4, 2) + partition
    loss = lambda model, batch: model.norm(batch).square().sum() * model.norm.weight.sum()  # noqa: E731
    return Task(model, torch.optim.SGD(model.parameters(), lr=0.01), [rows] * 2, loss)


def test_what_would_go_up_beside_the_noise_is_refused():
    text = refused(app_with(noisy(), make=lambda i: quadratics.task(i, MOMENTUM)))
    assert "a mod changed the model of the reply, but the direction of an optimiser other than plain SGD would" in text
    text = refused(app_with(noisy(), make=normed), ArrayRecord(Normed().state_dict()))
    assert "but norm.num_batches_tracked, a buffer that training changes, would be sent unchanged" in text


def change_model(message, context, call_next):
    arrays = message.content["arrays"]
    message.content["arrays"] = ArrayRecord({name: Array(2 + one.numpy()) for name, one in arrays.items()})
    return call_next(message, context)


def rename(message, context, call_next):
    reply = call_next(message, context)
    reply.content["arrays"] = ArrayRecord({"w": reply.content["arrays"]["u"]})
    return reply


def remove(message, context, call_next):
    reply = call_next(message, context)
    del reply.content["metrics"]
    return reply


def refuse(message, context, call_next):
    return Message(Error(code=6, reason="not today"), reply_to=message)


@pytest.mark.parametrize(
    ("mod", "sentence"),
    [
        (
            change_model,
            "a mod changed the model or the config that the server sent, and a method that tracks gradients cannot "
            "correct for that: leave the mod out.",
        ),
        (rename, "a mod changed the names of the model's arrays: keep them."),
        (remove, 'a mod removed "arrays" or "metrics" from the reply: keep both.'),
        (refuse, "crashed: it failed: not today"),
    ],
)
def test_mods_that_cannot_be_followed(mod, sentence):
    assert sentence in refused(app_with(mod))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 3),
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 3),
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.1, 3),
    ],
)
def test_flower_s_wrappers_of_strategies_are_refused_in_one_sentence(wrap):
    inner, grid = Strategy(PLUS, SAMPLED), FatefulGrid(quadratics.app_of())
    for _ in range(2):  # also when it has been started by itself in between
        with pytest.raises(
            ValueError, match=r"It cannot be wrapped by another strategy, .* mods=\[LocalDpMod\(…\)\] instead"
        ):
            wrap(inner).start(grid, quadratics.initial(), num_rounds=1)
        quadratics.start(inner, grid, 1)
