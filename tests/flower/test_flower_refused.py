"""Replies that are refused: malformed, of another model, not finite, or out of all proportion to the others.

Each is an absence with its reason and never an exception, and the server keeps its last good state. A refused reply is,
to the bit, one that never came. Honest clients that differ much are accepted.
"""

import bad_reply
import numpy as np
import pytest
import quadratics
import torch
from bad_reply import CLIENT, METHODS, ROUND, ROUNDS, BadGrid
from firing import CRASHES
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratics import CLIENTS, LR, FatefulGrid, SpoilingGrid, counted
from spoils import HARMLESS, SPOILS, changed, content, header, of_model, replaced, stepsizes, without
from torch import nn

import pages
import stgt
from stgt.flower import Strategy, Task, client_app, run_in_process
from stgt.flower.outliers import find_outliers

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=2)
FEW = stgt.topology.server(3)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
ODD = 1  # the client whose replies are spoilt, unless a test names another


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
    found = quadratics.start(strategy, SpoilingGrid(app, FEW.n, spoilt_in_turn(ways)), len(ways))
    assert absences(strategy) == [(r + 1, r % FEW.n, "refused") for r in range(len(ways))], list(SPOILS)
    (absence,) = strategy.history[list(SPOILS).index("no metrics")].absent
    assert absence.detail == "its reply lacks 'metrics': use the same version of stgt on both sides."
    lost = FatefulGrid(app, FEW.n, fate=lambda r, i: "lost" if i == r % FEW.n else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, FEW), lost, len(ways)))


def test_what_is_odd_and_does_no_harm_changes_nothing():
    ways = list(HARMLESS.values())
    strategy = Strategy(PLUS, FEW)
    found = quadratics.start(strategy, SpoilingGrid(quadratics.app_of(), FEW.n, spoilt_in_turn(ways)), len(ways))
    assert absences(strategy) == [], list(HARMLESS)
    plain = FatefulGrid(quadratics.app_of(), FEW.n)
    np.testing.assert_array_equal(found, quadratics.start(Strategy(PLUS, FEW), plain, len(ways)))


@pytest.mark.parametrize("model", [quadratics.initial(), quadratics.Point()], ids=["arrays", "model"])
@pytest.mark.parametrize("way", SPOILS)
@pytest.mark.sampled(4)
def test_a_spoilt_reply_in_the_first_round_decides_nothing(way, model):
    """With the arrays alone, the replies of the first round decide what is trained."""
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), FEW.n, lambda r, i: SPOILS[way] if i == ODD else None)
    quadratics.start(strategy, grid, 2, model)
    assert absences(strategy) == [(1, ODD, "refused"), (2, ODD, "refused")]
    assert strategy.server_state.trained == {"u", "v"}


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (header(lost=True), "lost"),
        (header(lost="no"), "lost"),
        (header(fault="out of memory", kind="Crashed"), "crashed"),
        (header(fault="out of memory"), "refused"),
        (lambda records: {"stgt": ConfigRecord()}, "refused"),
        (lambda records: {}, "refused"),
    ],
)
def test_what_a_client_reports_is_the_reason(way, reason):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), FEW.n, lambda r, i: way if (r, i) == (1, ODD) else None)
    quadratics.start(strategy, grid, 3)
    assert absences(strategy) == [(2, ODD, reason)]


HOSTILE = "fine\r\n\x1b[31mround 9: client 0 refused\x07\u2028\u202e"
HARMLESS_TEXT = r"fine\r\n\x1b[31mround 9: client 0 refused\x07\u2028\u202e"


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("train", header(fault=HOSTILE)),
        ("train", header(partition=HOSTILE)),
        ("train", of_model("end", lambda arrays: {HOSTILE: arrays[min(arrays)]})),
        ("train", header(fault=HOSTILE + "x" * 10**6, kind="Crashed")),
        ("evaluate", header(fault=HOSTILE)),
        ("query", header(fault=HOSTILE)),
    ],
)
def test_what_a_client_sends_stays_in_its_line_of_the_log(kind, way, caplog):
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    grid = SpoilingGrid(quadratics.app_of(counted), FEW.n, lambda r, i: way if i == ODD else None, kind)
    quadratics.start(strategy, grid, 1)
    (line,) = {record.getMessage() for record in caplog.records if "fine" in record.getMessage()}
    assert HARMLESS_TEXT in line
    assert line.isprintable()
    assert len(line) < 2000


