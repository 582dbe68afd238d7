"""9 rounds and 12 more are 21 rounds, to the last bit, through a file: every method, gradient and kind of graph.

What is expected is the run in one go.
"""

import signal
from dataclasses import dataclass

import numpy as np
import pytest

import stgt
from bits import assert_same_bits
from catalogue import directed_schedule, instances, logistic, quadratic, suited
from stgt.simulator.drive import CHUNK

N, P = 6, 3
FIRST, MORE = 9, 12
ENGINES, DTYPES = ("jax", "numpy"), ("float32", "float64")
ORACLES = {
    "exact": stgt.oracles.Exact(),
    "noisy": stgt.oracles.Noisy(0.2),
    "minibatch": stgt.oracles.Minibatch(3),
    "saga": stgt.oracles.SAGA(),
    "svrg": stgt.oracles.SVRG(5),
    "own": None,  # that of the method itself
}
GRAPHS = {
    "periodic": lambda: directed_schedule(N),
    "matching": lambda: stgt.topology.random_matching(N, seed=3),
    "server": lambda: stgt.topology.server(N, sampled=2, seed=5),
    "one peer": lambda: stgt.topology.one_peer_exponential(N),
    "unreliable": lambda: stgt.topology.unreliable(stgt.topology.ring(N), link=0.3, node=0.1),
    "relay": lambda: stgt.topology.relay(N, sampled=2),
}
ON_RELAY = ("FedAvg", "FedProx", "Scaffold-I", "Scaffold-II", "ScaffoldPlus")
STEPSIZES = {
    "cosine": stgt.schedules.cosine(0.08, rounds=40),
    "function": lambda r: 0.06 / (1 + r % 3),
    "constant": 0.05,
}
OWN = {
    "largest": lambda x: abs(x).max(),
    "spread": stgt.of_state(lambda state: (state["x"].max(axis=0) - state["x"].min(axis=0)).sum()),
}
CASES = [
    (name, oracle)
    for name, algorithm in instances().items()
    for oracle in ORACLES
    if (algorithm.spec().oracle is not None) == (oracle == "own")
]


def graph_of(name: str, oracle: str, turn: int) -> str:
    """Each method meets the graphs in turn, with one oracle after the other."""
    graphs = [graph for graph in GRAPHS if graph != "relay" or name in ON_RELAY]
    return graphs[(list(instances()).index(name) + list(ORACLES).index(oracle) + turn) % len(graphs)]


def in_turn(name: str, oracle: str) -> bool:
    """One oracle for each method; a method that has its own oracle is always taken."""
    return oracle in (list(ORACLES)[list(instances()).index(name) % (len(ORACLES) - 1)], "own")


def run(name: str, oracle: str, rounds: int, *, turn: int = 0, **options) -> stgt.Trace:
    """A problem, a graph and a method made anew, so that nothing goes on by identity."""
    stepsize = list(STEPSIZES)[(list(instances()).index(name) + turn) % len(STEPSIZES)]
    options = {"oracle": ORACLES[oracle], "metrics": OWN, "seeds": [0, 7], **options}
    algorithm = instances(STEPSIZES[stepsize])[name]
    graph = suited(algorithm, GRAPHS[graph_of(name, oracle, turn)]())
    return stgt.simulate(algorithm, logistic(N, P), graph, rounds, **options)


def assert_goes_on(path, name: str, oracle: str, **options) -> None:
    whole = run(name, oracle, FIRST + MORE, **options)
    run(name, oracle, FIRST, **options).save(path)
    again = run(name, oracle, MORE, resume=stgt.Trace.load(path), **options)
    assert np.isfinite(whole["largest"]).all()
    assert {"largest", "spread"} <= set(whole)
    assert_same_bits(again, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "oracle"), CASES)
@pytest.mark.sampled(each="name")
def test_every_method_and_oracle_of_the_reference(name, oracle, dtype, tmp_path):
    assert_goes_on(tmp_path / "run.stgt", name, oracle, engine="numpy", dtype=dtype, turn=DTYPES.index(dtype))


