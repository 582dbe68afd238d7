"""Static topologies from a graph: of networkx, of a list or file of edges, or of a family; and matrices from files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, check_number, check_seed
from stgt._internal.files import is_number, read_rows, readable
from stgt._internal.registry import register
from stgt.topology.base import Topology, periodic
from stgt.topology.structure import check_room, lists_from_sparse

if TYPE_CHECKING:
    import networkx as nx

ROUNDING = 1e-10
RULES = ("metropolis", "uniform", "lazy")


@register
def from_networkx(graph: nx.Graph, weights: str = "metropolis") -> Topology:
    """A topology on the nodes of a networkx graph, in the order of `graph.nodes`.

    "metropolis": w_ij = 1/(1 + max(d_i, d_j)); "uniform": w_ij = 1/(1 + d_max); "lazy": (I + W)/2 with the Metropolis
    W, or with the uniform one for a DiGraph. w_ii is the rest. Self-loops, parallel edges and edge attributes are
    ignored.

    Args:
        graph: a connected Graph; or a DiGraph, in which u → v means that v receives from u. Every node of a DiGraph
            must have as many edges in as out, so that the columns sum to one as well ("uniform" and "lazy" only).
        weights: one of the rules above.

    Returns:
        A static topology: dense up to 64 nodes, neighbour lists for more.

    Reference: Xiao & Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise InputError("graph", hint=f" is a {type(graph).__name__}: give a networkx Graph or DiGraph.")
    kind = "digraph" if graph.is_directed() else "graph"
    edges = graph.number_of_edges()
    return _of_graph(graph, weights, graph.name or f"{kind}({graph.number_of_nodes()} nodes, {edges} edges)")


@register
def grid(rows: int, cols: int, torus: bool = False, weights: str = "metropolis") -> Topology:
    """A grid: every node receives from the nodes above, below, left and right of it.

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
    return _of_graph(nx.grid_2d_graph(rows, cols, periodic=bool(torus)), weights, name)


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
    """Node 0 receives from all others, and they receive from node 0 only: w_0j = w_j0 = 1/n.

    Args:
        n: number of nodes.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology. (A server that averages is `server(n)`.)
    """
    import networkx as nx

    n = check_count(n, "n")
    check_room(f"star({n})", 1, n, n)
    return _of_graph(nx.star_graph(n - 1), weights, f"star({n}{_rule(weights)})")


@register
def erdos_renyi(n: int, probability: float, seed: int = 0, weights: str = "metropolis") -> Topology:
    """A random graph, drawn once. Every link is present with the given probability.

    Args:
        n: number of nodes.
        probability: of a link, in (0, 1]; above log(n)/n the graph is connected with high probability.
        seed: of the draw.
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
    return _of_graph(graph, weights, name, "give a larger probability or another seed")


@register
def random_regular(n: int, degree: int, seed: int = 0, weights: str = "metropolis") -> Topology:
    """A random graph, drawn once, in which every node has the same number of neighbours: w_ij = 1/(1 + degree).

    Args:
        n: number of nodes.
        degree: neighbours of each node, below n, with n·degree even.
        seed: of the draw.
        weights: "metropolis", "uniform" or "lazy", as in `from_networkx`.

    Returns:
        A static, symmetric topology; a ValueError if the graph drawn is not connected.
    """
    import networkx as nx

    n, degree, seed = check_count(n, "n"), check_count(degree, "degree", 0), check_seed(seed)
    if degree >= n:
        raise InputError("degree", degree, f"a node of {n} has at most {n - 1} neighbours.")
    if n * degree % 2:
        raise InputError("degree", degree, f"with an odd n={n} give an even degree.")
    graph = nx.empty_graph(n)
    graph.add_edges_from(nx.random_regular_graph(degree, n, seed=seed).edges)
    name = f"random_regular({n}, {degree}, seed {seed}{_rule(weights)})"
    return _of_graph(graph, weights, name, "give a larger degree or another seed")


def _rule(weights: str) -> str:
    return "" if weights == RULES[0] else f", {weights}"


