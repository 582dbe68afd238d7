"""The vectors that the methods compute with: one stack of all nodes, as a flat list of numbers.

A node has p rows of k columns. A run has k = 1. The map of a round has one column for each unit vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Matrix = Sequence[Sequence[float]]


class Vector:
    """A stack of all nodes' vectors, with + − · / by another stack or a number."""

    __slots__ = ("data",)

    def __init__(self, data: list[float]):
        self.data = data

    def __add__(self, other: Vector | float) -> Vector:
        if isinstance(other, Vector):
            return Vector([a + b for a, b in zip(self.data, other.data, strict=True)])
        return Vector([a + other for a in self.data])

    __radd__ = __add__

    def __sub__(self, other: Vector | float) -> Vector:
        if isinstance(other, Vector):
            return Vector([a - b for a, b in zip(self.data, other.data, strict=True)])
        return Vector([a - other for a in self.data])

    def __rsub__(self, other: float) -> Vector:
        return Vector([other - a for a in self.data])

    def __mul__(self, other: Vector | float) -> Vector:
        if isinstance(other, Vector):
            return Vector([a * b for a, b in zip(self.data, other.data, strict=True)])
        return Vector([a * other for a in self.data])

    __rmul__ = __mul__

    def __truediv__(self, other: Vector | float) -> Vector:
        if isinstance(other, Vector):
            return Vector([a / b for a, b in zip(self.data, other.data, strict=True)])
        return Vector([a / other for a in self.data])

    def __neg__(self) -> Vector:
        return Vector([-a for a in self.data])

    def rows(self, nodes: int) -> list[list[float]]:
        """The numbers of each node."""
        width = len(self.data) // nodes
        return [self.data[i * width : (i + 1) * width] for i in range(nodes)]


def stack(rows: Sequence[Sequence[float]]) -> Vector:
    """The stack of these nodes' numbers."""
    return Vector([value for row in rows for value in row])


def product(W: Matrix, vector: Vector) -> Vector:
    """W · vector: node i receives Σ_j w_ij · (the vector of node j)."""
    rows = vector.rows(len(W))
    found = []
    for weights in W:
        parts = [[w * value for value in row] for w, row in zip(weights, rows, strict=True) if w]
        found.append([sum(column) for column in zip(*parts, strict=True)])
    return stack(found)


def transposed(W: Matrix) -> Matrix:
    return list(zip(*W, strict=True))


def choose(active: Sequence[bool] | None, new: Vector, old: Vector) -> Vector:
    """`new` at the active nodes, `old` at the others."""
    if active is None or all(active):
        return new
    rows = zip(active, new.rows(len(active)), old.rows(len(active)), strict=True)
    return stack([one if works else other for works, one, other in rows])


def total(vector: Vector, nodes: int) -> list[float]:
    """The sum over the nodes."""
    return [sum(column) for column in zip(*vector.rows(nodes), strict=True)]


def mean(vector: Vector, nodes: int) -> list[float]:
    """The mean over the nodes."""
    return [value / nodes for value in total(vector, nodes)]


def each_node(function: Callable[[int], Sequence[float]], nodes: int) -> Vector:
    """The stack of function(0), function(1), …"""
    return stack([function(i) for i in range(nodes)])
