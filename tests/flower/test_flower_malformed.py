"""Replies that are not what they should be: each is an absence with its reason, and never an exception."""

import numpy as np
import pytest
import quadratics
import torch
from firing import CRASHES
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratics import FatefulGrid
from spoils import HARMLESS, SPOILS, changed, content, is_whole, of_model, replaced, told, without
from torch import nn

import stgt
from stgt.flower import Strategy, Task

FEW = stgt.topology.server(3)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
ODD = 1  # the client whose replies are spoilt, unless a test says another


class SpoilingGrid(FatefulGrid):
    """`spoil(round, partition)` gives the way to spoil a reply to a message of this kind; None for none."""

    def __init__(self, app, spoil, kind="train"):
        super().__init__(app, FEW.n)
        self.spoil, self.kind = spoil, kind

    def _call(self, message):
        reply = super()._call(message)
        if message.metadata.message_type != self.kind:
            return reply
        partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        spoil = self.spoil(message.content["stgt"].get("round"), partition)
        if spoil is None or (self.kind == "train" and not is_whole(reply.content)):
            return reply
        return Message(RecordDict(spoil(dict(reply.content))), reply_to=message)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def absences(strategy):
    return [(one.round, absence.client, absence.reason) for one in strategy.history for absence in one.absent]


def spoilt_in_turn(ways):
    """In round r the client r mod n, in the r-th way."""
    return lambda r, i: ways[r] if i == r % FEW.n else None


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [(PLUS, quadratics.sgd), (stgt.STGT(tau=2), momentum)],
    ids=["Scaffold⁺", "ST-GT, momentum"],
)
def test_a_spoilt_reply_is_refused_and_the_run_is_that_in_which_it_never_came(method, optimizer):
    """To the bit; each round one client's reply is spoilt in another way."""
    app = quadratics.app_of(lambda partition: quadratics.task(partition, optimizer))
    ways = list(SPOILS.values())
    strategy = Strategy(method, FEW)
    found = quadratics.start(strategy, SpoilingGrid(app, spoilt_in_turn(ways)), len(ways))
    assert absences(strategy) == [(r + 1, r % FEW.n, "refused") for r in range(len(ways))], list(SPOILS)
    lost = FatefulGrid(app, FEW.n, fate=lambda r, i: "lost" if i == r % FEW.n else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, FEW), lost, len(ways)))


def test_what_is_odd_and_does_no_harm_changes_nothing():
    ways = list(HARMLESS.values())
    strategy = Strategy(PLUS, FEW)
    found = quadratics.start(strategy, SpoilingGrid(quadratics.app_of(), spoilt_in_turn(ways)), len(ways))
    assert absences(strategy) == [], list(HARMLESS)
    plain = FatefulGrid(quadratics.app_of(), FEW.n)
    np.testing.assert_array_equal(found, quadratics.start(Strategy(PLUS, FEW), plain, len(ways)))


@pytest.mark.parametrize("model", [quadratics.initial(), quadratics.Point()], ids=["arrays", "model"])
@pytest.mark.parametrize("way", SPOILS)
@pytest.mark.sampled(4)
def test_a_spoilt_reply_in_the_first_round_decides_nothing(way, model):
    """With the arrays alone, the replies of the first round say what is trained."""
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), lambda r, i: SPOILS[way] if i == ODD else None)
    quadratics.start(strategy, grid, 2, model)
    assert absences(strategy) == [(1, ODD, "refused"), (2, ODD, "refused")]
    assert strategy.ledger.trained == {"u", "v"}


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (told(lost=True), "lost"),
        (told(lost="no"), "lost"),
        (told(fault="out of memory", crashed=True), "crashed"),
        (told(fault="out of memory"), "refused"),
        (lambda records: {"stgt": ConfigRecord()}, "refused"),
        (lambda records: {}, "refused"),
    ],
)
def test_what_a_client_says_of_itself_is_the_reason(way, reason):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), lambda r, i: way if (r, i) == (1, ODD) else None)
    quadratics.start(strategy, grid, 3)
    assert absences(strategy) == [(2, ODD, reason)]