# Each compiles. The reference above takes every pair; here one method has every oracle, and each method one of them.
COMPILED = [case for case in CASES if case[0] == "STGT" or in_turn(*case)]


@pytest.mark.parametrize(("name", "oracle"), COMPILED)
@pytest.mark.sampled(40)
def test_every_method_and_oracle_of_the_simulator(name, oracle, tmp_path):
    """All measurements with one oracle of each method; one precision each, in turn."""
    metrics = OWN if in_turn(name, oracle) else [OWN]
    options = {"dtype": DTYPES[CASES.index((name, oracle)) % 2], "metrics": metrics}
    assert_goes_on(tmp_path / "run.stgt", name, oracle, engine="jax", turn=2, **options)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.sampled(each="engine")
def test_every_graph(engine, graph, tmp_path):
    """Four stretches, one of no round at all, each through a file."""
    options = {"oracle": stgt.oracles.SAGA(), "engine": engine, "metrics": OWN}

    def made(rounds: int, **more) -> stgt.Trace:
        algorithm = stgt.Scaffold(gamma=stgt.schedules.inverse(0.05, delay=10), tau=3, option="I")
        return stgt.simulate(algorithm, logistic(N, P), GRAPHS[graph](), rounds, **options, **more)

    whole, trace = made(21, seeds=3), made(5, seeds=3)
    for more in (0, 7, 9):
        trace = made(more, resume=stgt.Trace.load(trace.save(tmp_path / "run.stgt")))
    assert_same_bits(trace, whole)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("first", "more"), [(250, 20), (256, 14), (255, 15), (0, 270)])
@pytest.mark.sampled(each="engine")
def test_across_the_end_of_a_chunk(engine, first, more):
    """The engines make at most CHUNK rounds at once, which is where their bookkeeping could slip."""
    assert CHUNK == 256
    parts = (stgt.STGT(gamma=0.02, tau=2), quadratic(4, 2, noise=0.1), stgt.topology.random_matching(4))
    whole = stgt.simulate(*parts, first + more, engine=engine)
    again = stgt.simulate(*parts, more, resume=stgt.simulate(*parts, first, engine=engine))
    assert_same_bits(again, whole)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gamma", [3.0, 60.0])
@pytest.mark.parametrize("first", [3, 15, 80, 256, 300])
@pytest.mark.sampled(each="engine")
def test_a_run_that_diverges(engine, gamma, first, tmp_path):
    """Before the seam, after it, at it, and so long before that rounds are left out on both sides of it.

    x ← Wx − γ(x − b) grows like (γ + 1/3)^r, as the ring's eigenvalues are 1, ±1/3, and the squares of float32 end at
    2^128.
    """
    problem = stgt.problems.Quadratic(np.ones((4, 1, 1)), np.arange(1.0, 5.0)[:, None], noise=0.1)
    parts = (stgt.DPSGD(gamma=gamma), problem, stgt.topology.ring(4))
    options = {"dtype": "float32", "engine": engine}
    whole = stgt.simulate(*parts, 600, seeds=2, **options)
    assert (abs(whole.diverged_at - 64 / np.log2(gamma + 1 / 3)) < 8).all()
    assert np.isnan(whole.residual[:, 513:600]).all()
    before = stgt.simulate(*parts, first, seeds=2, **options)
    again = stgt.simulate(*parts, 600 - first, resume=stgt.Trace.load(before.save(tmp_path / "run.stgt")), **options)
    assert_same_bits(again, whole)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_seam_at_the_very_round_of_divergence(engine):
    """The stop notes the divergence by itself; the run in one go notes it as it goes on."""
    problem = stgt.problems.Quadratic(np.ones((4, 1, 1)), np.arange(1.0, 5.0)[:, None])
    parts = (stgt.DPSGD(gamma=60.0), problem, stgt.topology.ring(4))
    whole = stgt.simulate(*parts, 60, dtype="float32", engine=engine)
    for first in (whole.diverged_at[0] - 1, whole.diverged_at[0], whole.diverged_at[0] + 1):
        before = stgt.simulate(*parts, int(first), dtype="float32", engine=engine)
        assert before.diverged_at[0] == (whole.diverged_at[0] if first >= whole.diverged_at[0] else -1)
        assert_same_bits(stgt.simulate(*parts, int(60 - first), resume=before), whole)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.sampled
