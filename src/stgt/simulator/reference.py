"""The reference engine: plain NumPy, one round after the other, close to the paper's equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stgt._internal.ops import NUMPY as OPS
from stgt._internal.randomness import STREAM_INITIAL, STREAM_LOCAL, STREAM_START_GRADIENT, Clock, coin
from stgt._internal.schedules import is_schedule, stepsize
from stgt.algorithms import Algorithm, Local, MessageVar
from stgt.algorithms.calls import Checked
from stgt.simulator.costs import links_used
from stgt.simulator.job import ARRAYS, Job, RunState, join_fields
from stgt.simulator.metrics import Snapshot, finite, measure


class Run:
    """One algorithm with one seed, new or resumed. The rows of (n, p) arrays are the nodes."""

    def __init__(self, job: Job, algorithm: Algorithm, seed: int, run_state: RunState | None = None):
        self.job, self.given, self.seed = job, Checked(algorithm), seed
        self.dtype = np.dtype(job.dtype)
        self.data = {name: _cast(leaf, self.dtype) for name, leaf in job.problem.data.items()}
        self.test = None if job.test is None else {name: _cast(leaf, self.dtype) for name, leaf in job.test.items()}
        self.diverged_at = -1
        self.ahead: np.ndarray | None = None
        self._set_stepsize(algorithm.gamma)
        self._follow_schedule(job.gammas_from)
        if run_state is None:
            self._begin()
        else:
            self._resume(run_state)

    def _begin(self) -> None:
        job, method = self.job, self.method
        x = job.x0.astype(self.dtype)
        self.memory = job.oracle.init(OPS, job.problem.model, self.data, x)
        gradient = mean = None
        if method.spec.needs_initial_gradient:
            gradient, self.memory = self.evaluate(x, 0, STREAM_INITIAL)
            mean = np.broadcast_to(gradient.mean(axis=0), gradient.shape)
        self.state = method.init(x, gradient, mean)
        self.state |= {name: value.astype(self.dtype) for name, value in job.state0.items()}
        if method.spec.second_messages:
            self.ahead, self.memory = self.evaluate(x, 0)

    def _resume(self, run_state: RunState) -> None:
        """Continues from the state of one run."""
        self.state = {name: value[0].copy() for name, value in run_state.state.items()}
        self.memory = {name: value[0].copy() for name, value in run_state.memory.items()}
        self.ahead = None if run_state.ahead is None else run_state.ahead[0].copy()
        self.diverged_at = int(run_state.diverged_at[0])

    def _set_stepsize(self, gamma: Any) -> None:
        """γ_r: a number, or one per node, (n, 1)."""
        self.gamma: Any = np.array(gamma, dtype=self.dtype)[:, None] if isinstance(gamma, tuple) else gamma
        self.method = self.given.at_stepsize(self.gamma)

    def _follow_schedule(self, r: int) -> None:
        gamma: Any = self.given.algorithm.gamma
        if is_schedule(gamma):
            self._set_stepsize(stepsize(gamma, r))

    def evaluate(
        self, x: np.ndarray, step: int, stream: int = STREAM_LOCAL
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Every node's stochastic gradient at its own x, with the samples of `step`."""
        problem, oracle = self.job.problem, self.job.oracle
        clock = Clock(OPS, self.dtype, self.seed, np.arange(problem.n), step, stream)
        drawn = oracle.draw(clock, problem.p, problem.counts)
        g, memory = oracle.gradient(OPS, problem.model, self.data, self.memory, x, drawn)
        return g.astype(self.dtype, copy=False), memory

    def local_steps(self, r: int, active: np.ndarray) -> Local:
        """tau times x ← x − γ(g + correction), at the active nodes."""
        method, tau = self.method, self.method.tau
        state = method.readable(self.state)
        start_gradient = first = last = None
        x = start = self.state["x"]
        if "start_gradient" in method.spec.reads:
            start_gradient, memory = self.evaluate(start, r * tau, STREAM_START_GRADIENT)
            self.memory = _where(active, memory, self.memory)
        for t in range(tau):
            if t == 0 and self.ahead is not None:
                last = self.ahead
            else:
                last, memory = self.evaluate(x, r * tau + t)
                self.memory = _where(active, memory, self.memory)
            first = last if t == 0 else first
            x = x - self.gamma * (last + method.correction(state, x))
        return method.after_steps(
            start=start,
            end=x,
            gamma=self.gamma,
            round=r,
            participation=self.job.topology.participation,
            first=first,
            last=last,
            start_gradient=start_gradient,
        )

    def mix(self, r: int, message: dict[str, np.ndarray], declared: Sequence[MessageVar]) -> dict[str, np.ndarray]:
        """W_r times each field of a message; W_rᵀ for a transposed one, C_r for a pushed one."""
        mixed = {}
        for sent in declared:
            held = sent.name in self.method.spec.server_fields
            W = self.job.topology.matrix(r, self.seed, held=held, pushed=sent.pushed).astype(self.dtype)
            mixed[sent.name] = message[sent.name]
            for _ in range(self.method.spec.mixing_steps):
                mixed[sent.name] = (W.T if sent.transposed else W) @ mixed[sent.name]
        return mixed

    def round(self, r: int) -> float:
        """Runs one round; returns the number of links it used."""
        self._follow_schedule(r)
        method, spec, topology = self.method, self.method.spec, self.job.topology
        active, listening = topology.active(r, self.seed), topology.listening(r, self.seed)
        local: Any = self.local_steps(r, active)
        chance = spec.communication_probability
        if chance is not None and not coin(np, self.seed, r, chance, self.dtype):
            self.state["x"] = np.where(active[:, None], local.end, self.state["x"])
            return 0.0
        state = method.readable(self.state)
        mixed = self.mix(r, method.message(state, local), spec.messages)
        for name, value in method.merge(state, local, mixed).items():
            receives = listening | active if name in spec.server_fields else active
            self.state[name] = np.where(receives[:, None], value, self.state[name])
        if self.ahead is not None:
            gradient, memory = self.evaluate(self.state["x"], (r + 1) * method.tau)
            self.memory = _where(active, memory, self.memory)
            self.ahead = np.where(active[:, None], gradient, self.ahead)
            mixed = self.mix(r, method.second_message(self.state, self.ahead), spec.second_messages)
            self.state = _where(active, method.second_merge(self.state, self.ahead, mixed), self.state)
        return links_used(spec, topology, r, self.seed)

    def measure(self, r: int) -> dict[str, Any]:
        """The measurements now, with the stepsize of round r."""
        self._follow_schedule(r)
        optimum = self.job.optimum
        at = Snapshot(
            np,
            self.method.algorithm,
            self.job.problem.model,
            self.data,
            self.state,
            self.job.topology.participation,
            None if optimum is None else optimum.astype(self.dtype),
            self.job.minimum,
            self.test,
        )
        return measure(self.job.measured.values(), at)

    def detect_divergence(self, r: int, values: dict[str, Any]) -> None:
        """Records the first round at whose start a model, or a measurement of it, is not finite."""
        if self.diverged_at < 0 and not (
            np.isfinite(self.state["x"]).all() and finite(np, self.job.measured.values(), values)
        ):
            self.diverged_at = r


