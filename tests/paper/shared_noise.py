"""The library and a transcription on the same problems and graphs, with the noise of the clock of randomness shared."""

import numpy as np

import stgt
from catalogue import directed_schedule, logistic, quadratic
from stgt._internal.randomness import STREAM_LOCAL, Clock
from stgt.simulator.reference import OPS

N, P, SEED, VARIANCE = 6, 3, 11, 0.25
TAUS = (1, 2, 7)
ROUNDS = 6
GAMMA = 0.06
X0 = np.random.default_rng(5).normal(size=(N, P))
ONE = np.tile(X0[0], (N, 1))

PROBLEMS = {"quadratic": quadratic(N, P), "nonconvex": logistic(N, P, l2=0.0, nonconvex=0.3)}
TOPOLOGIES = {
    "ring": stgt.topology.ring(N),
    "directed": stgt.topology.exponential(N),
    "time-varying": directed_schedule(N, period=4),
}


SERVERS = [stgt.topology.server(N), stgt.topology.server(N, sampled=2, seed=4), stgt.topology.server(N, sampled=5)]


def clock(k, stream=STREAM_LOCAL):
    return Clock(OPS, np.float64, SEED, np.arange(N), k, stream)


def gradients(problem, stream=STREAM_LOCAL):
    """grad(X, k) of the transcriptions: exact gradient plus the clock's noise."""
    return lambda X, k: problem.gradients(X) + np.sqrt(VARIANCE) * clock(k, stream).normal(P)


def library(algorithm, problem, topology, rounds, x0=X0, **options):
    """The library's models after 0, 1, …, rounds rounds."""
    options = {"oracle": stgt.oracles.Noisy(VARIANCE), **options}
    return [
        stgt.simulate(algorithm, problem, topology, r, [SEED], x0=x0, engine="numpy", **options).x[0]
        for r in range(rounds + 1)
    ]


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for r, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10, err_msg=f"after {r} rounds")
    assert np.abs(ours[-1] - ours[0]).max() > 1e-2, "nothing moved: the comparison says nothing"


def sampled(topology):
    return lambda r: np.flatnonzero(topology.active(r, SEED))
