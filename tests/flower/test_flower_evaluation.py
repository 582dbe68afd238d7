"""What clients say of the model, and the numbers that go with their replies."""

import numpy as np
import pytest
import quadratics
from flwr.app import ConfigRecord, MetricRecord
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy, client_app, run_in_process

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


def asked(grid):
    """The partitions that evaluated, round by round."""
    rounds = {}
    for message in grid.sends("evaluate"):
        partition = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        rounds.setdefault(message.content["stgt"]["round"], []).append(partition)
    return list(rounds.values())


@pytest.mark.parametrize("weights", [[1, 2, 5, 7, 9], None, [0] * CLIENTS], ids=["weighted", "without", "zeros"])
def test_some_clients_evaluate_the_round_s_model(weights):
    strategy, grid = Strategy(PLUS, EVERYBODY, evaluate=3), FatefulGrid(evaluated(weights))
    result = strategy.start(grid, quadratics.initial(), num_rounds=2)
    for r, partitions in enumerate(asked(grid), start=1):
        assert len(set(partitions)) == 3
        share = np.array([weights[i] for i in partitions] if weights and any(weights) else [1] * 3)
        expected = (share * 10.0 * np.array(partitions)).sum() / share.sum()
        assert result.evaluate_metrics_clientapp[r]["accuracy"] == pytest.approx(expected, abs=1e-12)
        assert result.history[r - 1].evaluation["accuracy"] == pytest.approx(expected, abs=1e-12)
    last = quadratics.vector(result.arrays)[3]
    assert result.evaluate_metrics_clientapp[2]["first"] == pytest.approx(last, abs=1e-15)
    trained = quadratics.start(Strategy(PLUS, EVERYBODY), FatefulGrid(quadratics.app_of()), 2)
    np.testing.assert_array_equal(quadratics.vector(result.arrays), trained)  # evaluation changes nothing


def test_who_evaluates_is_drawn_by_seed_and_round():
    drawn = []
    for seed in (0, 0, 1):
        grid = FatefulGrid(evaluated(None))
        Strategy(PLUS, SAMPLED, evaluate=1, seed=seed).start(grid, quadratics.initial(), num_rounds=25)
        drawn.append([one for (one,) in asked(grid)])
    assert drawn[0] == drawn[1] != drawn[2]
    # Each of 5 is missed in 25 draws with probability 5 · 0.8²⁵ = 2 % at most; the seed is fixed.
    assert set(drawn[0]) == set(range(CLIENTS))


def test_setup_is_told_what_it_is_for():
    stages = []

    def setup(context, config):
        stages.append(config["stage"])
        task = quadratics.task(context.node_config["partition-id"])
        task.metrics, task.evaluate = {"num-examples": 3}, lambda model: {"one": 1.0}
        return task

    strategy = Strategy(PLUS, EVERYBODY, evaluate=2, weights="num_examples")
    run_in_process(strategy, client_app(setup), quadratics.initial(), num_rounds=1)
    assert stages == ["count"] * CLIENTS + ["train"] * CLIENTS + ["evaluate"] * 2


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
@pytest.mark.parametrize("where", ["setup", "loss", "evaluate"])
def test_an_exception_in_a_user_s_code_is_logged_with_its_traceback(where, error, caplog):
    def fail(*_):
        raise error("this is mine")

    def setup(context, config):
        if where == "setup" and config["stage"] == "train":
            fail()
        task = quadratics.task(context.node_config["partition-id"])
        task.loss = fail if where == "loss" else task.loss
        task.evaluate = fail if where == "evaluate" else lambda model: {}
        return task

    strategy = Strategy(PLUS, EVERYBODY, evaluate=1)
    try:
        run_in_process(strategy, client_app(setup), quadratics.initial(), num_rounds=1)
    except ValueError as told:
        assert "crashed" in str(told) and "this is mine" in str(told)  # noqa: PT018, PT017
    raised = [record for record in caplog.records if "raised an exception" in record.message]
    assert raised
    assert all("in fail" in record.exc_text for record in raised)
    assert "crashed: " in caplog.text


def test_the_metrics_of_clients_are_aggregated_by_a_function_of_one_s_own():
    """As Flower calls it: a list of contents, and the name of the weight."""
    seen = []

    def largest(records, weight):
        seen.append((weight, [dict(one["metrics"]) for one in records]))
        return MetricRecord({"worst": max(float(one["metrics"]["accuracy"]) for one in records)})

    def total(records, weight):
        return MetricRecord({"examples": sum(int(one["metrics"][weight]) for one in records)})

    strategy = Strategy(
        PLUS, EVERYBODY, evaluate=CLIENTS, train_metrics_aggr_fn=total, evaluate_metrics_aggr_fn=largest
    )
    result = run_in_process(strategy, evaluated([1, 2, 5, 7, 9]), quadratics.initial(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["examples"] == 24
    assert dict(result.evaluate_metrics_clientapp[1]) == {"worst": 40.0}
    assert seen[0][0] == "num-examples"
    assert sorted(one["num-examples"] for one in seen[0][1]) == [1, 2, 5, 7, 9]


def test_each_client_may_have_a_config_of_its_own():
    heard = []

    def setup(context, config):
        heard.append((config["server-round"], context.node_config["partition-id"], config["lr"], config["same"]))
        return quadratics.task(context.node_config["partition-id"])

    strategy = Strategy(PLUS, EVERYBODY, client_config=lambda r, partition: {"lr": 0.1 * r + partition})
    run_in_process(
        strategy, client_app(setup), quadratics.initial(), num_rounds=2, train_config=ConfigRecord({"same": 7, "lr": 0})
    )
    assert heard == [(r, i, 0.1 * r + i, 7) for r in (1, 2) for i in range(CLIENTS)]


def test_a_client_that_cannot_evaluate_is_told(caplog):
    result = run_in_process(
        Strategy(PLUS, SAMPLED, evaluate=1), quadratics.app_of(), quadratics.initial(), num_rounds=1
    )
    assert (
        "round 1: evaluation: client 1 refused: the client has nothing to evaluate with: give Task evaluate=, or "
        "Strategy evaluate=0." in caplog.text
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
