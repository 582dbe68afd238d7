"""The shares of an elastic training: together each sample once, whatever the members are."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from stgt.torch import ClockSampler, ElasticSampler
from stgt.torch.data import sample_indices


@dataclass
class Node:
    """What a sampler asks of an optimiser."""

    members: tuple
    rank: int


def shares(samples, nodes, seed, number):
    """What each of the nodes takes in a pass, by rank."""
    found = []
    for rank in range(nodes):
        sampler = ElasticSampler(samples, Node(tuple("abcdefghijklmnop"[:nodes]), rank), seed)
        sampler.passes = number
        length = len(sampler)
        found.append(list(sampler))
        assert len(found[-1]) == length
    return found


@given(st.integers(1, 300), st.integers(1, 16), st.integers(0, 2**32 - 1), st.integers(0, 1000), st.randoms())
def test_the_members_take_each_sample_once(samples, nodes, seed, number, random):
    samples = max(samples, nodes)
    found = shares(samples, nodes, seed, number)
    random.shuffle(found)  # whoever stands at which place
    assert sorted(index for share in found for index in share) == list(range(samples))
    lengths = [len(share) for share in found]
    assert max(lengths) - min(lengths) <= 1
    assert sorted(shares(samples, nodes, seed, number)) == sorted(found)


def test_an_order_belongs_to_seed_and_pass():
    one, again, other = (ElasticSampler(100, Node(("a",), 0), seed) for seed in (3, 3, 4))
    first, second = list(one), list(one)
    assert one.passes == 2
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    assert (list(again), list(again)) == (first, second)
    assert list(other) != first


def test_the_next_pass_has_the_members_of_its_time():
    node = Node(("a", "b"), 1)
    dataset = TensorDataset(torch.arange(10))
    loader = DataLoader(dataset, batch_size=2, sampler=ElasticSampler(dataset, node))
    rest = iter(loader)
    before = next(rest)[0].tolist()
    node.members, node.rank = ("b",), 0  # the other one is lost
    before += [one for batch in rest for one in batch[0].tolist()]
    assert len(set(before)) == 5  # its share goes on,
    assert sorted(one for batch in loader for one in batch[0].tolist()) == list(range(10))  # and then all is its own
    assert len(loader) == 5


def test_fewer_samples_than_nodes_are_refused():
    assert list(ElasticSampler(2, Node(("a", "b", "c"), 1)))
    with pytest.raises(ValueError, match="samples=2 is too few for 3 nodes: each needs at least one"):
        iter(ElasticSampler(2, Node(("a", "b", "c"), 2)))
    with pytest.raises(ValueError, match="samples=0: give a whole number of at least 1"):
        ElasticSampler([], Node(("a",), 0))


def test_a_clock_takes_the_number_that_it_is_given(alone):
    """It draws what that node draws, by the function whose draws are compared with the simulator's."""
    for node in (0, 1, 7):
        sampler = ClockSampler(50, 4, seed=1, node=node)
        assert sampler.at(9) == sample_indices(1, node, 9, 4, 50).tolist()
    assert ClockSampler(50, 4, seed=1).at(9) == ClockSampler(50, 4, seed=1, node=0).at(9)
    with pytest.raises(ValueError, match="node=-1"):
        ClockSampler(50, 4, node=-1)


def test_a_clock_without_a_number_says_where_to_get_one():
    with pytest.raises(ValueError, match=r"give ClockSampler\(node=…\)"):
        ClockSampler(50, 4).at(0)
