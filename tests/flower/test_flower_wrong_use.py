"""Wrong use is one clear sentence, and the server keeps its last good state."""

from dataclasses import dataclass

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy, Task, client_app, run_in_process

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=2)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
NOBODY = r"^no client could do round 1: client [0-4]: (partition [0-4], round 1: )?"  # if the client sees it


# -- the strategy's arguments ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Own(stgt.FedAvg):
    """A user's method, which clients cannot know by its name: it is not registered."""


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ("scaffold", r"algorithm='scaffold': give an instance, such as stgt\.ScaffoldPlus\(tau=10\)\."),
        (stgt.ScaffoldPlus, r"give an instance, such as stgt\.ScaffoldPlus\(tau=10\)\."),
        (stgt.ScaffoldPlus(gamma=0.1), r"gamma=0\.1: leave it out of Scaffold⁺, it is the clients' lr\."),
        (stgt.Scaffold(option="I"), r"Scaffold \(option I\) as given needs more than one model"),
        (stgt.Scaffold(warm_start=True), r"Scaffold as given needs more than one model"),
        (stgt.FlexGT(), r"needs more than one model"),
        (stgt.DIGing(), r"needs more than one model"),
        (stgt.KGT(warm_start=True), r"needs more than one model"),
        (stgt.DPSGD(), r"needs more than one model .* DPSGD\(atc=True\)\."),
        (Own(), r"Own is not known by a name: put @stgt\.register above its definition\."),
    ],
    ids=lambda value: value.label if isinstance(value, stgt.algorithms.Algorithm) else None,
)
def test_an_algorithm_that_does_not_fit(algorithm, sentence):
    with pytest.raises(ValueError, match=sentence):
        Strategy(algorithm, SAMPLED)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"topology": stgt.topology.ring(CLIENTS)},
            r"Flower has a server; give stgt\.topology\.server\(n, sampled=s\)\.",
        ),
        ({"topology": stgt.topology.relay(CLIENTS, 2)}, r"Flower has a server; give stgt\.topology\.server"),
        ({"topology": "server"}, r"topology=server: Flower has a server; give stgt\.topology\.server"),
        ({"min_replies": 3}, r"min_replies=3: a round calls 2; give at most that many\."),
        ({"min_clients": 99}, r"min_clients=99: there are \d+ in all; give at most that many\."),
        ({"min_clients": 0}, r"min_clients=0: give a whole number of at least 1\."),
        ({"seed": -1}, r"seed=-1: give a whole number of at least 0\."),
        ({"patience": 0}, r"patience=0: give a finite number above 0\."),
        ({"evaluate": -1}, r"evaluate=-1: give a whole number of at least 0\."),
    ],
)
def test_arguments_that_do_not_fit(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Strategy(PLUS, **{"topology": SAMPLED, **options})


def test_no_rounds():
    with pytest.raises(ValueError, match=r"num_rounds=0: give a whole number of at least 1\."):
        run_in_process(Strategy(PLUS, SAMPLED), quadratics.app_of(), quadratics.initial(), num_rounds=0)


def test_a_strategy_that_was_not_started():
    with pytest.raises(ValueError, match=r"the strategy was not started: call strategy\.start"):
        Strategy(PLUS, SAMPLED).configure_train(1, quadratics.initial(), ConfigRecord(), FatefulGrid(None))


# -- the two sides do not match ----------------------------------------------------------------------------------------


def test_clients_that_are_not_ours():
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(RecordDict({"arrays": message.content["view.x"]}), reply_to=message)

    with pytest.raises(ValueError, match=r"0 of at least 1 clients are there: .*stgt\.flower\.client_app"):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_clients_that_are_not_ours_but_answer_everything():
    app = ClientApp()

    @app.query()
    def query(message, context):
        return Message(RecordDict(), reply_to=message)

    with pytest.raises(ValueError, match=r"a client is not one of stgt's: build .*stgt\.flower\.client_app"):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_a_reply_that_lacks_something():
    app = ClientApp()

    def answer(message, context):
        told = ConfigRecord({"partition": context.node_config["partition-id"], "round": 0})
        return Message(RecordDict({"stgt": told, "end": ArrayRecord()}), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    with pytest.raises(ValueError, match=r"its reply lacks 'buffers': use the same version of stgt on both sides\."):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_our_clients_under_flower_s_own_strategy():
    grid = FatefulGrid(quadratics.app_of())
    FlowerFedAvg(fraction_evaluate=0.0).start(grid, quadratics.initial(), num_rounds=1)
    assert len(grid.replied) == CLIENTS
    for reply in grid.replied:
        assert "the server's strategy is not one of stgt's: build" in reply.error.reason
        assert "stgt.flower.Strategy" in reply.error.reason


OTHERS = {
    "shape": (
        {"u": np.zeros((1, 2)), "v": np.zeros(1)},
        r"u has shape \(1, 3\) at the client and \(1, 2\) at the server",
    ),
    "names": ({"u": np.zeros((1, 3)), "w": np.zeros(1)}, r"v is in the client's model only: give both sides the same"),
    "more": (
        {"u": np.zeros((1, 3)), "v": np.zeros(1), "w": np.zeros(1)},
        r"w is in the server's model only: give both sides the same",
    ),
    "type": (
        {"u": np.zeros((1, 3), np.float32), "v": np.zeros(1)},
        r"u has .* type float64 where the server's has .* float32",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_differ(kind):
    arrays, sentence = OTHERS[kind]
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    with pytest.raises(ValueError, match=NOBODY + sentence):
        run_in_process(Strategy(PLUS, SAMPLED), quadratics.app_of(), record, num_rounds=1)


def first_only(partition):
    """Client 0 trains u alone, the others all."""
    task = quadratics.task(partition)
    return task if partition else quadratics.task(partition, lambda model: torch.optim.SGD([model.u], lr=0.1))


def test_clients_that_train_different_things(caplog):
    """In the first round nobody has said what is trained: the first reply decides, and the others are told."""
    strategy = Strategy(PLUS, EVERYBODY)
    run_in_process(strategy, quadratics.app_of(first_only), quadratics.initial(), num_rounds=2)
    assert strategy.ledger.trained == {"u"}
    for partition in range(1, CLIENTS):
        assert f"client {partition}: v is trained by some clients and not by others: give all clients" in caplog.text


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.0), r"u was trained with lr=0\.0: take one above 0\."),
        (
            lambda model: torch.optim.SGD(quadratics.Point().parameters(), lr=0.1),
            r"the optimiser holds parameters .*: give it model\.parameters\(\)\.",
        ),
        (
            lambda model: torch.optim.SGD([torch.zeros(2)], lr=0.1),
            r"the optimiser holds no parameters to train: give it model\.parameters",
        ),
    ],
    ids=["lr", "another model", "nothing"],
)
def test_optimisers_that_do_not_fit(optimizer, sentence):
    app = quadratics.app_of(lambda partition: quadratics.task(partition, optimizer))
    with pytest.raises(ValueError, match=NOBODY + sentence):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_a_number_of_steps_that_is_none():
    app = quadratics.app_of(lambda partition: quadratics.task(partition, steps=0))
    with pytest.raises(ValueError, match=r"steps=0: give a whole number of at least 1\."):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


