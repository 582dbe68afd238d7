"""Static topologies from a graph: whose neighbours hear whom, and how much each weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.checks import check_choice, check_count, check_number, check_seed
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.structure import Gather, check_room, structure_from_lists

if TYPE_CHECKING:
    import networkx as nx

RULES = ("metropolis", "uniform", "lazy")


@register
def from_networkx(graph: nx.Graph, weights: str = "metropolis") -> Topology:
    """A topology on the nodes of a networkx graph, in the order of `graph.nodes`.

    "metropolis": w_ij = 1/(1 + max(d_i, d_j)); "uniform": w_ij = 1/(1 + d_max); "lazy": (I + W)/2 with the Metropolis
    W, or the uniform one for a DiGraph. w_ii is the rest. Self-loops, parallel edges and edge attributes are ignored.

    Args:
        graph: a connected Graph; or a DiGraph, u → v meaning that v hears u, in which every node has as many edges
            in as out, so that columns sum to one as well ("uniform" and "lazy" only).
        weights: one of the rules above.

    Returns:
        A static topology: dense up to 64 nodes, neighbour lists beyond.

    Reference: Xiao & Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise ValueError(f"graph is a {type(graph).__name__}: give a networkx Graph or DiGraph.")
    kind = "digraph" if graph.is_directed() else "graph"
    edges = graph.number_of_edges()
    return topology_of_graph(graph, weights, graph.name or f"{kind}({graph.number_of_nodes()} nodes, {edges} edges)")


@register
def grid(rows: int, cols: int, torus: bool = False, weights: str = "metropolis") -> Topology:
    """A grid: every node hears those above, below, left and right of it.

    w_ij = 1/(1 + max(d_i, d_j)) by default, with d ≤ 4.

    Args:
        rows, cols: size of the grid; node (a, b) is number a·cols + b.
        torus: join the opposite edges.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology.
    """
    import networkx as nx

    rows, cols = check_count(rows, "rows"), check_count(cols, "cols")
    name = f"{'torus' if torus else 'grid'}({rows}, {cols}{_rule(weights)})"
    return topology_of_graph(nx.grid_2d_graph(rows, cols, periodic=bool(torus)), weights, name)


@register
def torus(rows: int, cols: int, weights: str = "metropolis") -> Topology:
    """A grid whose opposite edges are joined: w_ij = 1/5 for the four neighbours (rows, cols > 2).

    Args:
        rows, cols: size of the torus; node (a, b) is number a·cols + b.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology.
    """
    return grid(rows, cols, torus=True, weights=weights)


@register
def star(n: int, weights: str = "metropolis") -> Topology:
    """Node 0 hears everybody, the others hear node 0 only: w_0j = w_j0 = 1/n.

    Args:
        n: number of nodes.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology. (A server that averages is `server(n)`.)
    """
    import networkx as nx

    n = check_count(n, "n")
    check_room(f"star({n})", 1, n, n)
    return topology_of_graph(nx.star_graph(n - 1), weights, f"star({n}{_rule(weights)})")


@register
def erdos_renyi(n: int, probability: float, seed: int = 0, weights: str = "metropolis") -> Topology:
    """A random graph with every link present with the given probability, drawn once.

    Args:
        n: number of nodes.
        probability: of a link, in (0, 1]; connected with high probability above log(n)/n.
        seed: which graph.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology; a ValueError if the graph drawn is not connected.
    """
    import networkx as nx

    n, seed = check_count(n, "n"), check_seed(seed)
    probability = check_number(probability, "probability", above=0.0, most=1.0)
    check_room(f"erdos_renyi({n}, {probability:g})", 1, n, int(n * probability))
    graph = nx.fast_gnp_random_graph(n, probability, seed=seed)
    name = f"erdos_renyi({n}, {probability:g}, seed {seed}{_rule(weights)})"
    return topology_of_graph(graph, weights, name, "give a larger probability or another seed")