def test_every_error_of_flower_s_is_an_absence():
    """Another one in each round."""
    codes = [*range(9), 99]

    class Grid(FatefulGrid):
        def _call(self, message):
            reply = super()._call(message)
            if message.metadata.dst_node_id != ODD + 1 or message.metadata.message_type != "train":
                return reply
            return Message(Error(code=codes[message.content["stgt"]["round"]], reason=" why\n"), reply_to=message)

    strategy = Strategy(PLUS, FEW)
    quadratics.start(strategy, Grid(quadratics.app_of(), FEW.n), len(codes))
    reasons = ["crashed" if code in (*CRASHES, 99) else "gone" if code == 5 else "late" for code in codes]
    assert absences(strategy) == [(r + 1, ODD, reason) for r, reason in enumerate(reasons)]


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
    """If they still are an array of the right kind it is accepted, and the client, which has another one, reports in
    the next round that it has lost its state."""
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(), FEW.n, lambda r, i: content(damage) if (r, i) == (1, ODD) else None)
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
    "no tie": header(tied=[]),
    "a tie the other way round": header(tied=["first.weight=second.weight"]),
    "a tie of a buffer": header(tied=["second.weight=first.weight", "seen=first.weight"]),
    "only a buffer is tied": header(tied=["seen=first.weight"]),
    "a buffer of another shape": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.zeros(2)])["0"]}),
    "a buffer of another type": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.zeros(1, int)])["0"]}),
    "a buffer that is NaN": changed("buffers", lambda arrays: {"seen": ArrayRecord([np.full(1, np.nan)])["0"]}),
    "a buffer is trained": lambda records: {
        **records,
        "end": ArrayRecord({**records["end"], **records["buffers"]}),
        "lr_sum": MetricRecord({**records["lr_sum"], "seen": 0.1}),
        "buffers": ArrayRecord(),
    },
}


@pytest.mark.parametrize("model", [Twins(), ArrayRecord(Twins().state_dict())], ids=["model", "arrays"])
@pytest.mark.parametrize("way", WRONG)
def test_what_does_not_fit_ties_and_buffers_is_refused(way, model):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(twins), FEW.n, lambda r, i: WRONG[way] if i == ODD else None)
    result = strategy.start(grid, model, num_rounds=2)
    assert absences(strategy) == [(1, ODD, "refused"), (2, ODD, "refused")]
    np.testing.assert_array_equal(result.arrays["second.weight"].numpy(), result.arrays["first.weight"].numpy())
    assert result.arrays["seen"].numpy() == 2.0


def test_a_tie_of_arrays_that_differ_in_shape_is_refused_though_nobody_else_replies():
    topology = stgt.topology.server(FEW.n, sampled=1)
    first = topology.called(0, 0, range(FEW.n))[0]
    strategy = Strategy(PLUS, topology)
    wrong = WRONG["only a buffer is tied"]
    grid = SpoilingGrid(quadratics.app_of(twins), FEW.n, lambda r, i: wrong if i == first else None)
    strategy.start(grid, ArrayRecord(Twins().state_dict()), num_rounds=6)
    assert {(client, reason) for _, client, reason in absences(strategy)} == {(first, "refused")}
    assert strategy.server_state.tied == {"second.weight": "first.weight"}


# -- questions and evaluations -----------------------------------------------------------------------------------------


NOBODY = [
    without("stgt"),
    replaced("stgt", MetricRecord()),
    replaced("stgt", ConfigRecord()),
    *(header(partition=value) for value in (None, "1", 1.0, True, [1], b"1", -1, FEW.n)),
    header(fault="no room"),
]


