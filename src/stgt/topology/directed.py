"""Directed graphs without doubly stochastic weights: a row- and a column-stochastic matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.ops import Array, Ops
from stgt._internal.registry import register
from stgt.topology.base import Topology, check_matrices, closed_parts, degree_of
from stgt.topology.structure import Structure, structure_from_matrices


@dataclass(frozen=True, eq=False)
class TwoMatrices(Structure):
    """A row-stochastic W_r, `pull`, and a column-stochastic matrix, `push`, for a `MessageVar(…, pushed=True)`."""

    arrays = ("pull", "push")
    random = False

    pull: Structure
    push: Structure

    @property
    def pushing(self) -> Structure:
        return self.push

    @property
    def phases(self) -> int:
        return int(np.lcm(self.pull.phases, self.push.phases))

    def matrix(self, r: int, seed: int) -> np.ndarray:
        return self.pull.matrix(r, seed)

    def product(self, ops: Ops, seed: Array, r: Array, v: Array, back: bool = False) -> Array:
        return self.pull.product(ops, seed, r, v, back)

    def links(self, ops: Ops, seed: Array, r: Array) -> Array:
        return self.pull.links(ops, seed, r)

    def norm(self, r: int, seed: int) -> float:
        return self.pull.norm(r, seed)


@register
def push_pull(R: Any, C: Any = None) -> Topology:
    """Two matrices per round. A row-stochastic R mixes the models, x ← R h. A column-stochastic C mixes the trackers,
    c ← c + β(C z − z), so that Σ_i c_i = 0 and x* is a fixed point on any directed graph.

    It is for the trackers: `PushPull` is the paper's method, `STGT` its form with local steps. Some node must reach all
    others along R's links, and be reached by all others along C's links. Otherwise some node's gradients are lost. Give
    every node some weight of its own: R_ii > 0 and C_ii > 0.

    Args:
        R: a square, non-negative matrix whose rows sum to one; a list of such matrices, used in turn; or a topology
            with a period. Or a networkx.DiGraph without C, in which an edge (j, i) lets i receive from j: node i then
            has the weight 1/(1 + the number of nodes it receives from) in R, and 1/(1 + the number of nodes that
            receive from it) in C.
        C: the same with columns that sum to one, for the same number of nodes.

    Returns:
        A directed topology. Its `matrix(r)` is R_r, its `matrix(r, pushed=True)` C_r.

    Example:
        >>> import networkx as nx, stgt
        >>> graph = stgt.topology.push_pull(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
        >>> graph.matrix(0, pushed=True).sum(axis=0).round(12).tolist()
        [1.0, 1.0, 1.0]

    Reference: Pu, Shi, Xu, Nedić, arXiv:1810.06653.
    """
    if C is None:
        R, C = _of_graph(R)
    pull, push = _stack(R, "R"), _stack(C, "C")
    n, others = pull.shape[1], push.shape[1]
    if n != others:
        raise InputError("R", hint=f" has {n} nodes and C has {others}: give matrices of one size.")
    _check_root(*(np.asarray(stack.any(axis=0)) for stack in (pull, push)))
    return Topology(
        f"push_pull({n} nodes)",
        n,
        TwoMatrices(structure_from_matrices(pull), structure_from_matrices(push)),
        doubly_stochastic=False,
        symmetric=False,
        period=math.lcm(len(pull), len(push)),
        degree=max(degree_of(pull), degree_of(push)),
    )


def _stack(given: Any, name: str) -> Array:
    """The matrices (T, n, n); sums that differ from one by rounding are corrected, of rows in R, of columns in C."""
    if isinstance(given, Topology):
        if given.has_server or given.has_push:
            raise InputError(name, hint=f" is {given}: give a matrix, or a topology with one matrix per round.")
        if given.period is None:
            raise InputError(
                name, hint=f" is {given}, which has no period: give a matrix, or a topology with a period."
            )
        matrices = [given.matrix(r) for r in range(given.period)]
    elif _is_graph(given):
        raise InputError(name, hint=" is a graph: give push_pull(graph) without C, or two matrices.")
    else:
        several = isinstance(given, list | tuple | np.ndarray) and len(given) and np.ndim(given[0]) == 2
        matrices = list(given) if several else [given]
    return check_matrices(matrices, name, **{"row_stochastic" if name == "R" else "column_stochastic": True})


def _of_graph(graph: Any) -> tuple[Array, Array]:
    """R by each node's number of senders, C by its number of receivers; every node counts itself."""
    if not _is_graph(graph):
        raise InputError("C", hint=" is missing: give push_pull(R, C), or a networkx.DiGraph alone.")
    from stgt.topology.graphs import senders_matrix

    links = (senders_matrix(graph).toarray() != 0) + np.eye(graph.number_of_nodes())
    return links / links.sum(axis=1, keepdims=True), links / links.sum(axis=0)


def _is_graph(given: Any) -> bool:
    return hasattr(given, "number_of_nodes") and hasattr(given, "is_directed")


def _check_root(pull: Array, push: Array) -> None:
    """A ValueError unless some node reaches all others along R's links and is reached by all along C's links."""
    n = len(pull)
    from_others, to_others = closed_parts(n, *np.nonzero(pull)), closed_parts(n, *np.nonzero(push.T))
    spreads, gathers = (part == 0 if part.max() == 0 else np.zeros(n, dtype=bool) for part in (from_others, to_others))
    if not spreads.any():
        raise InputError("R", hint="no node reaches all others, directly or through others; add links from it.")
    if not gathers.any():
        raise InputError("C", hint="no node is reached by all others, directly or through others; add links to it.")
    if not (spreads & gathers).any():
        raise InputError(
            "R",
            hint=f"only the nodes {_some(spreads)} reach all others, and along C's links all reach only the nodes "
            f"{_some(gathers)}. Add links so that one node does both.",
        )


def _some(nodes: Array) -> str:
    shown = np.flatnonzero(nodes).tolist()
    return f"{shown[:10]}{' and more' if len(shown) > 10 else ''}"