def _where(active: np.ndarray, new: dict[str, np.ndarray], old: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if active.all():
        return dict(new)
    return {name: np.where(active.reshape(-1, *[1] * (new[name].ndim - 1)), new[name], old[name]) for name in new}


def _cast(leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return leaf.astype(dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf


class Reference:
    """The runs of a job, one after the other; an `Engine`."""

    def __init__(self, job: Job):
        self.job = job
        pairs = [(instance.algorithm, seed) for instance in job.instances for seed in job.seeds]
        with _diverging():
            self.runs = [
                Run(job, *pair, None if job.run_state is None else job.run_state.of(slice(i, i + 1)))
                for i, pair in enumerate(pairs)
            ]

    def advance(self, first: int, count: int) -> dict[str, np.ndarray]:
        found = []
        with _diverging():
            for run in self.runs:
                rows = []
                for r in range(first, first + count):
                    values = run.measure(r)
                    run.detect_divergence(r, values)
                    rows.append({**values, "links": run.round(r)})
                found.append(rows)
        names = (*self.job.measured, "links")
        return {name: np.array([[row[name] for row in rows] for rows in found]) for name in names}

    def measure(self, r: int) -> dict[str, np.ndarray]:
        with _diverging():
            found = [run.measure(max(0, r - 1)) for run in self.runs]
            for run, values in zip(self.runs, found, strict=True):
                run.detect_divergence(r, values)
        return {name: np.array([one[name] for one in found]) for name in self.job.measured}

    @property
    def diverged_at(self) -> np.ndarray:
        return np.array([run.diverged_at for run in self.runs])

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: np.stack([run.state[name] for run in self.runs]) for name in self.runs[0].state}

    def run_state(self, rounds: int, links: np.ndarray) -> RunState:
        return RunState(rounds, **join_fields(self.runs, np.stack, ARRAYS[:-1]), links=links)


def _diverging() -> np.errstate:
    """Overflow is allowed, because a diverging run is a result."""
    return np.errstate(over="ignore", invalid="ignore")
