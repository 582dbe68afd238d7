"""The playground's problem: f_i(x) = ½ (x − m_i)ᵀ A_i (x − m_i) in the plane, which the library has as `Quadratic`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, exp, pi, sin

from playground.engine.draws import PROBLEM, normals, unit, words
from playground.engine.vectors import Vector

P = 2
START = (0.0, 0.0)  # the first model of every node; the only point that a spec file can name without knowing x*
MIDDLE = (2.2, 1.4)  # of the minimisers, before they are drawn apart
CURVATURES = (1.0, 0.45)  # of every f_i, before they are drawn apart


@dataclass(frozen=True)
class Problem:
    """The nodes' A_i as (a11, a12, a22), their minimisers m_i, and the standard deviation of the gradients' noise."""

    A: tuple[tuple[float, float, float], ...]
    centres: tuple[tuple[float, float], ...]
    noise: float

    @property
    def n(self) -> int:
        return len(self.A)

    @property
    def b(self) -> list[tuple[float, float]]:
        """b_i = A_i m_i, so that ∇f_i(x) = A_i x − b_i."""
        return [(a * x + c * y, c * x + d * y) for (a, c, d), (x, y) in zip(self.A, self.centres, strict=True)]

    @property
    def variance(self) -> float:
        return self.noise**2

    def optimum(self, nodes: Iterable[int]) -> tuple[float, float]:
        """The minimiser of the mean of these nodes' f_i."""
        chosen, b = list(nodes), self.b
        a, c, d = (sum(self.A[i][k] for i in chosen) for k in range(3))
        x, y = (sum(b[i][k] for i in chosen) for k in range(P))
        det = a * d - c * c
        return (d * x - c * y) / det, (a * y - c * x) / det

    def slopes(self, nodes: Sequence[int], x: Vector) -> Vector:
        """A_i x for these nodes; x may have several columns."""
        found: list[float] = []
        for i, row in zip(nodes, x.rows(len(nodes)), strict=True):
            a, c, d = self.A[i]
            half = len(row) // P
            first, second = row[:half], row[half:]
            found += [a * u + c * v for u, v in zip(first, second, strict=True)]
            found += [c * u + d * v for u, v in zip(first, second, strict=True)]
        return Vector(found)

    def gradients(self, nodes: Sequence[int], x: Vector, seed: int, step: int) -> Vector:
        """∇f_i(x_i) with the noise of this step."""
        b = self.b
        exact = self.slopes(nodes, x) - Vector([value for i in nodes for value in b[i]])
        if not self.noise:
            return exact
        drawn = Vector([value for i in nodes for value in normals(seed, step, i)])
        return exact + self.variance**0.5 * drawn


def draw(n: int, spread: float, seed: int, noise: float, centres: Sequence[Sequence[float]] | None) -> Problem:
    """The nodes' objectives: minimisers around a circle of about the radius `spread`, curvatures turned and stretched.

    At spread 0 all nodes have the same f_i.
    """
    A, places = [], []
    for i in range(n):
        angle, radius, turn, stretch = (unit(word) for b in (0, 1) for word in words(seed, 0, i, b, PROBLEM))
        angle, turn = 2 * pi * (i + angle) / n, spread * (turn - 0.5) * pi / 2
        radius, stretch = spread * (0.6 + 0.8 * radius), exp(1.6 * spread * (stretch - 0.5))
        large, small = CURVATURES[0] * stretch, CURVATURES[1] / stretch
        u, v = cos(turn), sin(turn)
        A.append((large * u * u + small * v * v, (large - small) * u * v, large * v * v + small * u * u))
        places.append((MIDDLE[0] + radius * cos(angle), MIDDLE[1] + radius * sin(angle)))
    given = places if centres is None else [(float(x), float(y)) for x, y in centres]
    return Problem(tuple(A), tuple(given), noise)
