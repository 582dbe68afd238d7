"""Checkpoints: a training that was stopped goes on as if it had not been."""

import json

import pytest
from literal import NODES

from stgt._internal import container
from stgt.torch import shards


def same_steps(count: int) -> list[int]:
    return [count] * NODES


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("sgd", {}),
        ("momentum", {}),
        ("adamw", {}),
        ("sgd", {"graph": "server"}),
        ("sgd", {"graph": "server", "name": "ScaffoldPlus"}),
        ("sgd", {"early": True}),
        ("sgd", {"name": "FlexGT"}),
        ("momentum", {"name": "Outer-STGT"}),
        ("sgd", {"name": "Outer-LED", "graph": "one-peer"}),
        ("adamw", {"name": "DiLoCo", "graph": "complete"}),
        ("adamw", {"tau": [1, 2, 3, 4, 1, 2, 3, 4]}),
    ],
    ids=str,
)
@pytest.mark.sampled(2)
def test_resuming_equals_never_stopping(world, tmp_path, base, options):
    """Bit for bit, from the middle of a round; where nodes make different numbers of steps too."""
    taus = options.get("tau", 3)
    each = taus if isinstance(taus, list) else same_steps(taus)
    before = [3 * tau + (tau > 1) for tau in each]
    after = [7 * tau - done for tau, done in zip(each, before, strict=True)]
    arguments = {"folder": str(tmp_path), "base": base, **options}
    world.run("stopping", steps=before, save=True, extra={"epoch": 3}, **arguments)
    resumed = world.run("stopping", steps=after, load=True, **arguments)
    whole = world.run("unbroken", steps=before, more=after, **arguments)
    for one, two in zip(resumed, whole, strict=True):
        assert one["told"]["extra"] == {"epoch": 3}
        assert one["state"] == two["state"]
        assert one["base"] == two["base"]
        assert (one["round"], one["taken"], one["steps"]) == (7, 0, two["steps"])
        if not options.get("early"):  # whose early half is sent again from the round's start
            assert one["bytes"] == two["bytes"]


def test_early_messages_of_a_round_that_has_not_begun_are_sent_once(world, tmp_path):
    """Serialized and loaded between two rounds: the bytes of a run that never stopped."""
    arguments = {"folder": str(tmp_path), "base": "sgd", "early": True}
    world.run("stopping", steps=same_steps(6), save=True, **arguments)
    resumed = world.run("stopping", steps=same_steps(6), load=True, **arguments)
    whole = world.run("unbroken", steps=same_steps(6), more=same_steps(6), **arguments)
    assert [node["bytes"] for node in resumed] == [node["bytes"] for node in whole]


def test_parts_of_a_lost_future_do_not_cost_the_present(world, tmp_path):
    """Step 6 is spoiled, the run goes on from 3 and saves at 5 with keep=1: that one must stay."""
    arguments = {"folder": str(tmp_path), "base": "sgd"}
    world.run("stopping", steps=same_steps(3), save=True, **arguments)
    world.run("stopping", steps=same_steps(3), load=True, save=True, **arguments)
    world.run("spoil", folder=str(tmp_path), steps=[6], node=2, how="missing")
    world.run("stopping", steps=same_steps(2), load=True, save=True, keep=1, **arguments)
    found = world.run("stopping", steps=same_steps(0), load=True, **arguments)
    assert {node["told"]["steps"] for node in found} == {5}


def test_keep_and_what_the_files_are(world, tmp_path):
    arguments = {"folder": str(tmp_path), "base": "adamw"}
    for _ in range(4):
        world.run("stopping", steps=same_steps(3), load=True, save=True, keep=2, **arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000009", "step-0000000012"]
    files = sorted(path.name for path in (tmp_path / "step-0000000012").iterdir())
    endings = ("complete", "safetensors")
    assert files == sorted(f"node-{i:04d}.{ending}" for i in range(NODES) for ending in endings)
    for path in (tmp_path / "step-0000000012").iterdir():
        start = path.read_bytes()
        if path.suffix == ".complete":
            assert start == b""
        else:  # the length of a JSON header, then the header: no pickle
            length = int.from_bytes(start[:8], "little")
            assert json.loads(start[8 : 8 + length])["rng"]["dtype"] == "U8"


def test_an_empty_folder_has_no_checkpoint(world, tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        found = world.run("stopping", folder=str(folder), base="sgd", steps=same_steps(0), load=True)
        assert {node["told"] for node in found} == {None}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"name": "DPSGD"}, "another algorithm"),
        ({"name": "Outer-STGT"}, "another algorithm"),
        ({"model": "linear"}, "another model"),
        ({"graph": "one-peer"}, "another topology"),
        ({"base": "momentum"}, "another optimizer"),
    ],
)
def test_a_checkpoint_of_something_else(world, tmp_path, other, words):
    arguments = {"folder": str(tmp_path), "base": "sgd"}
    world.run("stopping", steps=same_steps(3), save=True, **arguments)
    for answer in world.ask("stopping", steps=same_steps(0), load=True, **{**arguments, **other}):
        assert words in answer["error"]
        assert answer["error"].count(". ") == 0


def test_half_of_a_checkpoint_of_more_nodes(world, tmp_path):
    """Of sixteen nodes, as if half of them were gone with their disks."""
    arguments = {"folder": str(tmp_path), "base": "sgd"}
    world.run("stopping", steps=same_steps(3), save=True, **arguments)
    for path in tmp_path.rglob("*.safetensors"):
        arrays, about = container.read(path, shards.KIND)
        container.write(path, shards.KIND, arrays, about | {"nodes": 16})
    for answer in world.ask("stopping", steps=same_steps(0), load=True, **arguments):
        assert "(step 3 of 16 nodes is missing at ranks 8, 9, 10, 11, 12, 13, 14, 15): restore" in answer["error"]


def test_extra_that_json_cannot_hold_and_a_folder_that_is_a_file(world, tmp_path):
    for answer in world.ask("bad_extra", folder=str(tmp_path)):
        assert answer["error"].startswith("extra cannot be written as JSON")
    (tmp_path / "file").write_text("")
    for answer in world.ask("stopping", folder=str(tmp_path / "file"), base="sgd", steps=same_steps(0), save=True):
        assert "cannot be written" in answer["error"]
