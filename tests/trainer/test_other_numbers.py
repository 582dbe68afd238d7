"""A checkpoint of N nodes goes on with M: from the mean of the models, to the minimiser over those that are there."""

from pathlib import Path

import numpy as np
import pytest
from nodes import World, stop
from safetensors.numpy import load_file
from scenarios_use import data

INSIDE = np.r_[0:4, 16:18]  # u, of four numbers, and v, of two, in a bucket, where each begins a cache line


@pytest.fixture(scope="module")
def worlds(forker):
    """A world of any number of nodes."""
    made: dict[int, World] = {}

    def of(nodes: int) -> World:
        if nodes not in made:
            made[nodes] = World(forker, nodes)
        return made[nodes]

    yield of
    for world in made.values():
        world.close()


def minimiser(nodes: int) -> np.ndarray:
    """Where Σ_i (a_i x − b_i) = 0."""
    a, b = (np.sum([data(rank)[i].numpy() for rank in range(nodes)], axis=0) for i in (0, 1))
    return b / a


def saved(folder: Path, nodes: int, tensor: str = "bucket.0.x") -> np.ndarray:
    """A tensor of every shard of the only checkpoint in a folder, whichever hosts' folders they are in."""
    paths = [next(folder.rglob(f"node-{rank:04d}.safetensors")) for rank in range(nodes)]
    return np.stack([load_file(path)[tensor] for path in paths])


def assert_same(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (4, 1)])
@pytest.mark.parametrize(
    ("name", "early"), [("STGT", False), ("STGT", True), ("LED", False), ("Outer-STGT", False), ("KGT", False)]
)
@pytest.mark.sampled(6, each="name early")
def test_it_converges_to_the_minimiser_over_those_present(worlds, tmp_path, name, early, before, after):
    """From the middle of a round, and not from near the new minimiser."""
    arguments = {"folder": str(tmp_path), "name": name, "early": early}
    first = worlds(before).run("part", steps=121, save=True, **arguments)
    assert np.abs(np.array(first[0]["x"]) - minimiser(after)).max() > 1e-2
    for node in worlds(after).run("part", steps=360 if after > 1 else 600, **arguments):
        assert node["told"]["written_by"] == before
        np.testing.assert_allclose(node["x"], minimiser(after), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("ScaffoldPlus", 360),
        pytest.param("Scaffold", 360, marks=pytest.mark.thorough),
        pytest.param("FedDyn", 2400, marks=pytest.mark.thorough),
    ],
)
def test_methods_whose_server_samples_its_workers(worlds, world, tmp_path, name, steps):
    """Four of eight, then four of four: c is n/s times the mean of Scaffold⁺'s own, and n/s changes."""
    arguments = {"folder": str(tmp_path), "name": name, "graph": "server"}
    world.run("part", steps=31, save=True, **arguments)
    for node in worlds(4).run("part", steps=steps, **arguments):
        np.testing.assert_allclose(node["x"], minimiser(4), rtol=0, atol=1e-10)


def test_fedavg_goes_on_from_the_servers_model(worlds, world, tmp_path):
    """The workers that were not sampled in the last round have an older one, which must not count."""
    arguments = {"folder": str(tmp_path), "name": "FedAvg", "graph": "server"}
    before = world.run("part", steps=6, save=True, **arguments)
    server = before[0]["averaged"]
    assert any(node["x"] != server for node in before)
    for node in worlds(4).run("part", **arguments):
        assert_same(node["x"], server)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
