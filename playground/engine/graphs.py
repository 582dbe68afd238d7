"""The playground's graphs: which weights mix in which round. They equal those of `stgt.topology`, which needs NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from playground.engine.draws import lost, sampled
from playground.engine.vectors import Matrix


@dataclass(frozen=True)
class Mixing:
    """A round of a graph.

    Attributes:
        W: the weights; row i has those of what node i receives.
        links: directed links that carry a message. For a server: uploads plus downloads.
        held: the weights for what a server holds; None if they are W.
        active: which nodes work; None if all do.
        phase: the number of W among the graph's phases; None if it was drawn.
    """

    W: Matrix
    links: int
    held: Matrix | None = None
    active: tuple[bool, ...] | None = None
    phase: int | None = None


@dataclass(frozen=True)
class Graph:
    """A schedule of weights with a period. It has what `stgt.algorithms.support.refusal` reads of a topology.

    `symmetric`: are all weights? `random`: is a round drawn, by the run's seed and its number?
    """

    name: str
    phases: tuple[Matrix, ...]
    has_server: bool = False
    random: bool = field(default=False, init=False)
    doubly_stochastic: bool = field(default=True, init=False)
    has_push: bool = field(default=False, init=False)
    participation: float = field(default=1.0, init=False)
    strangers: tuple[int, int] | None = field(default=None, init=False)

    @property
    def n(self) -> int:
        return len(self.phases[0])

    @property
    def symmetric(self) -> bool:
        return all(W[i][j] == W[j][i] for W in self.phases for i in range(self.n) for j in range(i))

    def round(self, r: int, seed: int) -> Mixing:
        phase = r % len(self.phases)
        return Mixing(self.phases[phase], self._links(self.phases[phase]), phase=phase)

    def laws(self) -> list[list[tuple[float, Mixing]]]:
        """For each round of a period the cases of its mean, with their probabilities."""
        return [[(1.0, self.round(r, 0))] for r in range(len(self.phases))]

    def _links(self, W: Matrix) -> int:
        return 2 * self.n if self.has_server else count_links(W)


@dataclass(frozen=True)
class Lossy(Graph):
    """An undirected graph whose links fail. The weight of a lost link is added to both nodes' own."""

    loss: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "random", True)

    def round(self, r: int, seed: int) -> Mixing:
        failed = lost(seed, r, self.n, self.loss)
        W = [list(row) for row in self.phases[0]]
        for i, j in failed:
            for one, other in ((i, j), (j, i)):
                W[one][one] += W[one][other]
                W[one][other] = 0.0
        return Mixing(W, count_links(W))

    def laws(self) -> list[list[tuple[float, Mixing]]]:
        """E[W] alone: a round is affine in W, because every message is mixed once."""
        base, kept = self.phases[0], 1 - self.loss
        W = [[kept * w for w in row] for row in base]
        for i, row in enumerate(W):
            row[i] += self.loss
        return [[(1.0, Mixing(W, count_links(base)))]]


@dataclass(frozen=True)
class Sampled(Graph):
    """A server that samples s of the workers. They average, the others keep their model."""

    size: int = 0

    def __post_init__(self) -> None:
        strangers = (0, 1) if self.size == 1 else None  # a single worker averages with no other
        flags = {"has_server": True, "random": True, "participation": self.size / self.n, "strangers": strangers}
        for name, value in flags.items():
            object.__setattr__(self, name, value)

    def round(self, r: int, seed: int) -> Mixing:
        return self._of(sampled(seed, r, self.n, self.size))

    def laws(self) -> list[list[tuple[float, Mixing]]]:
        """Every choice of workers."""
        choices = list(combinations(range(self.n), self.size))
        return [[(1 / len(choices), self._of(workers)) for workers in choices]]

    def _of(self, workers: Iterable[int]) -> Mixing:
        chosen = set(workers)
        active = tuple(i in chosen for i in range(self.n))
        held = [1 / self.size if works else 0.0 for works in active]
        W = [held if works else _unit(i, self.n) for i, works in enumerate(active)]
        return Mixing(W, 2 * self.size, held=[held] * self.n, active=active)


def ring(n: int, directed: bool = False) -> Graph:
    """`stgt.topology.ring`."""
    hops = [hop for hop, exists in ((1, n > 1), (-1, n > 2 and not directed)) if exists]
    return Graph(f"ring({n}, directed)" if directed else f"ring({n})", (_circulant(n, hops),))


def exponential(n: int) -> Graph:
    """`stgt.topology.exponential`."""
    return Graph(f"exponential({n})", (_circulant(n, _powers(n)),))


def one_peer(n: int) -> Graph:
    """`stgt.topology.one_peer_exponential`."""
    return Graph(f"one_peer_exponential({n})", tuple(_circulant(n, [hop]) for hop in _powers(n) or [0]))


def server(n: int, size: int | None = None) -> Graph:
    """`stgt.topology.server`."""
    mean = ([[1 / n] * n] * n,)
    if size in (None, n):
        return Graph(f"server({n})", mean, has_server=True)
    return Sampled(f"server({n}, {size} sampled)", mean, size=size or n)


def from_edges(edges: Iterable[tuple[int, int]], n: int) -> Graph:
    """`stgt.topology.from_edges`, with Metropolis weights."""
    links = {(min(edge), max(edge)) for edge in edges}
    degree = [sum(i in edge for edge in links) for i in range(n)]
    W = [[0.0] * n for _ in range(n)]
    for i, j in links:
        W[i][j] = W[j][i] = 1.0 / (1.0 + max(degree[i], degree[j]))
    for i, row in enumerate(W):
        row[i] = max(1.0 - sum(row), 0.0)
    return Graph(f"from_edges({n} nodes, {len(links)} edges)", (W,))


def lossy(graph: Graph, loss: float) -> Graph:
    """`stgt.topology.unreliable`."""
    return Lossy(f"unreliable({graph.name}, link={loss:g}, node=0)", graph.phases, loss=loss) if loss else graph


def parts(edges: Iterable[tuple[int, int]], nodes: Iterable[int]) -> list[set[int]]:
    """The connected parts of an undirected graph."""
    found = [{node} for node in nodes]
    for edge in edges:
        touched = [part for part in found if part & set(edge)]
        if touched:
            found = [part for part in found if part not in touched] + [set().union(*touched)]
    return found


def count_links(W: Matrix) -> int:
    return sum(bool(w) for i, row in enumerate(W) for j, w in enumerate(row) if i != j)


def _powers(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def _circulant(n: int, hops: list[int]) -> Matrix:
    W, share = [[0.0] * n for _ in range(n)], 1.0 / (len(hops) + 1)
    for i in range(n):
        for hop in (0, *hops):
            W[i][(i + hop) % n] += share
    return W


def _unit(i: int, n: int) -> list[float]:
    return [float(j == i) for j in range(n)]
