"""stgt's simulator with all its measurements, in float32; in float64 if models are compared."""

from __future__ import annotations

import time

from setting import measured, read

import stgt

setting = read()
problem = stgt.problems.ridge(n=setting.n, p=setting.p, mu=setting.mu, noise=setting.sigma**2)
if setting.method == "Scaffold":
    method = stgt.Scaffold(gamma=setting.gamma, tau=setting.tau)
    topology = stgt.topology.server(setting.n, sampled=setting.sampled)
elif setting.method == "K-GT":
    method, topology = stgt.KGT(gamma=setting.gamma, tau=setting.tau), stgt.topology.ring(setting.n)
else:
    method, topology = stgt.DIGing(gamma=setting.gamma), stgt.topology.ring(setting.n)


def run(rounds):
    start = time.perf_counter()
    trace = stgt.simulate(method, problem, topology, rounds, dtype="float64" if setting.rounds else "float32")
    seconds = time.perf_counter() - start
    return seconds, trace.x[0] if setting.method != "Scaffold" else trace.x[0].mean(axis=0)


measured(setting, run, ("jax", "numpy"))
