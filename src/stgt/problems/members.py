"""The problem over some of the nodes, with the minimiser of their objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stgt.problems.base import Problem

DIFFERENCE = 1e-3  # step of the central differences that give ∇²f; any step is exact for quadratics
STEPS = 100  # the most steps of Newton's method
ROUNDING = 1e-15  # a step this small relative to x ends Newton's method
HALVINGS = 40  # the most halvings of a step that does not reduce the gradient
SINGULAR = 1e-12  # an eigenvalue this small relative to the largest counts as 0


def problem_of(problem: Problem, nodes: Sequence[int]) -> Problem:
    """The problem over these nodes: their f_i, and f_V = (1/|V|) Σ_V f_i instead of f.

    L and mu are bounds over all nodes, so they also hold for these. If the whole problem has an optimum, this one's is
    computed to rounding; it is NaN if f_V has no unique minimiser.
    """
    kept = np.asarray(nodes, dtype=np.intp)
    if np.array_equal(kept, np.arange(problem.n)):
        return problem
    part = replace(
        problem,
        name=f"{problem.name}, {len(kept)} of its nodes",
        data={name: value[kept] for name, value in problem.data.items()},
        n=len(kept),
        counts=None if problem.counts is None else problem.counts[kept],
        solve=None,
    )
    start = problem.optimum
    return part if start is None else replace(part, solve=partial(_minimiser, part, start))


def _minimiser(problem: Problem, x: np.ndarray) -> np.ndarray:
    """x* by Newton's method from x, until the gradient no longer becomes smaller.

    A problem has gradients but no Hessian, so ∇²f is computed by differences of gradients.
    """
    gradient = problem.gradient(x)
    for _ in range(STEPS):
        curvature = _curvature(problem, x)
        eigenvalues = np.linalg.eigvalsh(curvature)
        if eigenvalues[0] <= SINGULAR * eigenvalues[-1]:
            return np.full(problem.p, np.nan)
        step = np.linalg.solve(curvature, gradient)
        if np.abs(step).max() <= ROUNDING * np.abs(x).max():
            break
        for halving in range(HALVINGS):
            tried = x - 0.5**halving * step
            found = problem.gradient(tried)
            if np.linalg.norm(found) < np.linalg.norm(gradient):
                x, gradient = tried, found
                break
        else:
            break
    return x


def _curvature(problem: Problem, x: np.ndarray) -> np.ndarray:
    """∇²f(x), (p, p)."""
    steps = DIFFERENCE * max(1.0, float(np.abs(x).max())) * np.eye(problem.p)
    columns = [(problem.gradient(x + one) - problem.gradient(x - one)) / (2 * one.sum()) for one in steps]
    found = np.stack(columns, axis=1)
    return (found + found.T) / 2
