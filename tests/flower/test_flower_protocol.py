"""What server and client believe of each other when messages come late, twice or in the wrong order."""

import numpy as np
import pytest
import quadratics
import torch
from quadratics import CLIENTS, FatefulGrid, P, RestartGrid

import stgt
from stgt.flower import Strategy

EVERYBODY = stgt.topology.server(CLIENTS)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
METHODS = [PLUS, stgt.STGT(tau=2)]
NAMED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)


def assert_consistent(strategy, grid):
    """The invariant of the method, on what clients hold and the server believes."""
    if isinstance(strategy.algorithm, stgt.STGT):
        np.testing.assert_allclose(quadratics.own_states(strategy, grid, "c").sum(axis=0), 0.0, rtol=0, atol=1e-12)
        return
    own = quadratics.own_states(strategy, grid, "own")
    c = quadratics.held(strategy, "c") if len(next(iter(strategy.server_state.views.values()))) > 1 else np.zeros(P)
    topology = strategy.topology
    share = topology.participation
    scale = strategy.algorithm.control_rate(share) / share
    np.testing.assert_allclose(c, scale * own.mean(axis=0), rtol=0, atol=1e-12)


def undisturbed(method, rounds, topology=EVERYBODY):
    return quadratics.start(Strategy(method, topology), FatefulGrid(quadratics.app_of()), rounds)


class TwiceGrid(FatefulGrid):
    """Every train message is delivered twice; the first reply counts."""

    def _call(self, message):
        first = super()._call(message)
        if message.metadata.message_type == "train":
            super()._call(message)
        return first


@NAMED
def test_a_message_delivered_twice_changes_nothing_where_clients_repeat_themselves(method):
    strategy, grid = Strategy(method, EVERYBODY), TwiceGrid(quadratics.app_of())
    np.testing.assert_array_equal(quadratics.start(strategy, grid, 4), undisturbed(method, 4))
    assert_consistent(strategy, grid)


@NAMED
def test_a_message_delivered_twice_to_a_client_that_does_not_repeat_itself_is_noticed(method, caplog):
    calls = np.random.default_rng(0)

    def make(partition):
        return quadratics.task(partition, steps=int(calls.integers(1, 9)) if partition == 0 else 2)

    strategy, grid = Strategy(method, EVERYBODY), TwiceGrid(quadratics.app_of(make))
    found = quadratics.start(strategy, grid, 2)
    assert "round 2: client 0 lost: it restarted without its state" in caplog.text
    assert_consistent(strategy, grid)
    assert np.isfinite(found).all()


class LateGrid(FatefulGrid):
    """Client 2 receives round 1 only after it has answered round 2."""

    late = None

    def _call(self, message):
        r = message.content["stgt"].get("round")
        if message.metadata.message_type != "train" or self._partition(message) != 2 or r not in (1, 2):
            return super()._call(message)
        if r == 1:
            self.late = message
            return None
        reply = super()._call(message)
        super()._call(self.late)
        return reply

    def _partition(self, message):
        return self.contexts[message.metadata.dst_node_id].node_config["partition-id"]


@NAMED
def test_an_old_message_after_a_newer_one_is_noticed(method, caplog):
    strategy, grid = Strategy(method, EVERYBODY), LateGrid(quadratics.app_of())
    quadratics.start(strategy, grid, 3)
    with pytest.raises(AssertionError):  # the server believes the reply to round 2, the client has that to round 1
        quadratics.own_states(strategy, grid, "c" if isinstance(method, stgt.STGT) else "own")
    found = quadratics.start(strategy, grid, 6)
    assert "round 4: client 2 lost: " in caplog.text
    assert_consistent(strategy, grid)
    assert np.isfinite(found).all()


class DelayedGrid(FatefulGrid):
    """Client 3's reply to round 1 comes with those to round 2."""

    kept = None

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        r = self.sent[-1].content["stgt"].get("round") if replies else None
        if r == 1:
            self.kept = replies.pop(3)
        elif r == 2:
            replies[3] = self.kept
        return replies


@NAMED
def test_a_reply_to_an_earlier_round_is_left_out(method, caplog):
    strategy, grid = Strategy(method, EVERYBODY), DelayedGrid(quadratics.app_of())
    found = quadratics.start(strategy, grid, 4)
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if i == 3 and r in (1, 2) else "ok")
    assert "round 3: client 3 refused: its reply is to another round" in caplog.text
    np.testing.assert_array_equal(found, quadratics.start(Strategy(method, EVERYBODY), lost, 4))
    assert_consistent(strategy, grid)


