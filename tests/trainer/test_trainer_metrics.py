"""What opt.metrics() says, computed again from all nodes' states."""

import numpy as np
import pytest
import scenarios
from literal import NODES
from scenarios_use import method

from stgt._internal.files import read_table
from stgt.simulator import METRICS, Snapshot

SIZE = 32  # numbers in the flat buffer: parameters of 4 and 2, each padded to 16


def spread(rows) -> float:
    rows = np.array(rows)
    return float(((rows - rows.mean(axis=0)) ** 2).sum())


@pytest.mark.parametrize("base", ["sgd", "momentum", "adamw"])
def test_errors_of_a_tracker(world, base):
    found = world.run("measured", name="STGT", graph="static", base=base, rounds=3, tau=2, chunk=16)
    x, c = (np.array([node["state"][field] for node in found]) for field in ("x", "c"))
    y = np.array([node["gradient"] for node in found]) + c
    for node in found:
        assert node["metrics"]["round"] == 3
        assert node["metrics"]["consensus"] == pytest.approx(spread(x), rel=1e-9)
        assert node["metrics"]["tracker_spread"] == pytest.approx(spread(y), rel=1e-9)
        assert node["metrics"]["sum_c"] == pytest.approx(np.linalg.norm(c.sum(axis=0)), abs=1e-12)
        assert node["metrics"]["sum_c"] < 1e-12


def test_they_are_those_of_the_simulator(world):
    """The same names and formulas: the registered metrics, computed from all nodes' states at once."""
    found = world.run("measured", name="STGT", graph="static", base="momentum", rounds=3, tau=2, chunk=16)
    state = {field: np.array([node["state"][field] for node in found]) for field in ("x", "c")}
    gradients = np.array([node["gradient"] for node in found])
    at = Snapshot(np, method("STGT", 2), None, {}, state, last_gradients=gradients)
    for name in ("consensus", "tracker_spread", "sum_c"):
        expected = float(METRICS[name].compute(at))
        for node in found:
            assert node["metrics"][name] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_no_tracker_no_tracking_error(world):
    for node in world.run("measured", name="DPSGD", graph="static", base="sgd", rounds=1, tau=2, chunk=16):
        assert "tracker_spread" not in node["metrics"]


@pytest.mark.parametrize("name", ["FedAvg", "ScaffoldPlus", "Scaffold"])
def test_what_a_server_holds_is_measured_once(world, name):
    """After a round all workers have the server's model; Scaffold⁺'s c and own keep their balance."""
    found = world.run("measured", name=name, graph="server", base="sgd", rounds=7, tau=2, chunk=16)
    for node in found:
        assert node["metrics"]["consensus"] < 1e-24
        assert node["metrics"].get("sum_c", 0.0) < 1e-12


@pytest.mark.parametrize("name", ["STGT", "FedAvg"])
def test_idle_nodes_stay_where_they_are(world, name):
    """With four of eight sampled; `opt.active` is what the topology says."""
    found = world.run("measured", name=name, graph="server", base="sgd", rounds=6, tau=2, chunk=16)
    graph = scenarios.topology("server", NODES)
    for rank, node in enumerate(found):
        assert node["active"] == [bool(graph.active(r)[rank]) for r in range(6)]
        assert node["moved"] == node["active"]


@pytest.mark.parametrize(
    ("graph", "name", "degree"),
    [
        ("static", "STGT", 2),
        ("one-peer", "STGT", 1),
        ("directed", "STGT", 3),
        ("static", "DPSGD", 2),
        ("static", "LED", 2),
        ("directed", "LED", 3),
        ("directed", "Outer-STGT", 3),
        ("static", "Outer-LED", 2),
    ],
)
def test_bytes_along_edges(world, graph, name, degree):
    """degree × fields × numbers × 8 bytes a round: LED sends half of what ST-GT does, and an outer momentum nothing.

    A method that divides by the sum of the stepsizes sends that number too.
    """
    found = world.run("measured", name=name, graph=graph, base="sgd", rounds=3, tau=2, chunk=16)
    fields = 2 if "STGT" in name else 1
    assert method(name, 2).cost().vectors == fields
    for node in found:
        assert node["sizes"] == [SIZE]
        assert node["metrics"]["bytes_sent"] == 3 * degree * (fields * SIZE + ("LED" in name)) * 8


@pytest.mark.parametrize("wire", [None, "float16"])
def test_bytes_of_means(world, wire):
    """Of a mean of s nodes, each but the owner of a chunk sends it once, and the owner s − 1 times: 2(s − 1)/s on
    average; what goes to the owner is in the wire's precision, and what comes back in full.
    """
    found = world.run(
        "measured", name="STGT", graph="complete", base="sgd", rounds=3, tau=2, chunk=4, message_dtype=wire
    )  # fmt: skip
    there, back = (2 if wire else 8), 8
    total = sum(node["metrics"]["bytes_sent"] for node in found)
    assert total == 3 * 2 * SIZE * (NODES - 1) * (there + back)
    # Eight chunks, eight owners: everybody sends the same.
    assert {node["metrics"]["bytes_sent"] for node in found} == {total / NODES}


def test_tensorboard(world, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = {"name": "STGT", "graph": "static", "base": "sgd", "rounds": 2, "tau": 1, "chunk": 16}
    found = world.run("measured", folder=str(tmp_path), **arguments)
    events = EventAccumulator(str(tmp_path / "3"))
    events.Reload()
    (scalar,) = events.Scalars("stgt/consensus")
    assert scalar.step == 2
    assert scalar.value == pytest.approx(found[3]["metrics"]["consensus"], rel=1e-6)


def test_one_node_writes_a_csv_file(world, tmp_path):
    """The same path is given to all nodes."""
    arguments = {"name": "STGT", "graph": "static", "base": "sgd", "rounds": 2, "tau": 1, "chunk": 16}
    found = world.run("measured", logger=str(tmp_path / "log.csv"), **arguments)
    (row,) = read_table(tmp_path / "log.csv")
    assert row.pop("round") == "2"
    assert {name: float(value) for name, value in row.items()} == {
        f"stgt/{name}": value for name, value in found[0]["metrics"].items()
    }


def test_nobody_holds_on_to_what_was_summed(world):
    """A thread of gloo's that lets go of it while Python shuts down aborts the process, whose training went well."""
    assert {node["held"] for node in world.run("summed", times=100)} == {0}