# -- the last good state -----------------------------------------------------------------------------------------------


def exploding(partition):
    """Steps so long that u overflows: single precision ends at 3.4e38."""
    return quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=1e25), dtype=torch.float32)


def as_arrays(ledger):
    return {
        (r, field, name): array.copy()
        for r, view in ledger.views.items()
        for field, one in view.items()
        for name, array in one.items()
    }


@pytest.mark.parametrize("how", ["nan", "exploding"])
def test_nonsense_from_all_stops_the_run_and_leaves_state_and_checkpoint(how, tmp_path):
    path = tmp_path / "server.safetensors"
    dtype = torch.float32
    good = lambda partition: quadratics.task(partition, dtype=dtype)  # noqa: E731
    bad = exploding if how == "exploding" else good
    strategy = Strategy(PLUS, EVERYBODY, checkpoint=path)
    app = client_app(lambda c, config: (bad if config["server-round"] > 2 else good)(c.node_config["partition-id"]))
    grid = FatefulGrid(app, fate=lambda r, i: "nan" if how == "nan" and r == 2 else "ok")
    quadratics.start(strategy, grid, 2, arrays=quadratics.initial(dtype))
    written, before = path.read_bytes(), as_arrays(strategy.ledger)
    with pytest.raises(ValueError, match=r"no client could do round 3: .*(not finite|too far).*: take a smaller lr\."):
        quadratics.start(strategy, grid, 3, arrays=quadratics.initial(dtype))
    assert path.read_bytes() == written
    after = as_arrays(strategy.ledger)
    assert after.keys() == before.keys()
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array)


def test_a_finite_model_whose_direction_is_not_is_refused():
    """(0 − 1e36)/1e-5 is beyond single precision: c would be infinite."""

    def make(partition):
        model = quadratics.Point(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

        def loss(model, batch):
            with torch.no_grad():
                model.u.fill_(1e36)  # a user's step that writes into the weights
            return model.vector().sum() * 0

        return Task(model, optimizer, [None], loss)

    strategy = Strategy(PLUS, SAMPLED)
    with pytest.raises(ValueError, match=r"u went too far to be tracked: take a smaller lr\."):
        run_in_process(strategy, quadratics.app_of(make), quadratics.initial(torch.float32), num_rounds=1)
    assert set(strategy.ledger.views) == {-1}


def test_a_mean_that_overflows_leaves_the_state(tmp_path):
    def make(partition):
        model = quadratics.Point(torch.float32)

        def loss(model, batch):
            with torch.no_grad():
                model.u.fill_(1e38)
            return model.vector().sum() * 0

        return Task(model, torch.optim.SGD(model.parameters(), lr=1.0), [None], loss)

    strategy = Strategy(stgt.ScaffoldPlus(tau=1, gamma_g=9.0), SAMPLED, checkpoint=tmp_path / "server")
    with pytest.raises(ValueError, match=r"u is not finite after round 1: take a smaller lr, gamma_g or gamma_c\."):
        run_in_process(strategy, quadratics.app_of(make), quadratics.initial(torch.float32), num_rounds=1)
    assert set(strategy.ledger.views) == {-1}
    assert strategy.ledger.trained is None
    assert not (tmp_path / "server").exists()