def _of_graph(graph: nx.Graph, weights: str, name: str, advice: str = "connect them with edges") -> Topology:
    check_choice(weights, "weights", RULES)
    directed = graph.is_directed()
    if directed and weights == "metropolis":
        raise InputError("weights", "metropolis", "a DiGraph takes weights='uniform' or 'lazy'.")
    links = senders_matrix(graph)
    indegree, outdegree = np.diff(links.indptr), np.bincount(links.indices, minlength=links.shape[0])
    if (indegree != outdegree).any():
        worst = int(np.flatnonzero(indegree != outdegree)[0])
        raise InputError(
            "graph",
            hint=f"node {list(graph.nodes)[worst]!r} receives from {indegree[worst]} nodes but sends to "
            f"{outdegree[worst]}; add or remove edges until both numbers agree at every node, or give your own weights "
            "to from_matrix(W).",
        )
    rows = np.repeat(np.arange(len(indegree)), indegree)
    other = indegree.max() if directed or weights == "uniform" else np.maximum(indegree[rows], indegree[links.indices])
    links.data = (0.5 if weights == "lazy" else 1.0) / (1.0 + other) * np.ones(len(rows))
    return _of_links(links, name, name, advice)


def _of_links(W: Any, name: str, subject: str, advice: str) -> Topology:
    """A topology from the weights of its links, a sparse matrix; w_ii is the rest. A ValueError if not connected."""
    from scipy.sparse import csgraph

    parts, part = csgraph.connected_components(W, directed=True, connection="strong")
    if parts > 1:
        raise InputError(
            subject,
            hint=f"the graph has {parts} components that are not connected, such as those of nodes 0 and "
            f"{int((part != part[0]).argmax())}; {advice}.",
        )
    check_room(name, 1, W.shape[0], int(np.diff(W.indptr).max()) + 1)
    return periodic(name, lists_from_sparse([W], rest=True))


def senders_matrix(graph: Any) -> Any:
    """The senders of each node, without the node itself, as a sparse 0/1 matrix in CSR form."""
    import networkx as nx
    from scipy import sparse

    if graph.number_of_nodes() == 0:
        raise InputError("graph", hint=" has no nodes: give a graph with at least one.")
    unweighted: Any = None
    pairs = nx.to_scipy_sparse_array(graph, weight=unweighted, dtype=np.float64, format="coo")
    others = pairs.row != pairs.col
    links = sparse.csr_array((pairs.data[others], (pairs.col[others], pairs.row[others])), shape=pairs.shape)
    links.sum_duplicates()
    return links


@register
def from_edges(edges: Any, n: int | None = None, weights: str | None = None) -> Topology:
    """An undirected graph from its edges: for an edge (u, v), nodes u and v receive from each other.

    w_ij = 1/(1 + max(d_i, d_j)) by default; or edges (u, v, w) with their own weight w_uv = w_vu = w. w_ii is the rest.

    Args:
        edges: a list of (u, v), or of (u, v, weight), with nodes numbered from 0; or the path of a CSV file with such
            rows, with a header or without. In a file nodes may have names, which are numbered alphabetically. You may
            list an edge in both directions.
        n: number of nodes; one more than the largest number if omitted.
        weights: "metropolis" (the default), "uniform" or "lazy", as in `from_networkx`; not if edges have weights.

    Returns:
        A static, symmetric topology; a ValueError if the graph is not connected.

    Example:
        >>> import stgt
        >>> stgt.topology.from_edges([(0, 1), (1, 2)]).matrix(0)[1].round(2).tolist()
        [0.33, 0.33, 0.33]
    """
    listed = _read(Path(edges)) if isinstance(edges, str | Path) else _listed(edges)
    found = _checked(listed)
    largest = max(v for _, v in found)
    n = largest + 1 if n is None else check_count(n, "n")
    if largest >= n:
        raise InputError("edges", hint=f" has node {largest}: with n={n} the nodes are 0 to {n - 1}.")
    name = f"from_edges({n} nodes, {len(found)} edges{f', {weights}' if weights else ''})"
    check_room(name, 1, n, 2)
    if None in found.values():
        import networkx as nx

        graph = nx.empty_graph(n)
        graph.add_edges_from(found)
        return _of_graph(graph, weights or RULES[0], name)
    if weights is not None:
        raise InputError("weights", weights, ", but the edges have weights of their own: leave one of them out.")
    return _weighted(found, n, name)


