"""Scaffold on FedJAX's `for_each_client`, which compiles the steps. FedJAX itself has FedAvg, FedProx and Mime."""

from __future__ import annotations

import time

import jax

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 uses this name, which JAX removed
import fedjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from setting import measured, read  # noqa: E402

setting = read()
gamma, tau = setting.gamma, setting.tau


def client_init(shared, own_and_key):
    own, key = own_and_key
    return {"x": shared["x"], "correction": shared["c"] - own, "key": key}


def client_step(state, sample):
    theta, d = sample
    key, drawn = jax.random.split(state["key"])
    x = state["x"]
    noise = setting.sigma * jax.random.normal(drawn, x.shape)
    gradient = 2 * (theta @ x - d) * theta + setting.mu * x + noise
    return {**state, "x": x - gamma * (gradient + state["correction"]), "key": key}


def client_final(shared, state):
    return state["x"], (shared["x"] - state["x"]) / (gamma * tau) - shared["c"]


train = fedjax.for_each_client(client_init, client_step, client_final)
samples = [(jnp.asarray(theta, jnp.float32), jnp.float32(d)) for theta, d in zip(setting.theta, setting.d, strict=True)]
mean = jax.jit(lambda vectors: jnp.stack(vectors).mean(axis=0))


def run(rounds):
    rng, zero = np.random.default_rng(0), jnp.zeros(setting.p)
    shared, own = {"x": zero, "c": zero}, [zero] * setting.n
    start = time.perf_counter()
    for r in range(rounds):
        chosen = [int(i) for i in rng.permutation(setting.n)[: setting.sampled]]
        keys = jax.random.split(jax.random.key(r), setting.sampled)
        clients = [(i, [samples[i]] * tau, (own[i], key)) for i, key in zip(chosen, keys, strict=True)]
        ends, changes = [], []
        for i, (end, change) in train(shared, clients):
            ends.append(end)
            changes.append(change)
            own[i] = own[i] + change
        shared = {"x": mean(ends), "c": shared["c"] + setting.sampled / setting.n * mean(changes)}
    x = np.asarray(shared["x"])
    return time.perf_counter() - start, x


measured(setting, run, ("fedjax", "jax", "numpy"))
