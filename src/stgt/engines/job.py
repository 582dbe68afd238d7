"""A run, checked: everything an engine needs, with nothing left to complain about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stgt.algorithms import Algorithm
from stgt.checks import check_choice, check_count, check_seed
from stgt.engines.metrics import LYAPUNOV_PARTS, MEASURED
from stgt.engines.trace import Trace
from stgt.oracles import ORACLES, Oracle, default_oracle
from stgt.problems.base import Problem, check_array
from stgt.progress import Progress
from stgt.topology import Topology


@dataclass(frozen=True, eq=False)
class Job:
    """One or more algorithms that differ in real-valued hyper-parameters only, and what they run on."""

    algorithms: tuple[Algorithm, ...]
    problem: Problem
    topology: Topology
    oracle: Oracle
    rounds: int
    seeds: tuple[int, ...]
    x0: np.ndarray
    state0: dict[str, np.ndarray]
    dtype: str
    metrics: tuple[str, ...]
    absent: dict[str, str]
    progress: Progress | None

    @property
    def algorithm(self) -> Algorithm:
        """The first of the algorithms, for all that they share."""
        return self.algorithms[0]

    @property
    def optimum(self) -> np.ndarray | None:
        """x*, if it is measured against: it may have to be solved for."""
        return self.problem.optimum if "residual" in self.metrics else None

    @property
    def minimum(self) -> float | None:
        """f*, if it is measured against."""
        return self.problem.minimum if "loss" in self.metrics else None

    def counts_of(self, links: np.ndarray) -> dict[str, np.ndarray]:
        """The cumulative gradients, messages and floats of runs whose rounds used `links` links, (runs, rounds)."""
        algorithm, topology, problem = self.algorithm, self.topology, self.problem
        samples = 1.0 if problem.counts is None else float(problem.counts.mean())
        cost = algorithm.cost(round(samples))
        needs = algorithm.needs
        steps = algorithm.tau + ("anchor" in needs)
        a_round = np.full(links.shape, topology.sampled * steps * self.oracle.calls(samples))
        initial = problem.n * (
            self.oracle.initial_calls(samples)
            + ("initial" in needs or "lookahead" in needs) * self.oracle.calls(samples)
        )
        exchanges = 1 + ("lookahead" in needs)
        # Through a server a link is a worker's way up or down; half of them each.
        vectors = (cost.up + cost.down) / 2 if topology.has_server else cost.vectors
        return {
            "gradients": initial + _cumulative(a_round),
            "messages": _cumulative(links * exchanges),
            "floats": _cumulative(links * vectors * problem.p),
        }

    def trace(self, which: int, values: dict[str, Any], state: dict[str, Any], diverged_at: Any, links: Any) -> Trace:
        """The trace of one of the algorithms, from arrays over its seeds."""
        return Trace(
            algorithm=self.algorithms[which],
            problem=self.problem,
            topology=self.topology,
            seeds=self.seeds,
            values={**values, **self.counts_of(np.asarray(links, dtype=np.float64))},
            state=state,
            diverged_at=np.asarray(diverged_at),
            absent=self.absent,
        )


def _cumulative(a_round: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(a_round), 1)), np.cumsum(a_round, axis=1)], axis=1)


def prepare(
    algorithms: Iterable[Algorithm],
    problem: Problem,
    topology: Topology,
    rounds: int,
    seeds: int | Iterable[int],
    *,
    dtype: str,
    x0: Any = None,
    state0: Mapping[str, Any] | None = None,
    oracle: Oracle | None = None,
    metrics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Job:
    """Checks everything a run is made of; a ValueError says what is wrong and which argument to change."""
    algorithms = tuple(algorithms)
    if not isinstance(problem, Problem):
        raise ValueError(f"problem={problem!r}: give a Problem, made by a function of stgt.problems.")
    if not isinstance(topology, Topology):
        raise ValueError(f"topology={topology!r}: give a Topology, made by a function of stgt.topology.")
    for algorithm in algorithms:
        _check_algorithm(algorithm, problem, topology)
    first = algorithms[0]
    if problem.n != topology.n:
        raise ValueError(f"topology has n={topology.n} nodes, but problem has n={problem.n}: make them equal.")
    oracle = _choose_oracle(first, problem, oracle)
    oracle.check(problem)
    start = _start(x0, problem, first, topology)
    rounds = check_count(rounds, "rounds", 0)
    if (rounds + 1) * first.tau >= 2**31:
        raise ValueError(f"rounds={rounds} of tau={first.tau} steps: give fewer than 2**31 steps in all.")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress={progress!r}: give a function of (done, total), or leave it out.")
    wanted, absent = _metrics(metrics, first, problem, topology)
    return Job(
        algorithms=algorithms,
        problem=problem,
        topology=topology,
        oracle=oracle,
        rounds=rounds,
        seeds=_seeds(seeds),
        x0=start,
        state0=_state0(state0, algorithms, start, topology),
        dtype=check_choice(dtype, "dtype", ("float32", "float64")),
        metrics=wanted,
        absent=absent,
        progress=progress,
    )


def _check_algorithm(algorithm: Algorithm, problem: Problem, topology: Topology) -> None:
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm={algorithm!r}: give an instance, such as stgt.STGT(gamma=0.1, tau=10).")
    if algorithm.gamma is None:
        raise ValueError(f"gamma was left out of {algorithm.label}: a simulation needs gamma > 0.")
    if isinstance(algorithm.gamma, tuple) and len(algorithm.gamma) != problem.n:
        raise ValueError(
            f"gamma has {len(algorithm.gamma)} stepsizes: give one, or one for each of the {problem.n} nodes."
        )
    check_fit(algorithm, topology)


def check_fit(algorithm: Algorithm, topology: Topology) -> None:
    """A ValueError if the method is wrong on this topology."""
    allowed = {"never": False, "server": topology.has_server, "any": True}[algorithm.row_stochastic]
    if not topology.doubly_stochastic and not allowed:
        raise ValueError(
            f"{algorithm.label} needs doubly stochastic W_r here, and {topology.name} is row-stochastic only: use "
            "another topology, such as server(n, sampled=s); Scaffold and ScaffoldPlus run on relay, FedAvg on any."
        )
    algorithm.check(topology.participation)


def _choose_oracle(algorithm: Algorithm, problem: Problem, oracle: Oracle | None) -> Oracle:
    if oracle is not None and not isinstance(oracle, Oracle):
        raise ValueError(f"oracle={oracle!r}: give an instance, such as stgt.oracles.Minibatch(8).")
    if algorithm.oracle is None:
        return default_oracle(problem) if oracle is None else oracle
    required = ORACLES[algorithm.oracle](**algorithm.oracle_options)
    if problem.counts is None and problem.noise == 0 and oracle is None:
        return default_oracle(problem)  # one sample a node, f_i itself, of which the estimate is the exact gradient
    if oracle is not None and oracle != required:
        raise ValueError(f"oracle={oracle}: {algorithm.label} is made of {required}; leave oracle out.")
    return required


def _start(x0: Any, problem: Problem, algorithm: Algorithm, topology: Topology) -> np.ndarray:
    n, p = problem.n, problem.p
    if x0 is None:
        return np.zeros((n, p))
    return _rows(x0, "x0", n, p, algorithm, topology, held="x" in algorithm.held)


def _rows(value: Any, name: str, n: int, p: int, algorithm: Algorithm, topology: Topology, held: bool) -> np.ndarray:
    """One vector for each node, (n, p), from such or from one for all; the same for all if a server holds it."""
    try:
        shape = (n, p) if np.ndim(value) == 2 else (p,)
    except ValueError:  # ragged
        shape = (p,)
    rows = check_array(value, name, shape, f"one vector (p,) = ({p},), or one for each node (n, p) = ({n}, {p})")
    rows = np.array(np.broadcast_to(rows, (n, p)))
    if held and topology.has_server and (rows != rows[0]).any():
        raise ValueError(
            f"{name} has different rows, but with a server {algorithm.label} has one for all: give shape (p,) = ({p},)."
        )
    return rows


def _state0(
    given: Mapping[str, Any] | None, algorithms: tuple[Algorithm, ...], x0: np.ndarray, topology: Topology
) -> dict[str, np.ndarray]:
    if given is None:
        return {}
    first = algorithms[0]
    if not isinstance(given, Mapping):
        raise ValueError(f"state0 is a {type(given).__name__}: give a dict of first values by the field's name.")
    if "initial" in first.needs:
        raise ValueError(f"state0 and warm_start=True: {first.label} can start from one of them only; leave one out.")
    n, p = x0.shape
    state = dict(first.init(x0))
    for name, value in given.items():
        if name not in state or name == "x":
            allowed = [field for field in state if field != "x"]
            raise ValueError(f"state0 has {name!r}: {first.label} keeps {allowed or 'nothing'} beside x (give x0).")
        state[name] = _rows(value, f"state0[{name!r}]", n, p, first, topology, held=name in first.held)
    for algorithm in algorithms:
        conserved = algorithm.conserved(state, topology.participation)
        if conserved is not None:
            scale = max(1.0, float(sum(np.abs(value).sum() for name, value in state.items() if name != "x")))
            off = float(np.abs(conserved.sum(axis=0)).max())
            if off > 1e-8 * scale:
                raise ValueError(
                    f"state0 breaks what {algorithm.label} conserves (off by {off:.3g}), so it would converge to a "
                    f"wrong point: {algorithm.invariant}."
                )
    return {name: state[name] for name in given}


def _seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    if isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1):
        chosen = tuple(check_seed(seed) for seed in seeds)
        if not chosen:
            raise ValueError("seeds is empty: give a number of seeds, or a list of them.")
        return chosen
    return tuple(range(check_count(seeds, "seeds")))


def _metrics(
    metrics: Iterable[str] | None, algorithm: Algorithm, problem: Problem, topology: Topology
) -> tuple[tuple[str, ...], dict[str, str]]:
    absent: dict[str, str] = {}
    if problem.solve is None:
        absent["residual"] = f"{problem.name} has no known unique optimum"
    probe = np.zeros((problem.n, 1))
    state = algorithm.init(probe, probe, probe)
    if algorithm.tracker(state) is None:
        absent["tracking"] = f"{algorithm.label} tracks no gradient"
    if algorithm.conserved(state, 1.0) is None:
        absent["sum_c"] = f"{algorithm.label} has no correction"
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