HOSTILE = "fine\r\n\x1b[31mround 9: client 0 refused\x07\u2028\u202e"
HARMLESS_TEXT = r"fine\r\n\x1b[31mround 9: client 0 refused\x07\u2028\u202e"


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("train", told(fault=HOSTILE)),
        ("train", told(partition=HOSTILE)),
        ("train", of_model("end", lambda arrays: {HOSTILE: arrays[min(arrays)]})),
        ("train", told(fault=HOSTILE + "x" * 10**6, crashed=True)),
        ("evaluate", told(fault=HOSTILE)),
        ("query", told(fault=HOSTILE)),
    ],
)
def test_what_a_client_says_stays_in_its_line_of_the_log(kind, way, caplog):
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    grid = SpoilingGrid(quadratics.app_of(counted), lambda r, i: way if i == ODD else None, kind)
    quadratics.start(strategy, grid, 1)
    (line,) = {record.getMessage() for record in caplog.records if "fine" in record.getMessage()}
    assert HARMLESS_TEXT in line
    assert line.isprintable()
    assert len(line) < 2000


@pytest.mark.parametrize("code", [*range(9), 99])
def test_every_error_of_flower_s_is_an_absence(code):
    class Grid(FatefulGrid):
        def _call(self, message):
            reply = super()._call(message)
            hit = message.metadata.dst_node_id == ODD + 1 and message.metadata.message_type == "train"
            return Message(Error(code=code, reason=" why\n"), reply_to=message) if hit else reply

    strategy = Strategy(PLUS, FEW)
    quadratics.start(strategy, Grid(quadratics.app_of(), FEW.n), 2)
    reason = "crashed" if code in (*CRASHES, 99) else "gone" if code == 5 else "late"
    assert absences(strategy) == [(1, ODD, reason), (2, ODD, reason)]


# -- arrays of which some bytes are others -----------------------------------------------------------------------------


@st.composite
def damages(draw):
    """Something is written over a part of the bytes, or put in its place."""
    at, put = draw(st.integers(0, 160)), draw(st.binary(min_size=1, max_size=12))
    length = draw(st.one_of(st.just(len(put)), st.integers(0, 40)))
    return lambda data: data[:at] + put + data[at + length :]


@settings(max_examples=60)
@given(damage=damages())
def test_damaged_bytes_are_refused_or_are_numbers(damage):
    """If they still are an array of the right kind it is taken in, and the client, which knows another one, says in the
    next round that it has lost what it kept."""
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), lambda r, i: content(damage) if (r, i) == (1, ODD) else None)
    quadratics.start(strategy, grid, 3)
    assert absences(strategy)[:1] in ([], [(2, ODD, "refused")], [(3, ODD, "lost")])
    assert {reason for _, _, reason in absences(strategy)} <= {"refused", "lost"}


# -- names that are tied, and buffers ----------------------------------------------------------------------------------


