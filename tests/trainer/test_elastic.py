"""Training that outlives its nodes: what survivors, leavers and newcomers converge to, and how fast they go on."""

import pytest
import torch
from elastic_node import minimiser
from elastic_runs import ElasticRun


@pytest.fixture
def run(forker, tmp_path):
    made = []

    def start(**settings):
        made.append(ElasticRun(forker, tmp_path, **settings))
        return made[-1]

    yield start
    for one in made:
        one.close()


def distance(end, numbers):
    """How far a node's last model is from the minimiser over these nodes, by the normal equations."""
    return float((torch.tensor(end["x"], dtype=torch.float64) - minimiser(numbers)).abs().max())


@pytest.mark.parametrize("merged", [0, 1, 2, 3])
@pytest.mark.parametrize("algorithm", ["ST-GT", "LED", "K-GT", "Outer"])
def test_one_is_killed_in_an_exchange_and_one_joins(run, algorithm, merged):
    """At every chunk of the exchange: the rest goes to its minimiser, and after a join all go to that of all."""
    training = run(algorithm=algorithm, rounds=400, chunk=2, report_every=10, min_nodes=2, sleep=0.002)
    training.start(0, 1, 3)
    training.start(2, kill={"round": 20, "merged": merged})
    assert training.nodes[2].finish(60) == -9
    survivors = (0, 1, 3)
    there = training.nodes[0].wait_until("round", round=200)
    print(distance(there, survivors))
    for one in training.finish(*survivors):
        assert one["members"] == [0, 1, 3]
        assert distance(one, survivors) < 1e-10
        assert one["metrics"]["sum_c"] < 1e-12
