"""`check_problem`: the gradients match the losses on every engine, and the constants are right."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from stgt._internal.checks import InputError
from stgt.algorithms import STGT
from stgt.oracles import Exact
from stgt.problems import Problem
from stgt.simulator import simulate
from stgt.simulator.drive import interrupts_as_ever
from stgt.testing.report import Report, SkipError
from stgt.topology import complete

POINTS = 4
SAME = 1e-10


@interrupts_as_ever()
def check_problem(problem: Problem) -> Report:
    """Checks a problem by the same tests as those of the library.

    The gradients must be the derivatives of the losses, and JAX and NumPy must agree. The samples' gradients must
    average to the gradient of f_i. L and mu must bound the curvature between random points. The gradient must vanish
    at x*. A run must give the same result on both engines.

    Args:
        problem: the problem to check.

    Returns:
        The report; print it.

    Raises:
        CheckError: a check failed; its text is the report.
    """
    if not isinstance(problem, Problem):
        raise InputError("problem", problem, "give a Problem, from a function of stgt.problems or your own function.")
    report = Report(problem.name)
    report.run("data and functions fit", lambda: _fits(problem))
    if report.passed:
        report.run("gradients are the losses' derivatives", lambda: _slopes(problem))
        report.run("NumPy and JAX agree", lambda: _jax_agrees(problem))
        report.run("samples average to the full gradient", lambda: _samples(problem))
        report.run("L and mu are bounds", lambda: _constants(problem))
        report.run("the gradient vanishes at x*", lambda: _optimum(problem))
        report.run("a run is the same on both engines", lambda: _runs(problem))
    return report.finish()


def _points(problem: Problem) -> list[np.ndarray]:
    """(n, p) points, different at each node."""
    rng = np.random.default_rng(0)
    middle = np.zeros(problem.p) if problem.solve is None else np.asarray(problem.optimum)
    return [middle + rng.normal(size=(problem.n, problem.p)) for _ in range(POINTS)]


def _losses(problem: Problem, x: np.ndarray) -> np.ndarray:
    return np.asarray(problem.model.losses(np, problem.data, x))


def _fits(problem: Problem) -> str:
    for name, array in problem.data.items():
        assert len(array) == problem.n, f"data[{name!r}] has {len(array)} rows, but there are {problem.n} nodes"
    x = _points(problem)[0]
    losses, gradients = _losses(problem, x), problem.gradients(x)
    assert losses.shape == (problem.n,), f"losses has shape {losses.shape}: give one loss per node, ({problem.n},)"
    assert gradients.shape == x.shape, f"gradients has shape {gradients.shape}: give {x.shape}, as x has"
    assert np.isfinite(losses).all(), "a loss is not finite"
    assert np.isfinite(gradients).all(), "a gradient is not finite"
    try:
        hash(problem.model)
    except TypeError:
        raise AssertionError("the model is not hashable: make it a frozen dataclass; put arrays into data") from None
    return f"n={problem.n}, p={problem.p}"


def _slopes(problem: Problem) -> str:
    """Central differences along random directions; their error is of the order of the step squared."""
    rng, worst = np.random.default_rng(1), 0.0
    for x in _points(problem):
        along = rng.normal(size=x.shape)
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        step = 1e-5
        slope = (_losses(problem, x + step * along) - _losses(problem, x - step * along)) / (2 * step)
        expected = (problem.gradients(x) * along).sum(axis=1)
        worst = max(worst, float(np.abs(slope - expected).max() / max(1.0, np.abs(expected).max())))
    assert worst <= 1e-5, f"they differ from finite differences of the losses by {worst:.1e}"
    return f"within {worst:.1e} of central differences"


def _jax_agrees(problem: Problem) -> str:
    from stgt._internal.xla import jax, jnp

    worst = 0.0
    with jax.enable_x64(True):
        data = {name: jnp.asarray(array) for name, array in problem.data.items()}
        functions: Any = (problem.model.losses, problem.model.gradients)
        compiled = [jax.jit(lambda data, x, f=function: f(jnp, data, x)) for function in functions]
        for x in _points(problem):
            for function, expected in zip(compiled, (_losses(problem, x), problem.gradients(x)), strict=True):
                found = np.asarray(function(data, jnp.asarray(x)))
                worst = max(worst, float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
    assert worst <= SAME, f"they differ by {worst:.1e}"
    return f"within {worst:.1e}"


def _samples(problem: Problem) -> str:
    if problem.counts is None:
        raise SkipError("f_i is not a mean over samples")
    model: Any = problem.model
    x = _points(problem)[0]
    parts = np.asarray(model.component_gradients(np, problem.data, x))
    whole = (parts * problem.data["weight"][:, :, None]).sum(axis=1)
    worst = float(np.abs(whole - problem.gradients(x)).max() / max(1.0, np.abs(whole).max()))
    first = np.asarray(model.sample_gradients(np, problem.data, x, np.zeros((problem.n, 1), dtype=int)))
    worst = max(worst, float(np.abs(first - parts[:, 0]).max() / max(1.0, np.abs(whole).max())))
    assert worst <= SAME, f"they differ by {worst:.1e}"
    return f"within {worst:.1e}, {problem.counts.min()} to {problem.counts.max()} samples per node"


def _constants(problem: Problem) -> str:
    if problem.L is None and problem.mu is None:
        raise SkipError("neither L nor mu is given")
    points = _points(problem)
    for x, y in pairwise(points):
        step, change = x - y, problem.gradients(x) - problem.gradients(y)
        distance = (step**2).sum(axis=1)
        steepest = float(np.sqrt((change**2).sum(axis=1) / distance).max())
        flattest = float(((change * step).sum(axis=1) / distance).min())
        if problem.L is not None:
            assert steepest <= problem.L * (1 + 1e-9), f"L={problem.L:.6g}, but gradients change by {steepest:.6g}"
        if problem.mu is not None:
            assert flattest >= problem.mu * (1 - 1e-9) - 1e-12, f"mu={problem.mu:.6g}, but a slope is {flattest:.6g}"
    return f"L={problem.L}, mu={problem.mu}"


def _optimum(problem: Problem) -> str:
    if problem.optimum is None:
        raise SkipError("x* is not given")
    size = float(np.linalg.norm(problem.gradient(problem.optimum)))
    scale = max(1.0, float(np.linalg.norm(problem.gradients(problem.optimum), axis=1).max()))
    assert size <= 1e-7 * scale, f"‖∇f(x*)‖ is {size:.1e}"
    return f"‖∇f(x*)‖ is {size:.1e}"


def _runs(problem: Problem) -> str:
    gamma = 0.1 / (problem.L or 1.0)
    plain, fast = (
        simulate(
            STGT(gamma=gamma, tau=2), problem, complete(problem.n), 5, engine=engine, dtype="float64", oracle=Exact()
        )
        for engine in ("numpy", "jax")
    )
    worst = float(np.abs(fast.x - plain.x).max() / max(1.0, np.abs(plain.x).max()))
    assert worst <= SAME, f"they differ by {worst:.1e} after 5 rounds"
    return f"within {worst:.1e} after 5 rounds"
