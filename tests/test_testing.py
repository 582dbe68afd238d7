"""`stgt.testing` passes what is right and fails what is wrong, with a report that says which."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import stgt
from catalogue import instances, least_squares, logistic, quadratic
from stgt.algorithms import Cost, StateVar
from stgt.problems.quadratic import QuadraticModel
from stgt.testing import CheckError, check_algorithm, check_problem, check_topology
from stgt.testing.algorithm import _costs
from stgt.topology.circulant import Rolls


def outcome(report) -> dict[str, bool | None]:
    return {check.name: check.holds for check in report.checks}


def failed(check, subject) -> dict[str, str]:
    """The checks that fail, by name, with what they say."""
    with pytest.raises(CheckError) as caught:
        check(subject)
    report = caught.value.report
    assert "some checks FAILED" in str(caught.value)
    return {one.name: one.detail for one in report.checks if one.holds is False}


# One of each shape: a server, a coin, an oracle of its own, a warm start, a wrapper, two exchanges, a nonlinear step.
# What is checked here is proven for all methods in tests/parity, tests/properties, tests/trainer and tests/flower.
SHAPES = ("ScaffoldPlus", "ProxSkip", "GTSAGA", "KGT-warm", "Outer-STGT", "LUGT", "Adaptive-LED")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name != SHAPES[0] else ()) for name in SHAPES]
)
def test_ours_pass(name):
    algorithm = instances()[name]
    found = outcome(check_algorithm(algorithm))
    assert len(found) == 8
    assert found["NumPy and JAX agree"]
    assert found["costs match the counts"]
    assert found["conserved sums stay zero"] is (True if algorithm.spec().tracks else None)


@pytest.mark.parametrize("name", instances())
def test_costs_are_what_is_counted(name):
    _costs(instances()[name])


def test_a_report_can_be_read():
    text = str(check_topology(stgt.topology.ring(5)))
    first, *rows = text.splitlines()
    assert first == "ring(5): all checks passed"
    assert len(rows) == 5
    assert all(row.startswith("  ok ") for row in rows)


@dataclass(frozen=True, kw_only=True)
class Leaky(stgt.STGT):
    """Its c gains what is mixed and loses half of what is said, so the sum of all c does not stay 0."""

    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "c": state["c"] + (mixed["z"] - 0.5 * local.direction)}


@dataclass(frozen=True, kw_only=True)
class Cheap(stgt.STGT):
    """It says that it sends less than it does."""

    def cost(self, samples=None):
        return Cost(gradients=self.tau, vectors=1, buffers=4, up=1, down=1)


@dataclass(frozen=True, kw_only=True)
class Drifting(stgt.STGT):
    """It adds up what is mixed without what was said: no stepsize makes it settle."""

    def spec(self):
        return replace(super().spec(), state=[StateVar("c")])

    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "c": state["c"] + mixed["z"]}


@pytest.mark.thorough
def test_wrong_methods_fail():
    assert list(failed(check_algorithm, Leaky(gamma=0.05, tau=2))) == [
        "conserved sums stay zero",
        "the optimum is a fixed point",
    ]
    words = failed(check_algorithm, Cheap(gamma=0.05, tau=2))
    assert words == {"costs match the counts": "cost() has 1 vectors per round, but it exchanges 2"}
    assert "the optimum is a fixed point" in failed(check_algorithm, Drifting(gamma=0.05, tau=2))


def test_a_method_that_does_not_run_fails_at_once():
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(stgt.STGT):
        def merge(self, state, local, mixed):
            return {"x": mixed["x"]}

    words = failed(check_algorithm, Forgetful(gamma=0.05))
    assert words == {"runs on the reference, reads what it declares": "ST-GT's merge does not return 'c': return x, c."}


@dataclass(frozen=True)
class Reversed(Rolls):
    """A structure whose kernel takes the wrong neighbour."""

    def product(self, ops, seed, r, v, back=False):
        return super().product(ops, seed, r, v, not back)


ONE_WAY = stgt.topology.circulant(6, [1])
WRONG_TOPOLOGIES = {
    "degree": (replace(stgt.topology.ring(6), degree=1), "symmetry, period and degree as declared"),
    "symmetric": (replace(ONE_WAY, symmetric=True), "symmetry, period and degree as declared"),
    "period": (
        replace(stgt.topology.one_peer_exponential(8), period=2),
        "symmetry, period and degree as declared",
    ),
    "kernel": (
        replace(ONE_WAY, structure=Reversed(*(getattr(ONE_WAY.structure, one) for one in ("n", "hops", "weights")))),
        "NumPy and JAX agree",
    ),
    "two halves": (
        stgt.topology.from_matrix(np.kron(np.eye(2), np.full((2, 2), 0.5))),
        "the nodes reach agreement",
    ),
}


@pytest.mark.parametrize("fault", WRONG_TOPOLOGIES)
def test_wrong_topologies_fail(fault):
    topology, name = WRONG_TOPOLOGIES[fault]
    assert name in failed(check_topology, topology)


@pytest.mark.parametrize(
    "topology",
    [
        stgt.topology.one_peer_exponential(6),
        stgt.topology.random_matching(7, seed=2),
        stgt.topology.server(6, sampled=2),
        stgt.topology.relay(6, sampled=2),
        stgt.topology.unreliable(stgt.topology.torus(3, 3), link=0.2),
        stgt.topology.sequence([stgt.topology.ring(6), stgt.topology.random_matching(6)]),
        stgt.topology.schedule(4, lambda r: np.full((4, 4), 0.25) if r % 3 else np.eye(4)),
        stgt.topology.base_graph(7, 2),
    ],
    ids=str,
)
def test_right_topologies_pass(topology):
    assert check_topology(topology).passed


@dataclass(frozen=True)
class Doubled(QuadraticModel):
    """Gradients of twice the losses."""

    def gradients(self, xp, data, x):
        return 2 * super().gradients(xp, data, x)


def test_wrong_problems_fail():
    problem = quadratic(4, 2)
    assert "gradients are the losses' derivatives" in failed(check_problem, replace(problem, model=Doubled()))
    assert list(failed(check_problem, replace(problem, L=0.5 * problem.L))) == ["L and mu are bounds"]
    assert list(failed(check_problem, replace(problem, mu=2 * problem.L, L=None))) == ["L and mu are bounds"]
    elsewhere = replace(problem, solve=lambda: problem.optimum + 1.0)
    assert list(failed(check_problem, elsewhere)) == ["the gradient vanishes at x*"]
    fewer = replace(problem, data={name: array[:3] for name, array in problem.data.items()})
    assert list(failed(check_problem, fewer)) == ["data and functions fit"]


def test_right_problems_pass():
    rows = np.random.default_rng(0).normal(size=(6, 2))
    by_samples = stgt.problems.logistic(rows, [0, 1] * 3, partition=[[0], [1, 2, 3, 4, 5]], l2=0.1, weights="samples")
    for problem in (stgt.problems.ridge(n=4, p=3), logistic(4), logistic(4, batch=None), least_squares(4), by_samples):
        found = outcome(check_problem(problem))
        assert found["samples average to the full gradient"] is (None if problem.counts is None else True)


def test_what_is_no_such_thing():
    for check, sentence in (
        (check_algorithm, r"^algorithm is the class STGT: give an instance, such as MyMethod"),
        (check_topology, r"^topology=.*: give a Topology"),
        (check_problem, r"^problem=.*: give a Problem"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check(stgt.STGT)
