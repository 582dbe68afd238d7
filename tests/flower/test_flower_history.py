"""What a run leaves behind: its history as a table and a figure, a line a round, and clients that are late."""

import csv
import gc
import logging
import threading
import time
import weakref

import numpy as np
import pytest
import quadratics
from flwr.app import MetricRecord
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Absence, RoundOutcome, Strategy, client_app, run_in_process
from stgt.flower.in_process import InProcessGrid

EVERYBODY = stgt.topology.server(CLIENTS)
SAMPLED = stgt.topology.server(CLIENTS, sampled=3)
PLUS = stgt.ScaffoldPlus(tau=2)
FATES = {(1, 0): "lost", (1, 3): "error", (2, 4): "nan"}


def fate(r, partition):
    return FATES.get((r, partition), "ok")


def result(rounds=4, **options):
    strategy = Strategy(PLUS, EVERYBODY, **options)
    grid = FatefulGrid(quadratics.app_of(), fate=fate)
    return strategy.start(
        grid,
        quadratics.initial(),
        num_rounds=rounds,
        evaluate_fn=lambda r, arrays: MetricRecord({"distance": 1.0 / (r + 1)}),
    )


def test_every_client_that_was_called_is_taken_in_or_named():
    found = result()
    for one in found.history:
        assert sorted(one.taken + [absence.client for absence in one.absent]) == one.called == list(range(CLIENTS))
    named = {(one.round - 1, absence.client): absence.reason for one in found.history for absence in one.absent}
    assert named == {(1, 0): "late", (1, 3): "crashed", (2, 4): "refused"}


