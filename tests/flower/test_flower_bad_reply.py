"""A finite reply that is out of all proportion is refused and named, and honest clients that differ much are not."""

import bad_reply
import numpy as np
import pytest
import quadratics
import torch
from bad_reply import CLIENT, METHODS, ROUND, ROUNDS, BadGrid, named, run
from firing import fired  # noqa: F401  # which makes spoils importable
from flwr.app import Array, ArrayRecord
from quadratics import CLIENTS, FatefulGrid
from spoils import of_model, stepsizes

import pages
import stgt
from stgt.flower import Strategy
from stgt.flower.bounds import far_ones

EVERYBODY = stgt.topology.server(CLIENTS)
LABELLED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
REFUSED = [(ROUND, CLIENT, "refused")]


@pytest.mark.parametrize("way", ["× 1e6", "× 1e38", "NaN"])
@LABELLED
def test_one_bad_reply_is_refused_and_the_run_is_that_in_which_it_was_lost(method, way):
    strategy, found = run(method, way)
    assert named(strategy) == REFUSED
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r + 1, i) == (ROUND, CLIENT) else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, EVERYBODY), lost, ROUNDS))


@pytest.mark.parametrize("way", ["× 10", "× −1"])
@LABELLED
def test_one_that_is_ten_times_too_large_or_has_the_wrong_sign_is_taken_in(method, way):
    """Nobody is refused, as this is no robust aggregation; where clients keep something, the client finds out next time
    that the server has another reply than it sent."""
    strategy, found = run(method, way)
    assert CLIENT in strategy.history[ROUND - 1].taken
    assert named(strategy) == ([(ROUND + 1, CLIENT, "lost")] if method is METHODS[1] else [])
    assert np.isfinite(found).all()


def test_the_guide_s_table():
    """Who is refused: the distances at the end depend on rounding, and are not compared."""
    table = next(one for one in (pages.ROOT / "docs" / "federated.md").read_text().split("\n\n") if "| × 1e38 |" in one)
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table.splitlines()[2:]}
    assert list(rows) == list(bad_reply.WAYS)
    for way, cells in rows.items():
        told = [one.split(";")[0].strip() for one in cells]
        assert told == [bad_reply.cell(method, way).split(";")[0] for method in METHODS]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (stepsizes(1e-30), "as long as those of others are, with stepsizes that sum to 1e-30 where theirs do to 0.3"),
        (stepsizes(1e30), "its stepsizes sum to 3.3e+30 times those of others: take a smaller lr, or look at its"),
        (of_model("end", lambda end: {name: Array(one.numpy() + 1e38) for name, one in end.items()}), "its model went"),
    ],
    ids=["tiny stepsizes", "huge stepsizes", "+1e38"],
)  # fmt: skip
@pytest.mark.parametrize("method", [METHODS[1], stgt.LED(tau=3)], ids=lambda method: method.label)
def test_what_else_is_out_of_proportion(method, spoil, sentence, caplog):
    strategy = Strategy(method, EVERYBODY)
    quadratics.start(strategy, BadGrid(quadratics.app_of(), spoil=spoil), ROUND + 2)
    assert named(strategy) == REFUSED
    if not (isinstance(method, stgt.LED) and "stepsizes" in sentence):  # which needs them equal anyway
        assert sentence in strategy.history[ROUND - 1].absent[0].detail
    assert f"round {ROUND}: client {CLIENT} refused: its " in caplog.text


@pytest.mark.parametrize("there", [[CLIENT], [CLIENT, 3]], ids=["alone", "two"])
@pytest.mark.parametrize("way", ["× 1e6", "× 1e38"])
def test_few_replies_are_compared_with_those_before(way, there, tmp_path):
    """Also in a run that has just gone on from a checkpoint."""
    for rounds in (ROUND - 1, ROUND + 2):
        strategy = Strategy(METHODS[0], EVERYBODY, checkpoint=tmp_path / "server")
        quadratics.start(strategy, BadGrid(quadratics.app_of(), bad_reply.WAYS[way], there=there), rounds)
    assert named(strategy) == REFUSED


def test_in_the_first_round_the_others_decide():
    """Of two, the larger is out of proportion; of one, nobody can say."""
    small, large = ({"model": 0.0, "moved": size, "rate": size, "stepsizes": 1.0} for size in (1.0, 1e5))
    assert list(far_ones({0: large, 1: small}, {})) == [0]
    assert far_ones({0: large}, {}) == {}
    assert far_ones({0: large, 1: {**small, "moved": 0.0, "rate": 0.0}}, {}) == {}  # the other one has nothing to learn
    assert far_ones({0: {**large, "model": 1e5}, 1: small}, {}) == {}  # and a model that large can stand it


# -- honest clients ----------------------------------------------------------------------------------------------------

COUNTS = [10, 10, 10, 10, 1_000_000]
HONEST = {
    "lr": lambda i: quadratics.task(i, lambda model: torch.optim.SGD(model.parameters(), lr=1e-5 if i else 0.1)),
    "steps": lambda i: quadratics.task(i, steps=1 if i else 2000, batches=2000),
    "optimisers": lambda i: quadratics.task(
        i, lambda model: torch.optim.SGD(model.parameters(), lr=1e-6) if i else torch.optim.Adam(model.parameters())
    ),
    "gradients": lambda i: _louder(quadratics.task(i), 1.0 if i else 100.0),
}


def _louder(task, factor):
    loss = task.loss
    task.loss = lambda model, batch: factor * loss(model, batch)
    task.optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    return task


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: method.label)
def test_honest_clients_that_differ_much_are_all_taken_in(kind, method):
    strategy = Strategy(method, EVERYBODY)
    quadratics.start(strategy, FatefulGrid(quadratics.app_of(HONEST[kind])), 3)
    assert named(strategy) == []


def test_a_client_with_a_hundred_thousand_times_the_examples_is_taken_in():
    def counted(partition):
        task = quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=0.01))
        task.metrics = {"num-examples": COUNTS[partition]}
        return task

    strategy = Strategy(METHODS[1], EVERYBODY, weights="num_examples")
    quadratics.start(strategy, FatefulGrid(quadratics.app_of(counted)), 3)
    assert named(strategy) == []


def test_one_that_comes_when_the_others_are_done_is_taken_in():
    """They no longer move, to rounding, and it does."""

    class Grid(FatefulGrid):
        def get_node_ids(self):
            return list(self.contexts)[: 2 if len(self.sends()) < 2 * 150 else 3]

    strategy = Strategy(METHODS[1], EVERYBODY)
    quadratics.start(strategy, Grid(quadratics.app_of()), 151)
    assert [one.taken for one in strategy.history] == [[0, 1]] * 150 + [[0, 1, 2]]


def test_buffers_are_compared_too():
    class Counting(quadratics.Point):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def make(partition):
        model = Counting()
        batch = tuple(torch.tensor(one[partition]) for one in (quadratics.CURVES, quadratics.CENTRES))

        def loss(model, batch):
            model.seen += 1.0
            return quadratics.loss(model, batch)

        return stgt.flower.Task(model, quadratics.sgd(model), [batch] * 3, loss)

    def spoil(records):
        return {**records, "buffers": ArrayRecord({"seen": Array(np.full(1, 1e30))})}

    strategy = Strategy(METHODS[0], EVERYBODY)
    grid = BadGrid(quadratics.app_of(make), spoil=spoil)
    strategy.start(grid, ArrayRecord(Counting().state_dict()), num_rounds=ROUND + 1)
    assert named(strategy) == REFUSED
    assert "its buffers change 3.3e+29 times as much" in strategy.history[ROUND - 1].absent[0].detail
