"""Metrics, built-in and the user's own, which are computed at the start of each round on NumPy or JAX arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice
from stgt._internal.hyper import ShortRepr
from stgt._internal.statistics import Interval, error_interval, mean_interval
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import Checked
from stgt.problems.base import Problem
from stgt.topology import Topology

Array = Any
LYAPUNOV_PARTS = ("residual", "consensus", "tracking")
MEASURED = ("residual", "loss", "gradient_norm", "consensus", "tracking", "sum_c")
ERRORS = (*MEASURED, "lyapunov")  # never below 0, but for rounding
COUNTED = ("communications", "gradients", "messages", "floats", "seconds")  # what every trace has


def over_seeds(metric: str, values: np.ndarray) -> Interval:
    """The mean of a measurement over the seeds, the first axis, and its 95 % interval, (mean, low, high).

    That is `error_interval` for the library's own errors, Student's t for a measurement of one's own.
    """
    return error_interval(values) if metric in ERRORS else mean_interval(values)


@dataclass(frozen=True)
class OfState(ShortRepr):
    """A metric of the whole state; see `of_state`."""

    function: Callable[[dict[str, Array]], Array]

    def __call__(self, state: dict[str, Array]) -> Array:
        return self.function(state)


def of_state(function: Callable[[dict[str, Array]], Array]) -> OfState:
    """A metric of one's own that is given all nodes' state instead of the mean model.

    Args:
        function: of a dict of the algorithm's fields, (n, p) each, such as state["x"]; returns a number.

    Example:
        >>> import stgt
        >>> farthest = stgt.of_state(lambda state: abs(state["x"] - state["x"].mean(axis=0)).max())
        >>> problem = stgt.problems.ridge(n=4, p=2)
        >>> run = stgt.simulate(
        ...     stgt.STGT(gamma=0.1), problem, stgt.topology.ring(4), rounds=3, metrics={"farthest": farthest}
        ... )
        >>> run["farthest"].shape
        (1, 4)
    """
    if not callable(function):
        raise ValueError(f"of_state({function!r}): give a function of the state, a dict of arrays (n, p).")
    return OfState(function)


@dataclass(frozen=True)
class Measured:
    """The metrics of a run: built-in ones by name, and the user's functions with their names."""

    names: tuple[str, ...] = ()
    own: tuple[tuple[str, Any], ...] = ()  # of a trace that was loaded without the functions, which a file cannot hold

    def __repr__(self) -> str:
        return f"Measured({', '.join(self.all_names)})"

    @property
    def all_names(self) -> tuple[str, ...]:
        return *self.names, *(name for name, _ in self.own)

    def __contains__(self, name: object) -> bool:
        return name in self.all_names


def lyapunov_coefficients(gamma: float, tau: int, L: float, n: int, rho: float) -> tuple[float, float]:
    """(c_x, c_y) of V = ‖x̄ − x*‖² + c_x‖X − 1x̄‖² + c_y‖Υ‖², Eq_Lya_coff; rho must be below 1."""
    step, gap = gamma * tau, 1.0 - rho
    return 80 * step * L / (n * gap), 3556 * step**3 * L / (n * gap**3)


def measure(
    xp: Any,
    wanted: Measured,
    method: Checked,
    model: Any,
    data: dict[str, Array],
    state: dict[str, Array],
    optimum: Array | None,
    minimum: Array | None,
    participation: float,
) -> dict[str, Array]:
    """The requested measurements of a state (n, p): a scalar each."""
    names = wanted.names
    x, kept = state["x"], method.whole(state)
    mean = x.mean(axis=0)
    everywhere = xp.broadcast_to(mean, x.shape)
    found: dict[str, Array] = {}
    if "residual" in names:
        found["residual"] = ((mean - optimum) ** 2).sum()
    if "loss" in names:
        value = model.losses(xp, data, everywhere).mean()
        found["loss"] = value if minimum is None else value - minimum
    if "consensus" in names:
        found["consensus"] = ((x - mean) ** 2).sum()
    if "gradient_norm" in names or "tracking" in names:
        gradients = model.gradients(xp, data, everywhere)
        gradient = gradients.mean(axis=0)
        if "gradient_norm" in names:
            found["gradient_norm"] = (gradient**2).sum()
        if "tracking" in names:
            # Υ = Y − G − 1∇f(x̄)ᵀ + ∇F(1x̄), and Y − G is the algorithm's tracker.
            found["tracking"] = ((method.algorithm.tracker(kept) - gradient + gradients) ** 2).sum()
    if "sum_c" in names:
        total = method.algorithm.conserved(kept, participation).sum(axis=0)
        found["sum_c"] = (total**2).sum() ** 0.5
    for name, function in wanted.own:
        found[name] = own_value(xp, name, function, dict(state) if isinstance(function, OfState) else mean)
    return found


