"""Graphs of one's own: edges in a list or a file, matrices in a file."""

import networkx as nx
import numpy as np
import pytest

import stgt
from stgt._internal.ops import NUMPY

topo = stgt.topology
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]


@pytest.mark.parametrize("weights", ["metropolis", "uniform", "lazy"])
def test_edges_have_the_weights_of_the_same_networkx_graph(weights):
    expected = topo.from_networkx(nx.Graph(EDGES), weights).matrix(0)
    np.testing.assert_array_equal(topo.from_edges(EDGES, weights=weights).matrix(0), expected)


def test_edges_from_a_file(tmp_path):
    expected = topo.from_edges(EDGES).matrix(0)
    for number, text in enumerate(("u,v\n", "", "from;to\n")):
        path = tmp_path / f"{number}.csv"
        path.write_text(text + "".join(f"{u};{v}\n" if ";" in text else f"{u},{v}\n" for u, v in EDGES))
        np.testing.assert_array_equal(topo.from_edges(str(path)).matrix(0), expected)
        np.testing.assert_array_equal(topo.from_edges(path, n=4).matrix(0), expected)


def test_nodes_of_a_file_may_have_names(tmp_path):
    """Numbered alphabetically, as the sites of a column `node` are; with a header, and with weights."""
    names = ["Jena", "Köln", "Ulm", "Zeitz"]
    rows = "".join(f"{names[u]}, {names[v]}\n" for u, v in EDGES)
    for text in (rows, "from,to\n" + rows):
        (tmp_path / "graph.csv").write_text(text)
        np.testing.assert_array_equal(
            topo.from_edges(tmp_path / "graph.csv").matrix(0), topo.from_edges(EDGES).matrix(0)
        )
    (tmp_path / "graph.csv").write_text("from,to,weight\nJena,Ulm,0.25\nUlm,Köln,0.5\n")
    expected = topo.from_edges([(0, 2, 0.25), (2, 1, 0.5)]).matrix(0)
    np.testing.assert_array_equal(topo.from_edges(tmp_path / "graph.csv").matrix(0), expected)


def test_an_edge_may_be_given_both_ways():
    np.testing.assert_array_equal(topo.from_edges([*EDGES, (1, 0), (0, 1)]).matrix(0), topo.from_edges(EDGES).matrix(0))


def test_edges_with_their_own_weights(tmp_path):
    """w_uv = w_vu = w, and a node keeps the rest."""
    path = tmp_path / "graph.csv"
    path.write_text("u,v,weight\n0,1,0.5\n1,2,0.25\n2,1,0.25\n")
    expected = [[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]]
    for graph in (topo.from_edges(path), topo.from_edges([(0, 1, 0.5), (1, 2, 0.25)])):
        np.testing.assert_array_equal(graph.matrix(0), expected)
        assert graph.symmetric
        assert graph.doubly_stochastic
        assert graph.degree == 2
    thirds = topo.from_edges([(0, v, 1 / 3) for v in (1, 2, 3)]).matrix(0)
    assert thirds[0, 0] >= 0, "three thirds are one, to rounding"


def test_a_large_graph_is_kept_as_neighbour_lists():
    n = 20_000
    graph = topo.from_edges([(i, (i + 1) % n) for i in range(n)])
    assert (graph.n, graph.degree) == (n, 2)
    weighted = topo.from_edges([(i, (i + 1) % n, 0.25) for i in range(n)])
    x = np.arange(float(n))
    np.testing.assert_allclose(weighted.structure.product(NUMPY, 0, 0, x[:, None])[1:-1, 0], x[1:-1])


