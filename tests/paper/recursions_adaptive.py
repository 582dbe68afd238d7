"""Server optimisers, transcribed: FedAvgM, FedAdam, FedYogi, FedAdagrad, and the same steps around Scaffold+ and ST-GT.

Notation in `recursions_tracking.py` and `recursions_server.py`. The papers' tau, the degree of adaptivity, is `tau_a`.
"""

import numpy as np
from recursions_server import Sampling, _server_model, _start, _tile
from recursions_tracking import Array, Gradient, Mixing


class ServerOpt:
    """The server's part of Algorithm 2 of Reddi et al., arXiv 2003.00295, with v_{-1} = tau_a^2, the least allowed."""

    def __init__(self, kind: str, eta: float, beta1: float, beta2: float, tau_a: float, shape: tuple[int, ...]):
        self.kind, self.eta, self.beta1, self.beta2, self.tau_a = kind, eta, beta1, beta2, tau_a
        self.m, self.v = np.zeros(shape), np.full(shape, tau_a**2)
        self.signs: set[float] = set()  # those that FedYogi has met

    def step(self, x: Array, delta: Array) -> Array:
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        if self.kind == "FedAdagrad":
            self.v = self.v + delta**2
        elif self.kind == "FedYogi":
            sign = np.sign(self.v - delta**2)
            self.signs |= set(sign.ravel().tolist())
            self.v = self.v - (1 - self.beta2) * delta**2 * sign
        else:
            self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        return x + self.eta * self.m / (np.sqrt(self.v) + self.tau_a)


def fed_opt(
    X0: Array, grad: Gradient, sampled: Sampling, server: ServerOpt, *, eta_l: float, K: int, T: int
) -> list[Array]:
    """FedAdagrad, FedYogi and FedAdam (Reddi et al., Algorithm 2): K local steps, Delta_i = x_i,K - x_t, their mean."""
    n = len(X0)
    x = _server_model(X0)
    out = [_tile(x, n)]
    for t in range(T):
        S = np.asarray(sampled(t))
        xi = _tile(x, n)
        for k in range(t * K, (t + 1) * K):
            xi = xi - eta_l * grad(xi, k)
        x = server.step(x, sum(xi[i] - x for i in S) / len(S))
        out.append(_tile(x, n))
    return out


def fedavgm(
    X0: Array, grad: Gradient, sampled: Sampling, *, gamma: float, tau: int, rounds: int, beta: float
) -> list[Array]:
    """FedAvgM (Hsu, Qi, Brown, arXiv 1909.06335): v <- beta v + Delta w, w <- w - v, with Delta w the clients' mean of
    w - w_i."""
    n = len(X0)
    w = _server_model(X0)
    v = np.zeros_like(w)
    out = [_tile(w, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        wi = _tile(w, n)
        for k in range(r * tau, (r + 1) * tau):
            wi = wi - gamma * grad(wi, k)
        v = beta * v + sum(w - wi[i] for i in S) / len(S)
        w = w - v
        out.append(_tile(w, n))
    return out


def adaptive_scaffold_plus(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    server: ServerOpt,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float,
    gamma_c: float,
) -> tuple[list[Array], Array, Array]:
    """Scaffold+ (Algorithm 2) whose server's optimiser gets gamma_g mean_S (x_i - x); also c and all c_i at the end."""
    n = len(X0)
    x, c, ci = _start(X0, None, None)
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
        x_next = server.step(x, gamma_g / len(S) * sum(X[j] - x for j in S))
        c = c + gamma_c / len(S) * sum(ci_next[j] - ci[j] for j in S)
        x, ci = x_next, ci_next
        out.append(_tile(x, n))
    return out, c, ci


def adaptive_st_gt(
    X0: Array, grad: Gradient, W: Mixing, nodes: ServerOpt, *, gamma: float, tau: int, rounds: int
) -> list[Array]:
    """ST-GT in its y-form; every node has an optimiser of its own for W (X_{r tau} - tau gamma Z) - X_{r tau}."""
    X = np.array(X0, dtype=np.float64)
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
        X = nodes.step(start, W(r) @ (start - tau * gamma * Z) - start)
        G = grad(X, (r + 1) * tau)
        Y = W(r) @ Z + G - sum(seen) / tau
        out.append(X)
    return out
