"""What is measured at the start of each round, on NumPy or JAX arrays alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stgt.algorithms import Algorithm
from stgt.algorithms.calls import whole
from stgt.checks import check_choice
from stgt.problems.base import Problem
from stgt.topology import Topology

Array = Any
LYAPUNOV_PARTS = ("residual", "consensus", "tracking")
MEASURED = ("residual", "loss", "gradient_norm", "consensus", "tracking", "sum_c")


def lyapunov_coefficients(gamma: float, tau: int, L: float, n: int, rho: float) -> tuple[float, float]:
    """(c_x, c_y) of V = ‖x̄ − x*‖² + c_x‖X − 1x̄‖² + c_y‖Υ‖², Eq_Lya_coff; rho must be below 1."""
    step, gap = gamma * tau, 1.0 - rho
    return 80 * step * L / (n * gap), 3556 * step**3 * L / (n * gap**3)


def measure(
    xp: Any,
    names: tuple[str, ...],
    algorithm: Algorithm,
    model: Any,
    data: dict[str, Array],
    state: dict[str, Array],
    optimum: Array | None,
    minimum: Array | None,
    participation: float,
) -> dict[str, Array]:
    """The measurements in `names` of a state (n, p): a scalar each."""
    x, kept = state["x"], whole(algorithm, state)
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
            found["tracking"] = ((algorithm.tracker(kept) - gradient + gradients) ** 2).sum()
    if "sum_c" in names:
        total = algorithm.conserved(kept, participation).sum(axis=0)
        found["sum_c"] = (total**2).sum() ** 0.5
    return found


def choose_metrics(
    metrics: Iterable[str] | None, algorithm: Algorithm, problem: Problem, topology: Topology
) -> tuple[tuple[str, ...], dict[str, str]]:
    """What to measure, of what was asked for or of all that there is; and why the others are absent, by name."""
    absent: dict[str, str] = {}
    if problem.solve is None:
        absent["residual"] = f"{problem.name} has no known unique optimum"
    if not algorithm.tracks:
        absent["tracking"] = f"{algorithm.label} tracks no gradient"
        absent["sum_c"] = f"{algorithm.label} keeps nothing whose sum stays 0"
    elif not topology.doubly_stochastic:
        absent["sum_c"] = f"on {topology.name} idle nodes hold an old c"
    if metrics is None:
        return tuple(name for name in MEASURED if name not in absent), absent
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ValueError(f"metrics={metrics!r}: give a list of names.")
    names = [name for given in metrics for name in (LYAPUNOV_PARTS if given == "lyapunov" else (given,))]
    wanted = tuple(dict.fromkeys(check_choice(name, "metrics", MEASURED) for name in names))
    for name in wanted:
        if name in absent:
            raise ValueError(f"metrics has {name!r}, but {absent[name]}.")
    absent.update(
        {name: "it was left out of metrics" for name in MEASURED if name not in wanted and name not in absent}
    )
    return wanted, absent