@pytest.mark.parametrize("way", NOBODY)
def test_a_client_without_a_valid_partition_is_not_called(way):
    strategy = Strategy(PLUS, FEW)
    grid = SpoilingGrid(quadratics.app_of(counted), FEW.n, lambda r, i: way if i == ODD else None, "query")
    quadratics.start(strategy, grid, 3)
    assert [one.taken for one in strategy.history] == [[0, 2]] * 3


@pytest.mark.parametrize(
    "way", [without("stgt"), *(header(examples=value) for value in (None, 0, -3, True, "3", 3.0, [3], b"3"))]
)
def test_a_missing_count_ends_the_run_before_the_first_round(way):
    strategy = Strategy(PLUS, FEW, weights="num_examples")
    grid = SpoilingGrid(quadratics.app_of(counted), FEW.n, lambda r, i: way if i == ODD else None, "query")
    with pytest.raises(ValueError, match=r'^weights="num_examples" needs .* all 3 clients .* that of 1 is missing: '):
        quadratics.start(strategy, grid, 3)
    assert not grid.sends()


@pytest.mark.parametrize(
    "way",
    [
        without("stgt"),
        without("metrics"),
        replaced("metrics", ConfigRecord()),
        header(partition="1"),
        header(lost=True),
        header(fault="no room"),
    ],
)
def test_a_spoilt_evaluation_is_left_out(way, caplog):
    """The mean of the others' 0 and 20, whose weights are 3 and 5."""
    strategy = Strategy(PLUS, FEW, evaluate=FEW.n)
    grid = SpoilingGrid(quadratics.app_of(counted), FEW.n, lambda r, i: way if i == ODD else None, "evaluate")
    quadratics.start(strategy, grid, 2)
    assert [one.taken for one in strategy.history] == [[0, 1, 2]] * 2
    for one in strategy.history:
        assert one.evaluation["accuracy"] == pytest.approx(20.0 * 5 / 8, abs=1e-12)
    assert caplog.text.count("evaluation: client 1 ") == 2


# -- replies out of proportion -----------------------------------------------------------------------------------------

LABELLED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
REFUSED = [(ROUND, CLIENT, "refused")]


@LABELLED
def test_a_reply_out_of_proportion_is_refused_and_the_run_is_that_in_which_it_was_lost(method):
    strategy, found = bad_reply.run(method, "× 1e6")
    assert absences(strategy) == REFUSED
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r + 1, i) == (ROUND, CLIENT) else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, EVERYBODY), lost, ROUNDS))


@LABELLED
def test_a_client_finds_out_that_the_server_accepted_another_reply_than_it_sent(method):
    """At its next call, where clients have state. Nobody is refused: this is no robust aggregation."""
    strategy, found = bad_reply.run(method, "× 10")
    assert CLIENT in strategy.history[ROUND - 1].taken
    assert absences(strategy) == ([(ROUND + 1, CLIENT, "lost")] if method is METHODS[1] else [])
    assert np.isfinite(found).all()


@pytest.mark.thorough
def test_the_guide_s_table():
    """Who is refused: the distances at the end depend on rounding, and are not compared."""
    table = next(one for one in (pages.ROOT / "docs" / "federated.md").read_text().split("\n\n") if "| × 1e38 |" in one)
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table.splitlines()[2:]}
    assert list(rows) == list(bad_reply.FACTORS)
    for way, cells in rows.items():
        listed = [one.split(";")[0].strip() for one in cells]
        assert listed == [bad_reply.cell(method, way).split(";")[0] for method in METHODS]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (stepsizes(1e-30), "with stepsizes that sum to 1e-30, where those of others sum to 0.3"),
        (stepsizes(1e30), "its stepsizes sum to 3.3e+30 times those of others: use a smaller lr, or check its"),
        (of_model("end", lambda end: {name: Array(one.numpy() + 1e38) for name, one in end.items()}), "its update is"),
    ],
    ids=["tiny stepsizes", "huge stepsizes", "+1e38"],
)  # fmt: skip
@pytest.mark.parametrize("method", [METHODS[1], stgt.LED(tau=3)], ids=lambda method: method.label)
def test_stepsizes_and_updates_out_of_proportion_are_refused(method, spoil, sentence, caplog):
    strategy = Strategy(method, EVERYBODY)
    quadratics.start(strategy, BadGrid(quadratics.app_of(), spoil=spoil), ROUND + 2)
    assert absences(strategy) == REFUSED
    if not (isinstance(method, stgt.LED) and "stepsizes" in sentence):  # which needs them equal anyway
        assert sentence in strategy.history[ROUND - 1].absent[0].detail
    assert f"round {ROUND}: client {CLIENT} refused: its " in caplog.text