@register
def random_regular(n: int, degree: int, seed: int = 0, weights: str = "metropolis") -> Topology:
    """A random graph in which every node has the same number of neighbours, drawn once: w_ij = 1/(1 + degree).

    Args:
        n: number of nodes.
        degree: neighbours of each, below n, with n·degree even.
        seed: which graph.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology; a ValueError if the graph drawn is not connected.
    """
    import networkx as nx

    n, degree, seed = check_count(n, "n"), check_count(degree, "degree", 0), check_seed(seed)
    if degree >= n:
        raise ValueError(f"degree={degree}: a node of {n} has at most {n - 1} neighbours.")
    if n * degree % 2:
        raise ValueError(f"degree={degree}: with an odd n={n} give an even degree.")
    graph = nx.empty_graph(n)
    graph.add_edges_from(nx.random_regular_graph(degree, n, seed=seed).edges)
    name = f"random_regular({n}, {degree}, seed {seed}{_rule(weights)})"
    return topology_of_graph(graph, weights, name, "give a larger degree or another seed")


def _rule(weights: str) -> str:
    return "" if weights == RULES[0] else f", {weights}"


def topology_of_graph(graph: Any, weights: str, name: str, advice: str = "join them with edges") -> Topology:
    from scipy.sparse import csgraph

    check_choice(weights, "weights", RULES)
    directed = graph.is_directed()
    if directed and weights == "metropolis":
        raise ValueError("weights='metropolis': a DiGraph takes weights='uniform' or 'lazy'.")
    heard = heard_in(graph)
    n = heard.shape[0]
    indegree, outdegree = np.diff(heard.indptr), np.bincount(heard.indices, minlength=n)
    if directed and (indegree != outdegree).any():
        _raise_unbalanced(graph, indegree, outdegree)
    parts, part = csgraph.connected_components(heard, directed, "strong")
    if parts > 1:
        raise ValueError(
            f"{name}: the graph falls into {parts} components that never hear each other, such as those of nodes 0 and "
            f"{int((part != part[0]).argmax())}; {advice}."
        )
    check_room(name, 1, n, int(indegree.max()) + 1)

    rows = np.repeat(np.arange(n), indegree)
    other = indegree.max() if directed or weights == "uniform" else np.maximum(indegree[rows], indegree[heard.indices])
    heard.data = (0.5 if weights == "lazy" else 1.0) / (1.0 + other) * np.ones(len(rows))
    symmetric = not directed or (heard != heard.T).nnz == 0
    lists = Gather(*lists_of(heard)) if symmetric else Gather(*lists_of(heard), *lists_of(heard.T.tocsr()))
    return Topology(name, n, structure_from_lists(lists), symmetric=symmetric, degree=int(indegree.max()))


def heard_in(graph: Any) -> Any:
    """Whom each node hears, as a sparse 0/1 matrix in CSR form, without the node itself."""
    import networkx as nx
    from scipy import sparse

    if graph.number_of_nodes() == 0:
        raise ValueError("graph has no nodes: give a graph with at least one.")
    unweighted: Any = None
    pairs = nx.to_scipy_sparse_array(graph, weight=unweighted, dtype=np.float64, format="coo")
    others = pairs.row != pairs.col
    heard = sparse.csr_array((pairs.data[others], (pairs.col[others], pairs.row[others])), shape=pairs.shape)
    heard.sum_duplicates()
    return heard


def _raise_unbalanced(graph: Any, indegree: np.ndarray, outdegree: np.ndarray) -> None:
    worst = int(np.flatnonzero(indegree != outdegree)[0])
    raise ValueError(
        f"graph: node {list(graph.nodes)[worst]!r} hears {indegree[worst]} nodes but is heard by {outdegree[worst]}; "
        "add or remove edges until both agree at every node, or give your own weights to from_matrix(W)."
    )


def lists_of(W: Any) -> tuple[np.ndarray, np.ndarray]:
    """Neighbour lists (1, n, d) of a sparse W without its diagonal, which is what each row lacks to one."""
    n, counts = W.shape[0], np.diff(W.indptr)
    rows = np.repeat(np.arange(n), counts)
    slot = np.arange(len(rows)) - W.indptr[rows] + 1
    index = np.tile(np.arange(n, dtype=np.int32)[:, None], (1, 1, counts.max() + 1))
    weight = np.zeros(index.shape)
    index[0, rows, slot] = W.indices
    weight[0, rows, slot] = W.data
    weight[0, :, 0] = 1.0 - weight[0].sum(axis=1)
    return index, weight
