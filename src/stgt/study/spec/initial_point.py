"""Where a run begins."""

from __future__ import annotations

from typing import Any

import numpy as np

from stgt.study.spec.runs import Made, RunSpec


def initial_point(run: RunSpec, made: Made) -> dict[str, Any]:
    """Where a run starts: `x0` and `state0` of `simulate`, as `run.x0` says; for "zero" there is nothing to give."""
    if run.x0 == "zero":
        return {}
    if made.problem.optimum is None:
        raise ValueError(f"x0 = 'optimum', but {made.problem.name} has no known optimum: use 'zero'.")
    return {"x0": made.problem.optimum, "state0": _at_optimum(made, made.problem.optimum)}


def _at_optimum(made: Made, optimum: np.ndarray) -> dict[str, np.ndarray]:
    """The fixed point of the corrections: c_i = −∇f_i(x*) for a tracker, own_i = ∇f_i(x*) for Scaffold.

    A tracker that starts at x* without it would first have to learn it.
    """
    gradients = made.problem.gradients(optimum)
    gradients = gradients - gradients.mean(axis=0)  # 0 but for rounding, and what is conserved must be
    fields = made.algorithm.init(gradients, gradients, gradients)
    if "own" in fields:
        return {"own": gradients}
    return {"c": -gradients} if "c" in fields else {}