@pytest.mark.parametrize(("name", "base"), [("STGT", "momentum"), ("Outer-STGT", "adamw"), ("STGT", "sgd")])
@pytest.mark.sampled(3, each="base")
def test_what_becomes_of_each_part(worlds, tmp_path, name, base, before, after):
    """As read from the shards with safetensors."""
    arguments = {"folder": str(tmp_path), "name": name, "base": base}
    worlds(before).run("part", steps=7, save=True, **arguments)
    c = saved(tmp_path, before, "bucket.0.state.c")
    assert np.abs(c).max() > 1e-3
    models = saved(tmp_path, before)
    assert np.abs(models[0] - models[1]).max() > 1e-3
    names = {"sgd": [], "momentum": ["momentum_buffer"], "adamw": ["exp_avg", "exp_avg_sq", "step"]}[base]
    kept = {name: [saved(tmp_path, before, f"base.state.{i}.{name}") for i in (0, 1)] for name in names}
    for rank, node in enumerate(worlds(after).run("part", **arguments)):
        begun = node["begun"]
        assert_same(begun["state"]["x"], models.mean(axis=0)[INSIDE])
        assert_same(np.array(begun["start"])[INSIDE], models.mean(axis=0)[INSIDE])
        assert begun["state"]["c"] == [0.0] * 6
        if name == "Outer-STGT":
            assert_same(begun["state"]["m"], saved(tmp_path, before, "bucket.0.state.m").mean(axis=0)[INSIDE])
        assert begun["total"] in (None, 0.0)
        assert (begun["round"], begun["taken"], begun["steps"], begun["lr_sum"]) == (2, 0, 7, 0.0)
        assert begun["base"] == [[name, kept[name][i][rank % before].tolist()] for i in (0, 1) for name in names]
        assert node["told"] == {
            "round": 2, "steps": 7, "extra": {"by": rank % before}, "skipped": [], "written_by": before
        }  # fmt: skip
    first, *others = worlds(after).run("part", **arguments)
    words = (
        f"{tmp_path}/step-0000000007: written by {before} nodes, {after} run: models are averaged, each optimiser's "
    )
    assert first["log"] == [["WARNING", words + "state is that of one node; corrections start at 0"]]
    assert [node["log"] for node in others] == [[]] * (after - 1)


def test_no_two_nodes_draw_the_same_numbers(worlds, tmp_path):
    worlds(2).run("part", steps=3, save=True, folder=str(tmp_path))
    drawn = [node["begun"]["drawn"] for node in worlds(3).run("part", folder=str(tmp_path))]
    assert len(set(drawn)) == 3


def test_as_many_nodes_are_told_too(worlds, tmp_path):
    worlds(2).run("part", steps=4, save=True, folder=str(tmp_path))
    found = worlds(2).run("part", folder=str(tmp_path))
    assert [node["told"]["written_by"] for node in found] == [2, 2]
    assert [node["begun"]["taken"] for node in found] == [1, 1]
    assert [node["log"] for node in found] == [[], []]


@pytest.mark.parametrize("policy", ["average", "local", "none"])
def test_batch_norms_statistics(worlds, tmp_path, policy):
    """Their mean, as an averaged model has; counters, and all with "none", are those of one node."""
    before = worlds(3).run("statistics", folder=str(tmp_path), policy=policy, save=True)
    means = np.array([node["0.running_mean"] for node in before])
    assert np.abs(means[0] - means[1]).max() > 1e-3
    for rank, node in enumerate(worlds(4).run("statistics", folder=str(tmp_path), policy=policy, save=False)):
        expected = means[rank % 3] if policy == "none" else means.mean(axis=0)
        assert_same(node["0.running_mean"], expected)
        grids = [one["grid"] for one in before]
        np.testing.assert_allclose(node["grid"], grids[rank % 3] if policy == "none" else np.mean(grids, axis=0), 1e-6)
        assert node["0.num_batches_tracked"] == before[rank % 3]["0.num_batches_tracked"] == [5 * (1 + rank % 3)]


# -- hosts that do not share a folder ----------------------------------------------------------------------------------


