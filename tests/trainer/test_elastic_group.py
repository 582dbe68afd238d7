"""What the members of an epoch send, two of them in the threads of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from stgt.torch import addresses, elastic_group
from stgt.torch.elastic_group import ElasticGroup
from stgt.torch.membership import RECEIVE, SEND

TIMEOUT = 3.0


@pytest.mark.parametrize("device", ["host", "other"])
def test_tensors_arrive_where_they_belong(monkeypatch, device):
    """Those of another device too, which gloo is given copies of; here a copy is made of what is on the host."""
    if device == "other":
        monkeypatch.setattr(elastic_group, "_on_host", torch.Tensor.clone)
    store = addresses.open_store(addresses.LOOPBACK, timedelta(seconds=10))

    def run(node):
        group = ElasticGroup(f"{addresses.LOOPBACK}:{store.port}", "key", node, ("a", "b"), TIMEOUT)
        group.assemble()
        group.connect()
        mine, theirs = torch.full((3,), float(1 + group.rank)), torch.zeros(3)
        other = 1 - group.rank
        works = group.post([(SEND, mine, other, 0), (RECEIVE, theirs, other, 0)])
        group.wait([work for _, work in works])
        gathered, total, first = group.gather(mine), mine.clone(), mine.clone()
        group.sum(total)
        group.broadcast(first)
        found = group.gather_values([node])
        return [mine, theirs, *gathered, total, first], found

    with ThreadPoolExecutor(2) as threads:
        (a, values), (b, same) = threads.map(run, "ab")
    assert [one.tolist() for one in a] == [[x] * 3 for x in (1.0, 2.0, 1.0, 2.0, 3.0, 1.0)]
    assert [one.tolist() for one in b] == [[x] * 3 for x in (2.0, 1.0, 1.0, 2.0, 3.0, 1.0)]
    assert values == same == [["a"], ["b"]]


@pytest.mark.thorough
def test_a_connection_that_closes_in_the_middle_of_a_message_leaves_no_thread_for_good():
    """gloo does not end the wait for that message.

    The receiver notices by the byte behind it. The sender gives it up, and its thread ends with the time-out.
    """
    store = addresses.open_store(addresses.LOOPBACK, timedelta(seconds=10))
    large, received = torch.ones(1 << 30, dtype=torch.uint8), torch.zeros(1 << 30, dtype=torch.uint8)

    def run(node):
        group = ElasticGroup(f"{addresses.LOOPBACK}:{store.port}", "key", node, ("a", "b"), TIMEOUT)
        group.assemble()
        group.connect()
        if node == "b":
            works = group.post([(SEND, large, 0, 0)])
            while not received[0]:
                pass
            group.close()  # a part has arrived
        else:
            works = group.post([(RECEIVE, received, 1, 0)])
        with pytest.raises(RuntimeError) as caught:
            group.wait([work for _, work in works])
        group._waiter.stop()
        return caught.type

    before = set(threading.enumerate())
    with ThreadPoolExecutor(2) as threads:
        noticed, _ = threads.map(run, "ab")
    assert noticed is RuntimeError  # and not a ForgottenError
    assert not received[-1]
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(10 * TIMEOUT)
    assert not any(thread.is_alive() for thread in left)