def test_the_table_has_a_row_a_round(tmp_path):
    found = result()
    frame = found.to_pandas()
    assert list(frame["round"]) == [1, 2, 3, 4]
    assert list(frame["clients"]) == [5, 3, 4, 5]
    assert list(frame["late"]) == [0, 1, 0, 0]
    assert list(frame["crashed"]) == [0, 1, 0, 0]
    assert list(frame["refused"]) == [0, 0, 1, 0]
    assert (
        frame["left_out"][1] == "client 0 late: no reply within 3600 s.; client 3 crashed: it failed: the client "
        "crashed while it replied"
    )
    assert list(frame["server_distance"]) == [1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert (frame["train_loss"] > 0).all()
    size = sum(len(array.data) for array in quadratics.initial().values())
    assert list(frame["bytes_up"]) == [size * count for count in (5, 3, 4, 5)]
    assert list(frame["bytes_down"]) == [5 * size] + [2 * 5 * size] * 3  # no c in the first round
    with found.to_csv(tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["clients"] for row in rows] == ["5", "3", "4", "5"]
    assert list(rows[0]) == list(frame.columns)


def test_the_figure_is_drawn(tmp_path):
    paths = result().curves(tmp_path / "federated")
    assert [path.name for path in paths] == ["federated.png", "federated.pdf"]
    assert all(path.stat().st_size > 5000 for path in paths)
    empty = result(1)
    empty.history = []
    with pytest.raises(ValueError, match="the run has no rounds: there is nothing to draw"):
        empty.curves(tmp_path / "nothing")


def test_a_line_a_round(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    result()
    lines = [record.message for record in caplog.records if record.message.startswith("round 2 of 4: ")]
    assert len(lines) == 1
    assert lines[0].startswith("round 2 of 4: 3 of 5 clients, loss ")
    assert lines[0].endswith(" s; left out: 0 late, 3 crashed")


def test_a_round_in_one_line():
    absent = [Absence(2, "late", "no reply within 5 s.")]
    one = RoundOutcome(3, [1, 2], [1], absent, metrics={"loss": 0.25}, up=1_500_000, down=3_000_000, seconds=1.25)
    assert one.line(9) == "round 3 of 9: 1 of 2 clients, loss 0.25, 1.5 MB up, 3 MB down, 1.2 s; left out: 2 late"


def test_a_round_for_which_too_few_are_there_says_how_many_it_wanted(caplog):
    class One(FatefulGrid):
        def get_node_ids(self):
            return [2]

    caplog.set_level(logging.INFO, logger="flwr")
    Strategy(PLUS, SAMPLED).start(One(quadratics.app_of()), quadratics.initial(), num_rounds=1)
    (line,) = [record.message for record in caplog.records if record.message.startswith("round 1 of 1: ")]
    assert line.startswith("round 1 of 1: 1 of 3 clients, loss ")
    assert line.endswith(" s; 1 connected")


def test_a_result_is_printed_in_one_line():
    found = result()
    text = "Scaffold⁺, 5 of 5 clients a round: 4 rounds, 4 of them counted, 3 replies left out"
    assert str(found) == repr(found) == f"<{text}; loss {found.history[-1].metrics['loss']:.4g}>"


def test_the_history_goes_on_with_the_run(tmp_path):
    path = tmp_path / "server.safetensors"
    for rounds in (2, 4):
        found = result(rounds, checkpoint=path)
    whole = result(4)
    unlike = ("seconds", "bytes_down", "train_downlink-bytes")  # what they keep is sent to those who go on
    assert [{k: v for k, v in row.items() if k not in unlike} for row in found.rows] == [
        {k: v for k, v in row.items() if k not in unlike} for row in whole.rows
    ]


def test_a_history_that_cannot_be_read_begins_anew(tmp_path, caplog):
    path = tmp_path / "server.safetensors"
    result(2, checkpoint=path)
    (tmp_path / "server.history.json").write_text('[{"round": 1}]')
    found = result(4, checkpoint=path)
    assert "a new history begins" in caplog.text
    assert [one.round for one in found.history] == [3, 4]


# -- clients that are late, in this process ----------------------------------------------------------------------------


def slow(seconds, who, when):
    def setup(context, config):
        partition = context.node_config["partition-id"]
        if partition == who and config["server-round"] in when:
            seconds(config["server-round"])
        return quadratics.task(partition)

    return client_app(setup)


def test_a_client_that_takes_too_long_is_late_and_the_others_go_on():
    """It is the run in which its reply was lost; while it is still at work it is late again, and then it is back."""
    free = threading.Event()
    app = slow(lambda r: free.wait(60), who=2, when={2})
    strategy = Strategy(PLUS, EVERYBODY)

    def look(r, arrays):
        if r == 3:  # it has been late twice
            free.set()
            time.sleep(0.5)

    began = time.monotonic()
    found = run_in_process(strategy, app, quadratics.initial(), num_rounds=6, timeout=2.0, evaluate_fn=look)
    assert time.monotonic() - began < 40
    named = [(one.round, a.client, a.reason, a.detail) for one in found.history for a in one.absent]
    assert named == [(r, 2, "late", "no reply within 2 s.") for r in (2, 3)]
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if i == 2 and r in (1, 2) else "ok")
    np.testing.assert_array_equal(quadratics.vector(found.arrays), quadratics.start(Strategy(PLUS, EVERYBODY), lost, 6))


def test_clients_that_all_hang_end_the_run():
    free = threading.Event()
    app = client_app(lambda context, config: free.wait(60))
    with pytest.raises(ValueError, match=r"2 rounds in a row .* clients 0, 1, 2, 3, 4 late: no reply within 0\.2 s\.$"):
        run_in_process(Strategy(PLUS, EVERYBODY, patience=2), app, quadratics.initial(), num_rounds=9, timeout=0.2)
    free.set()


def test_a_grid_that_nobody_needs_leaves_nothing_behind():
    """Neither its thread nor what its clients keep."""
    before = {*threading.enumerate()}  # of which some that other tests left may end meanwhile
    strategy, grid = Strategy(PLUS, EVERYBODY), InProcessGrid(quadratics.app_of(), CLIENTS)
    strategy.start(grid, quadratics.initial(), num_rounds=1)
    context = weakref.ref(grid.contexts[1].state)
    (own,) = {*threading.enumerate()} - before
    del grid, strategy
    gc.collect()
    assert context() is None
    own.join(timeout=20)
    assert not own.is_alive()


def test_a_client_that_is_no_longer_connected_is_gone():
    class LeavingGrid(FatefulGrid):
        def get_node_ids(self):
            return [node for node in self.contexts if node != 3 or len(self.sends()) < CLIENTS]

    grid = LeavingGrid(quadratics.app_of(), fate=lambda r, i: "lost" if i == 2 else "ok")
    found = Strategy(PLUS, EVERYBODY).start(grid, quadratics.initial(), num_rounds=2)
    assert [str(absence) for absence in found.history[0].absent] == ["client 2 gone: it is no longer connected."]
    assert found.history[1].called == [0, 1, 3, 4]
