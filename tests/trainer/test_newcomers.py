"""Newcomers where something is the matter with the members."""

import itertools
import sys

import pytest
import torch
from elastic_node import minimiser
from elastic_runs import ElasticRun

from stgt.torch import LostNodeError, addresses, transfer


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_newcomer_ends_the_wait_for_min_nodes(forker, tmp_path):
    """Three may train and two are left: they wait, and give a newcomer their model meanwhile."""
    training = ElasticRun(forker, tmp_path, rounds=300, min_nodes=3, report_every=10, sleep=0.002)
    try:
        training.start(0, 1, 2)
        training.nodes[0].wait_until("round", round=20)
        training.kill(2)
        assert training.nodes[2].finish(10) == -9
        training.start(3)
        for end in training.finish(0, 1, 3, seconds=90):
            assert end["members"] == [0, 1, 3]
            assert float((torch.tensor(end["x"], dtype=torch.float64) - minimiser((0, 1, 3))).abs().max()) < 1e-10
    finally:
        training.close()


def test_a_newcomer_whose_members_are_gone_says_so():
    """It does not ask again and again."""

    def alive():
        raise LostNodeError("they are gone")

    store = addresses.open_store(addresses.LOOPBACK, transfer.timedelta(seconds=5))
    with pytest.raises(LostNodeError, match="gone"):
        transfer.receive(store, 0, alive)


def sent(monkeypatch, tensors, damage=None):
    """What a newcomer receives of these tensors, in chunks of 16 bytes."""
    monkeypatch.setattr(transfer, "CHUNK", 16)
    store = addresses.open_store(addresses.LOOPBACK, transfer.timedelta(seconds=5))
    if damage is not None:
        whole = transfer._bytes

        def damaged(value):
            data = bytearray(whole(value))
            if sys._getframe(1).f_code.co_name == "_send" and next(calls) == damage:
                data[0] ^= 1
            return memoryview(data)

        calls = itertools.count()
        monkeypatch.setattr(transfer, "_bytes", damaged)
    transfer.send(f"{addresses.LOOPBACK}:{store.port}", 3, "a", {"round": 7}, tensors)
    return transfer.receive(store, 3, lambda: None)


def test_a_model_is_received_to_the_last_bit(monkeypatch):
    numbers = torch.arange(37).reshape(37, 1)
    tensors = {str(kind): numbers.to(kind) for kind in transfer._DTYPES.values()}
    tensors |= {"none": torch.empty(0, 3), "one": torch.tensor(0.1), "turned": torch.rand(4, 5).T}
    metadata, received = sent(monkeypatch, tensors)
    assert metadata == {"round": 7}
    assert received.keys() == tensors.keys()
    for name, value in tensors.items():
        assert received[name].dtype == value.dtype
        assert torch.equal(received[name], value)


def test_a_byte_that_changed_on_the_way_is_noticed(monkeypatch):
    """The digest is of two tensors' bytes, and one bit of the second is sent otherwise."""
    tensors = {"a": torch.rand(8), "b": torch.rand(8)}
    with pytest.raises(transfer.TransferError, match="differ from those that were sent"):
        sent(monkeypatch, tensors, damage=3)  # each is read once for the digest, and once to be sent
