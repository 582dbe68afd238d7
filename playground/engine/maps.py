"""The linear map of a round, or of a period of rounds, and its eigenvalues.

A round is v ← M v + b + noise for the state v. M is the round of the problem with b_i = 0, applied to all unit vectors
at once. Where rounds are drawn, M is the mean over the draws.
"""

from __future__ import annotations

from playground.engine.eigenvalues import eigenvalues
from playground.engine.graphs import Graph, Mixing
from playground.engine.problem import P, Problem
from playground.engine.run import exchange, local_steps
from playground.engine.vectors import Vector, total
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import Checked

State = dict[str, Vector]
Place = tuple[str, int, int]  # a variable, a node, a coordinate


class Map:
    """M in coordinates without what all nodes share or what is conserved: `entries` of the state decide all others."""

    def __init__(self, algorithm: Algorithm, problem: Problem, graph: Graph):
        self.method, self.problem, self.graph = Checked(algorithm), problem, graph
        self.nodes = tuple(range(problem.n))
        self.entries, vectors = self._basis()
        self.rounds = graph.laws()
        for cases in self.rounds:
            vectors = self._round(vectors, cases)
        self.matrix = [self._row(vectors, place) for place in self.entries]

    def spectrum(self) -> list[complex]:
        return eigenvalues(self.matrix)

    @property
    def what(self) -> str:
        if self.graph.random:
            return "the mean of a round's map"
        return "the map of a round" if len(self.rounds) == 1 else f"the map of {len(self.rounds)} rounds"

    def _round(self, state: State, cases: list[tuple[float, Mixing]]) -> State:
        """The mean over the cases of a round, for all columns."""
        local, _ = local_steps(
            self.method, state, lambda x, _: self.problem.slopes(self.nodes, x), 0, self.graph.participation
        )
        found = [(chance, exchange(self.method, state, local, mixing)) for chance, mixing in cases]
        if len(found) == 1:
            return found[0][1]
        return {name: Vector(_mean([(chance, after[name].data) for chance, after in found])) for name in state}

    def _basis(self) -> tuple[list[Place], State]:
        """The entries that are free, and for each of them a state, as columns.

        A server's variable is the same at all nodes, so node 0's entries stand for all. A conserved sum, such as
        Σ c_i = 0, decides one entry for each coordinate: the last one that occurs in it.
        """
        held = self.method.spec.server_fields
        rows = {name: self.nodes[:1] if name in held else self.nodes for name in self.method.spec.state_fields}
        places = [(name, i, k) for name, nodes in rows.items() for i in nodes for k in range(P)]
        vectors = self._units(places)
        if not self.method.spec.tracks:
            return places, vectors
        conserved = self.method.conserved(self.method.whole(vectors), self.graph.participation)
        sums = total(conserved, len(self.nodes))
        size, weights = len(places), {}
        for k in range(P):
            row = sums[k * size : (k + 1) * size]
            last = max(column for column in range(size) if row[column])
            weights[last] = [value / row[last] for value in row]
        free = [column for column in range(size) if column not in weights]
        for name, vector in vectors.items():
            data = vector.data
            rows = [data[at : at + size] for at in range(0, len(data), size)]
            kept = [[row[c] - sum(w[c] * row[last] for last, w in weights.items()) for c in free] for row in rows]
            vectors[name] = Vector([value for row in kept for value in row])
        return [places[column] for column in free], vectors

    def _units(self, places: list[Place]) -> State:
        """For each place the state that is 1 there: at all nodes for a server's variable."""
        held, found = self.method.spec.server_fields, {}
        for name in self.method.spec.state_fields:
            shared = name in held
            found[name] = Vector(
                [
                    float(place == (name, 0 if shared else i, k))
                    for i in self.nodes
                    for k in range(P)
                    for place in places
                ]
            )
        return found

    def _row(self, state: State, place: Place) -> list[float]:
        name, i, k = place
        size = len(self.entries)
        start = (i * P + k) * size
        return state[name].data[start : start + size]


def _mean(cases: list[tuple[float, list[float]]]) -> list[float]:
    chances = [chance for chance, _ in cases]
    return [
        sum(chance * value for chance, value in zip(chances, values, strict=True))
        for values in zip(*(data for _, data in cases), strict=True)
    ]
