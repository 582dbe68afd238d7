"""Files that are damaged, missing or half written, or cannot be written: nothing starts anew unless it is asked for."""

import re
import signal

import pytest
from literal import NODES
from nodes import stop
from test_trainer_checkpoints import same_steps


def saved_twice(world, folder) -> dict:
    """Checkpoints at steps 3 and 6."""
    arguments = {"folder": str(folder), "base": "sgd"}
    world.run("stopping", steps=same_steps(3), save=True, **arguments)
    world.run("stopping", steps=same_steps(3), load=True, save=True, **arguments)
    return arguments


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("missing", "missing"),
        ("truncated", "damaged"),
        ("nonsense", "damaged"),
        ("flipped", "damaged"),
        ("killed", "missing"),
    ],
)
@pytest.mark.sampled(3, each="why")
def test_a_spoiled_part_makes_all_nodes_take_the_one_before_and_say_so(world, tmp_path, how, why):
    arguments = saved_twice(world, tmp_path)
    world.run("spoil", folder=str(tmp_path), steps=[6], node=2, how=how)
    found = world.run("load_and_listen", folder=str(tmp_path))
    for node in found:
        assert node["told"]["steps"] == 3
        assert node["told"]["skipped"] == [{"step": 6, "rank": 2, "why": why}]
    words = f"{tmp_path}: step 6 is skipped, as it is {why} at rank 2; an older one is loaded."
    assert [node["log"] for node in found] == [[["WARNING", words]], *([[]] * (NODES - 1))]
    world.run("stopping", steps=same_steps(3), load=True, save=True, keep=1, **arguments)  # to step 6 again
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000006-2"]
    found = world.run("load_and_listen", folder=str(tmp_path))
    assert {node["told"]["steps"] for node in found} == {6}
    assert [node["told"]["skipped"] for node in found] == [[]] * NODES


@pytest.mark.parametrize(
    ("how", "why"),
    [("flipped", "damaged"), ("gone", "missing"), ("missing", "missing"), ("nonsense", "damaged")],
)
@pytest.mark.sampled(4, each="why")
def test_a_node_without_any_checkpoint_does_not_make_all_start_anew(world, tmp_path, how, why):
    saved_twice(world, tmp_path)
    world.run("spoil", folder=str(tmp_path), node=2, how=how)
    if how == "flipped":
        world.run("spoil", folder=str(tmp_path), node=5, how="gone", steps=[3])
        why = "(step 6 is damaged at rank 2; step 3 is missing at rank 5)"
    else:
        why = f"(step 6 is {why} at rank 2; step 3 is {why} at rank 2)"
    for answer in world.ask("load_and_listen", folder=str(tmp_path)):
        assert answer["error"].startswith(f"{tmp_path} has no checkpoint that is whole at all nodes {why}: ")
        assert answer["error"].endswith("start_anew=True).")
    for node in world.run("load_and_listen", folder=str(tmp_path), start_anew=True):
        assert (node["told"], node["round"]) == (None, 0)


def test_start_anew_takes_a_checkpoint_that_is_whole(world, tmp_path):
    saved_twice(world, tmp_path)
    for node in world.run("load_and_listen", folder=str(tmp_path), start_anew=True):
        assert node["told"]["steps"] == 6


