"""`check_algorithm`: the properties that an algorithm must have on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.oracles import Exact
from stgt.problems import Problem, Quadratic, logistic
from stgt.simulator import Trace, simulate
from stgt.simulator.drive import interrupts_as_ever
from stgt.simulator.instance import check_algorithm_object, check_constant_stepsize, check_fit
from stgt.testing.engines import CountingModel, difference, flower_difference, torch_difference
from stgt.testing.report import Report, SkipError
from stgt.theory import spectral_radius, steady_state
from stgt.topology import Topology, complete, exponential, from_matrix, push_pull, ring, sequence, server

NODES, DIMENSION, ROUNDS = 6, 3, 10
SAME = 1e-10  # relative to the largest entry: engines differ only in the order of floating-point sums


@interrupts_as_ever()
def check_algorithm(algorithm: Algorithm) -> Report:
    """Checks a method by the same tests as those of the library.

    The NumPy reference, the JAX simulator, the torch trainer and Flower must agree. Conserved sums must stay zero. A
    method with tracking must have the optimum as its fixed point. Permuting the nodes must permute the result. The
    declared costs must match the counted ones.

    Args:
        algorithm: an instance, with or without gamma (0.05 by default).

    Returns:
        The report; print it.

    Raises:
        CheckError: a check failed; its text is the report.
    """
    check_algorithm_object(algorithm, "MyMethod(gamma=0.05, tau=3)")
    if algorithm.gamma is None:
        algorithm = replace(algorithm, gamma=0.05)
    check_constant_stepsize(algorithm)
    report = Report(f"{algorithm.label} ({type(algorithm).__name__})")
    report.run("runs on the reference, reads what it declares", lambda: _runs(algorithm))
    if report.passed:
        report.run("NumPy and JAX agree", lambda: _engines_agree(algorithm))
        report.run(
            "torch agrees", lambda: _within(torch_difference(algorithm, _problem(algorithm), ring(NODES), ROUNDS))
        )
        report.run(
            "Flower agrees", lambda: _within(flower_difference(algorithm, _quadratic(), server(NODES, 3), ROUNDS))
        )
        report.run("conserved sums stay zero", lambda: _conserves(algorithm))
        report.run("the optimum is a fixed point", lambda: _fixed_point(algorithm))
        report.run("permuting nodes permutes the result", lambda: _permutes(algorithm))
        report.run("costs match the counts", lambda: _costs(algorithm))
    return report.finish()


def _runs(algorithm: Algorithm) -> str:
    names = [_reference(algorithm, topology, ROUNDS).topology.name for topology in _topologies(algorithm)]
    assert names, f"{algorithm.label} does not fit any of a ring, a directed graph, a schedule, a server or push_pull"
    return f"on {', '.join(names)}"


def _engines_agree(algorithm: Algorithm) -> str:
    worst = 0.0
    for topology in _topologies(algorithm):
        plain, fast = (_simulate(algorithm, topology, ROUNDS, engine=engine) for engine in ("numpy", "jax"))
        for name in plain.state:
            worst = max(worst, difference(fast.state[name], plain.state[name]))
    return _within(worst)


def _conserves(algorithm: Algorithm) -> str:
    if not algorithm.spec().tracks:
        raise SkipError("it declares no sum that stays zero")
    worst = 0.0
    for topology in _topologies(algorithm):
        trace = _reference(algorithm, topology, 4 * ROUNDS)
        size = max(1.0, *(float(np.abs(value).sum()) for value in trace.state.values()))
        if "sum_c" in trace:
            worst = max(worst, float(trace["sum_c"].max()) / size)
    assert worst <= 1e-11, f"‖Σ_i c_i‖ reaches {worst:.1e} of Σ|entries|: {algorithm.spec().conserves}"
    return f"‖Σ_i c_i‖ ≤ {worst:.1e} of Σ|entries|"


def _fixed_point(algorithm: Algorithm) -> str:
    if (algorithm.spec().communication_probability or 1) < 1:
        raise SkipError("whether a round communicates is random")
    graph = next((one for one in (ring(NODES), complete(NODES)) if _fits(algorithm, one)), None)
    if graph is None:
        raise SkipError("it needs a server that samples, so its rounds differ")
    problem, gamma = _quadratic(), np.asarray(algorithm.gamma, dtype=float)
    for _ in range(12):
        slower = replace(algorithm, gamma=gamma.tolist())
        try:
            radius = spectral_radius(slower, problem, graph)
        except ValueError as error:  # no single map describes its rounds
            raise SkipError(str(error)) from None
        if radius < 1 - 1e-9:
            steady = steady_state(slower, problem, graph)
            if not algorithm.spec().tracks:
                return f"it does not track: ‖x̄ − x*‖² ends at {steady.bias:.1e} on different data"
            assert steady.bias <= 1e-15, f"it tracks, but ‖x̄ − x*‖² ends at {steady.bias:.1e} on different data"
            return f"‖x̄ − x*‖² ends at {steady.bias:.1e} on different data"
        gamma = gamma / 2
    raise AssertionError(f"it is unstable on {graph.name}, even at gamma={gamma.max():.1e}")


def _permutes(algorithm: Algorithm) -> str:
    rng = np.random.default_rng(5)
    order, x0 = rng.permutation(NODES), rng.normal(size=(NODES, DIMENSION))
    A, b = _parts()
    W = _mixture(rng)
    if isinstance(algorithm.gamma, tuple):
        raise SkipError("each node has its own stepsize")
    graphs = from_matrix(W), from_matrix(W[np.ix_(order, order)])
    if not _fits(algorithm, graphs[0]):
        raise SkipError("it needs a server")
    problems = Quadratic(A, b), Quadratic(A[order], b[order])
    starts = x0, x0[order]
    x, y = (
        simulate(algorithm, problem, graph, ROUNDS, x0=start, engine="numpy", metrics=[]).x[0]
        for problem, graph, start in zip(problems, graphs, starts, strict=True)
    )
    return _within(difference(y, x[order]))


def _costs(algorithm: Algorithm) -> str:
    topology = next(_topologies(algorithm))
    problem, counted = _problem(algorithm), []
    for rounds in (0, ROUNDS):
        model = CountingModel(problem.model)
        watched = replace(problem, model=model)
        options: Any = {
            "engine": "numpy",
            "metrics": [],
            "oracle": Exact() if algorithm.spec().oracle is None else None,
        }
        trace = simulate(algorithm, watched, topology, rounds, **options)
        counted.append((model.count, float(trace["gradients"][0, -1])))
    (before, traced_before), (after, traced_after) = counted
    # An oracle may compute full gradients only in some steps; its count is the mean. So a difference of one is allowed.
    slack = 0 if problem.counts is None else int(problem.counts.sum())
    assert abs(before - traced_before) <= slack, (
        f"{before} gradients were computed before round 0, but {traced_before:g} are counted"
    )
    assert abs((after - before) - (traced_after - traced_before)) <= slack + 1e-9, (
        f"{after - before} gradients were computed in {ROUNDS} rounds, but {traced_after - traced_before:g} are counted"
    )
    cost = algorithm.cost(round(problem.counts.mean()) if problem.counts is not None else None)
    spec = algorithm.spec()
    declared = spec.mixing_steps * (len(spec.messages) + len(spec.second_messages))
    assert cost.vectors == declared, f"cost() has {cost.vectors} vectors per round, but it exchanges {declared}"
    made = (after - before) / NODES / ROUNDS
    return f"{made:g} gradients, {declared} vectors, {cost.buffers:g} buffers per node and round"


def _topologies(algorithm: Algorithm) -> Iterator[Topology]:
    """A graph of each kind that the method may run on."""
    rng = np.random.default_rng(3)
    schedule = sequence([_mixture(rng) for _ in range(3)])
    for topology in (ring(NODES), exponential(NODES), schedule, server(NODES, sampled=3), _two_matrices(rng)):
        if _fits(algorithm, topology):
            yield topology


def _fits(algorithm: Algorithm, topology: Topology) -> bool:
    try:
        check_fit(algorithm, topology)
    except ValueError:
        return False
    return True


def _two_matrices(rng: np.random.Generator) -> Topology:
    """A row- and a column-stochastic matrix, both dense."""
    R, C = rng.dirichlet(np.ones(NODES), size=NODES), rng.dirichlet(np.ones(NODES), size=NODES).T
    return push_pull(R, C)


def _mixture(rng: np.random.Generator) -> np.ndarray:
    """A directed doubly stochastic matrix: a convex combination of the identity and permutations."""
    weights = rng.dirichlet(np.ones(4))
    parts = [np.eye(NODES)] + [np.eye(NODES)[rng.permutation(NODES)] for _ in range(3)]
    return np.sum([weight * part for weight, part in zip(weights, parts, strict=True)], axis=0)


def _parts() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(NODES, DIMENSION, DIMENSION)) / np.sqrt(DIMENSION)
    return root @ root.transpose(0, 2, 1) + 0.3 * np.eye(DIMENSION), rng.normal(size=(NODES, DIMENSION))


def _quadratic(noise: float = 0.0) -> Problem:
    """Strongly convex, different at each node."""
    return Quadratic(*_parts(), noise)


def _problem(algorithm: Algorithm) -> Problem:
    """A problem with noise; with samples for a method that requires an oracle for samples."""
    if algorithm.spec().oracle is None:
        return _quadratic(noise=0.1)
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4 * NODES, DIMENSION))
    labels = np.arange(4 * NODES) % 2
    parts = np.arange(4 * NODES).reshape(NODES, 4)
    return logistic(features, labels, partition=list(parts), l2=0.1, batch=2)


def _simulate(algorithm: Algorithm, topology: Topology, rounds: int, engine: str) -> Trace:
    return simulate(algorithm, _problem(algorithm), topology, rounds, engine=engine, dtype="float64")


def _reference(algorithm: Algorithm, topology: Topology, rounds: int) -> Trace:
    return _simulate(algorithm, topology, rounds, "numpy")


def _within(difference: float) -> str:
    assert difference <= SAME, f"they differ by {difference:.1e} after {ROUNDS} rounds; {SAME:.0e} is allowed"
    return f"within {difference:.1e} after {ROUNDS} rounds"
