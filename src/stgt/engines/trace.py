"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stgt.algorithms import Algorithm
from stgt.engines.metrics import LYAPUNOV_PARTS, lyapunov_coefficients
from stgt.problems.base import Problem
from stgt.topology import Topology, contraction

MEANING = {
    "residual": "‖x̄ − x*‖²",
    "loss": "f(x̄) − f*",
    "gradient_norm": "‖∇f(x̄)‖²",
    "consensus": "‖X − 1x̄‖²",
    "tracking": "‖Υ‖²",
    "sum_c": "‖Σ c_i‖",
    "lyapunov": "V, Eq_Lyapunov",
    "gradients": "gradients computed by all nodes so far",
    "messages": "messages sent by all nodes so far",
    "floats": "floats sent by all nodes so far",
}


@dataclass(frozen=True, eq=False)
class Trace:
    """What a run measured, at the start of each round and after the last: arrays (seeds, rounds + 1).

    Once every run of a batch has left the finite numbers the simulator stops, and NaN stands for what it left out.

    Attributes:
        algorithm, problem, topology: what was run.
        seeds: the numbers of the runs.
        values: the measurements by name; `trace["consensus"]` is the usual way to them.
        state: the last state by field, (seeds, n, p).
        diverged_at: (seeds,) the first round at whose start some model was not finite, −1 if all stayed finite.
        absent: why a measurement is not there, by name.
        notes: what a reader of the numbers must know, such as that the method is another one under these options.
    """

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    seeds: tuple[int, ...]
    values: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    diverged_at: np.ndarray
    absent: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def residual(self) -> np.ndarray:
        """‖x̄ − x*‖² at the start of each round, (seeds, rounds + 1)."""
        return self["residual"]

    @property
    def x(self) -> np.ndarray:
        """The last models, (seeds, n, p)."""
        return self.state["x"]

    @property
    def rounds(self) -> int:
        return next(iter(self.values.values())).shape[1] - 1

    @property
    def diverged(self) -> np.ndarray:
        """Which runs left the finite numbers, (seeds,) booleans."""
        return self.diverged_at >= 0

    def __getitem__(self, name: str) -> np.ndarray:
        if name == "lyapunov":
            return self._lyapunov()
        if name in self.values:
            return self.values[name]
        if name in self.absent:
            raise KeyError(f"{name!r} was not measured: {self.absent[name]}.")
        raise KeyError(f"{name!r} is not a measurement: choose from {', '.join(self)}.")

    def __iter__(self):
        return iter(self.values)

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def tail(self, name: str = "residual", share: float = 0.25) -> np.ndarray:
        """The mean of a measurement over the last `share` of the rounds, (seeds,): its steady state."""
        values = self[name]
        return values[:, -max(1, round(share * values.shape[1])) :].mean(axis=1)

    def _lyapunov(self) -> np.ndarray:
        """V = ‖x̄ − x*‖² + c_x‖X − 1x̄‖² + c_y‖Υ‖² with c_x, c_y of Eq_Lya_coff."""
        gamma, tau, n, L = self.algorithm.gamma, self.algorithm.tau, self.problem.n, self.problem.L
        if L is None or not isinstance(gamma, float):
            raise KeyError("'lyapunov' was not measured: it needs the problem's L and one stepsize for all nodes.")
        parts = [self[name] for name in LYAPUNOV_PARTS]
        rho = contraction(self.topology)
        if rho >= 1 - 1e-12:
            raise KeyError(f"'lyapunov' does not exist on {self.topology.name}: ρ = E‖W_r − J‖² is not below 1 there.")
        c_x, c_y = lyapunov_coefficients(gamma, tau, L, n, rho)
        return parts[0] + c_x * parts[1] + c_y * parts[2]

    def __repr__(self) -> str:
        lost = int(self.diverged.sum())
        note = f", {lost} diverged" if lost else ""
        note += f"; {' '.join(self.notes)}" if self.notes else ""
        return (
            f"Trace({self.algorithm.label}, {self.topology.name}, {len(self.seeds)} seeds, {self.rounds} rounds{note})"
        )
