"""A graph of one's own: a list of edges, or a file of them; and matrices from files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stgt._internal.checks import check_count
from stgt._internal.files import is_number, read_rows, readable
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.graphs import RULES, lists_of, topology_of_graph
from stgt.topology.structure import Gather, check_room, structure_from_lists

ROUNDING = 1e-10


@register
def from_edges(edges: Any, n: int | None = None, weights: str | None = None) -> Topology:
    """An undirected graph by its edges: node u and node v hear each other.

    w_ij = 1/(1 + max(d_i, d_j)) by default; or edges (u, v, w) with their own weight w_uv = w_vu = w. w_ii is the rest.

    Args:
        edges: a list of (u, v), or of (u, v, weight), with nodes numbered from 0; or the path of a CSV file with such
            rows, with a header or without. An edge may be given both ways.
        n: number of nodes; one more than the largest number if left out.
        weights: "metropolis", if left out, "uniform" or "lazy", as in `from_networkx`; not where edges have their own.

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
        raise ValueError(f"edges has node {largest}: with n={n} they go from 0 to {n - 1}.")
    name = f"from_edges({n} nodes, {len(found)} edges{f', {weights}' if weights else ''})"
    check_room(name, 1, n, 2)
    if None in found.values():
        import networkx as nx

        graph = nx.empty_graph(n)
        graph.add_edges_from(found)
        return topology_of_graph(graph, weights or RULES[0], name)
    if weights is not None:
        raise ValueError(f"weights={weights!r}, but the edges have weights of their own: leave one of them out.")
    return _weighted(found, n, name)


def read_matrix(path: Path) -> np.ndarray:
    """A matrix from a file: .csv, .npy, or .npz with one array."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".npy", ".npz"):
        raise ValueError(f"W {path}: give a file that ends in .csv, .npy or .npz.")
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
            raise ValueError(f"W {path} does not hold a plain matrix ({error}): write it with np.save.") from None


def _read(path: Path) -> list[tuple[Any, ...]]:
    """The rows of a file of edges."""
    with readable(path, "edges"):
        lines, rows = read_rows(path, "edges")
    if rows and not any(is_number(cell) for cell in rows[0]):
        lines, rows = lines[1:], rows[1:]
    found = []
    for line, row in zip(lines, rows, strict=True):
        numbers = [_number(cell, "edges", path, line) for cell in row]
        found.append(tuple(int(one) if one == int(one) and place < 2 else one for place, one in enumerate(numbers)))
    return found


def _number(cell: str, argument: str, path: Path, line: int) -> float:
    if not is_number(cell) or not np.isfinite(float(cell)):
        wanted = (
            "the numbers of nodes, from 0; names are numbered by the alphabet" if argument == "edges" else "numbers"
        )
        raise ValueError(f"{argument} {path}: line {line} has {cell.strip()[:40]!r}; give {wanted}.")
    return float(cell)


def _listed(edges: Any) -> list[tuple[Any, ...]]:
    if not isinstance(edges, Iterable):
        raise ValueError(f"edges={edges!r}: give a list of (u, v), or the path of a CSV file.")
    found = []
    for number, edge in enumerate(edges):
        if isinstance(edge, str) or not isinstance(edge, Iterable):
            raise ValueError(f"edges[{number}]={edge!r}: give (u, v) or (u, v, weight).")
        found.append(tuple(edge))
    return found


def _checked(edges: list[tuple[Any, ...]]) -> dict[tuple[int, int], float | None]:
    """The weights, or None, by (u, v) with u < v."""
    if not edges:
        raise ValueError("edges is empty: give at least one edge.")
    found: dict[tuple[int, int], float | None] = {}
    for number, edge in enumerate(edges):
        if len(edge) != len(edges[0]) or len(edge) not in (2, 3):
            raise ValueError(f"edges[{number}]={edge}: give (u, v) for all edges, or (u, v, weight) for all.")
        u, v = (check_count(node, f"edges[{number}]", 0) for node in edge[:2])
        if u == v:
            raise ValueError(f"edges[{number}]={edge}: node {u} hears itself anyway; leave the edge out.")
        weight = None if len(edge) == 2 else _weight(edge[2], number)
        pair = (min(u, v), max(u, v))
        if found.get(pair, weight) != weight:
            raise ValueError(f"edges[{number}]={edge}: the edge was given before with weight {found[pair]}; give one.")
        found[pair] = weight
    return found


def _weight(given: Any, number: int) -> float:
    try:
        weight = float(given)
    except (TypeError, ValueError):
        weight = np.nan
    if not 0 < weight <= 1:
        raise ValueError(f"edges[{number}]: its weight is {given!r}; give a number above 0 and up to 1.")
    return weight


def _weighted(found: dict[tuple[int, int], Any], n: int, name: str) -> Topology:
    from scipy import sparse
    from scipy.sparse import csgraph

    pairs, values = np.array(list(found)), np.array(list(found.values()))
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    W = sparse.csr_array((np.concatenate([values, values]), (ends[:, 0], ends[:, 1])), shape=(n, n))
    parts, part = csgraph.connected_components(W, directed=False)
    if parts > 1:
        raise ValueError(
            f"edges: the graph falls into {parts} components that never hear each other, such as those of nodes 0 and "
            f"{int((part != part[0]).argmax())}; join them."
        )
    sums = W.sum(axis=1)
    if sums.max() > 1 + ROUNDING:
        worst = int(sums.argmax())
        raise ValueError(f"edges: the weights at node {worst} sum to {sums[worst]:.6g}; make them sum to 1 at most.")
    degree = int(np.diff(W.indptr).max())
    check_room(name, 1, n, degree + 1)
    index, weight = lists_of(W)
    lists = Gather(index, np.maximum(weight, 0.0))  # what a node keeps may be −1e-17
    return Topology(name, n, structure_from_lists(lists), symmetric=True, degree=degree)