def read_matrix(path: Path) -> np.ndarray:
    """A matrix from a file: .csv, .npy, or .npz with one array."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".npy", ".npz"):
        raise InputError("W", path, "give a file that ends in .csv, .npy or .npz.")
    with readable(path, "W"):
        if kind == ".csv":
            lines, rows = read_rows(path, "W")
            return np.array(
                [[_number(cell, "W", path, line) for cell in row] for line, row in zip(lines, rows, strict=True)]
            )
        try:
            with path.open("rb") as stream:
                found: Any = np.load(stream, allow_pickle=False)
                if isinstance(found, np.ndarray):
                    return found
                if len(found.files) != 1:
                    raise ValueError(f"it has {len(found.files)} arrays, not one")
                return found[found.files[0]]
        except ValueError as error:
            raise InputError("W", path, f" does not hold a plain matrix ({error}): write it with np.save.") from None


def _read(path: Path) -> list[tuple[Any, ...]]:
    """The rows of a CSV file of edges."""
    with readable(path, "edges"):
        lines, rows = read_rows(path, "edges")
    others = {cell.strip() for row in rows[1:] for cell in row[:2]}
    names = bool(others) and not any(is_number(node) or not node for node in others)
    first = {cell.strip() for cell in rows[0][:2]} if rows else set()
    if rows and not any(map(is_number, rows[0])) and not (names and others & first):
        lines, rows, first = lines[1:], rows[1:], set()  # a header: its words are not names of nodes in other rows
    if names and not any(map(is_number, first)):
        number = {node: str(place) for place, node in enumerate(sorted(others | first))}
        rows = [[*(number[cell.strip()] for cell in row[:2]), *row[2:]] for row in rows]
    found = []
    for line, row in zip(lines, rows, strict=True):
        numbers = [_number(cell, "edges", path, line) for cell in row]
        found.append(tuple(int(one) if one == int(one) and place < 2 else one for place, one in enumerate(numbers)))
    return found


def _number(cell: str, argument: str, path: Path, line: int) -> float:
    if not is_number(cell) or not np.isfinite(float(cell)):
        wanted = "the numbers of nodes, from 0, or names in every row" if argument == "edges" else "numbers"
        raise InputError(argument, path, f"line {line} has {cell.strip()[:40]!r}; give {wanted}.")
    return float(cell)


def _listed(edges: Any) -> list[tuple[Any, ...]]:
    if not isinstance(edges, Iterable):
        raise InputError("edges", edges, "give a list of (u, v), or the path of a CSV file.")
    found = []
    for number, edge in enumerate(edges):
        if isinstance(edge, str) or not isinstance(edge, Iterable):
            raise InputError(("edges", number), edge, "give (u, v) or (u, v, weight).")
        found.append(tuple(edge))
    return found


def _checked(edges: list[tuple[Any, ...]]) -> dict[tuple[int, int], float | None]:
    """The weights by (u, v) with u < v; None for an edge without a weight."""
    if not edges:
        raise InputError("edges", hint=" is empty: give at least one edge.")
    found: dict[tuple[int, int], float | None] = {}
    for number, edge in enumerate(edges):
        if len(edge) != len(edges[0]) or len(edge) not in (2, 3):
            raise InputError(("edges", number), edge, "give (u, v) for all edges, or (u, v, weight) for all.")
        u, v = (check_count(node, f"edges[{number}]", 0) for node in edge[:2])
        if u == v:
            raise InputError(("edges", number), edge, "a node needs no edge to itself; leave it out.")
        weight = None if len(edge) == 2 else _weight(edge[2], number)
        pair = (min(u, v), max(u, v))
        if found.get(pair, weight) != weight:
            raise InputError(("edges", number), edge, f"the edge has weight {found[pair]} elsewhere; give one weight.")
        found[pair] = weight
    return found


def _weight(given: Any, number: int) -> float:
    try:
        weight = float(given)
    except (TypeError, ValueError):
        weight = np.nan
    if not 0 < weight <= 1:
        raise InputError(("edges", number), hint=f"its weight is {given!r}; give a number above 0 and up to 1.")
    return weight


def _weighted(found: dict[tuple[int, int], Any], n: int, name: str) -> Topology:
    from scipy import sparse

    pairs, values = np.array(list(found)), np.array(list(found.values()))
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    W = sparse.csr_array((np.concatenate([values, values]), (ends[:, 0], ends[:, 1])), shape=(n, n))
    sums = W.sum(axis=1)
    if sums.max() > 1 + ROUNDING:
        worst = int(sums.argmax())
        raise InputError(
            "edges", hint=f"the weights at node {worst} sum to {sums[worst]:.6g}; their sum must be at most 1."
        )
    return _of_links(W, name, "edges", "connect them")
