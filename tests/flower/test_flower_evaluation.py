"""Evaluation by clients and by the server, and the metrics of their replies."""

import numpy as np
import pytest
import quadratics
from flwr.app import ConfigRecord, MetricRecord
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy, client_app, run_in_process
from stgt.flower.result import aggregate_metrics

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


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf, 0, -1, [4], None])
def test_one_unusable_weight_gives_all_clients_the_same(weight):
    """The mean of 0, 10 and 20."""
    rows = [{"accuracy": 10.0 * i, "num-examples": 3 + i} for i in range(3)]
    rows[1] = {"accuracy": 10.0} if weight is None else {"accuracy": 10.0, "num-examples": weight}
    assert aggregate_metrics(rows, None, "num-examples")["accuracy"] == pytest.approx(10.0, abs=1e-12)


def test_the_mean_of_opposite_infinities_is_nan():
    assert np.isnan(aggregate_metrics([{"loss": value} for value in (np.inf, -np.inf, 1.0)], None)["loss"])


def test_who_evaluates_is_drawn_by_seed_and_round():
    drawn = []
    for seed in (0, 0, 1):
        grid = FatefulGrid(evaluated(None))
        Strategy(PLUS, SAMPLED, evaluate=1, seed=seed).start(grid, quadratics.initial(), num_rounds=25)
        drawn.append([one for (one,) in asked(grid)])
    assert drawn[0] == drawn[1] != drawn[2]
    # Each of 5 is missed in 25 draws with probability 5 · 0.8²⁵ = 2 % at most; the seed is fixed.
    assert set(drawn[0]) == set(range(CLIENTS))


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
    except ValueError as raised:
        assert "crashed" in str(raised) and "this is mine" in str(raised)  # noqa: PT018, PT017
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


def test_setup_is_told_the_same_in_every_stage():
    """What the run and the client have; in evaluation, evaluate_config over it."""
    configs = []

    def setup(context, config):
        partition = context.node_config["partition-id"]
        configs.append((config["stage"], config["server-round"], partition, config["lr"], config["same"]))
        task = quadratics.task(partition)
        task.metrics, task.evaluate = {"num-examples": 3}, lambda model: {"one": 1.0}
        return task

    strategy = Strategy(
        PLUS,
        EVERYBODY,
        evaluate=CLIENTS,
        weights="num_examples",
        client_config=lambda r, partition: {"lr": 0.1 * r + partition},
    )
    run_in_process(
        strategy,
        client_app(setup),
        quadratics.initial(),
        num_rounds=2,
        train_config=ConfigRecord({"same": 7, "lr": 0}),
        evaluate_config=ConfigRecord({"same": 8}),
    )
    expected = [("count", 1, 7), ("train", 1, 7), ("evaluate", 1, 8), ("train", 2, 7), ("evaluate", 2, 8)]
    assert configs == [(stage, r, i, 0.1 * r + i, same) for stage, r, same in expected for i in range(CLIENTS)]


def failing(when):
    """Clients whose `evaluate` fails where `when(round, partition)`."""

    def setup(context, config):
        r, partition = config["server-round"], context.node_config["partition-id"]
        task = quadratics.task(partition)
        task.evaluate = lambda model: {"one": 1 / 0 if when(r, partition) else 1.0}
        return task

    return client_app(setup)


@pytest.mark.parametrize(
    ("app", "rounds", "sentence"),
    [
        (quadratics.app_of(), 1, r"no client evaluated in any round; the last of them is round 1: clients 0, 1, 2, 3, "
         r"4 refused: the client's task has no evaluate: give Task evaluate=, or Strategy evaluate=0\.$"),
        (failing(lambda r, i: True), 2, r"no client evaluated in any round; .* round 2: .* ZeroDivisionError"),
        (failing(lambda r, i: r > 2), 9, r"no client evaluated in 5 rounds in a row, as many as patience allows; the "
         r"last of them is round 7: clients 0, 1, 2, 3, 4 crashed: it failed: ZeroDivisionError"),
    ],
    ids=["nothing to evaluate with", "never", "no longer"],
)  # fmt: skip
def test_a_run_that_nobody_can_evaluate_ends_with_the_reasons(app, rounds, sentence):
    with pytest.raises(ValueError, match=sentence):
        run_in_process(Strategy(PLUS, EVERYBODY, evaluate=CLIENTS), app, quadratics.initial(), num_rounds=rounds)


def test_a_client_whose_evaluation_fails_is_named(caplog, tmp_path):
    """In the log, the history, its table and its file; those of a round in which all fail too."""
    strategy = Strategy(PLUS, EVERYBODY, evaluate=CLIENTS, checkpoint=tmp_path / "server")
    app = failing(lambda r, i: i == 3 or r == 2)
    result = run_in_process(strategy, app, quadratics.initial(), num_rounds=3)
    assert [[absence.client for absence in one.unevaluated] for one in result.history] == [[3], [0, 1, 2, 3, 4], [3]]
    assert set(result.evaluate_metrics_clientapp) == {1, 3}
    assert "round 1: evaluation: client 3 crashed: it failed: ZeroDivisionError" in caplog.text
    assert result.rows[0]["unevaluated"].startswith("client 3 crashed: ")
    again = Strategy(PLUS, EVERYBODY, evaluate=CLIENTS, checkpoint=tmp_path / "server")
    again.start(FatefulGrid(app), quadratics.initial(), num_rounds=3)
    assert [one.unevaluated for one in again.history] == [one.unevaluated for one in result.history]


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
