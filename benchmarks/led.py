"""Searches for quadratics on which LED is unstable, where docs/led.md has no proof of stability or instability.

    python benchmarks/led.py

Two searches. Fixed symmetric graphs, with β just below min(2, 2(1 + λ)/(1 − λ)). And schedules of matchings, graphs and
silent rounds that are stable at small stepsizes for β and smaller ones; there it varies curvatures and stepsizes
towards a larger radius. It prints a line for each: how many were searched, and how many were unstable.
"""

from __future__ import annotations

import numpy as np

GRAPHS, SCHEDULES, TRIES, STEPS = 4000, 1500, 6, 25


def matching(rng: np.random.Generator, n: int) -> np.ndarray:
    W, order = np.eye(n), rng.permutation(n)
    for k in range(rng.integers(1, n // 2 + 1)):
        i, j = order[2 * k : 2 * k + 2]
        W[[i, i, j, j], [i, j, i, j]] = 0.5
    return W


def graph(rng: np.random.Generator, n: int) -> np.ndarray:
    """Metropolis weights of a random connected graph."""
    while True:
        links = np.triu(rng.random((n, n)) < 0.5, 1)
        links = links | links.T
        degree = links.sum(axis=1)
        if np.linalg.eigvalsh(np.diag(degree) - links)[1] > 1e-9:
            break
    W = np.where(links, 1 / (1 + np.maximum.outer(degree, degree)), 0.0)
    return W + np.diag(1 - W.sum(axis=1))


def radius(matrices: list[np.ndarray], curvatures: np.ndarray, gamma: float, tau: int, beta: float) -> float:
    """The matrix of a round of LED with one-dimensional f_i and Σ_i c_i = 0."""
    n = len(curvatures)
    A = np.diag((1 - gamma * curvatures) ** tau)
    K = np.diag((1 - np.diag(A)) / (gamma * tau * curvatures))
    Z = np.linalg.qr(np.c_[np.ones(n), np.eye(n)[:, 1:]])[0][:, 1:]
    product = np.eye(2 * n - 1)
    for W in matrices:
        L = np.eye(n) - W
        dual = np.eye(n - 1) - beta * Z.T @ L @ K @ Z
        product = np.block([[W @ A, -W @ K @ Z], [beta * Z.T @ L @ A, dual]]) @ product
    return float(np.abs(np.linalg.eigvals(product)).max() ** (1 / len(matrices)))


def apart(matrices: list[np.ndarray], beta: float) -> float:
    """The same as γ → 0, without the mean."""
    n = len(matrices[0])
    Z, one, product = np.linalg.qr(np.c_[np.ones(n), np.eye(n)[:, 1:]])[0][:, 1:], np.eye(n - 1), np.eye(2 * n - 2)
    for W in matrices:
        w = Z.T @ W @ Z
        product = np.block([[(1 - beta) * one, beta**2 * one], [-w, (1 + beta) * w]]) @ product
    return float(np.abs(np.linalg.eigvals(product)).max() ** (1 / len(matrices)))


def drawn(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float, int]:
    """Curvatures with maximum 1, γ and τ."""
    curvatures = 10.0 ** -(rng.uniform(0, 4) * rng.random(n))
    return curvatures / curvatures.max(), 10.0 ** rng.uniform(-3, 0), int(rng.choice([1, 2, 5, 20]))


def fixed(rng: np.random.Generator) -> int:
    unstable = 0
    for _ in range(GRAPHS):
        n, share = int(rng.integers(2, 6)), rng.random()
        W = share * graph(rng, n) + (1 - share) * (2 * matching(rng, n) - np.eye(n))  # also eigenvalues near −1
        least = max(np.linalg.eigvalsh(W)[0], -1 + 1e-6)
        beta = 0.999 * min(2.0, 2 * (1 + least) / (1 - least))
        unstable += max(radius([W], *drawn(rng, n), beta) for _ in range(3)) > 1 + 1e-9
    return unstable


def schedules(rng: np.random.Generator, beta: float) -> int:
    unstable = seen = 0
    while seen < SCHEDULES:
        n = int(rng.integers(2, 6))
        kinds = rng.choice(3, size=rng.integers(2, 7), p=[0.6, 0.15, 0.25])
        matrices = [(matching(rng, n), np.eye(n), graph(rng, n))[kind] for kind in kinds]
        if max(apart(matrices, beta * part) for part in (0.25, 0.5, 0.75, 1.0)) > 0.999:
            continue
        seen += 1
        tries = [drawn(rng, n) for _ in range(TRIES)]
        most, (curvatures, gamma, tau) = max(
            ((radius(matrices, *one, beta), one) for one in tries), key=lambda found: found[0]
        )
        for _ in range(STEPS):
            near = np.minimum(1.0, curvatures * np.exp(0.5 * rng.standard_normal(n)))
            other = min(1.0, gamma * np.exp(0.4 * rng.standard_normal()))
            found = radius(matrices, near, other, tau, beta)
            if found > most:
                most, curvatures, gamma = found, near, other
        unstable += most > 1 + 1e-9
    return unstable


if __name__ == "__main__":
    print(f"fixed graphs: {GRAPHS} searched, unstable: {fixed(np.random.default_rng(0))}")
    for beta in (0.25, 0.5, 0.75, 1.0):
        found = schedules(np.random.default_rng(1), beta)
        print(f"schedules, beta={beta:g}: {SCHEDULES} searched, unstable: {found}", flush=True)