@pytest.mark.parametrize("there", [[CLIENT], [CLIENT, 3]], ids=["alone", "two"])
@pytest.mark.parametrize("way", ["× 1e6", "× 1e38"])
def test_few_replies_are_compared_with_those_before(way, there, tmp_path):
    """Also in a run that has just gone on from a checkpoint."""
    for rounds in (ROUND - 1, ROUND + 2):
        strategy = Strategy(METHODS[0], EVERYBODY, checkpoint=tmp_path / "server")
        quadratics.start(strategy, BadGrid(quadratics.app_of(), bad_reply.FACTORS[way], there=there), rounds)
    assert absences(strategy) == REFUSED


def test_in_the_first_round_the_others_decide():
    """Of two, the larger is out of proportion; of one, there is no comparison."""
    small, large = ({"model": 0.0, "update": size, "rate": size, "lr_sum": 1.0} for size in (1.0, 1e5))
    assert list(find_outliers({0: large, 1: small}, {})) == [0]
    assert find_outliers({0: large}, {}) == {}
    converged = {**small, "update": 0.0, "rate": 0.0}
    assert find_outliers({0: large, 1: converged}, {}) == {}
    assert find_outliers({0: {**large, "model": 1e5}, 1: small}, {}) == {}  # the update is small beside this model


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
def test_honest_clients_that_differ_much_are_all_accepted(kind, method):
    strategy = Strategy(method, EVERYBODY)
    quadratics.start(strategy, FatefulGrid(quadratics.app_of(HONEST[kind])), 3)
    assert absences(strategy) == []


def test_a_client_with_a_hundred_thousand_times_the_examples_is_accepted():
    def make(partition):
        task = quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=0.01))
        task.metrics = {"num-examples": COUNTS[partition]}
        return task

    strategy = Strategy(METHODS[1], EVERYBODY, weights="num_examples")
    quadratics.start(strategy, FatefulGrid(quadratics.app_of(make)), 3)
    assert absences(strategy) == []


def test_one_that_comes_when_the_others_are_done_is_accepted():
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

        return Task(model, quadratics.sgd(model), [batch] * 3, loss)

    def spoil(records):
        return {**records, "buffers": ArrayRecord({"seen": Array(np.full(1, 1e30))})}

    strategy = Strategy(METHODS[0], EVERYBODY)
    grid = BadGrid(quadratics.app_of(make), spoil=spoil)
    strategy.start(grid, ArrayRecord(Counting().state_dict()), num_rounds=ROUND + 1)
    assert absences(strategy) == REFUSED
    assert "its buffers change 3.3e+29 times as much" in strategy.history[ROUND - 1].absent[0].detail


# -- clients that diverge ----------------------------------------------------------------------------------------------


def diverging(when, state_dir=None):
    """Clients that take steps of 1e200 where `when(r, i)`: the second of them leaves the finite numbers."""

    def setup(context, config):
        partition = context.node_config["partition-id"]
        rate = 1e200 if when(config["server-round"] - 1, partition) else LR
        return quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=rate))

    return client_app(setup, state_dir=state_dir)