def test_some_seeds_diverge(engine):
    """Steps of 0.1 on x⁴/4 are unstable from |x| = √20 on, where the noise takes one of eight runs: it goes along."""
    problem = stgt.problems.from_loss(lambda x, sample: 0.25 * (x**4).sum() + sample, np.zeros((4, 1)), np.zeros(2))
    parts = (stgt.STGT(gamma=0.1, tau=2), problem, stgt.topology.ring(4))
    options = {"oracle": stgt.oracles.Noisy(100.0), "seeds": 8, "engine": engine}
    whole = stgt.simulate(*parts, 50, **options)
    lost = whole.diverged_at.max()
    assert 0 < whole.diverged.sum() < 8
    for first in (lost - 4, lost + 4):
        before = stgt.simulate(*parts, int(first), **options)
        assert before.diverged.any() == (first > lost)
        assert_same_bits(stgt.simulate(*parts, int(50 - first), resume=before), whole)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.sampled
def test_a_sweep(engine, tmp_path):
    parts = (stgt.KGT(gamma=0.05, tau=3), logistic(N, P), stgt.topology.random_matching(N))
    grid = {"gamma": [0.02, 0.05, stgt.schedules.step(0.05, every=4, factor=0.5)], "eta_s": [0.5, 0.8]}
    options = {"grid": grid, "seeds": 2, "engine": engine, "metrics": OWN}
    whole = stgt.sweep(*parts, FIRST + MORE, **options)
    before = stgt.sweep(*parts, FIRST, **options)
    loaded = [stgt.Trace.load(trace.save(tmp_path / f"{i}.stgt")) for i, trace in enumerate(before)]
    again = stgt.sweep(*parts, MORE, **options, resume=loaded)
    assert len(again) == len(whole) == 6
    for one, other in zip(again, whole, strict=True):
        assert_same_bits(one, other)
        assert one.algorithm == other.algorithm
    with pytest.raises(ValueError, match="give the 6 traces"):
        stgt.sweep(*parts, MORE, **options, resume=loaded[:5])
    with pytest.raises(ValueError, match=r"gamma is 0\.02, and was 0\.05"):
        stgt.sweep(*parts, MORE, **options, resume=loaded[2:] + loaded[:2])


@pytest.mark.parametrize("engine", ENGINES)
def test_after_an_interrupt(engine, tmp_path):
    """Ctrl-C while round 5 is made ends the run after it; the signal is sent by the callback of that round."""
    parts = (stgt.STGT(gamma=0.05, tau=3), logistic(N, P), stgt.topology.random_matching(N))

    def interrupt(r: int, state: dict[str, np.ndarray]) -> None:
        if r == 5:
            signal.raise_signal(signal.SIGINT)

    whole = stgt.simulate(*parts, 21, seeds=2, engine=engine)
    before = stgt.simulate(*parts, 21, seeds=2, engine=engine, callback=interrupt)
    assert (before.rounds, before.interrupted, whole.interrupted) == (5, True, False)
    assert before.notes == ("ST-GT was interrupted after 5 of 21 rounds.",)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    loaded = stgt.Trace.load(before.save(tmp_path / "run.stgt"))
    assert loaded.interrupted
    assert "interrupted" in repr(loaded)
    assert_same_bits(stgt.simulate(*parts, 16, resume=loaded), whole)