def finite(xp: Any, wanted: Measured, values: dict[str, Array]) -> Array:
    """Are all built-in measurements finite? A model may be finite and its square not. The user's own do not count."""
    return xp.isfinite(xp.asarray([values[name] for name in wanted.names], float)).all()


def own_value(xp: Any, name: str, function: Callable[[Any], Any], given: Any) -> Array:
    """The value of a user's metric for the mean model or a state: one number, in the run's precision."""
    whole = isinstance(given, dict)
    dtype = (given["x"] if whole else given).dtype
    try:
        if xp is np:  # a copy, as the function may write to it; JAX inside it uses the run's precision too
            given = {field: np.array(value) for field, value in given.items()} if whole else np.array(given)
            with jax_precision(dtype):
                value = np.asarray(function(given))
        else:
            value = xp.asarray(function(given))
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        of = "a dict of all nodes' fields (n, p)" if whole else "the mean model (p,)"
        raise InputError(
            ("metrics", name),
            hint=f" failed ({type(error).__name__}: {reason}): it is given {of}, and the simulator compiles it, so "
            "write it with jax.numpy, or use engine='numpy'.",
        ) from error
    if value.shape != () or value.dtype.kind not in "biuf":
        raise InputError(
            ("metrics", name),
            hint=f" returns an array of shape {value.shape} and type {value.dtype}: return one real number.",
        )
    return value.astype(dtype)


def jax_precision(dtype: Any) -> Any:
    """JAX in double precision, for a reference in double precision; nothing where JAX is not loaded."""
    if dtype != np.float64 or "jax" not in sys.modules:
        return nullcontext()
    from stgt._internal.xla import jax

    return jax.enable_x64(True)


def choose_metrics(
    metrics: Any, algorithm: Algorithm, problem: Problem, topology: Topology
) -> tuple[Measured, dict[str, str]]:
    """The metrics that were asked for, or all; and for each other one why it is absent, by name."""
    absent: dict[str, str] = {}
    if problem.solve is None:
        absent["residual"] = f"{problem.name} has no known unique optimum"
    if not algorithm.spec().tracks:
        absent["tracking"] = f"{algorithm.label} tracks no gradient"
        absent["sum_c"] = f"{algorithm.label} keeps nothing whose sum stays 0"
    elif not topology.doubly_stochastic and not topology.has_push:
        absent["sum_c"] = f"on {topology.name} idle nodes hold an old c"
    names, own = _asked_for(metrics)
    if names is None:
        return Measured(tuple(name for name in MEASURED if name not in absent), own), absent
    wanted = tuple(dict.fromkeys(check_choice(name, "metrics", (*MEASURED, "lyapunov")) for name in names))
    wanted = tuple(dict.fromkeys(part for name in wanted for part in _parts(name)))
    for name in wanted:
        if name in absent:
            raise ValueError(f"metrics has {name!r}, but {absent[name]}.")
    absent.update(
        {name: "it was left out of metrics" for name in MEASURED if name not in wanted and name not in absent}
    )
    return Measured(wanted, own), absent


def _parts(name: str) -> tuple[str, ...]:
    return LYAPUNOV_PARTS if name == "lyapunov" else (name,)


def _asked_for(metrics: Any) -> tuple[list[Any] | None, tuple[tuple[str, Any], ...]]:
    """The built-in names that were asked for, None for all that there are, and the functions with theirs."""
    if metrics is None:
        return None, ()
    if isinstance(metrics, Mapping):
        return None, _own(metrics)
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InputError("metrics", metrics, "give a list of names, a dict of functions by name, or both in a list.")
    given = list(metrics)
    own = {name: function for one in given if isinstance(one, Mapping) for name, function in one.items()}
    return [name for name in given if not isinstance(name, Mapping)], _own(own)


def _own(functions: Mapping[Any, Any]) -> tuple[tuple[str, Any], ...]:
    taken = (*MEASURED, *COUNTED, "lyapunov", "links", "round", "seed", "method", "topology", "gamma", "tau")
    for name, function in functions.items():
        if not isinstance(name, str) or not name:
            raise InputError("metrics", hint=f" has {name!r}: the name of a metric is a word.")
        if name in taken:
            raise InputError(
                "metrics", hint=f" has a function for {name!r}, which is a name of the library's: choose another."
            )
        if not callable(function):
            raise InputError(
                ("metrics", name), function, "give a function of the mean model (p,), or of_state(function)."
            )
    return tuple(functions.items())
