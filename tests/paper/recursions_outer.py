"""Outer momentum, transcribed: DiLoCo, NoLoCo, and the same step around ST-GT, LED and Scaffold+.

Notation in `recursions_tracking.py` and `recursions_server.py`.
"""

from collections.abc import Callable

import numpy as np
from recursions_relaxed import part_of_the_way
from recursions_server import Sampling, _server_model, _start, _tile
from recursions_tracking import Array, Gradient, Mixing


class NesterovSGD:
    """torch.optim.SGD(lr, momentum, nesterov=True), as its documentation has it: the buffer begins as the gradient."""

    def __init__(self, lr: float, momentum: float):
        self.lr, self.momentum, self.buffer = lr, momentum, None

    def step(self, parameter: Array, gradient: Array) -> Array:
        self.buffer = gradient if self.buffer is None else self.momentum * self.buffer + gradient
        return parameter - self.lr * (gradient + self.momentum * self.buffer)


def diloco(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    lr: float,
    momentum: float,
) -> list[Array]:
    """DiLoCo (Douillard et al., arXiv 2311.08105, Algorithm 1) with SGD inside.

    Each worker: theta_i = theta, tau inner steps; the outer gradient is the mean of theta - theta_i, and the outer
    optimiser SGD with Nesterov's momentum.
    """
    n = len(X0)
    theta = _server_model(X0)
    outer = NesterovSGD(lr, momentum)
    out = [_tile(theta, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        theta_i = _tile(theta, n)
        for k in range(r * tau, (r + 1) * tau):
            theta_i = theta_i - gamma * grad(theta_i, k)
        theta = outer.step(theta, sum(theta - theta_i[i] for i in S) / len(S))
        out.append(_tile(theta, n))
    return out


def noloco(
    X0: Array,
    grad: Gradient,
    pairs: Callable[[int], list[tuple[int, int]]],
    *,
    gamma: float,
    tau: int,
    rounds: int,
    eta: float,
    mu: float,
) -> list[Array]:
    """NoLoCo (Kolehmainen et al., arXiv 2506.10911), pair by pair, with one coefficient eta for both of its pulls.

    m_i <- mu m_i + eta mean_pair(h - a) + eta (mean_pair(a) - a_i);  x_i <- a_i + m_i.
    """
    a = np.array(X0, dtype=np.float64)
    m = np.zeros_like(a)
    out = [a]
    for r in range(rounds):
        h = a
        for k in range(r * tau, (r + 1) * tau):
            h = h - gamma * grad(h, k)
        m, x = m.copy(), a.copy()
        for pair in pairs(r):
            moved = sum(h[j] - a[j] for j in pair) / 2
            middle = sum(a[j] for j in pair) / 2
            for i in pair:
                m[i] = mu * m[i] + eta * moved + eta * (middle - a[i])
                x[i] = a[i] + m[i]
        a = x
        out.append(a)
    return out


def outer_st_gt(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    beta: float,
    lr: float,
    momentum: float,
) -> list[Array]:
    """Relaxed ST-GT in its y-form; every node takes W (X_{r tau} - tau gamma Z) for an outer gradient only."""
    X = np.array(X0, dtype=np.float64)
    outer = NesterovSGD(lr, momentum)
    G = grad(X, 0)
    Y = G
    out = [X]
    for r in range(rounds):
        start, seen = X, [G]
        for k in range(r * tau, r * tau + tau - 1):
            X = X - gamma * Y
            G = grad(X, k + 1)
            Y = Y + G - seen[-1]
            seen.append(G)
        Z = (start - X + gamma * Y) / (gamma * tau)
        X = outer.step(start, start - W(r) @ (start - tau * gamma * Z))
        G = grad(X, (r + 1) * tau)
        Y = part_of_the_way(W(r), beta) @ Z + G - sum(seen) / tau
        out.append(X)
    return out


def outer_led(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    alpha: float,
    beta: float,
    tau: int,
    rounds: int,
    lr: float,
    momentum: float,
) -> list[Array]:
    """LED (see `led`) whose W Phi is taken for an outer gradient only; y sees what the mixing took, as before."""
    x = np.array(X0, dtype=np.float64)
    outer = NesterovSGD(lr, momentum)
    y = np.zeros_like(x)
    out = [x]
    for r in range(rounds):
        phi = x
        for k in range(r * tau, (r + 1) * tau):
            phi = phi - alpha * grad(phi, k) - beta * y
        x = outer.step(x, x - W(r) @ phi)
        y = y + (np.eye(len(x)) - W(r)) @ phi
        out.append(x)
    return out


def outer_scaffold_plus(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float,
    gamma_c: float,
    lr: float,
    momentum: float,
) -> list[Array]:
    """Scaffold+ (Algorithm 2) whose server steps with Nesterov's momentum on -gamma_g mean_S (x_i - x)."""
    n = len(X0)
    x, c, ci = _start(X0, None, None)
    outer = NesterovSGD(lr, momentum)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            g = grad(X, k)
            for i in S:
                X[i] = X[i] - gamma * (c + g[i] - ci[i])
        ci_next = ci.copy()
        for i in S:
            ci_next[i] = ci[i] - c + (x - X[i]) / (tau * gamma)
        x_next = outer.step(x, -gamma_g / len(S) * sum(X[j] - x for j in S))
        c = c + gamma_c / len(S) * sum(ci_next[j] - ci[j] for j in S)
        x, ci = x_next, ci_next
        out.append(_tile(x, n))
    return out
