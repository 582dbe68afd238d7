"""Newcomers where something is the matter with the members."""

import pytest
import torch
from elastic_node import minimiser
from elastic_runs import ElasticRun

from stgt.torch import LostNodeError, addresses, transfer


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
