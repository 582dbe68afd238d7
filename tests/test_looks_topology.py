"""A topology as a notebook shows it: the lines are the links."""

import math
import re
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

import stgt
from stgt.topology import html

T = stgt.topology
W = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
PEERS = [
    T.ring(1), T.ring(2), T.ring(8), T.exponential(7), T.star(5), T.complete(6), T.grid(2, 3), T.de_bruijn(8),
    T.from_matrix(W), T.one_peer_exponential(8), T.hypercuboid(12), T.base_graph(10, 2), T.ring(64),
    T.random_matching(9, seed=5), T.exponential(50), T.unreliable(T.torus(3, 4), link=0.4, node=0.2, seed=7),
    T.sequence([W, np.eye(3), W.T]),
    T.sequence([T.ring(5), T.random_matching(5, seed=2)]), T.schedule(3, lambda r: W if r % 2 else W.T),
    T.schedule(4, lambda r: T.random_matching(4, seed=1)),
]  # fmt: skip


def parsed(thing):
    """All of the HTML as a tree: it is well-formed XML."""
    return ElementTree.fromstring(thing._repr_html_())


def words(tree):
    return " ".join("".join(tree.itertext()).split())


def strokes(svg):
    """The lines and the tips of the heads of a picture, by their ends; and the places of the nodes."""
    numbers = [[float(number) for number in re.findall(r"[-\d.]+", one.get("d"))] for one in svg.iter("path")]
    closed = [one.get("d").endswith("Z") for one in svg.iter("path")]
    lines = [
        tuple(row[k : k + 4])
        for row, head in zip(numbers, closed, strict=True)
        if not head
        for k in range(0, len(row), 4)
    ]
    heads = [row for row, head in zip(numbers, closed, strict=True) if head]
    nodes = [(float(one.get("cx")), float(one.get("cy"))) for one in svg.iter("circle")]
    return lines, heads, nodes


def nearest(places, x, y):
    return int(np.argmin([math.hypot(a - x, b - y) for a, b in places]))


def ends(places, head):
    """(who hears, who is heard) of a head: its tip is at the rim of the one, and it points away from the other."""
    tip, back = np.array(head[:2]), (np.array(head[2:4]) + np.array(head[4:6])) / 2
    hears = nearest(places, *tip)
    away = np.array(places[hears]) - np.array(places)
    length = np.linalg.norm(away, axis=1)
    return hears, int(np.argmax(away @ (tip - back) / np.where(length > 0, length, np.inf)))


@pytest.mark.parametrize("topology", PEERS, ids=lambda topology: topology.name)
def test_the_lines_are_the_links(topology):
    pictures = list(parsed(topology).iter("svg"))
    assert len(pictures) == (topology.period or 1)
    matrices = [topology.matrix(r) for r in range(len(pictures))]
    mutual = all(np.array_equal(W != 0, (W != 0).T) for W in matrices)
    for W, svg in zip(matrices, pictures, strict=True):
        links = {(int(i), int(j)) for i, j in np.argwhere(W) if i != j}
        lines, heads, nodes = strokes(svg)
        assert len(nodes) == topology.n
        drawn = [frozenset((nearest(nodes, a, b), nearest(nodes, c, d))) for a, b, c, d in lines]
        assert len(drawn) == len(set(drawn))
        assert set(drawn) == {frozenset(link) for link in links}
        if mutual or topology.n > 32:
            assert not heads
        else:
            assert len(heads) == len(links)
            assert {ends(nodes, head) for head in heads} == links


def test_the_head_is_at_the_node_that_hears():
    # Node 0 hears node 1, and nobody hears node 0: row-stochastic.
    (svg,) = parsed(T.from_matrix([[0.5, 0.5], [0.0, 1.0]], row_stochastic=True)).iter("svg")
    _, (head,), nodes = strokes(svg)
    assert ends(nodes, head) == (0, 1)


def test_the_topologys_own_seed_is_drawn():
    one, other = (T.random_matching(12, seed=seed)._repr_html_() for seed in (1, 2))
    assert one != other
    assert T.random_matching(12, seed=1).with_seed(2)._repr_html_() == other


@pytest.mark.parametrize("kind", [T.server, T.relay])
@pytest.mark.parametrize("seed", [0, 5])
def test_spokes_go_to_the_workers_of_the_first_round(kind, seed):
    topology = kind(9, 3, seed=seed)
    (svg,) = parsed(topology).iter("svg")
    lines, heads, nodes = strokes(svg)
    assert svg.find("rect") is not None
    assert len(nodes) == 9
    # Row i of W_0 differs from that of the identity for those who hear; column j for those who speak.
    speaks, hears = topology.active(0), (topology.matrix(0) != np.eye(9)).any(axis=1)
    assert {nearest(nodes, *line[2:]) for line in lines} == set(np.flatnonzero(speaks | hears))
    assert len(heads) == (0 if kind is T.server else 6)
    resting = [i for i, one in enumerate(svg.iter("circle")) if one.get("fill") == "none"]
    assert resting == list(np.flatnonzero(~(speaks | hears)))


@pytest.mark.parametrize(
    ("topology", "facts"),
    [
        (T.ring(8), ["ring(8)", "8 nodes", "static", "degree 2", "symmetric"]),
        (T.one_peer_exponential(8), ["period 3", "degree 1", "directed"]),
        (T.random_matching(8), ["random", "degree 1", "symmetric"]),
        (T.server(8, 3), ["8 nodes", "a server samples 3 of 8 workers per round", "random"]),
        (T.server(8), ["a server samples all workers per round", "static"]),
        (T.relay(8, 3), ["a server samples 3 of 8 workers per round", "only row-stochastic", "directed"]),
        (T.schedule(4, lambda r: np.eye(4)), ["never repeats", "counts as directed"]),
    ],
)
def test_what_is_known_is_said(topology, facts):
    shown = words(parsed(topology))
    for fact in facts:
        assert fact in shown


def test_a_long_period_is_drawn_by_its_first_round():
    ring, still = T.ring(5).matrix(0), np.eye(5)
    assert len(list(parsed(T.sequence([ring] * 8 + [still])).iter("svg"))) == 1
    assert len(list(parsed(T.sequence([ring] * 7 + [still])).iter("svg"))) == 8


def test_many_nodes_or_links_are_words_only_and_quick():
    large = [T.ring(100_000), T.server(100_000, 10), T.random_matching(100_000), T.exponential(100_000), T.ring(65)]
    began = time.perf_counter()
    shown = [one._repr_html_() for one in large]
    assert time.perf_counter() - began < 0.5
    assert not any("<svg" in one for one in shown)
    assert "100,000 nodes" in shown[0]
    assert html.MOST_LINES < 64 * 63 / 2
    assert "2,016 links, and at most 1,000 are drawn" in T.complete(64)._repr_html_()


def test_a_function_that_fails_is_no_traceback():
    failing = T.schedule(4, lambda r: 1 / 0)
    assert "no picture" in words(parsed(failing))
    assert "4 nodes" in words(parsed(failing))


def test_names_are_escaped():
    named = replace(T.ring(3), name="<script>&'\"")
    assert "<script>" not in named._repr_html_()
    assert "<script>&'\"" in words(parsed(named))
