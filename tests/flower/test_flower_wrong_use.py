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
from stgt.flower import Strategy, run_in_process

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=2)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
ROUND = "no round counted; the last of them is round 1: 0 of at least 1 replies; "
NOBODY = rf"^{ROUND}clients [0-4], [0-4] refused: "


# -- the strategy's arguments ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Own(stgt.FedAvg):
    """A user's method, which clients cannot find by its name: it is not registered."""


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ("scaffold", r"algorithm='scaffold': give an instance, such as stgt\.ScaffoldPlus\(tau=10\)\."),
        (stgt.ScaffoldPlus, r"give an instance, such as stgt\.ScaffoldPlus\(tau=10\)\."),
        (stgt.ScaffoldPlus(gamma=0.1), r"gamma=0\.1: leave it out of Scaffold⁺; here it is the clients' lr\."),
        (
            stgt.Scaffold(option="I"),
            r"Scaffold \(option I\) takes an additional gradient",
        ),
        (
            stgt.Scaffold(warm_start=True),
            r"Scaffold needs the first gradient, which Flower, .* does not support: use Sc",
        ),
        (stgt.FlexGT(), r"FlexGT \(first\) reads 'first' of a round, which Flower, .* does not support"),
        (stgt.DIGing(), r"DIGing changes the mixed 'x' at each client before it stores it"),
        (stgt.KGT(warm_start=True), r"K-GT needs the first gradient"),
        (stgt.DPSGD(), r"D-PSGD changes the mixed 'x' .* DPSGD\(atc=True\)\."),
        (Own(), r"Own is not registered: put @stgt\.register above its definition\."),
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
        ({"topology": "server"}, r"topology='server': Flower has a server; give stgt\.topology\.server"),
        ({"min_replies": 3}, r"min_replies=3: a round calls 2; give at most that many\."),
        ({"min_clients": 99}, r"min_clients=99: there are \d+ in all; give at most that many\."),
        ({"min_clients": 0}, r"min_clients=0: give a whole number of at least 1\."),
        ({"seed": -1}, r"seed=-1: give a whole number of at least 0\."),
        ({"wait": 0}, r"wait=0: give a finite number above 0\."),
        ({"patience": 0}, r"patience=0: give a whole number of at least 1\."),
        ({"weights": "size"}, r"weights='size': choose from 'equal', 'num_examples'"),
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

    with pytest.raises(ValueError, match=r"0 of at least 1 clients are connected: .*stgt\.flower\.client_app"):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_clients_that_are_not_ours_but_answer_everything():
    app = ClientApp()

    @app.query()
    def query(message, context):
        return Message(RecordDict(), reply_to=message)

    with pytest.raises(ValueError, match=r"a client does not use stgt: build .*stgt\.flower\.client_app"):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


def test_our_clients_under_flower_s_own_strategy():
    grid = FatefulGrid(quadratics.app_of())
    FlowerFedAvg(fraction_evaluate=0.0).start(grid, quadratics.initial(), num_rounds=1)
    assert len(grid.replied) == CLIENTS
    for reply in grid.replied:
        assert "the server's strategy does not use stgt: build" in reply.error.reason
        assert "stgt.flower.Strategy" in reply.error.reason