@pytest.mark.parametrize("method", [PLUS, stgt.STGT(tau=2)], ids=lambda method: method.label)
def test_a_client_that_diverges_reports_it_and_stores_nothing_of_the_round(method, tmp_path, caplog):
    strategy = Strategy(method, EVERYBODY)
    grid = FatefulGrid(diverging(lambda r, i: (r, i) == (1, 3), tmp_path))
    kept = []

    def look(r, arrays):
        records = grid.contexts[4].state.array_records
        state = {(key, name): array.data for key, one in records.items() for name, array in one.items()}
        kept.append((state, [path.read_bytes() for path in tmp_path.glob("*-3.*")]))

    found = quadratics.start(strategy, grid, 3, evaluate_fn=look)
    sentence = "u is not finite after the local steps: use a smaller lr."
    assert f"round 2: client 3 refused: {sentence}" in caplog.text
    faults = [reply.content for reply in grid.replied if "fault" in reply.content["stgt"]]
    assert [set(content) for content in faults] == [{"stgt"}]
    assert faults[0]["stgt"]["fault"] == sentence
    _, first, second, third = kept
    assert first[0]
    assert first[1]
    assert second == first
    assert third != second
    assert "client 3 lost" not in caplog.text
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r, i) == (1, 3) else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, EVERYBODY), lost, 3))


def test_the_direction_of_another_optimiser_is_checked_too():
    """The sum of two gradients of 1e308 is beyond double precision, and steps of 1e-250 leave the model finite."""

    def make(partition):
        task = quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=1e-250, momentum=0.5))
        task.loss = lambda model, batch: 1e308 * model.vector().sum()
        return task

    with pytest.raises(ValueError, match=r"clients 0, 1, 2, 3, 4 refused: u is not finite after the local steps: use"):
        quadratics.start(Strategy(PLUS, EVERYBODY), FatefulGrid(quadratics.app_of(make)), 1)


# -- the last good state -----------------------------------------------------------------------------------------------


def exploding(partition):
    """Steps so long that u overflows: single precision ends at 3.4e38."""
    return quadratics.task(partition, lambda model: torch.optim.SGD(model.parameters(), lr=1e25), dtype=torch.float32)


def as_arrays(state):
    return {
        (r, field, name): array.copy()
        for r, view in state.views.items()
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
    before = as_arrays(strategy.server_state)
    files = path.read_bytes(), (tmp_path / "server.previous.safetensors").read_bytes()
    sentence = r"round 3: 0 of at least 1 replies; clients 0, 1, 2, 3, 4 refused: .*(not finite|overflows).*: use"
    with pytest.raises(ValueError, match=sentence):
        quadratics.start(strategy, grid, 3, arrays=quadratics.initial(dtype))
    # The round is over all the same; the file of the last one before it that counted is where it was.
    assert path.read_bytes() != files[0]
    assert (tmp_path / "server.previous.safetensors").read_bytes() == files[1]
    after = as_arrays(strategy.server_state)
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
    with pytest.raises(ValueError, match=r"the mean direction of u overflows: use a smaller lr\."):
        run_in_process(strategy, quadratics.app_of(make), quadratics.initial(torch.float32), num_rounds=1)
    assert set(strategy.server_state.views) == {-1}


def test_a_mean_that_overflows_leaves_the_state(tmp_path):
    def make(partition):
        model = quadratics.Point(torch.float32)

        def loss(model, batch):
            with torch.no_grad():
                model.u.fill_(1e38)
            return model.vector().sum() * 0

        return Task(model, torch.optim.SGD(model.parameters(), lr=1.0), [None], loss)

    strategy = Strategy(
        stgt.ScaffoldPlus(tau=1, gamma_g=9.0), stgt.topology.server(CLIENTS, sampled=2), checkpoint=tmp_path / "server"
    )
    with pytest.raises(ValueError, match=r"u is not finite after round 1: use a smaller lr, gamma_g or gamma_c\."):
        run_in_process(strategy, quadratics.app_of(make), quadratics.initial(torch.float32), num_rounds=1)
    assert set(strategy.server_state.views) == {-1}
    assert strategy.server_state.trained is None
    assert not (tmp_path / "server").exists()
