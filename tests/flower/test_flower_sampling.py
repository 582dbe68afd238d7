"""Whom the server calls: by partition, uniformly, among those who are there."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import quadratics
from flwr.app import ConfigRecord, Context, RecordDict
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy

SAMPLED = stgt.topology.server(CLIENTS, sampled=2)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)


class NodesGrid(FatefulGrid):
    """Its nodes have the ids and partitions that are given; those not in `listed` are not connected."""

    def __init__(self, nodes, app=None, **options):
        super().__init__(app or quadratics.app_of(), **options)
        self.contexts = {
            node: Context(0, node, {} if partition is None else {"partition-id": partition}, RecordDict(), {})
            for node, partition in nodes.items()
        }
        self.listed = list(nodes)

    def get_node_ids(self):
        return self.listed

    def called(self):
        """The partitions called in each round."""
        rounds: dict[int, list[int]] = {}
        for message in self.sends():
            partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            rounds.setdefault(message.content["stgt"]["round"], []).append(partition)
        return rounds


def test_node_ids_do_not_matter():
    """As a deployment gives other ids in every run, in any order."""
    usual = NodesGrid({node + 1: node for node in range(CLIENTS)})
    other = NodesGrid({910: 3, 17: 0, 2**60: 4, 5: 2, 44: 1})
    strategies = Strategy(PLUS, SAMPLED, seed=3), Strategy(PLUS, SAMPLED, seed=3)
    found = [quadratics.start(strategy, grid, 8) for strategy, grid in zip(strategies, (usual, other), strict=True)]
    np.testing.assert_array_equal(*found)
    assert usual.called() == other.called()
    another = NodesGrid({node + 1: node for node in range(CLIENTS)})
    quadratics.start(Strategy(PLUS, SAMPLED, seed=4), another, 8)
    assert another.called() != usual.called()


@pytest.mark.parametrize(
    # 0.999-quantiles of χ² with C(5, 2) − 1 = 9 and C(4, 2) − 1 = 5 degrees of freedom; the seed is fixed.
    ("present", "bound"),
    [(range(CLIENTS), 27.88), ([0, 1, 2, 4], 20.52)],
    ids=["all there", "one absent"],
)
def test_all_groups_are_equally_likely(present, bound):
    rounds = 800
    strategy, grid = Strategy(PLUS, SAMPLED), NodesGrid({node + 1: node for node in present})
    nodes = {node: context.node_config["partition-id"] for node, context in grid.contexts.items()}
    seen: Counter = Counter()

    def look(r, arrays):
        for number in range(1, rounds + 1) if r == 1 else ():
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            seen[tuple(sorted(nodes[message.metadata.dst_node_id] for message in messages))] += 1

    quadratics.start(strategy, grid, 1, evaluate_fn=look)
    groups = list(combinations(present, 2))
    assert set(seen) == set(groups)
    expected = rounds / len(groups)
    assert sum((seen[group] - expected) ** 2 / expected for group in groups) < bound


def test_those_who_come_later_are_met():
    class LateGrid(NodesGrid):
        def get_node_ids(self):
            return self.listed[: 2 if len(self.called()) < 3 else None]

    grid = LateGrid({node + 1: node for node in range(CLIENTS)})
    quadratics.start(Strategy(PLUS, SAMPLED), grid, 12)
    called = grid.called()
    assert all(called[r] == [0, 1] for r in range(3))
    assert {partition for r in range(3, 12) for partition in called[r]} == set(range(CLIENTS))
    assert [sorted(called[r]) for r in range(3, 12)] == [SAMPLED.called(r, 0, range(CLIENTS)) for r in range(3, 12)]
    assert len(grid.sends("query")) == CLIENTS  # each node is asked once


def test_those_who_leave_are_not_called():
    class LeavingGrid(NodesGrid):
        def get_node_ids(self):
            return self.listed if len(self.called()) < 3 else [1, 3, 5]

    grid = LeavingGrid({node + 1: node for node in range(CLIENTS)})
    quadratics.start(Strategy(PLUS, SAMPLED), grid, 12)
    assert {partition for r in range(3, 12) for partition in grid.called()[r]} == {0, 2, 4}


def test_fewer_than_s_are_all_called_and_c_keeps_its_proportion():
    grid = NodesGrid({7: 3})
    strategy = Strategy(PLUS, stgt.topology.server(CLIENTS, sampled=3))
    quadratics.start(strategy, grid, 4)
    assert list(grid.called().values()) == [[3]] * 4
    own = quadratics.own_states(strategy, grid, "own")  # of the one that is there; the others' are 0
    expected = 0.7 * CLIENTS / 3 * own.sum(axis=0) / CLIENTS
    np.testing.assert_allclose(quadratics.held(strategy, "c"), expected, rtol=0, atol=1e-13)


class ClaimedGrid(NodesGrid):
    """Node 99 claims partition 1 from round 2 on; its holder, node 2, is listed until round `drops`."""

    drops = 99

    def get_node_ids(self):
        r = len(self.called())
        return [node for node in self.listed if (node != 99 or r > 1) and (node != 2 or r < self.drops)]


CLAIMED = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 99: 1}


def test_a_second_node_that_claims_a_taken_partition_is_refused(caplog):
    grid, strategy = ClaimedGrid(CLAIMED), Strategy(PLUS, stgt.topology.server(CLIENTS))
    found = quadratics.start(strategy, grid, 6)
    assert "node 99 claims partition-id=1, which node 2 has: it is refused while node 2 is connected" in caplog.text
    assert all(message.metadata.dst_node_id != 99 for message in grid.sends())
    undisturbed = NodesGrid({node: partition for node, partition in CLAIMED.items() if node != 99})
    np.testing.assert_array_equal(
        found, quadratics.start(Strategy(PLUS, stgt.topology.server(CLIENTS)), undisturbed, 6)
    )


def test_a_partition_is_free_when_its_node_is_gone(caplog):
    """As that of a SuperNode without a key of its own, which restarted: it has another id, and no state."""
    grid, strategy = ClaimedGrid(CLAIMED), Strategy(PLUS, stgt.topology.server(CLIENTS))
    grid.drops = 4
    quadratics.start(strategy, grid, 8)
    called = [{m.metadata.dst_node_id for m in grid.sends() if m.content["stgt"]["round"] == r} for r in range(8)]
    assert [99 in row for row in called] == [False] * 4 + [True] * 4
    assert [(2 in row) for row in called] == [True] * 4 + [False] * 4
    lost = [(one.round, absence.client) for one in strategy.history for absence in one.absent]
    assert lost == [(5, 1)]  # and then it has the server's copy
    assert strategy.history[4].absent[0].reason == "lost"


def test_a_node_that_says_nothing_is_asked_less_and_less(caplog):
    class SilentGrid(NodesGrid):
        def _call(self, message):
            return None if message.metadata.dst_node_id == 6 else super()._call(message)

    grid = SilentGrid({**{node + 1: node for node in range(CLIENTS)}, 6: 0})
    quadratics.start(Strategy(PLUS, SAMPLED), grid, 7)
    assert len(grid.sends("query")) == CLIENTS + 3  # in rounds 1, 2 and 4


def test_a_node_that_has_become_another_partition_is_asked_again(caplog):
    class ChangingGrid(NodesGrid):
        """The SuperNode of node 1 restarts with its old id as the sixth client, and the first is gone."""

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if messages and messages[0].content["stgt"].get("round") == 2:
                self.contexts[1] = Context(0, 1, {"partition-id": 5}, RecordDict(), {})
            return super().send_and_receive(messages, timeout=timeout)

    make = quadratics.task
    grid = ChangingGrid({node + 1: node for node in range(CLIENTS)}, quadratics.app_of(lambda i: make(i % CLIENTS)))
    strategy = Strategy(PLUS, stgt.topology.server(6))
    quadratics.start(strategy, grid, 5)
    assert "round 3: client 0 refused: it is partition 5 now" in caplog.text
    assert sorted(grid.called()[3]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (None, r"the client has no partition: start its SuperNode with --node-config 'partition-id=0'\."),
        (CLIENTS, rf"a client has partition-id={CLIENTS}: use 0 to {CLIENTS - 1}\."),
        (-1, r"partition-id=-1: give a whole number of at least 0\."),
        ("first", r"partition-id='first': give a whole number of at least 0\."),
    ],
)
def test_a_partition_that_is_none_is_one_sentence(partition, sentence, caplog):
    with pytest.raises(ValueError, match=f"^0 of at least 1 clients are connected: {sentence}$"):
        quadratics.start(Strategy(PLUS, SAMPLED), NodesGrid({1: partition}), 1)
    grid = NodesGrid({1: partition, 2: 0, 3: 1})  # with others, it is left out
    quadratics.start(Strategy(PLUS, SAMPLED), grid, 2)
    assert len(grid.sends()) == 4


def test_too_few_clients_are_waited_for_and_then_it_is_one_sentence(monkeypatch):
    monkeypatch.setattr("stgt.flower.registry.time.sleep", lambda seconds: None)
    strategy = Strategy(PLUS, SAMPLED, min_clients=2, wait=0.01)
    with pytest.raises(ValueError, match=r"1 of at least 2 clients are connected: .* start more SuperNodes\.$"):
        quadratics.start(strategy, NodesGrid({1: 0}), 1)


def test_a_faulty_node_does_not_end_the_wait_for_others(monkeypatch):
    """While fewer than min_clients are connected at all, the ones to come may be right."""
    grid = NodesGrid({1: None, 2: 0, 3: 1})
    grid.listed = [1]
    monkeypatch.setattr("stgt.flower.registry.time.sleep", lambda seconds: grid.listed.extend([2, 3]))
    quadratics.start(Strategy(PLUS, SAMPLED, min_clients=2), grid, 1)
    assert sorted(grid.called()[0]) == [0, 1]
