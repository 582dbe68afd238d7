"""The reference: plain NumPy, one round after the other, to be read beside the paper."""

from __future__ import annotations

from typing import Any

import numpy as np

from stgt.algorithms import Algorithm, Local, Sent
from stgt.algorithms.calls import begin, hear, hear_again, readable, say, say_again
from stgt.engines.job import Job, Result
from stgt.engines.metrics import measure
from stgt.ops import NUMPY as OPS
from stgt.randomness import STREAM_ANCHOR, STREAM_INITIAL, STREAM_LOCAL, Clock, coin


class Run:
    """One algorithm with one seed. All nodes are rows of (n, p) arrays."""

    def __init__(self, job: Job, algorithm: Algorithm, seed: int):
        self.job, self.algorithm, self.seed = job, algorithm, seed
        self.dtype = np.dtype(job.dtype)
        self.data = {name: _cast(leaf, self.dtype) for name, leaf in job.problem.data.items()}
        self.gamma: Any = algorithm.gamma
        if isinstance(algorithm.gamma, tuple):
            self.gamma = np.array(algorithm.gamma, dtype=self.dtype)[:, None]
        x = job.x0.astype(self.dtype)
        self.memory = job.oracle.init(OPS, job.problem.model, self.data, x)
        gradient = mean = None
        if algorithm.starts_warm:
            gradient, self.memory = self.evaluate(x, 0, STREAM_INITIAL)
            mean = np.broadcast_to(gradient.mean(axis=0), gradient.shape)
        self.state = begin(algorithm, x, gradient, mean)
        self.state |= {name: value.astype(self.dtype) for name, value in job.state0.items()}
        self.ahead: np.ndarray | None = None
        if algorithm.exchanges_again:
            self.ahead, self.memory = self.evaluate(x, 0)

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
        algorithm, tau = self.algorithm, self.algorithm.tau
        state = readable(algorithm, self.state)
        anchor = first = last = None
        x = start = self.state["x"]
        if "anchor" in algorithm.reads:
            anchor, memory = self.evaluate(start, r * tau, STREAM_ANCHOR)
            self.memory = _where(active, memory, self.memory)
        for t in range(tau):
            if t == 0 and self.ahead is not None:
                last = self.ahead
            else:
                last, memory = self.evaluate(x, r * tau + t)
                self.memory = _where(active, memory, self.memory)
            first = last if t == 0 else first
            x = x - self.gamma * (last + algorithm.correction(state, x))
        return Local(
            algorithm.label,
            algorithm.reads,
            start=start,
            end=x,
            direction=(start - x) / (self.gamma * tau),
            gamma=self.gamma,
            round=r,
            participation=self.job.topology.participation,
            first=first,
            last=last,
            anchor=anchor,
        )

    def mix(self, r: int, message: dict[str, np.ndarray], declared: tuple[Sent, ...]) -> dict[str, np.ndarray]:
        """W_r times each field of the message; W_rᵀ for a field that travels against the edges."""
        mixed = {}
        for sent in declared:
            W = self.job.topology.matrix(r, self.seed, held=sent.name in self.algorithm.held).astype(self.dtype)
            mixed[sent.name] = (W.T if sent.transposed else W) @ message[sent.name]
        return mixed

    def round(self, r: int) -> float:
        """One round; returns the number of links it used."""
        algorithm, topology = self.algorithm, self.job.topology
        active, listening = topology.active(r, self.seed), topology.listening(r, self.seed)
        local = self.local_steps(r, active)
        if algorithm.coin and not coin(np, self.seed, r, algorithm.talks, self.dtype):
            self.state["x"] = np.where(active[:, None], local.end, self.state["x"])
            return 0.0
        state = readable(algorithm, self.state)
        mixed = self.mix(r, say(algorithm, state, local), algorithm.exchanges)
        for name, value in hear(algorithm, state, local, mixed).items():
            hears = listening | active if name in algorithm.held else active
            self.state[name] = np.where(hears[:, None], value, self.state[name])
        if self.ahead is not None:
            gradient, memory = self.evaluate(self.state["x"], (r + 1) * algorithm.tau)
            self.memory = _where(active, memory, self.memory)
            self.ahead = np.where(active[:, None], gradient, self.ahead)
            mixed = self.mix(r, say_again(algorithm, self.state, self.ahead), algorithm.exchanges_again)
            self.state = _where(active, hear_again(algorithm, self.state, self.ahead, mixed), self.state)
        return topology.links(r, self.seed)

    def measure(self) -> dict[str, Any]:
        optimum = self.job.optimum
        return measure(
            np,
            self.job.metrics,
            self.algorithm,
            self.job.problem.model,
            self.data,
            self.state,
            None if optimum is None else optimum.astype(self.dtype),
            self.job.minimum,
            self.job.topology.participation,
        )

    def run(self, tick: Any) -> tuple[dict[str, np.ndarray], int, list[float]]:
        """All rounds: the measurements (rounds + 1,), the round it diverged at, the links of each round."""
        records, links, diverged_at = [], [], -1
        with np.errstate(over="ignore", invalid="ignore"):
            for r in range(self.job.rounds + 1):
                records.append(self.measure())
                if diverged_at < 0 and not np.isfinite(self.state["x"]).all():
                    diverged_at = r
                if r < self.job.rounds:
                    links.append(self.round(r))
                    tick()
        return {name: np.array([record[name] for record in records]) for name in self.job.metrics}, diverged_at, links


def _where(active: np.ndarray, new: dict[str, np.ndarray], old: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if active.all():
        return dict(new)
    return {name: np.where(active.reshape(-1, *[1] * (new[name].ndim - 1)), new[name], old[name]) for name in new}


def _cast(leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return leaf.astype(dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf


def run(job: Job) -> list[Result]:
    """Runs each setting of the job with each seed."""
    done, total = 0, len(job.settings) * len(job.seeds) * job.rounds

    def tick() -> None:
        nonlocal done
        done += 1
        if job.progress is not None:
            job.progress(done, total)

    results = []
    for setting in job.settings:
        runs = [Run(job, setting.algorithm, seed) for seed in job.seeds]
        found = [one.run(tick) for one in runs]
        results.append(
            Result(
                values={name: np.stack([values[name] for values, _, _ in found]) for name in job.metrics},
                state={name: np.stack([one.state[name] for one in runs]) for name in runs[0].state},
                diverged_at=np.array([diverged_at for _, diverged_at, _ in found]),
                links=np.array([links for _, _, links in found]).reshape(len(runs), job.rounds),
            )
        )
    return results
