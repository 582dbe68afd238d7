"""The relaxed methods, in the variables of the papers they come from: the tracker is mixed by (1 - beta) I + beta W.

Written from the y-forms, where the library has the c-form c <- c + beta (W z - z). The control variables of Scaffold
take the part beta of their way. Notation in `recursions_tracking.py` and `recursions_server.py`; beta = 1 is the
papers' own.
"""

from typing import Literal

import numpy as np
from recursions_server import Sampling, _start, _tile
from recursions_tracking import Array, Gradient, Mixing


def part_of_the_way(W: Array, beta: float) -> Array:
    """(1 - beta) I + beta W."""
    return (1 - beta) * np.eye(len(W)) + beta * W


def relaxed_st_gt(
    X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int, beta: float, adjoint: bool = False
) -> list[Array]:
    """Eq_ST_GT with Y_{(r+1)tau} = W_beta Z + G_{(r+1)tau} - mean_t G_{r tau+t}; `adjoint` has W^T in W_beta."""
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
        X = W(r) @ (start - tau * gamma * Z)
        G = grad(X, (r + 1) * tau)
        Y = part_of_the_way(W(r).T if adjoint else W(r), beta) @ Z + G - sum(seen) / tau
        out.append(X)
    return out


def relaxed_k_gt(
    X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int, beta: float, eta_s: float
) -> list[Array]:
    """K-GT with c_i <- c_i - z_i + sum_j (W_beta)_ij z_j."""
    A = np.array(X0, dtype=np.float64)
    C = np.zeros_like(A)
    out = [A]
    for r in range(rounds):
        X = A
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * (grad(X, k) + C)
        Z = (A - X) / (gamma * tau)
        C = C - Z + part_of_the_way(W(r), beta) @ Z
        A = W(r) @ (A - eta_s * gamma * tau * Z)
        out.append(A)
    return out


def relaxed_flexgt(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    beta: float,
    d: int,
    snapshot: Literal["first", "last"],
) -> list[Array]:
    """FlexGT with d exchanges (arXiv 2306.07159): W^d mixes the models and (1 - beta) I + beta W^d the tracker."""
    X = {0: np.array(X0, dtype=np.float64)}
    G = {0: grad(X[0], 0)}
    Y = {0: G[0]}
    for r in range(rounds):
        start, last, end = r * tau, r * tau + tau - 1, (r + 1) * tau
        for k in range(start, last):
            X[k + 1] = X[k] - gamma * Y[k]
            G[k + 1] = grad(X[k + 1], k + 1)
            Y[k + 1] = Y[k] + G[k + 1] - G[k]
        Wd = np.linalg.matrix_power(W(r), d)
        X[end] = Wd @ (X[last] - gamma * Y[last])
        G[end] = grad(X[end], end)
        k = start if snapshot == "first" else last
        Y[end] = part_of_the_way(Wd, beta) @ Y[k] + G[end] - G[k]
    return [X[r * tau] for r in range(rounds + 1)]


def relaxed_lu_gt(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    eta: float,
    alpha: float,
    tau: int,
    rounds: int,
    beta: float,
    atc_y: bool,
) -> list[Array]:
    """LU-GT with (1 - beta) I + beta W_k in the place of W_k in Y's line; atc_y=False as in `lu_gt`."""
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = alpha * G
    out = [X]
    for k in range(rounds * tau):
        W_k = W(k // tau) if (k + 1) % tau == 0 else np.eye(len(X))
        B_k = part_of_the_way(W_k, beta)
        X = W_k @ (X - eta * Y)
        G_next = grad(X, k + 1)
        Y = B_k @ (Y + alpha * G_next - alpha * G) if atc_y else B_k @ Y + alpha * G_next - alpha * G
        G = G_next
        if (k + 1) % tau == 0:
            out.append(X)
    return out


def relaxed_scaffold(
    X0: Array,
    grad: Gradient,
    sampled: Sampling,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    beta: float,
    gamma_g: float,
    gamma_c: float | None = None,
    option: Literal[1, 2] = 2,
    extra: Gradient | None = None,
) -> list[Array]:
    """Scaffold, worker by worker, with c_i <- c_i + beta (c_i+ - c_i), the server following as it does; options as in
    `scaffold`. `gamma_c`, left out s/n, makes it Scaffold+."""
    n = len(X0)
    x, c, ci = _start(X0, None, None)
    out = [_tile(x, n)]
    for r in range(rounds):
        S = np.asarray(sampled(r))
        X = _tile(x, n)
        for k in range(r * tau, (r + 1) * tau):
            g = grad(X, k)
            for i in S:
                X[i] = X[i] - gamma * (g[i] - ci[i] + c)
        anchors = None if extra is None else extra(_tile(x, n), r * tau)
        moved = {}
        for i in S:
            plus = anchors[i] if option == 1 else ci[i] - c + (x - X[i]) / (tau * gamma)
            moved[i] = beta * (plus - ci[i])
        x = x + gamma_g / len(S) * sum(X[i] - x for i in S)
        c = c + (len(S) / n if gamma_c is None else gamma_c) / len(S) * sum(moved.values())
        for i in S:
            ci[i] = ci[i] + moved[i]
        out.append(_tile(x, n))
    return out
