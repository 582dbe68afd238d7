"""Where runs begin: the first models, and the first values of what an algorithm keeps beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stgt.algorithms.calls import begin, whole
from stgt.problems.base import check_array
from stgt.simulator.setting import Setting

OFF = 1e-8  # how far from 0 a sum that is conserved may be, relative to its terms, in float64
ROUNDING = 200  # units of single precision that a sum of terms given in it may be off


def first_models(x0: Any, setting: Setting) -> np.ndarray:
    """The nodes' first models, (n, p), from what was given: one for all, one for each, None for the problem's own."""
    problem = setting.problem
    if x0 is None:
        return np.array(np.broadcast_to(0.0 if problem.start is None else problem.start, (problem.n, problem.p)))
    if problem.unravel is not None:
        x0 = problem.ravel(x0)
    return _rows(x0, "x0", setting, held="x" in setting.algorithm.held)


def first_state(
    given: Mapping[str, Any] | None, settings: tuple[Setting, ...], x0: np.ndarray
) -> dict[str, np.ndarray]:
    """First values of the algorithm's other fields, (n, p), from what was given; they keep what it conserves."""
    if given is None:
        return {}
    first = settings[0].algorithm
    if not isinstance(given, Mapping):
        raise ValueError(f"state0 is a {type(given).__name__}: give a dict of first values by the field's name.")
    if first.starts_warm:
        raise ValueError(f"state0 and warm_start=True: {first.label} can start from one of them only; leave one out.")
    state = begin(first, x0)
    for name, value in given.items():
        if name not in state or name == "x":
            allowed = [field for field in state if field != "x"]
            raise ValueError(f"state0 has {name!r}: {first.label} keeps {allowed or 'nothing'} beside x (give x0).")
        state[name] = _rows(value, f"state0[{name!r}]", settings[0], held=name in first.held)
    single = any(getattr(value, "dtype", None) == np.float32 for value in given.values())
    allowed = ROUNDING * float(np.finfo(np.float32).eps) if single else OFF
    for setting in settings:
        algorithm = setting.algorithm
        if algorithm.tracks:
            conserved = algorithm.conserved(whole(algorithm, state), setting.topology.participation)
            scale = max(1.0, float(sum(np.abs(value).sum() for name, value in state.items() if name != "x")))
            off = float(np.abs(conserved.sum(axis=0)).max())
            if off > allowed * scale:
                raise ValueError(
                    f"state0 breaks what {algorithm.label} conserves (off by {off:.3g}), so it would converge to a "
                    f"wrong point: {algorithm.invariant}."
                )
    return {name: state[name] for name in given}


def _rows(value: Any, name: str, setting: Setting, held: bool) -> np.ndarray:
    """One vector for each node, (n, p), from such or from one for all; the same for all if a server holds it."""
    n, p = setting.problem.n, setting.problem.p
    try:
        shape = (n, p) if np.ndim(value) == 2 else (p,)
    except ValueError:  # ragged
        shape = (p,)
    rows = check_array(value, name, shape, f"one vector (p,) = ({p},), or one for each node (n, p) = ({n}, {p})")
    rows = np.array(np.broadcast_to(rows, (n, p)))
    if held and setting.topology.has_server and (rows != rows[0]).any():
        raise ValueError(
            f"{name} has different rows, but with a server {setting.algorithm.label} has one for all: "
            f"give shape (p,) = ({p},)."
        )
    return rows