OTHERS = {
    "shape": (
        {"u": np.zeros((1, 2)), "v": np.zeros(1)},
        r"u has shape \(1, 3\) at the client and \(1, 2\) at the server",
    ),
    "names": ({"u": np.zeros((1, 3)), "w": np.zeros(1)}, r"v is only in the client's model: give both sides the same"),
    "more": (
        {"u": np.zeros((1, 3)), "v": np.zeros(1), "w": np.zeros(1)},
        r"w is only in the server's model: give both sides the same",
    ),
    "type": (
        {"u": np.zeros((1, 3), np.float32), "v": np.zeros(1)},
        r"u has .* type float64, and at the server .* float32",
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
    """In the first round it is not decided what is trained: most replies decide, and the odd one is named, as later."""
    strategy = Strategy(PLUS, EVERYBODY)
    result = run_in_process(strategy, quadratics.app_of(first_only), quadratics.initial(), num_rounds=2)
    assert strategy.server_state.trained == {"u", "v"}
    assert [one.taken for one in result.history] == [[1, 2, 3, 4]] * 2
    details = [absence.detail for one in result.history for absence in one.absent]
    assert details == [
        "v is trained by 4 of 5 clients and not by it: give all clients the same model.",
        "v is trained by the server's model and not by it: give all clients the same model.",
    ]


def test_the_server_s_own_model_decides_what_is_trained():
    """Given the model itself, one odd client cannot lock the others out, though it is the only one called first."""
    topology = stgt.topology.server(CLIENTS, sampled=1)
    first = topology.called(0, 0, range(CLIENTS))[0]

    def make(partition):
        odd = lambda model: torch.optim.SGD([model.u], lr=0.1)  # noqa: E731
        return quadratics.task(partition, odd if partition == first else quadratics.sgd)

    for model, locked in ((quadratics.Point(), False), (quadratics.initial(), True)):
        strategy = Strategy(PLUS, topology, patience=9)
        result = run_in_process(strategy, quadratics.app_of(make), model, num_rounds=6)
        left = {absence.client for one in result.history for absence in one.absent}
        assert (first in left) != locked
        assert strategy.server_state.trained == ({"u"} if locked else {"u", "v"})


def test_a_model_that_says_what_is_frozen():
    model = quadratics.Point()
    model.v.requires_grad_(False)
    with pytest.raises(ValueError, match="v is trained by this client and not by the others: give all clients"):
        run_in_process(Strategy(PLUS, EVERYBODY), quadratics.app_of(), model, num_rounds=1)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.0), r"u was trained with lr=0\.0: use one above 0\."),
        (
            lambda model: torch.optim.SGD(quadratics.Point().parameters(), lr=0.1),
            r"the optimiser has parameters .*: give it model\.parameters\(\)\.",
        ),
        (
            lambda model: torch.optim.SGD([torch.zeros(2)], lr=0.1),
            r"the optimiser has no parameters to train: give it model\.parameters",
        ),
    ],
    ids=["lr", "another model", "nothing"],
)
def test_optimisers_that_do_not_fit(optimizer, sentence):
    app = quadratics.app_of(lambda partition: quadratics.task(partition, optimizer))
    with pytest.raises(ValueError, match=NOBODY + sentence):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)


@pytest.mark.parametrize("method", [stgt.FedAvg(), stgt.Outer(stgt.Scaffold())], ids=lambda method: method.label)
def test_a_tau_that_was_left_out(method):
    """One step of ten is not what a loader of ten batches means; with Task steps=1 it is."""
    sentence = r"has tau=1, the default, and the client has more than one batch: give the method tau=…, the number of"
    for batches in (lambda task: task.batches, lambda task: iter(task.batches)):

        def make(partition, batches=batches):
            task = quadratics.task(partition, batches=10)
            task.batches = batches(task)
            return task

        with pytest.raises(ValueError, match=sentence):
            run_in_process(Strategy(method, EVERYBODY), quadratics.app_of(make), quadratics.initial(), num_rounds=1)
    for make in (lambda i: quadratics.task(i, steps=1), lambda i: quadratics.task(i, batches=1)):
        result = run_in_process(
            Strategy(method, EVERYBODY), quadratics.app_of(make), quadratics.initial(), num_rounds=1
        )
        assert result.train_metrics_clientapp[1]["steps"] == 1


def test_led_needs_equal_steps(caplog):
    """It divides what must add up to 0 by each client's own stepsizes; the odd one is named and left out."""
    app = quadratics.app_of(lambda partition: quadratics.task(partition, steps=5 if partition == 2 else None))
    strategy = Strategy(stgt.LED(tau=2), EVERYBODY)
    run_in_process(strategy, app, quadratics.initial(), num_rounds=2)
    assert [one.taken for one in strategy.history] == [[0, 1, 3, 4]] * 2
    assert (
        "round 1: client 2 refused: its stepsizes of v sum to 0.5, and those of most replies to 0.2, but LED needs "
        "equal sums: give all clients one lr and one number of steps, or use ScaffoldPlus." in caplog.text
    )


def test_a_number_of_steps_that_is_none():
    app = quadratics.app_of(lambda partition: quadratics.task(partition, steps=0))
    with pytest.raises(ValueError, match=r"steps=0: give a whole number of at least 1\."):
        run_in_process(Strategy(PLUS, SAMPLED), app, quadratics.initial(), num_rounds=1)
