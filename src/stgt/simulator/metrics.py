"""Metrics, the library's and the user's own. They are computed at the start of each round, on NumPy or JAX arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from stgt._internal.checks import InputError, quoted
from stgt._internal.hyper import ShortRepr
from stgt._internal.registry import METRICS, register
from stgt._internal.statistics import Interval, error_interval, mean_interval
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import whole
from stgt.problems.base import Problem
from stgt.topology import Topology

Array = Any
COLUMNS = ("links", "round", "seed", "method", "topology", "gamma", "tau")  # names that are other columns of tables


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All nodes at the start of a round, in arrays of NumPy or JAX. A metric is computed from it.

    Attributes:
        xp: numpy or jax.numpy.
        algorithm, model, data: the method, the problem's functions, and the data that they take.
        state: the method's variables by name, (n, p) each, such as state["x"].
        participation: the share of the nodes that take part in a round.
        optimum: x*, (p,), if a metric needs it.
        minimum: f(x*), if a metric needs the losses and x* is known.
        test: the problem's test samples, as data of one node, if a metric needs them.
        last_gradients: of the nodes' last local steps, (n, p); None in a simulation.
    """

    xp: Any
    algorithm: Algorithm
    model: Any
    data: dict[str, Array]
    state: dict[str, Array]
    participation: float = 1.0
    optimum: Array | None = None
    minimum: Array | None = None
    test: dict[str, Array] | None = None
    last_gradients: Array | None = None

    @property
    def x(self) -> Array:
        """All models, (n, p)."""
        return self.state["x"]

    @cached_property
    def mean(self) -> Array:
        """x̄, (p,)."""
        return self.x.mean(axis=0)

    @cached_property
    def losses(self) -> Array:
        """f_i(x̄), (n,)."""
        return self.model.losses(self.xp, self.data, self.xp.broadcast_to(self.mean, self.x.shape))

    @cached_property
    def gradients(self) -> Array:
        """∇f_i(x̄), (n, p)."""
        return self.model.gradients(self.xp, self.data, self.xp.broadcast_to(self.mean, self.x.shape))

    @cached_property
    def gradient(self) -> Array:
        """∇f(x̄), (p,)."""
        return self.gradients.mean(axis=0)

    @property
    def tracker(self) -> Array:
        """What the method adds to each node's gradient to track ∇f, (n, p)."""
        return self.algorithm.tracker(whole(self.algorithm.label, self.state))

    @property
    def conserved(self) -> Array:
        """The vectors whose sum over the nodes is always 0, (n, p)."""
        return self.algorithm.conserved(whole(self.algorithm.label, self.state), self.participation)