class Twins(nn.Module):
    """A parameter with two names, and a buffer that training counts in."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        self.second = self.first
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))


def twins(partition):
    model = Twins()
    nn.init.ones_(model.first.weight)

    def loss(model, batch):
        model.seen += 1.0
        return (model.second.weight - partition).square().sum()

    return Task(model, torch.optim.SGD(model.parameters(), lr=0.1), [None], loss)


WRONG = {
    "a buffer is the other name of a parameter": lambda records: {
        **records,
        "buffers": ArrayRecord({**records["buffers"], "second.weight": records["end"]["first.weight"]}),
    },
    "a buffer is a parameter": lambda records: {**records, "buffers": records["end"]},
    "no tie": told(tied=[]),
    "a tie the other way round": told(tied=["first.weight=second.weight"]),
    "a tie of a buffer": told(tied=["second.weight=first.weight", "seen=first.weight"]),
    "only a buffer is tied": told(tied=["seen=first.weight"]),
    "a buffer of another shape": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.zeros(2)])["0"]}),
    "a buffer of another type": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.zeros(1, int)])["0"]}),
    "a buffer that is NaN": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.full(1, np.nan)])["0"]}),
    "a buffer is trained": lambda records: {
        **records,
        "end": ArrayRecord({**records["end"], **records["buffers"]}),
        "travelled": MetricRecord({**records["travelled"], "seen": 0.1}),
        "buffers": ArrayRecord(),
    },
}


@pytest.mark.parametrize("model", [Twins(), ArrayRecord(Twins().state_dict())], ids=["model", "arrays"])
@pytest.mark.parametrize("way", WRONG)
def test_what_does_not_fit_ties_and_buffers_is_refused(way, model):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(twins), lambda r, i: WRONG[way] if i == ODD else None)
    result = strategy.start(grid, model, num_rounds=2)
    assert absences(strategy) == [(1, ODD, "refused"), (2, ODD, "refused")]
    np.testing.assert_array_equal(result.arrays["second.weight"].numpy(), result.arrays["first.weight"].numpy())
    assert result.arrays["seen"].numpy() == 2.0


def test_a_tie_of_arrays_that_differ_in_shape_is_refused_though_nobody_else_replies():
    topology = stgt.topology.server(FEW.n, sampled=1)
    first = topology.called(0, 0, range(FEW.n))[0]
    strategy = Strategy(PLUS, topology)
    grid = SpoilingGrid(quadratics.app_of(twins), lambda r, i: WRONG["only a buffer is tied"] if i == first else None)
    strategy.start(grid, ArrayRecord(Twins().state_dict()), num_rounds=6)
    assert {(client, reason) for _, client, reason in absences(strategy)} == {(first, "refused")}
    assert strategy.ledger.tied == {"second.weight": "first.weight"}


# -- questions and evaluations -----------------------------------------------------------------------------------------


def counted(partition):
    task = quadratics.task(partition)
    task.metrics, task.evaluate = {"num-examples": 3 + partition}, lambda model: {"accuracy": 10.0 * partition}
    return task


NOBODY = [
    without("stgt"),
    replaced("stgt", MetricRecord()),
    replaced("stgt", ConfigRecord()),
    *(told(partition=value) for value in (None, "1", 1.0, True, [1], b"1", -1, FEW.n)),
    told(fault="no room"),
]


@pytest.mark.parametrize("way", NOBODY)
def test_a_client_that_does_not_say_who_it_is_is_not_called(way):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(counted), lambda r, i: way if i == ODD else None, "query")
    quadratics.start(strategy, grid, 3)
    assert [one.taken for one in strategy.history] == [[0, 2]] * 3


@pytest.mark.parametrize(
    "way", [*NOBODY, *(told(examples=value) for value in (None, 0, -3, True, "3", 3.0, [3], b"3"))]
)
def test_a_count_that_is_missing_is_told_before_the_first_round(way):
    strategy = Strategy(PLUS, FEW, weights="num_examples")
    grid = SpoilingGrid(quadratics.app_of(counted), lambda r, i: way if i == ODD else None, "query")
    with pytest.raises(ValueError, match=r'^weights="num_examples" needs .* all 3 clients .* that of 1 is missing: '):
        quadratics.start(strategy, grid, 3)
    assert not grid.sends()


@pytest.mark.parametrize(
    "way",
    [
        without("stgt"),
        without("metrics"),
        replaced("metrics", ConfigRecord()),
        told(partition="1"),
        told(lost=True),
        told(fault="no room"),
    ],
)
def test_a_spoilt_evaluation_is_left_out(way, caplog):
    """The mean of the others' 0 and 20, whose weights are 3 and 5."""
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    grid = SpoilingGrid(quadratics.app_of(counted), lambda r, i: way if i == ODD else None, "evaluate")
    quadratics.start(strategy, grid, 2)
    assert [one.taken for one in strategy.history] == [[0, 1, 2]] * 2
    for one in strategy.history:
        assert one.evaluation["accuracy"] == pytest.approx(20.0 * 5 / 8, abs=1e-12)
    assert caplog.text.count("evaluation: client 1 ") == 2


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf, 0, -1, [4], None])
def test_a_weight_that_is_none_leaves_all_with_the_same(weight):
    """The mean of 0, 10 and 20."""
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    numbers = {"accuracy": 10.0} if weight is None else {"accuracy": 10.0, "num-examples": weight}
    grid = SpoilingGrid(
        quadratics.app_of(counted),
        lambda r, i: replaced("metrics", MetricRecord(numbers)) if i == ODD else None,
        "evaluate",
    )
    quadratics.start(strategy, grid, 1)
    assert strategy.history[0].evaluation["accuracy"] == pytest.approx(10.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_numbers_without_a_mean_have_none(kind):
    losses = [np.inf, -np.inf, 1.0]
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    grid = SpoilingGrid(
        quadratics.app_of(counted), lambda r, i: replaced("metrics", MetricRecord({"loss": losses[i]})), kind
    )
    quadratics.start(strategy, grid, 1)
    (only,) = strategy.history
    assert only.taken == [0, 1, 2]
    assert np.isnan((only.metrics if kind == "train" else only.evaluation)["loss"])
