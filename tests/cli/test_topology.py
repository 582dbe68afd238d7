"""`stgt topology`: the numbers, the pictures and the animation of graphs and schedules."""

import json
import time
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import stgt
from stgt.cli import app
from stgt.study.report.topology_stats import DRAWN, near_one, topology_stats
from stgt.topology.layout import layout

T = stgt.topology


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_drawing(monkeypatch):
    """Files in the place of pictures, which take a second each."""

    def draw(found, path):
        written = [Path(f"{path}{ending}") for ending in (".png", ".pdf")]
        for file in written:
            file.write_text(found.topology.name)
        return written

    monkeypatch.setattr("stgt.study.report.topology_figure.draw_topology", draw)


def topology(*arguments):
    return CliRunner().invoke(app, ["topology", *arguments])


def as_json(*arguments):
    result = topology(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_ring(tmp_path):
    """W has the weights 1/3, so that its eigenvalues are (1 + 2 cos(2πk/n))/3, and it is normal."""
    found = as_json("ring", "--n", "12", "--rounds", "5")
    waves = (1 + 2 * np.cos(2 * np.pi * np.arange(12) / 12)) / 3
    second = waves[1]
    np.testing.assert_allclose(sorted(pair[0] for pair in found["eigenvalues"]["W"]), sorted(waves), atol=1e-12)
    assert {pair[1] for pair in found["eigenvalues"]["W"]} == {0.0}
    assert found["rho"] == pytest.approx(second**2)
    assert found["spectral_gap"] == pytest.approx(1 - second)
    np.testing.assert_allclose(found["distances"], second ** np.arange(6))
    assert (found["degree"], found["period"], found["messages_a_round"], found["unknown"]) == (2, 1, 24, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring.pdf", "ring.png"] == sorted(found["files"])
    assert (tmp_path / "ring.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "ring.pdf").read_bytes().startswith(b"%PDF")


def test_a_schedule_of_finite_time_consensus_moves(tmp_path):
    """2^3 nodes agree after 3 rounds, in each of which every node hears one other."""
    result = topology("one_peer_exponential", "--n", "8", "-o", "new/peers.png")
    assert result.exit_code == 0, result.output
    for words in ("period", "3", "0 after 3 rounds", "messages a round", "wrote new/peers.gif"):
        assert words in result.output
    with Image.open(tmp_path / "new" / "peers.gif") as film:
        assert film.n_frames == 12
        frames = []
        for k in range(4):
            film.seek(k)
            frames.append(np.asarray(film.convert("RGB")))
    assert [(one != frames[0]).any() for one in frames] == [False, True, True, True]


@pytest.mark.parametrize(
    ("topology", "matrix"),
    [
        (T.one_peer_exponential(8), "a period's product"),
        (T.de_bruijn(8), "W"),
        (T.server(8, sampled=3), "E[W]"),
        (T.random_matching(7, seed=3), "E[W]"),
        (T.sequence([np.eye(3), np.roll(np.eye(3), 1, axis=0)]), "a period's product"),
    ],
)
def test_products_of_the_rounds(topology, matrix):
    """‖W_{r−1} ⋯ W_0 − J‖ of the dense matrices; trace and sum of the eigenvalues are those of their matrix."""
    found, product = topology_stats(topology, 6), np.eye(topology.n)
    for r in range(6):
        product = topology.matrix(r) @ product
        assert found.distances[r + 1] == pytest.approx(np.linalg.norm(product - 1 / topology.n, 2), abs=1e-12)
    if topology.period:
        whole = reduce(lambda product, r: topology.matrix(r) @ product, range(topology.period), np.eye(topology.n))
    else:
        whole = topology.moments().mean
    assert found.eigenvalues[matrix].sum() == pytest.approx(np.trace(whole))
    assert found.gap == pytest.approx(stgt.theory.spectral_gap(topology))


def test_rounds_that_do_not_keep_the_mean():
    """What is measured then is disagreement: the workers of a relay agree on something else than their mean."""
    relay = T.relay(6, 6)
    assert topology_stats(relay, 3).distances.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "topology",
    [T.ring(5), T.ring(6, directed=True), T.star(6), T.grid(2, 3), T.one_peer_exponential(8), T.random_matching(7)],
)
def test_the_links_that_are_lit_are_those_of_the_round(topology):
    drawing = layout(topology, range(3), **DRAWN)
    for r in range(3):
        W = topology.matrix(r)
        assert {tuple(link) for link in drawing.links(r).tolist()} == {
            (j, i) for i, j in np.argwhere(W).tolist() if i != j
        }
    assert drawing.arrows == (not topology.symmetric)
    assert len(np.unique(drawing.places.round(6), axis=0)) == topology.n
    assert np.abs(drawing.places).max() == pytest.approx(1)


def test_a_server_stands_in_the_middle():
    topology = T.server(9, sampled=2, seed=4)
    drawing = layout(topology, range(3), **DRAWN)
    assert drawing.places[9].tolist() == [0, 0]
    called = np.flatnonzero(topology.active(1))
    assert {tuple(link) for link in drawing.links(1).tolist()} == {(i, 9) for i in called} | {(9, i) for i in called}
    assert drawing.working(1).tolist() == topology.active(1).tolist()


@pytest.mark.usefixtures("no_drawing")
def test_very_many_nodes_have_numbers_and_no_picture_of_links():
    """Of a circulant graph all is known by the Fourier transform of its first row."""
    began = time.perf_counter()
    result = topology("ring", "--n", "10000")
    assert result.exit_code == 0, result.output
    assert "no picture of the links: 10,000 nodes, and at most 300" in " ".join(result.output.split())
    assert "20,000" in result.output
    large = as_json("random_matching", "--n", "10000", "-o", "large.png")
    assert time.perf_counter() - began < 20
    assert large["rho"] == pytest.approx(0.5, rel=1e-3), "n/(2(n − 1)) of the disagreement goes each round"
    assert set(large["unknown"]) == {"eigenvalues", "distance to agreement", "picture of the links"}
    assert large["files"] == ["large.png", "large.pdf"]


@pytest.mark.usefixtures("no_drawing")
def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "star.pdf").write_text("mine")
    result = topology("star", "--n", "5")
    assert isinstance(result.exception, ValueError)
    assert str(result.exception) == "--out star.pdf exists: give another file, or --force to overwrite it."
    assert [path.name for path in tmp_path.iterdir()] == ["star.pdf"]
    assert (tmp_path / "star.pdf").read_text() == "mine"
    assert topology("star", "--n", "5", "--force").exit_code == 0
    assert (tmp_path / "star.pdf").read_text() == "star(5)"


@pytest.mark.usefixtures("no_drawing")
def test_arguments_are_read_as_toml():
    found = as_json("circulant", "--n", "9", "--set", "hops=[1, 3]", "--set", "weights=[0.25, 0.5]", "--rounds", "2")
    assert (found["n"], found["degree"], found["symmetric"]) == (9, 2, False)
    assert as_json("star", "--n", "4", "--set", "weights=lazy", "-o", "lazy")["files"] == ["lazy.png", "lazy.pdf"]
    assert as_json("ring", "--n", "4", "--set", "directed=true")["symmetric"] is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rings"], "topology.name='rings': choose from"),
        (["ring", "--set", "neighbors"], "--set='neighbors': give a name and a value, such as neighbors=3."),
        (["ring", "--set", "directed=[1"], "--set='directed=[1': [1 is not a TOML value"),
        (["ring", "--set", "wide=3"], "topology.wide: ring takes n, directed."),
        (["random_regular", "--n", "5", "--set", "degree=9"], "topology.degree=9"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(arguments, sentence, tmp_path):
    result = topology(*arguments)
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith(sentence)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ["ring", "--n", "10000"], ["ring", "--n", "1"], ["random_matching", "--n", "500"], ["server", "--n", "6"],
        ["relay", "--n", "6", "--set", "sampled=2"], ["erdos_renyi", "--n", "40", "--set", "probability=0.3"],
        ["complete", "--n", "200"], ["base_graph", "--n", "7", "--set", "k=1"],
        ["torus", "--set", "rows=4", "--set", "cols=5"],
    ],
)  # fmt: skip
def test_all_kinds_can_be_drawn(arguments, tmp_path):
    """Whatever is too large to be drawn or computed is said in the picture and printed; nothing fails."""
    result = topology(*arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"{arguments[0]}.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_close_to_1():
    assert [near_one(value) for value in (0.5, 0.99995, 1 - 2.5e-7, 1.0)] == ["0.5", "1 − 5e-05", "1 − 2.5e-07", "1"]
