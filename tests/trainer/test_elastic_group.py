"""What the members of an epoch send, two of them in the threads of one process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from stgt.torch import addresses, elastic_group
from stgt.torch.elastic_group import ElasticGroup
from stgt.torch.membership import RECEIVE, SEND


@pytest.mark.parametrize("device", ["host", "other"])
def test_tensors_arrive_where_they_belong(monkeypatch, device):
    """Those of another device too, which gloo is given copies of; here a copy is made of what is on the host."""
    if device == "other":
        monkeypatch.setattr(elastic_group, "_on_host", torch.Tensor.clone)
    store = addresses.open_store(addresses.LOOPBACK, timedelta(seconds=10))

    def run(node):
        group = ElasticGroup(f"{addresses.LOOPBACK}:{store.port}", "key", node, ("a", "b"))
        group.arrive()
        while not group.complete():
            pass
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
