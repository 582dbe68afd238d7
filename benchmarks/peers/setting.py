"""The input and the output of every driver: NumPy and the standard library only, as each has its own environment.

A driver gets the paths of two JSON files: the setting to read, and the answer to write.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

WARM = 4  # rounds of the first timed run


@dataclass(frozen=True)
class Setting:
    """f_i(x) = (θ_iᵀx − d_i)² + (μ/2)‖x‖², with noise N(0, σ² I) in each gradient, and a method with its steps."""

    method: str  # "K-GT", "Scaffold" or "DIGing"
    theta: np.ndarray
    d: np.ndarray
    W: np.ndarray
    mu: float
    gamma: float
    tau: int
    sampled: int
    sigma: float
    rounds: int  # of a run whose final models are compared; 0 to measure the speed
    seconds: float  # the duration of a timed run

    @property
    def n(self) -> int:
        return len(self.theta)

    @property
    def p(self) -> int:
        return self.theta.shape[1]


Run = Callable[[int], tuple[float, np.ndarray]]


def read() -> Setting:
    with open(sys.argv[1], encoding="utf-8") as file:
        given = json.load(file)
    arrays = {name: np.array(given[name], dtype=float) for name in ("theta", "d", "W")}
    return Setting(**{**given, **arrays})


def measured(setting: Setting, run: Run, packages: tuple[str, ...], answers: bool = True) -> None:
    """Runs, and writes the answer: `run(rounds)` is a complete run from 0 that returns the seconds of its rounds and
    the final models. `answers=False` is for all but one process of a driver with several processes.
    """
    run(1)
    found = {"first": time.time(), "versions": {name: version(name) for name in packages}}
    found["python"] = platform.python_version()
    if setting.rounds:
        found["models"] = run(setting.rounds)[1].tolist()
    else:
        rounds, (seconds, _) = WARM, run(WARM)
        while seconds < setting.seconds / 2:
            rounds = math.ceil(rounds * min(10.0, 0.8 * setting.seconds / seconds))
            seconds, _ = run(rounds)
        seconds, models = run(rounds)  # again, when all is compiled
        if not np.isfinite(models).all():
            raise SystemExit(f"{setting.method}: the models are not finite after {rounds} rounds.")
        found.update(rounds=rounds, seconds=seconds)
    if answers:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump(found, file)