def test_hosts_with_folders_of_their_own(worlds, tmp_path):
    """Two nodes on each of two hosts; then the second host has one node, of rank 2, which sees shards 2 and 3."""
    arguments = {"folder": str(tmp_path), "base": "momentum"}
    worlds(4).run("part", steps=7, save=True, hosts=["A", "A", "B", "B"], **arguments)
    momenta = saved(tmp_path, 4, "base.state.1.momentum_buffer")
    for rank, node in enumerate(worlds(3).run("part", hosts=["A", "A", "B"], **arguments)):
        assert_same(node["begun"]["state"]["x"], saved(tmp_path, 4).mean(axis=0)[INSIDE])
        assert node["begun"]["base"][1][1] == momenta[rank].tolist()
    for node, shard in zip(worlds(2).run("part", hosts=["A", "B"], **arguments), (0, 2), strict=True):
        assert_same(node["begun"]["state"]["x"], saved(tmp_path, 4).mean(axis=0)[INSIDE])
        assert node["begun"]["base"][1][1] == momenta[shard].tolist()
        assert node["told"]["extra"] == {"by": shard}


def test_a_host_without_any_shard(worlds, tmp_path):
    """It has the mean, the stepsize that a scheduler had left, and what was saved with the checkpoint."""
    arguments = {"folder": str(tmp_path), "base": "momentum"}
    worlds(2).run("part", steps=7, save=True, hosts=["A", "A"], lr=0.025, **arguments)
    found = worlds(3).run("part", hosts=["A", "A", "C"], steps=3, **arguments)
    for node in found:
        assert_same(node["begun"]["state"]["x"], saved(tmp_path, 2).mean(axis=0)[INSIDE])
        assert node["begun"]["lr"] == 0.025
    assert [node["told"]["extra"] for node in found] == [{"by": 0}, {"by": 1}, {"by": 0}]
    assert [len(node["begun"]["base"]) for node in found] == [2, 2, 0]
    assert "; rank 2, which has no shard, starts without an optimiser's state" in found[0]["log"][0][1]


def test_a_shard_that_nobody_sees(worlds, tmp_path):
    """The host with shards 2 and 3 is gone; an older checkpoint is taken if there is one, of whatever number."""
    arguments = {"folder": str(tmp_path)}
    worlds(4).run("part", steps=6, save=True, hosts=["A", "A", "B", "B"], **arguments)
    words = f"{tmp_path}/A has no checkpoint that is whole at all nodes (step 6 of 4 nodes is missing at ranks 2, 3): "
    first, second = worlds(2).ask("part", hosts=["A", "A"], **arguments)
    assert first["error"].startswith(words)
    assert second["error"].startswith(words)
    for node in worlds(2).run("part", hosts=["A", "A"], anew=True, **arguments):
        assert (node["told"], node["begun"]["round"]) == (None, 0)
    worlds(2).run("part", hosts=["A", "A"], load=False, steps=3, save=True, **arguments)
    for node in worlds(2).run("part", hosts=["A", "A"], **arguments):
        assert node["told"]["written_by"] == 2
        assert [(one["step"], one["rank"], one["why"]) for one in node["told"]["skipped"]] == [
            (6, 2, "missing"), (6, 3, "missing")
        ]  # fmt: skip


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_every_byte_of_every_shard_is_checked(worlds, tmp_path, shard):
    for _ in range(2):
        worlds(3).run("part", steps=3, save=True, folder=str(tmp_path))
    path = tmp_path / "step-0000000006" / f"node-{shard:04d}.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for node in worlds(2).run("part", folder=str(tmp_path)):
        assert node["told"]["steps"] == 3
        assert node["told"]["skipped"] == [{"step": 6, "rank": shard, "why": "damaged"}]


def test_another_method_is_refused_whatever_the_number(worlds, tmp_path):
    worlds(3).run("part", steps=3, save=True, folder=str(tmp_path))
    for answer in worlds(2).ask("part", folder=str(tmp_path), name="DPSGD"):
        assert answer["error"].endswith(
            "was written with another algorithm: give the same, or another checkpoint folder."
        )


# -- saving in the same folder -----------------------------------------------------------------------------------------