@pytest.mark.parametrize(
    ("edges", "options", "words"),
    [
        ([(0, 0), (0, 1)], {}, r"edges\[0\]=\(0, 0\): a node needs no edge to itself"),
        ([(0, 1), (2, 3)], {}, "has 2 components"),
        ([(0, 1)], {"n": 3}, "has 2 components"),
        ([(0, 1, 0.5), (2, 3, 0.5)], {}, "edges: the graph has 2 components"),
        ([(0, 1, -0.5)], {}, r"edges\[0\]: its weight is -0\.5; give a number above 0"),
        ([(0, 1, float("nan"))], {}, "its weight is nan"),
        ([(0, 1, "a")], {}, "its weight is 'a'"),
        ([(0, 1, 0.6), (1, 2, 0.6)], {}, "the weights at node 1 sum to 1.2"),
        ([(0, 1, 0.5), (1, 0, 0.4)], {}, r"the edge has weight 0\.5"),
        ([(0, 1, 0.5)], {"weights": "lazy"}, "weights='lazy', but the edges have weights of their own"),
        ([(0, 1)], {"weights": "heavy"}, "weights='heavy': choose from"),
        ([(0, 1), (1, 2, 0.5)], {}, r"edges\[1\]=\(1, 2, 0\.5\): give \(u, v\) for all"),
        ([(0,)], {}, r"edges\[0\]=\(0,\): give"),
        ([(0, 1.5)], {}, r"edges\[0\]=1\.5: give a whole number"),
        ([(0, -1)], {}, r"edges\[0\]=-1: give a whole number of at least 0"),
        ([(0, 9)], {"n": 4}, "edges has node 9: with n=4 the nodes are 0 to 3"),
        ([(0, 2**62)], {}, "neighbour lists"),
        ([], {}, "edges is empty"),
        (3, {}, "edges=3: give a list"),
        (["ab"], {}, r"edges\[0\]='ab'"),
        ("none.csv", {}, r"edges none\.csv cannot be read"),
    ],
)
def test_what_is_wrong_with_edges_is_said(edges, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        topo.from_edges(edges, **options)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_a_file_of_edges_is_said(tmp_path):
    for text, words in (
        ("0,1\n1,b\n", r"line 2 has 'b'; give the numbers of nodes"),
        ("0,1\n1,inf\n", r"line 2 has 'inf'; give the numbers of nodes"),
        ("0,1\n1\n", "line 2 has 1 cells where the first has 2"),
        ("0,1\n1,1.5\n", r"edges\[1\]=1\.5: give a whole number"),
        ("u,v\n", "edges is empty"),
        ("Jena,Ulm\nUlm,3\n", "line 2 has 'Ulm'; give the numbers of nodes, from 0, or names in every row"),
        ("0,1\nJena,Ulm\n", "line 2 has 'Jena'; give"),
        ("Jena,Ulm\nUlm,\n", "line 2 has 'Ulm'; give"),
    ):
        (tmp_path / "graph.csv").write_text(text)
        with pytest.raises(ValueError, match=words):
            topo.from_edges(tmp_path / "graph.csv")


def test_matrices_from_files(tmp_path):
    W = topo.ring(5).matrix(0)
    np.save(tmp_path / "W.npy", W)
    np.savez(tmp_path / "W.npz", W=W)
    (tmp_path / "W.csv").write_text("\n".join(",".join(repr(float(w)) for w in row) for row in W))
    for name in ("W.npy", "W.npz", "W.csv"):
        np.testing.assert_array_equal(topo.from_matrix(tmp_path / name).matrix(0), W)
    np.savez(tmp_path / "two.npz", W=W, V=W)
    np.save(tmp_path / "object.npy", np.array([[None]]))
    (tmp_path / "text.npy").write_text("W")
    (tmp_path / "text.csv").write_text("1,a\n")
    (tmp_path / "sums.csv").write_text("1,1\n1,1\n")
    for name, words in (
        ("two.npz", "it has 2 arrays, not one"),
        ("object.npy", "does not hold a plain matrix"),
        ("text.npy", "does not hold a plain matrix"),
        ("text.csv", "line 1 has 'a'; give numbers"),
        ("sums.csv", "W: row 0 sums to 2"),
        ("none.csv", "W .*none.csv cannot be read"),
        ("W.txt", "W .*W.txt: give a file that ends in .csv, .npy or .npz"),
    ):
        with pytest.raises(ValueError, match=words):
            topo.from_matrix(str(tmp_path / name))
