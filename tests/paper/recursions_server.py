"""Server-worker methods, transcribed from the papers' equations.

Notation in `recursions_tracking.py`, with these differences:

    X0       its rows are equal: the start of the one server model x (p,)
    sampled  sampled(r) -> the node indices S_r of round r, without repetition
    grad     called on a full (n, p) array; the rows of unsampled nodes are ignored
    c0, ci0  starts of the server's c (p,) and the workers' c_i (n, p), 0 by default
    returns  the server model at round starts, tiled to (n, p)
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from recursions_tracking import Array, Gradient

Sampling = Callable[[int], np.ndarray]


def _server_model(X0: Array) -> Array:
    X0 = np.asarray(X0, dtype=np.float64)
    if not np.array_equal(X0, np.broadcast_to(X0[0], X0.shape)):
        raise ValueError("X0 has different rows: a server method keeps one model, pass equal rows")
    return X0[0].copy()


def _tile(x: Array, n: int) -> Array:
    return np.tile(x, (n, 1))


def _start(X0: Array, c0: Array | None, ci0: Array | None) -> tuple[Array, Array, Array]:
    x = _server_model(X0)
    c = np.zeros_like(x) if c0 is None else np.array(c0, dtype=np.float64)
    ci = np.zeros((len(X0), len(x))) if ci0 is None else np.array(ci0, dtype=np.float64)
    return x, c, ci


def fedavg(X0: Array, grad: Gradient, sampled: Sampling, *, gamma: float, tau: int, rounds: int) -> list[Array]:
    """FedAvg (McMahan et al., arXiv 1602.05629) with p_i = 1/s; LocalSGD when S_r is every node.

    x_i = x;  x_i <- x_i - gamma g_i, tau times;  x <- (1/s) sum_{i in S_r} x_i.
    """
    n = len(X0)
    x = _server_model(X0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * grad(X, k)
        x = sum(X[i] for i in S) / len(S)
        out.append(_tile(x, n))
    return out


def fedprox(
    X0: Array, grad: Gradient, sampled: Sampling, *, gamma: float, tau: int, rounds: int, mu_p: float
) -> list[Array]:
    """FedProx (Li et al., arXiv 1812.06127): FedAvg with the local step x_i <- x_i - gamma (g_i + mu_p (x_i - x))."""
    n = len(X0)
    x = _server_model(X0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * (grad(X, k) + mu_p * (X - x))
        x = np.mean(X[S], axis=0)
        out.append(_tile(x, n))
    return out


def scaffold(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float = 1.0,
    option: Literal[1, 2] = 2,
    extra: Gradient | None = None,
    c0: Array | None = None,
    ci0: Array | None = None,
) -> list[Array]:
    """Scaffold (Karimireddy et al., arXiv 1910.06378, Algorithm 1), gamma = gamma_l.

    x_i <- x_i - gamma (g_i - c_i + c), tau times;
    option 1: c_i+ = g_i(x) = extra(x tiled, r*tau);  option 2: c_i+ = c_i - c + (x - x_i) / (tau gamma);
    x <- x + gamma_g mean_S (x_i - x);  c <- c + (s/n) mean_S (c_i+ - c_i).
    """
    if option not in (1, 2):
        raise ValueError(f"option={option!r}: must be 1 or 2")
    if option == 1 and extra is None:
        raise ValueError("option=1 needs the gradient at the server model: pass extra=")
    n = len(X0)
    x, c, ci = _start(X0, c0, ci0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * (grad(X, k) - ci + c)
        ci_plus = extra(_tile(x, n), r * tau) if option == 1 else ci - c + (x - X) / (tau * gamma)
        x = x + gamma_g * np.mean(X[S] - x, axis=0)
        c = c + len(S) / n * np.mean(ci_plus[S] - ci[S], axis=0)
        ci[S] = ci_plus[S]
        out.append(_tile(x, n))
    return out


def scaffold_plus(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float = 1.0,
    gamma_c: float = 1.0,
    c0: Array | None = None,
    ci0: Array | None = None,
) -> list[Array]:
    """Scaffold+ (ST-GT's paper, Algorithm 2), worker by worker; gamma = gamma_l."""
    n = len(X0)
    x, c, ci = _start(X0, c0, ci0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, r * tau + tau - 1):
            g = grad(X, k)
            for i in S:
                X[i] = X[i] - gamma * (c + g[i] - ci[i])
        g = grad(X, r * tau + tau - 1)
        ci_next = ci.copy()
        x_half = X.copy()
        for i in S:
            x_half[i] = X[i] - gamma * (c + g[i] - ci[i])
            ci_next[i] = ci[i] - c + (x - x_half[i]) / (tau * gamma)
        x_next = x + gamma_g / len(S) * sum(x_half[j] - x for j in S)
        c_next = c + gamma_c / len(S) * sum(ci_next[j] - ci[j] for j in S)
        x, c, ci = x_next, c_next, ci_next
        out.append(_tile(x, n))
    return out


def scaffold_plus_tracking(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float = 1.0,
    gamma_c: float = 1.0,
    c0: Array | None = None,
    ci0: Array | None = None,
) -> list[Array]:
    """Scaffold+ as gradient tracking (ST-GT's paper, Proposition 1, Eq_scaffold): y_{i,k} = c_k + g_{i,k} - c_{i,k}.

    c_{r tau} = (1 - gamma_c) c_{(r-1)tau} + gamma_c mean_{S_{r-1}} (1/tau) sum_t y_{j,(r-1)tau+t}, and
    c_{i,(r+1)tau} = (1/tau) sum_t g_{i,r tau+t} for i in S_r.
    """
    n = len(X0)
    x, c, ci = _start(X0, c0, ci0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = {r * tau: _tile(x, n)}
        G = {r * tau: grad(X[r * tau], r * tau)}
        Y = {r * tau: c + G[r * tau] - ci}
        for k in range(r * tau, r * tau + tau - 1):
            X[k + 1] = X[k] - gamma * Y[k]
            G[k + 1] = grad(X[k + 1], k + 1)
            Y[k + 1] = Y[k] + G[k + 1] - G[k]
        Y_sum = sum(Y.values())
        x = (1 - gamma_g) * x + gamma_g * np.mean((X[r * tau] - gamma * Y_sum)[S], axis=0)
        c = (1 - gamma_c) * c + gamma_c * np.mean(Y_sum[S] / tau, axis=0)
        ci[S] = sum(G.values())[S] / tau
        out.append(_tile(x, n))
    return out


def scaffold_uplink_only(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    gamma_g: float = 1.0,
    gamma_c: float = 1.0,
    c0: Array | None = None,
    ci0: Array | None = None,
) -> list[Array]:
    """Scaffold+ whose workers send only dx_i = x_i - x (sheet, section 2, "server shortcut"; section 5).

    Server: x <- x + gamma_g mean_S dx_i;  c <- (1 - gamma_c) c - gamma_c mean_S dx_i / (tau gamma).
    Worker: c_i <- c_i - c - dx_i / (tau gamma), with the c it was sent.
    """
    n = len(X0)
    x, c, ci = _start(X0, c0, ci0)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * (grad(X, k) - ci + c)
        dx = (X - x)[S]
        ci[S] = ci[S] - c - dx / (tau * gamma)
        x = x + gamma_g * np.mean(dx, axis=0)
        c = (1 - gamma_c) * c - gamma_c * np.mean(dx, axis=0) / (tau * gamma)
        out.append(_tile(x, n))
    return out


def scaffnew(
    X0: Array,
    grad: Gradient,
    *,
    gamma: float,
    p: float,
    coin: Callable[[int], bool],
    iterations: int,
    h0: Array | None = None,
) -> list[Array]:
    """Scaffnew (Mishchenko et al., arXiv 2202.09357), every node takes part; returns X at *every* iteration.

    X^ = X - gamma (G - H);  coin(k), True with probability p: X+ = mean_j (x^_j - (gamma/p) h_j), else X+ = X^;
    H+ = H + (p/gamma) (X+ - X^);  H_0 = h0 must sum to 0 over the nodes, 0 by default.
    """
    n = len(X0)
    X = np.array(X0, dtype=np.float64)
    H = np.zeros_like(X) if h0 is None else np.array(h0, dtype=np.float64)
    out = [X]
    for k in range(iterations):
        X_hat = X - gamma * (grad(X, k) - H)
        X = _tile(np.mean(X_hat - gamma / p * H, axis=0), n) if coin(k) else X_hat
        H = H + p / gamma * (X - X_hat)
        out.append(X)
    return out


def scaffnew_periodic(
    X0: Array, grad: Gradient, *, gamma: float, tau: int, rounds: int, h0: Array | None = None
) -> list[Array]:
    """Scaffnew with p = 1/tau and heads exactly at every tau-th iteration; returns X at round starts."""
    every = scaffnew(
        X0, grad, gamma=gamma, p=1 / tau, coin=lambda k: (k + 1) % tau == 0, iterations=rounds * tau, h0=h0
    )
    return every[::tau]