def test_the_numbers_may_change_again_and_again(worlds, tmp_path):
    """The newest counts; with keep=2 the shards of nodes that are gone go with their checkpoint, and only then."""
    arguments = {"folder": str(tmp_path), "save": True, "steps": 3}
    steps, numbers = [], (3, 2, 4, 3, 1)
    for number, nodes in enumerate(numbers):
        found = worlds(nodes).run("part", **arguments)
        steps.append(f"step-{3 * number + 3:010d}")
        if number:
            assert {node["told"]["written_by"] for node in found} == {numbers[number - 1]}
            assert {node["told"]["steps"] for node in found} == {3 * number}
        assert sorted(path.name for path in tmp_path.iterdir()) == steps[-2:]
        for step, wrote in zip(steps[-2:], numbers[max(number - 1, 0) :], strict=False):
            stems = sorted({path.stem for path in (tmp_path / step).iterdir()})
            assert stems == [f"node-{rank:04d}" for rank in range(wrote)]


def test_hosts_of_their_own_are_cleaned_up_too(worlds, tmp_path):
    """Rank 1 is on host B now, and the shard that a rank 1 left on host A goes as well."""
    arguments = {"folder": str(tmp_path), "save": True, "steps": 3}
    worlds(4).run("part", hosts=["A", "A", "B", "B"], **arguments)
    for _ in range(2):
        worlds(2).run("part", hosts=["A", "B"], **arguments)
    for host, rank in (("A", 0), ("B", 1)):
        assert sorted(str(path.relative_to(tmp_path / host)) for path in (tmp_path / host).rglob("*.safetensors")) == [
            f"step-{step:010d}/node-{rank:04d}.safetensors" for step in (6, 9)
        ]


def test_an_unfinished_checkpoint_of_more_nodes(worlds, tmp_path):
    """Of three nodes, the last alone had written step 6: another attempt of two does not mix with it."""
    arguments = {"folder": str(tmp_path), "steps": 3}
    for _ in range(2):
        worlds(3).run("part", save=True, **arguments)
    here = tmp_path / "step-0000000006"
    for path in here.iterdir():
        if path.name != "node-0002.safetensors":
            path.unlink()
    (here / ".node-0001-abcdefgh.safetensors").touch()
    for node in worlds(2).run("part", save=True, **arguments):
        assert node["told"]["steps"] == 3
        assert node["told"]["skipped"] == [{"step": 6, "rank": rank, "why": "unfinished"} for rank in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000003", "step-0000000006-2"]
    assert {node["told"]["written_by"] for node in worlds(3).run("part", folder=str(tmp_path))} == {2}


def test_files_of_another_optimiser_stay(worlds, tmp_path):
    """Its name, critic-2, has as many letters as the ending of a temporary file."""
    arguments = {"folder": str(tmp_path), "steps": 3, "save": True}
    worlds(3).run("part", called="critic-2", **arguments)
    for nodes in (3, 2, 2):
        worlds(nodes).run("part", **arguments)
    found = sorted(path.name for path in (tmp_path / "step-0000000003").glob("*.safetensors"))
    assert found == [f"node-{rank:04d}-critic-2.safetensors" for rank in range(3)]
    assert {node["told"]["steps"] for node in worlds(2).run("part", folder=str(tmp_path), called="critic-2")} == {3}


def test_the_same_script_goes_on_with_fewer_and_with_more_nodes(forker, tmp_path):
    """As torchrun --nnodes 2:3 starts it again."""
    for nodes, rounds, begins in ((3, 4, 0), (2, 6, 4), (3, 8, 6)):
        running = forker.start(tmp_path, nodes, "resumable", str(tmp_path), str(rounds))
        try:
            assert [node.finish(100) for node in running] == [0] * nodes, running[0].lines
        finally:
            stop(running)
        assert f"rank 0 round {begins}" in running[0].lines
        assert f"rank 0 round {begins - 1}" not in running[0].lines
