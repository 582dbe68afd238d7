"""What you would write by hand: (n, p) arrays in float32, the noise of a round drawn at once."""

from __future__ import annotations

import time

import numpy as np
from setting import measured, read

setting = read()
n, p, tau, gamma = setting.n, setting.p, setting.tau, np.float32(setting.gamma)
theta, d, W = (array.astype(np.float32) for array in (setting.theta, setting.d, setting.W))
mu = np.float32(setting.mu)


def local(x, c, rows, rng):
    """tau steps from x (workers, p) with the correction c, of the workers `rows`."""
    features, labels = theta[rows], d[rows]
    noise = np.float32(setting.sigma) * rng.standard_normal((tau, *x.shape), dtype=np.float32)
    for t in range(tau):
        residual = (features * x).sum(axis=1) - labels
        x = x - gamma * (2 * residual[:, None] * features + mu * x + noise[t] + c)
    return x


def kgt(rounds, rng):
    x, c, everyone = np.zeros((n, p), np.float32), np.zeros((n, p), np.float32), slice(None)
    for _ in range(rounds):
        end = local(x, c, everyone, rng)
        z = (x - end) / (gamma * tau)
        x, c = W @ end, c - z + W @ z
    return x


def scaffold(rounds, rng):
    x, c, own = np.zeros(p, np.float32), np.zeros(p, np.float32), np.zeros((n, p), np.float32)
    for _ in range(rounds):
        chosen = rng.permutation(n)[: setting.sampled]
        end = local(np.tile(x, (setting.sampled, 1)), c - own[chosen], chosen, rng)
        change = (x - end) / (gamma * tau) - c
        own[chosen] += change
        x, c = end.mean(axis=0), c + change.sum(axis=0) / n
    return x


def diging(rounds, rng):
    x = np.zeros((n, p), np.float32)
    gradient = y = 2 * ((theta * x).sum(axis=1) - d)[:, None] * theta + mu * x
    for _ in range(rounds):
        x = W @ x - gamma * y
        after = 2 * ((theta * x).sum(axis=1) - d)[:, None] * theta + mu * x
        y, gradient = W @ y + after - gradient, after
    return x


def run(rounds):
    method = {"K-GT": kgt, "Scaffold": scaffold, "DIGing": diging}[setting.method]
    start = time.perf_counter()
    x = method(rounds, np.random.default_rng(0))
    return time.perf_counter() - start, x


measured(setting, run, ("numpy",))
