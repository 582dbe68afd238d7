"""The membership: who takes part, in which order, and what a node does with the others."""

import pytest
import torch

from stgt.torch.membership import Membership


def test_all_nodes_have_the_same_members_and_reach_one_another(world):
    n = 8
    for rank, found in enumerate(world.run("members")):
        assert found == {
            "members": tuple(range(n)), "rank": rank, "nodes": n, "epoch": 0, "everybody": list(range(n)),
            "received": (rank - 1) % n, "sum": n * (n - 1) / 2, "first": 5.0, "gathered": list(range(n)),
        }  # fmt: skip


def test_a_node_alone(alone):
    mine = Membership()
    assert (mine.members, mine.rank, mine.nodes, mine.epoch) == ((0,), 0, 1, 0)
    assert mine.barrier("a call", 7) == [7]
    mine.open_group()
    assert mine.sum(torch.ones(2)).tolist() == [1.0, 1.0]
    mine.begin_round(3)
    mine.progress()
    mine.end_round()
    with pytest.raises(KeyError), mine.collective("a call"):
        raise KeyError


def test_there_is_none_without_a_process_group():
    with pytest.raises(ValueError, match=r"call stgt\.torch\.init\(\) before"):
        Membership()