def test_a_first_checkpoint_that_was_never_complete_is_none(world, tmp_path):
    """Two nodes were killed while they wrote it; when the run is at that step again, their leftovers go."""
    arguments = {"folder": str(tmp_path), "base": "sgd"}
    world.run("stopping", steps=same_steps(3), save=True, **arguments)
    for node in range(NODES):
        world.run("spoil", folder=str(tmp_path), node=node, how={2: "killed", 4: "gone"}.get(node, "unmarked"))
    for node in world.run("load_and_listen", folder=str(tmp_path)):
        assert (node["told"], node["round"], node["log"]) == (None, 0, [])
    world.run("stopping", steps=same_steps(3), load=True, save=True, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000003-2"]
    assert len(list(tmp_path.rglob("*.*"))) == 2 * NODES


def test_a_later_checkpoint_that_was_never_complete_is_passed_over(world, tmp_path):
    saved_twice(world, tmp_path)
    for node in range(NODES):
        world.run("spoil", folder=str(tmp_path), node=node, how="killed" if node == 2 else "unmarked", steps=[6])
    for rank, node in enumerate(world.run("load_and_listen", folder=str(tmp_path))):
        assert node["told"]["steps"] == 3
        assert node["told"]["skipped"] == [{"step": 6, "rank": 2, "why": "unfinished"}]
        assert [level for level, _ in node["log"]] == ([] if rank else ["INFO"])


@pytest.mark.thorough
def test_a_run_killed_in_its_very_first_checkpoint_starts_again(forker, tmp_path):
    """Rank 1 dies with half of its tensors' file written; rank 0 waits for it with its part complete."""
    nodes = forker.start(tmp_path, 2, "dying", str(tmp_path))
    try:
        assert nodes[1].finish(60) == -signal.SIGKILL
        assert nodes[0].finish(60) == 3, nodes[0].lines
    finally:
        stop(nodes)
    left = sorted(path.name for path in tmp_path.rglob("step-*/*"))
    assert len(left) == 2, left
    assert re.fullmatch(r"\.node-0001-\w{8}\.safetensors", left[0])
    assert left[1] == "node-0000.safetensors"
    again = forker.start(tmp_path, 2, "resumable", str(tmp_path), "4", "20")
    assert [node.finish(60) for node in again] == [0, 0], again[0].lines
    assert "rank 0 round 0" in again[0].lines


# -- saving ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("full", r"rank 5: the checkpoint folder .* cannot be written \(.*File too large.*\)\.$"),
        ("full at the same step", r"rank 5: .* cannot be written"),
        ("x", r"^rank 5: x of parameter group 0 is not finite \(infinite\); nothing was saved"),
        ("c", r"^rank 5: c of parameter group 0 is not finite \(NaN\); nothing was saved"),
        ("moment", r"^rank 5: exp_avg of parameter 0 is not finite \(infinite\); nothing was saved"),
    ],
    ids=["full", "full at the same step", "x", "c", "moment"],
)
@pytest.mark.sampled(2)
def test_what_one_node_cannot_save_all_hear_and_the_checkpoint_before_stays(world, tmp_path, how, words):
    for answer in world.ask("failing_save", folder=str(tmp_path), node=5, how=how):
        assert re.search(words, answer["error"])
        assert ". " not in answer["error"].replace(str(tmp_path), "")
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000004"]
    assert len(list(tmp_path.rglob("*.*"))) == 2 * NODES
    found = world.run("stopping", folder=str(tmp_path), base="adamw", steps=same_steps(0), load=True)
    assert {node["told"]["extra"] for node in found} == {"first"}


def test_a_mask_of_infinities_is_saved(world, tmp_path):
    """As an attention mask is: a buffer, and no part of the algorithm."""
    inf = float("inf")
    assert world.run("masked", folder=str(tmp_path)) == [[[-inf, -inf], [-inf, -inf]]] * NODES


# -- two optimisers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["G", "D"], ["", "critic-2"]])
@pytest.mark.sampled(2)
def test_two_optimisers_share_a_folder_by_their_names(world, tmp_path, names):
    """4 and 2 steps between saves: the steps of one are also the other's, and each prunes its own."""
    for node in world.run("two", folder=str(tmp_path), names=names):
        assert node["steps"] == [12, 6]
        assert node["before"] == node["after"]
    stems = ["node-0003" + (f"-{name}" if name else "") for name in names]
    for step, stem in zip((12, 6), stems, strict=True):
        assert (tmp_path / f"step-{step:010d}" / f"{stem}.safetensors").is_file()
    assert len(list(tmp_path.rglob("*.*"))) == 2 * 2 * NODES


def test_two_optimisers_of_one_name_do_not_share_a_folder(world, tmp_path):
    for answer in world.ask("two", folder=str(tmp_path), names=["", ""]):
        assert re.fullmatch(
            rf"two optimisers of rank 0 use the checkpoint folder {re.escape(str(tmp_path))}: give each its own name= "
            r"or its own folder\.",
            answer["error"],
        )
    assert set(world.run("one_after_another", folder=str(tmp_path / "other"))) == {0}


def test_another_name_is_noticed(world, tmp_path):
    world.run("stopping", folder=str(tmp_path), base="sgd", steps=same_steps(3), save=True, called="G")
    found = world.run("load_and_listen", folder=str(tmp_path))
    assert {node["told"] for node in found} == {None}
    assert found[0]["log"] == [
        ["WARNING", f"{tmp_path} has node-0000-G.safetensors, but no files of this optimiser: has it another name=?"]
    ]