@dataclass(frozen=True)
class Metric(ShortRepr):
    """A number for each round, with a name.

    Attributes:
        name: in tables, spec files and logs.
        formula: as documents and figures print it.
        compute: a function of a `Snapshot`, written with `jax.numpy` or `at.xp`; returns one real number.
        needs: "optimum", "losses", "gradients", "tracker", "conserved", "test", "classes", "last_gradients". If one of
            them does not exist, the metric is absent, with the reason.
        kind: "error" if it is never below 0 except by rounding; "cost" if it is counted; otherwise "value".
        default: is it measured if no metrics are chosen?
        of_trace: is it computed from the `Trace` after the run? Then `needs` are the metrics that it is computed from.

    Example:
        >>> import stgt
        >>> farthest = stgt.Metric(
        ...     "farthest", "max ‖x_i − x̄‖²", lambda at: ((at.x - at.mean) ** 2).sum(axis=1).max(), kind="error"
        ... )
        >>> problem, ring = stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4)
        >>> trace = stgt.simulate(stgt.STGT(gamma=0.1), problem, ring, rounds=3, metrics=["residual", farthest])
        >>> trace["farthest"].shape
        (1, 4)
    """

    name: str
    formula: str
    compute: Callable[[Any], Array]
    needs: tuple[str, ...] = ()
    kind: Literal["error", "value", "cost"] = "value"
    default: bool = False
    of_trace: bool = False

    @property
    def built_in(self) -> bool:
        """Is it one of the library's? The function of any other may read values that change from run to run."""
        return METRICS.get(self.name) is self and self.compute.__module__.startswith("stgt.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_built_in, (self.name,)) if self.built_in else super().__reduce_ex__(protocol)


def _built_in(name: str) -> Metric:
    return METRICS[name]


def of_state(function: Callable[[dict[str, Array]], Array]) -> Metric:
    """A metric of your own whose function receives all nodes' state instead of the mean model.

    Args:
        function: of a dict of the algorithm's variables, (n, p) each, such as state["x"]; returns a number.

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
    return Metric("", "", lambda at: function(dict(at.state)))


def list_metrics() -> list[str]:
    """The names of all metrics: those of stgt, those that your script has registered, those of installed packages."""
    return METRICS.names()


def is_error(name: str) -> bool:
    """Is it a registered metric that is never below 0 except by rounding?"""
    known = METRICS.get(name)
    return known is not None and known.kind == "error"


def over_seeds(metric: str, values: np.ndarray) -> Interval:
    """The mean of a measurement over the seeds, the first axis, and its 95 % interval, (mean, low, high).

    The interval is `error_interval` for registered errors, and Student's t for any other measurement.
    """
    return error_interval(values) if is_error(metric) else mean_interval(values)


def lyapunov_coefficients(gamma: float, tau: int, L: float, n: int, rho: float) -> tuple[float, float]:
    """(c_x, c_y) of V = ‖x̄ − x*‖² + c_x‖X − 1x̄‖² + c_y‖Υ‖², Eq_Lya_coff; rho must be below 1."""
    step, gap = gamma * tau, 1.0 - rho
    return 80 * step * L / (n * gap), 3556 * step**3 * L / (n * gap**3)


def _lyapunov(trace: Any) -> np.ndarray:
    gamma, L, topology = trace.algorithm.gamma, trace.problem.L, trace.topology
    if L is None or not isinstance(gamma, float):
        raise KeyError(
            "'lyapunov' was not measured: it needs the problem's L, and one stepsize for all nodes and rounds."
        )
    residual, consensus, tracking = (trace[name] for name in METRICS["lyapunov"].needs)
    if topology.participation < 1:
        raise KeyError(f"'lyapunov' does not exist on {topology.name}: there some nodes skip rounds.")
    if trace.rho is None:
        raise KeyError(f"'lyapunov' does not exist on {topology.name}: its ρ is not known.")
    if trace.rho >= 1 - 1e-12:
        raise KeyError(f"'lyapunov' does not exist on {topology.name}: its ρ is not below 1.")
    c_x, c_y = lyapunov_coefficients(gamma, trace.algorithm.tau, L, trace.problem.n, trace.rho)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is a result
        return residual + c_x * consensus + c_y * tracking


def _loss(at: Snapshot) -> Array:
    return at.losses.mean() if at.minimum is None else at.losses.mean() - at.minimum


def _tracker_spread(at: Snapshot) -> Array:
    directions = at.last_gradients + at.tracker
    return ((directions - directions.mean(axis=0)) ** 2).sum()


for _metric in (
    Metric("residual", "‖x̄ − x*‖²", lambda at: ((at.mean - at.optimum) ** 2).sum(), ("optimum",), "error", True),
    Metric("loss", "f(x̄) − f*", _loss, ("losses",), "error", True),
    Metric("squared_gradient_norm", "‖∇f(x̄)‖²", lambda at: (at.gradient**2).sum(), ("gradients",), "error", True),
    Metric("consensus", "‖X − 1x̄‖²", lambda at: ((at.x - at.mean) ** 2).sum(), (), "error", True),
    # Υ = Y − G − 1∇f(x̄)ᵀ + ∇F(1x̄), and Y − G is the algorithm's tracker.
    Metric(
        "tracking",
        "‖Υ‖²",
        lambda at: ((at.tracker - at.gradient + at.gradients) ** 2).sum(),
        ("gradients", "tracker"),
        "error",
        True,
    ),
    Metric("sum_c", "‖Σ c_i‖", lambda at: (at.conserved.sum(axis=0) ** 2).sum() ** 0.5, ("conserved",), "error", True),
    Metric("tracker_spread", "‖Y − 1ȳ‖²", _tracker_spread, ("tracker", "last_gradients"), "error"),
    Metric(
        "test_loss",
        "loss(x̄) on the test samples",
        lambda at: at.model.losses(at.xp, at.test, at.mean[None]).mean(),
        ("test",),
        "error",
        True,
    ),
    Metric(
        "test_accuracy",
        "share of the test samples that x̄ classifies right",
        lambda at: at.model.accuracies(at.xp, at.test, at.mean[None]).mean(),
        ("test", "classes"),
        "value",
        True,
    ),
    Metric("lyapunov", "V, Eq_Lyapunov", _lyapunov, ("residual", "consensus", "tracking"), "error", of_trace=True),
):
    register(_metric)


def absence(metric: Metric, algorithm: Algorithm, problem: Problem, topology: Topology) -> str:
    """Why a metric cannot be measured; "" if it can."""
    tracks = algorithm.spec().tracks
    missing = {
        "optimum": "" if problem.solve is not None else f"{problem.name} has no known unique optimum",
        "tracker": "" if tracks else f"{algorithm.label} tracks no gradient",
        "conserved": f"{algorithm.label} keeps nothing whose sum stays 0"
        if not tracks
        else f"on {topology.name} idle nodes hold an old c"
        if not topology.doubly_stochastic and not topology.has_push
        else "",
        "test": "" if problem.test is not None else f"{problem.name} has no test samples",
        "classes": "" if hasattr(problem.model, "accuracies") else f"{problem.name} has no classes",
        "last_gradients": "a simulation keeps no last gradients; tracking compares with exact ones",
    }
    return next((missing[need] for need in metric.needs if missing.get(need)), "")


def choose_metrics(
    metrics: Any, algorithm: Algorithm, problem: Problem, topology: Topology
) -> tuple[dict[str, Metric], dict[str, str]]:
    """The requested metrics, or the default ones, by name; and for each other metric why it is absent."""
    known = {name: one for name, one in METRICS.items() if not one.of_trace}
    absent = {name: why for name, one in known.items() if (why := absence(one, algorithm, problem, topology))}
    if metrics is None or isinstance(metrics, Mapping):
        chosen = [one for name, one in known.items() if one.default and name not in absent]
        given, left_out = [metrics or {}], "it is measured only if metrics has it"
    elif isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InputError("metrics", metrics, "give a list of names, a dict of functions by name, or both in a list.")
    else:
        chosen, given, left_out = [], list(metrics), "it was left out of metrics"
    for one in given:
        if isinstance(one, Mapping):
            chosen += [_own(name, function) for name, function in one.items()]
        elif isinstance(one, Metric):
            chosen.append(one if METRICS.get(one.name) is one else _own(one.name, one))
        else:
            found = METRICS.find(one, "metrics")
            chosen += [METRICS[need] for need in found.needs] if found.of_trace else [found]
    for one in chosen:
        why = absence(one, algorithm, problem, topology)
        if why:
            raise InputError("metrics", hint=f" has {one.name!r}, but {why}: leave it out.")
    measured = {one.name: one for one in chosen}
    return measured, absent | {name: left_out for name in known if name not in measured and name not in absent}


def _own(name: Any, given: Any) -> Metric:
    """A user's metric, or a function of the mean model, under a name that the library does not use."""
    if not isinstance(name, str) or not name:
        raise InputError("metrics", hint=f" has {name!r}: the name of a metric is a word.")
    if name in COLUMNS or METRICS.get(name) is not None:
        raise InputError("metrics", hint=f" has a function for {name!r}, which is known already: choose another name.")
    if isinstance(given, Metric):
        return replace(given, name=name)
    if not callable(given):
        raise InputError(("metrics", name), given, "give a function of the mean model (p,), or of_state(function).")
    return Metric(name, "", lambda at: given(at.mean))


def measure(metrics: Iterable[Metric], at: Snapshot) -> dict[str, Array]:
    """The measurements of a snapshot by name, one scalar each."""
    return {one.name: one.compute(at) if one.built_in else own_value(one, at) for one in metrics}


def finite(xp: Any, metrics: Iterable[Metric], values: dict[str, Array]) -> Array:
    """Are all built-in measurements finite? A finite model's square may be infinite. A user's do not count."""
    return xp.isfinite(xp.asarray([values[one.name] for one in metrics if one.built_in], float)).all()


def own_value(metric: Metric, at: Snapshot) -> Array:
    """The value of a user's metric: one number, in the run's precision."""
    try:
        if at.xp is np:  # on copies, as the function may write to them; JAX inside it uses the run's precision too
            copies = replace(at, state={name: np.array(value) for name, value in at.state.items()})
            with jax_precision(at.x.dtype):
                value = np.asarray(metric.compute(copies))
        else:
            value = at.xp.asarray(metric.compute(at))
    except Exception as error:
        raise InputError(
            ("metrics", metric.name),
            hint=f" failed ({quoted(error)}): the simulator compiles it, so write it with jax.numpy, "
            "or use engine='numpy'.",
        ) from error
    if value.shape != () or value.dtype.kind not in "biuf":
        raise InputError(
            ("metrics", metric.name),
            hint=f" returns an array of shape {value.shape} and type {value.dtype}: return one real number.",
        )
    return value.astype(at.x.dtype)


def jax_precision(dtype: Any) -> Any:
    """JAX in double precision, for a reference in double precision; does nothing if JAX is not loaded."""
    if dtype != np.float64 or "jax" not in sys.modules:
        return nullcontext()
    from stgt._internal.xla import jax

    return jax.enable_x64(True)
