"""A run of a method, round by round, as `stgt.simulator.reference` and `stgt.simulator.churn` compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from playground.engine.graphs import Graph, Mixing
from playground.engine.problem import START, P, Problem
from playground.engine.vectors import Vector, choose, product, stack, total, transposed
from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import Checked

Gradient = Callable[[Vector, int], Vector]  # of a model, at local step t
Graphs = Callable[[Sequence[int]], Graph]  # of the members


@dataclass
class Steps:
    """What happened in the local steps: the models before each step and after the last, and the gradients."""

    models: list[Vector] = field(default_factory=list)
    gradients: list[Vector] = field(default_factory=list)


def local_steps(
    method: Checked, state: dict[str, Vector], gradient: Gradient, r: int, participation: float
) -> tuple[Local, Steps]:
    """tau times x ← x − γ(g + correction)."""
    x, gamma = state["x"], method.algorithm.gamma
    readable, seen = method.readable(state), Steps()
    for t in range(method.tau):
        g = gradient(x, t)
        seen.models.append(x)
        seen.gradients.append(g)
        x = x - gamma * (g + method.correction(readable, x))
    seen.models.append(x)
    local = method.after_steps(
        start=state["x"],
        end=x,
        gamma=gamma,
        round=r,
        participation=participation,
        first=seen.gradients[0],
        last=seen.gradients[-1],
    )
    return local, seen


def exchange(method: Checked, state: dict[str, Vector], local: Local, mixing: Mixing) -> dict[str, Vector]:
    """The state after the nodes have sent, mixed and merged. A server's variables reach all nodes."""
    spec, readable = method.spec, method.readable(state)
    sent, mixed = method.message(readable, local), {}
    for one in spec.messages:
        W = mixing.held if mixing.held and one.name in spec.server_fields else mixing.W
        mixed[one.name] = product(transposed(W) if one.transposed else W, sent[one.name])
    merged = method.merge(readable, local, mixed)
    reached = {name: None if name in spec.server_fields else mixing.active for name in merged}
    return {name: choose(reached[name], value, state[name]) for name, value in merged.items()}


class Run:
    """A method on the members' graph. The rows of the state are the members, in the order of their numbers."""

    def __init__(self, algorithm: Algorithm, problem: Problem, graphs: Graphs, seed: int):
        self.method, self.problem, self.graphs, self.seed = Checked(algorithm), problem, graphs, seed
        self.members: tuple[int, ...] = tuple(range(problem.n))
        self.graph = graphs(self.members)
        self.state = self.method.init(stack([START] * problem.n))

    def round(self, r: int) -> tuple[Steps, Mixing]:
        """Runs a round; returns its local steps and its weights."""
        mixing = self.graph.round(r, self.seed)

        def gradient(x: Vector, t: int) -> Vector:
            return self.problem.gradients(self.members, x, self.seed, r * self.method.tau + t)

        local, seen = local_steps(self.method, self.state, gradient, r, self.graph.participation)
        self.state = exchange(self.method, self.state, local, mixing)
        return seen, mixing

    def corrections(self) -> Vector:
        """What the next local step adds to each node's gradient."""
        found: Any = self.method.correction(self.method.readable(self.state), self.state["x"])
        return found if isinstance(found, Vector) else 0 * self.state["x"]

    def kill(self, node: int) -> None:
        """A member disappears with all its variables; the others continue on the graph of those that are left."""
        kept = [i for i in self.members if i != node]
        here = dict(zip(self.members, range(len(self.members)), strict=True))
        for name, value in self.state.items():
            rows = value.rows(len(here))
            self.state[name] = stack([rows[here[i]] for i in kept])
        self.members, self.graph = tuple(kept), self.graphs(kept)

    def repair(self) -> None:
        """The projection c_i ← c_i − (1/|V|) Σ_V c_j, for each variable whose sum must be 0."""
        count = len(self.members)
        for name in (kept.name for kept in self.method.spec.state if kept.zero_sum):
            shift = [value / count for value in total(self.state[name], count)]
            self.state[name] = self.state[name] - stack([shift] * count)

    # -- measurements over the members, at the start of a round ----------------------------------------------------

    def error(self) -> float:
        """‖x̄ − x*‖², with x* of the members."""
        x, count = total(self.state["x"], len(self.members)), len(self.members)
        away = [value / count - best for value, best in zip(x, self.problem.optimum(self.members), strict=True)]
        return sum(value * value for value in away)

    def sum_c(self) -> float:
        """‖Σ c_i‖, for methods with corrections of sum 0."""
        if not self.method.spec.tracks:
            return 0.0
        conserved = self.method.conserved(self.method.whole(self.state), self.graph.participation)
        return sum(value * value for value in total(conserved, len(self.members))) ** 0.5

    def bytes(self, mixing: Mixing) -> float:
        """Bytes of a round in single precision: all that nodes and a server send, for each member."""
        cost = self.method.algorithm.cost(1)
        vectors = (cost.up + cost.down) / 2 if self.graph.has_server else cost.vectors
        return 4 * mixing.links * vectors * P / len(self.members)
