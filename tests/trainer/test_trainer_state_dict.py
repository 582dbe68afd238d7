"""state_dict and load_state_dict: what frameworks keep of an optimiser, with torch.save."""

import pytest
from literal import NODES


@pytest.mark.parametrize("model_first", [False, True])
@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("sgd", {}),
        ("momentum", {}),
        ("adamw", {}),
        ("sgd", {"name": "FlexGT"}),
        ("adamw", {"name": "FlexGT"}),
        ("sgd", {"name": "Scaffold", "graph": "server"}),
        ("momentum", {"name": "Scaffold", "graph": "server"}),
        ("sgd", {"name": "ProxSkip", "graph": "server-all"}),
        ("sgd", {"name": "KGT", "graph": "one-peer"}),
        ("sgd", {"early": True}),
    ],
    ids=str,
)
@pytest.mark.sampled(4, each="base")
def test_both_state_dicts_go_on_bit_for_bit(world, tmp_path, base, options, model_first):
    """From the middle of a round, with a scheduler, in either order."""
    found = world.run("framework", folder=str(tmp_path), base=base, model_first=model_first, **options)
    for whole, resumed in found:
        if options.get("early"):  # whose early half is sent again from the round's start
            assert resumed.pop("bytes") >= whole.pop("bytes")
        assert resumed == whole
        assert (whole["round"], whole["taken"], whole["steps"]) == (7, 0, 21)


WRONG = {
    "algorithm": "the state_dict was written with another algorithm: give the same, or start a new run.",
    "topology": "the state_dict was written with another topology: give the same, or start a new run.",
    "name": "the state_dict was written with another name: give the same, or start a new run.",
    "nodes": "the state_dict was written by 4 nodes, but 8 run: start as many, or use opt.save and opt.load, which "
    "takes a checkpoint of any number.",
    "rank": "the state_dict was written by rank {other}, and this is rank {rank}: give each node its own.",
    "lacking": "the state_dict lacks some of the algorithm's buffers: give what opt.state_dict() returned.",
    "format": "the state_dict has format 7, and this stgt reads 1: use the stgt that wrote it.",
    "plain": "the state_dict has no 'stgt' entry, like that of a plain torch optimiser, but 4 steps are done: load it "
    "before the first step, or give what opt.state_dict() returned.",
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_a_state_that_does_not_fit_changes_nothing(world, tmp_path, kind):
    for rank, answer in enumerate(world.ask("wrong_state", kind=kind, folder=str(tmp_path))):
        assert answer["error"] == WRONG[kind].format(rank=rank, other=(rank + 2) % NODES)


@pytest.mark.parametrize(("base", "tensors"), [("momentum", 1), ("adamw", 3)])
def test_a_plain_optimisers_state_is_taken_over_at_the_start(world, base, tensors):
    """SGD keeps a momentum_buffer for each of the two parameters, AdamW step, exp_avg and exp_avg_sq."""
    for node in world.run("plain_state", base=base):
        assert node == {"same": [True] * 2 * tensors, "lr": 0.02, "round": 0}


def test_a_state_dict_is_said_to_be_one_nodes_alone(world):
    """Once, at rank 0: a script that saves there only would find out when it loads."""
    first, *others = world.run("states_in_words")
    assert others == [[]] * (NODES - 1)
    (words,) = first
    assert "rank 0's share of the state alone" in words
    assert "opt.save(folder)" in words