def test_a_second_interrupt_ends_it():
    def interrupt_twice(r: int, state: dict[str, np.ndarray]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    parts = (stgt.STGT(gamma=0.05), quadratic(4, 2), stgt.topology.ring(4))
    with pytest.raises(KeyboardInterrupt):
        stgt.simulate(*parts, 21, engine="numpy", callback=interrupt_twice)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("every", [None, 1, 5, 9, 30])
@pytest.mark.sampled(each="engine")
def test_callbacks(engine, every):
    """Called after every so many rounds counted from the run's beginning, so a stop in between changes none.

    What it does to the state that it is given changes nothing.
    """
    parts = (stgt.STGT(gamma=0.05, tau=3), logistic(N, P), stgt.topology.random_matching(N))
    heard: list[tuple[int, bytes]] = []

    def hear(r: int, state: dict[str, np.ndarray]) -> None:
        assert {name: value.shape for name, value in state.items()} == {"x": (2, N, P), "c": (2, N, P)}
        heard.append((r, state["x"].tobytes()))
        state["x"][:] = np.nan

    options = {"callback": hear, "every": every}
    whole = stgt.simulate(*parts, 21, seeds=2, engine=engine, **options)
    once, heard = heard, []
    again = stgt.simulate(
        *parts, MORE, resume=stgt.simulate(*parts, FIRST, seeds=2, engine=engine, **options), **options
    )
    assert [r for r, _ in once] == list(range(every or 1, 22, every or 1))
    assert heard == once
    if once:
        r, x = once[-1]
        assert x == stgt.simulate(*parts, r, seeds=2, engine=engine).x.tobytes()
    assert_same_bits(again, whole)
    assert_same_bits(whole, stgt.simulate(*parts, 21, seeds=2, engine=engine))


@dataclass(frozen=True)
class ScaledTracking(stgt.STGT):
    """ST-GT that is measured by γc in the place of c: what it measures depends on the stepsize of the moment."""

    def tracker(self, state):
        return self.gamma * state["c"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.sampled
def test_a_measurement_that_reads_the_stepsize(engine):
    """At a round's start it is that of the round to come; the stop in between has the one before, and leaves no mark.

    tracking = ‖γ_r c − ∇f(x̄) + ∇F(1x̄)‖², written out with the state that a callback saw.
    """
    problem, stepsizes = quadratic(4, 2, noise=0.1), stgt.schedules.step(0.05, every=3, factor=0.2)
    parts, seen = (ScaledTracking(gamma=stepsizes, tau=2), problem, stgt.topology.ring(4)), {}
    options = {"engine": engine, "dtype": "float64"}
    whole = stgt.simulate(*parts, 12, **options, callback=lambda r, state: seen.update({r: state}))
    for first in (5, 6, 7):
        assert_same_bits(stgt.simulate(*parts, 12 - first, resume=stgt.simulate(*parts, first, **options)), whole)
    for r in range(1, 12):
        gradients = problem.gradients(seen[r]["x"][0].mean(axis=0))
        expected = ((stepsizes(r) * seen[r]["c"][0] - gradients.mean(axis=0) + gradients) ** 2).sum()
        np.testing.assert_allclose(whole["tracking"][0, r], expected, rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.sampled
def test_no_more_rounds_after_a_schedule_that_ends_at_zero(engine):
    """cosine(…, rounds=6) has six stepsizes and the seventh is 0: none is needed to look at where the run stands."""
    parts = (stgt.STGT(gamma=stgt.schedules.cosine(0.1, rounds=6)), quadratic(4, 2), stgt.topology.ring(4))
    whole = stgt.simulate(*parts, 6, engine=engine)
    assert_same_bits(stgt.simulate(*parts, 0, resume=whole), whole)
    assert_same_bits(stgt.simulate(*parts, 2, resume=stgt.simulate(*parts, 4, engine=engine)), whole)
    with pytest.raises(ValueError, match=r"gamma\(6\)=0"):
        stgt.simulate(*parts, 1, resume=whole)