@NAMED
def test_a_client_that_starts_again_is_left_out_once_and_goes_on_from_the_server_s_copy(method, caplog):
    """The run is that in which its reply of that round was lost, to the bit: the others' replies are taken in, c and
    what they keep stay, and with the next call it gets back what it kept."""
    strategy, grid = Strategy(method, EVERYBODY), RestartGrid(quadratics.app_of())
    found = quadratics.start(strategy, grid, 12)
    assert caplog.text.count("client 1 lost: ") == 1
    assert "give client_app a state_dir" in caplog.text
    assert [one.taken for one in strategy.history if len(one.taken) < CLIENTS] == [[0, 2, 3, 4]]
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r, i) == (RestartGrid.at, 1) else "ok")
    other = Strategy(method, EVERYBODY)
    np.testing.assert_array_equal(found, quadratics.start(other, lost, 12))
    field = "c" if isinstance(method, stgt.STGT) else "own"
    np.testing.assert_array_equal(
        quadratics.own_states(strategy, grid, field), quadratics.own_states(other, lost, field)
    )
    assert_consistent(strategy, grid)
    copies = [set(message.content) & {"client_state.own", "client_state.c"} for message in grid.sends()]
    assert sum(map(bool, copies)) == 1, "the copy is sent once"


def test_a_client_without_control_variable_may_start_again_as_it_likes(caplog):
    method = stgt.FedProx(tau=2, mu_prox=0.1)
    found = quadratics.start(Strategy(method, EVERYBODY), RestartGrid(quadratics.app_of()), 6)
    np.testing.assert_array_equal(found, undisturbed(method, 6))
    assert "client 1 lost" not in caplog.text


@NAMED
def test_clients_that_start_again_and_again_leave_the_algebra_right(method):
    """Each client's context is emptied at random moments, with two of five called a round: what is conserved stays."""
    topology, draws = stgt.topology.server(CLIENTS, sampled=2), np.random.default_rng(5)

    class ForgetfulGrid(FatefulGrid):
        def send_and_receive(self, messages, *, timeout=None):
            for node in self.contexts:
                if draws.random() < 0.2:
                    self.contexts[node] = quadratics.fresh(self.contexts[node])
            return super().send_and_receive(messages, timeout=timeout)

    strategy, grid = Strategy(method, topology, patience=50), ForgetfulGrid(quadratics.app_of())
    quadratics.start(strategy, grid, 60)
    reasons = [absence.reason for one in strategy.history for absence in one.absent]
    assert set(reasons) == {"lost"}
    assert len(reasons) > 10
    # What is conserved, by the server's copies: the clients' own are gone now and then.
    own = np.zeros((CLIENTS, P))
    for partition, kept in strategy.server_state.client_states.items():
        arrays = next(iter(kept.values()))
        own[partition] = np.concatenate([arrays[name].reshape(-1) for name in ("u", "v")])
    c = np.zeros(P) if isinstance(method, stgt.STGT) else quadratics.held(strategy, "c")
    scale = 1.0 if isinstance(method, stgt.STGT) else method.gamma_c * CLIENTS / 2
    np.testing.assert_allclose(scale * own.mean(axis=0), c, rtol=0, atol=1e-12)


@NAMED
def test_a_start_begins_anew_though_clients_remember_the_last_one(method):
    strategy, grid = Strategy(method, EVERYBODY), FatefulGrid(quadratics.app_of())
    first = quadratics.start(strategy, grid, 5)
    second = quadratics.start(strategy, grid, 5)
    np.testing.assert_array_equal(first, second)
    assert_consistent(strategy, grid)


@NAMED
def test_views_stay_as_long_as_a_client_starts_from_them(method):
    """Client 4 is away for long: ST-GT's view of its last round must still be there, Scaffold's need not."""
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if i == 4 and 2 <= r < 9 else "ok")
    strategy = Strategy(method, EVERYBODY)
    quadratics.start(strategy, grid, 9)
    assert set(strategy.server_state.views) == ({1, 8} if isinstance(method, stgt.STGT) else {8})
    assert_consistent(strategy, grid)
    quadratics.start(strategy, grid, 10)
    assert set(strategy.server_state.views) == {9}
    assert_consistent(strategy, grid)


def test_what_clients_draw_depends_on_seed_partition_and_round_only():
    drawn = []

    def make(partition):
        drawn.append((partition, torch.rand(1).item()))
        return quadratics.task(partition)

    for seed in (0, 0, 1):
        quadratics.start(Strategy(PLUS, EVERYBODY, seed=seed), FatefulGrid(quadratics.app_of(make)), 2)
        torch.rand(3)
    first, again, other = drawn[:10], drawn[10:20], drawn[20:]
    assert first == again
    assert len({value for _, value in first + other}) == 20
