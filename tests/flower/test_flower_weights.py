"""Clients that weigh by their examples: f_i is multiplied by n m_i / Σ m_i."""

import numpy as np
import pytest
import quadratics
import torch
from quadratics import CENTRES, CLIENTS, CURVES, FatefulGrid

import stgt
from stgt.flower import Strategy, run_in_process

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=3)
COUNTS = np.array([100, 250, 40, 10, 100])
SCALES = COUNTS / COUNTS.mean()
OPTIMUM = (COUNTS[:, None] * CURVES * CENTRES).sum(axis=0) / (COUNTS[:, None] * CURVES).sum(axis=0)
METHODS = [
    stgt.ScaffoldPlus(tau=3, gamma_c=0.6), stgt.Scaffold(tau=3), stgt.STGT(tau=3), stgt.LED(tau=3),
    stgt.FedDyn(tau=3, alpha=0.5), stgt.FedAvg(tau=3), stgt.FedProx(tau=3), stgt.Outer(stgt.ScaffoldPlus(tau=3)),
]  # fmt: skip


def counted(partition, optimizer=quadratics.sgd):
    task = quadratics.task(partition, optimizer)
    task.metrics = {"num-examples": int(COUNTS[partition])}
    return task


def by_hand(partition):
    """The same client, whose user multiplies the loss."""
    task = counted(partition)
    loss, scale = task.loss, float(SCALES[partition])
    task.loss = lambda model, batch: scale * loss(model, batch)
    return task


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
def test_it_is_the_method_on_the_multiplied_losses_to_the_bit(method):
    weighted = Strategy(method, SAMPLED, weights="num_examples")
    found = quadratics.start(weighted, FatefulGrid(quadratics.app_of(counted)), 6)
    plain = quadratics.start(Strategy(method, SAMPLED), FatefulGrid(quadratics.app_of(by_hand)), 6)
    np.testing.assert_array_equal(found, plain)
    equal = quadratics.start(Strategy(method, SAMPLED), FatefulGrid(quadratics.app_of(counted)), 6)
    assert np.abs(found - equal).max() > 1e-3


@pytest.mark.parametrize("method", [METHODS[0], METHODS[2]], ids=lambda method: method.label)
@pytest.mark.sampled
def test_it_minimises_the_mean_over_all_examples(method):
    """A method of each kind, with the model at the server and at the clients; the test above has the others."""
    strategy = Strategy(method, EVERYBODY, weights="num_examples")
    found = quadratics.start(strategy, FatefulGrid(quadratics.app_of(counted)), 150)
    np.testing.assert_allclose(found, OPTIMUM, rtol=0, atol=1e-6)
    assert np.abs(OPTIMUM - quadratics.OPTIMUM).max() > 0.1


def test_the_loss_that_is_reported_is_the_client_s_own():
    results = [
        run_in_process(
            Strategy(METHODS[0], EVERYBODY, weights=weights), quadratics.app_of(counted), quadratics.initial()
        )
        for weights in ("equal", "num_examples")
    ]
    first = [result.train_metrics_clientapp[1]["loss"] for result in results]
    plain = 0.5 * (CURVES * CENTRES**2).sum(axis=1).mean()  # of the first of three steps; it falls from there
    assert all(0.3 * plain < loss < plain for loss in first)


class ComingGrid(FatefulGrid):
    """`there(k)` gives the clients that are connected when the server looks for the k-th time."""

    def __init__(self, app, there):
        super().__init__(app)
        self.there, self.looks = there, 0

    def get_node_ids(self):
        self.looks += 1
        return [partition + 1 for partition in self.there(self.looks)]


@pytest.mark.parametrize("order", [(3, 1, 0, 2, 4), (1, 0, 4, 2, 3)], ids=["small first", "large first"])
def test_it_does_not_matter_who_comes_first(order, monkeypatch):
    """Clients come one by one: the first round waits until the last has sent its number of examples, and the run is
    that in which all were there from the start."""
    monkeypatch.setattr("stgt.flower.registry.time.sleep", lambda seconds: None)
    found, expected = (
        quadratics.start(Strategy(METHODS[0], EVERYBODY, weights="num_examples"), grid, 6)
        for grid in (
            ComingGrid(quadratics.app_of(counted), lambda look: order[:look]),
            FatefulGrid(quadratics.app_of(counted)),
        )
    )
    np.testing.assert_array_equal(found, expected)


def test_what_has_the_weight_1_is_in_the_checkpoint(tmp_path):
    """A run that goes on does not wait for all again."""
    app, path = quadratics.app_of(counted, state_dir=tmp_path), tmp_path / "server"
    for rounds, members in ((3, range(CLIENTS)), (9, [3])):
        strategy = Strategy(METHODS[0], EVERYBODY, weights="num_examples", checkpoint=path)
        grid = ComingGrid(app, lambda look, members=members: members)
        quadratics.start(strategy, grid, rounds)
    assert {message.content["stgt"]["scale"] for message in grid.sends()} == {SCALES[3]}


def test_wrong_use_is_one_sentence():
    strategy = Strategy(METHODS[0], EVERYBODY, weights="num_examples")
    with pytest.raises(ValueError, match=r'needs each client\'s number: give Task metrics=\{"num-examples": …\}\.'):
        quadratics.start(strategy, FatefulGrid(quadratics.app_of()), 1)
    adam = lambda partition: counted(partition, lambda model: torch.optim.Adam(model.parameters()))  # noqa: E731
    with pytest.raises(ValueError, match=r"multiplies the loss, but Adam divides by its factor: use SGD"):
        quadratics.start(strategy, FatefulGrid(quadratics.app_of(adam)), 1)
