"""What clients say of the model, and the numbers that go with their replies."""

import numpy as np
import pytest
import quadratics
from flwr.app import MetricRecord
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy, run_in_process

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=2)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)


def evaluated(weights, **more):
    def make(partition):
        task = quadratics.task(partition)
        task.evaluate = lambda model: {"accuracy": 10.0 * partition, "first": float(model.v), **more}
        task.metrics = {} if weights is None else {"num-examples": weights[partition]}
        return task

    return quadratics.app_of(make)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1, 2, 5, 7, 9], (0 * 1 + 10 * 2 + 20 * 5) / 8), (None, 10.0), ([0, 0, 0, 0, 0], 10.0)],
    ids=["weighted", "without", "zeros"],
)
def test_some_clients_evaluate_the_round_s_model(weights, expected):
    strategy = Strategy(PLUS, EVERYBODY, evaluate=3)
    result = run_in_process(strategy, evaluated(weights), quadratics.initial(), num_rounds=2)
    for r in (1, 2):
        assert result.evaluate_metrics_clientapp[r]["accuracy"] == pytest.approx(expected, abs=1e-12)
    last = quadratics.vector(result.arrays)[3]
    assert result.evaluate_metrics_clientapp[2]["first"] == pytest.approx(last, abs=1e-15)
    trained = quadratics.start(Strategy(PLUS, EVERYBODY), FatefulGrid(quadratics.app_of()), 2)
    np.testing.assert_array_equal(quadratics.vector(result.arrays), trained)  # evaluation changes nothing


def test_a_client_that_cannot_evaluate_is_told(caplog):
    result = run_in_process(
        Strategy(PLUS, SAMPLED, evaluate=1), quadratics.app_of(), quadratics.initial(), num_rounds=1
    )
    assert (
        "evaluation: client 0: the client has nothing to evaluate with: give Task evaluate=, or Strategy evaluate=0."
        in caplog.text
    )
    assert result.evaluate_metrics_clientapp == {}


def test_metrics_that_are_no_numbers_are_left_out_of_the_mean():
    def make(partition):
        task = quadratics.task(partition)
        task.metrics = {"num-examples": partition, "histogram": [1, 2], **({"odd": 1.0} if partition == 1 else {})}
        return task

    result = run_in_process(Strategy(PLUS, EVERYBODY), quadratics.app_of(make), quadratics.initial(), num_rounds=1)
    found = result.train_metrics_clientapp[1]
    assert isinstance(found, MetricRecord)
    assert set(found) == {"num-examples", "loss", "steps", "clients", "uplink-bytes", "downlink-bytes"}
    assert found["num-examples"] == 2.0
    # The mean loss of two steps from 0, by hand.
    a, b = quadratics.CURVES, quadratics.CENTRES
    second = -b * (1 - quadratics.LR * a)
    losses = 0.5 * (a * b**2).sum(axis=1), 0.5 * (a * second**2).sum(axis=1)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-12)
