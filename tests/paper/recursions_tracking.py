"""Gradient tracking with local updates, transcribed from the papers' equations in their own variables.

Test oracles: nothing here may import `stgt`. Notation, shared by every file `recursions*.py`:

    X0       (n, p), row i is node i's start
    grad     grad(X, k) -> (n, p), row i is g_{i,k}, node i's stochastic gradient at X[i] in iteration k.
             k counts iterations globally, so iteration t of round r has k = r*tau + t, and a fixed k always
             gives the same samples. A y-form also asks for k = rounds*tau, to form the last Y.
    W        W(r) -> (n, n), W_r; row i holds the weights node i applies, w_ii included
    returns  [X_0, X_tau, ..., X_{rounds*tau}], each (n, p)
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradient = Callable[[Array, int], Array]
Mixing = Callable[[int], Array]


def st_gt(
    X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int, c0: Array | None = None
) -> list[Array]:
    """ST-GT, paper Eq_ST_GT and the local equation above it: X_k, Y_k, G_k at every iteration, Z once a round.

    Y_0 = G_0, or G_0 + c0 (sheet, section 2: y_0 = g_0 <=> c_0 = 0).
    """
    X = {0: np.array(X0, dtype=np.float64)}
    G = {0: grad(X[0], 0)}
    Y = {0: G[0] if c0 is None else G[0] + c0}
    for r in range(rounds):
        for k in range(r * tau, r * tau + tau - 1):
            X[k + 1] = X[k] - gamma * Y[k]
            G[k + 1] = grad(X[k + 1], k + 1)
            Y[k + 1] = Y[k] + G[k + 1] - G[k]
        start, last, end = r * tau, r * tau + tau - 1, (r + 1) * tau
        Z = (X[start] - X[last] + gamma * Y[last]) / (gamma * tau)
        X[end] = W(r) @ (X[start] - tau * gamma * Z)
        G[end] = grad(X[end], end)
        Y[end] = W(r) @ Z + G[end] - sum(G[start + t] for t in range(tau)) / tau
    return [X[r * tau] for r in range(rounds + 1)]


def _algorithm1(
    X0: Array, grad: Gradient, W: Mixing, gamma: float, tau: int, rounds: int, variant: Literal["A", "B", "fixed"]
) -> list[Array]:
    """Algorithm 1 line by line; `variant` decides the two places the printed text leaves wrong or undefined."""
    x = np.array(X0, dtype=np.float64)
    g = grad(x, 0)
    y = g
    out = [x]
    for r in range(rounds):
        x_start = x
        # Line 2: the printed reset is to 0, the fix is to g_{r tau}.
        g_tilde = g if variant == "fixed" else np.zeros_like(g)
        for k in range(r * tau, (r + 1) * tau - 1):
            # Lines 4-5: the gradient sampled is g_{k+1}, at x_{k+1}.
            x = x - gamma * y
            g_next = grad(x, k + 1)
            y = y + g_next - g
            g_tilde = g_tilde + g_next
            g = g_next
        # Line 7.
        z = (x_start - x + gamma * y) / (gamma * tau)
        # Line 8, with w_ii kept: N_i is taken to contain i.
        x = W(r) @ (x_start - tau * gamma * z)
        g = grad(x, (r + 1) * tau)
        if variant == "B":
            g_tilde = g_tilde + g
        y = W(r) @ z + g - g_tilde / tau
        out.append(x)
    return out


def st_gt_algorithm1_printed(
    X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int, reading: Literal["A", "B"]
) -> list[Array]:
    """Paper Algorithm 1 as printed, which is wrong (sheet, section 4).

    g~_{(r+1)tau} is never defined. Reading "A" takes the last value computed, g~_{(r+1)tau-1}; reading "B"
    continues the recursion, g~_{(r+1)tau} = g~_{(r+1)tau-1} + g_{(r+1)tau}.
    """
    if reading not in ("A", "B"):
        raise ValueError(f"reading={reading!r}: must be 'A' or 'B'")
    return _algorithm1(X0, grad, W, gamma, tau, rounds, reading)


def st_gt_algorithm1_fixed(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int) -> list[Array]:
    """Paper Algorithm 1 with g~ reset to g_{r tau} and g~_{(r+1)tau} read as g~_{(r+1)tau-1} (sheet, section 4)."""
    return _algorithm1(X0, grad, W, gamma, tau, rounds, "fixed")


def st_gt_four_buffers(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, tau: int, rounds: int) -> list[Array]:
    """ST-GT in four buffers x, a, c, g a node (sheet, section 5, "4x ST-GT"): every statement is in place."""
    n = len(X0)
    x = np.array(X0, dtype=np.float64)
    a, c, g = x.copy(), np.zeros_like(x), np.empty_like(x)
    out = [x.copy()]
    for r in range(rounds):
        for k in range(r * tau, (r + 1) * tau):
            g[:] = grad(x, k)
            g += c
            g *= gamma
            x -= g
        a -= x
        a /= gamma * tau
        c -= a
        g[:] = 0.0
        # Neighbours read x and a, which stay intact until every node has accumulated.
        w = W(r)
        for i in range(n):
            for j in range(n):
                g[i] += w[i, j] * x[j]
                c[i] += w[i, j] * a[j]
        x, g = g, x
        a[:] = x
        out.append(x.copy())
    return out


def k_gt(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    eta_s: float = 1.0,
    warm_start: bool = False,
    extra: Gradient | None = None,
) -> list[Array]:
    """K-GT (Liu et al. 2024, arXiv 2301.01313), whose own recursion is in the correction c (sheet, section 2).

    x_i <- x_i - gamma (g_i + c_i), tau times; z_i = (a_i - x_i) / (gamma tau);
    c_i <- c_i - z_i + sum_j w_ij z_j;  x_i <- sum_j w_ij (a_j - eta_s gamma tau z_j).
    With `warm_start`, c_i = -g_i(x_0) + (1/n) sum_j g_j(x_0), g = extra(X0, 0); else c_i = 0.
    """
    A = np.array(X0, dtype=np.float64)
    C = np.zeros_like(A)
    if warm_start:
        if extra is None:
            raise ValueError("warm_start=True needs the gradient at X0: pass extra=")
        G = extra(A, 0)
        C = -G + np.mean(G, axis=0)
    out = [A]
    for r in range(rounds):
        X = A
        for k in range(r * tau, (r + 1) * tau):
            X = X - gamma * (grad(X, k) + C)
        Z = (A - X) / (gamma * tau)
        C = C - Z + W(r) @ Z
        A = W(r) @ (A - eta_s * gamma * tau * Z)
        out.append(A)
    return out


def flexgt(
    X0: Array,
    grad: Gradient,
    W: Mixing,
    *,
    gamma: float,
    tau: int,
    rounds: int,
    snapshot: Literal["first", "last"] = "first",
) -> list[Array]:
    """FlexGT (Huang et al., arXiv 2306.07159); d gossip steps are W(r) = W^d.

    "first": the equation ST-GT's paper prints for "the GT method with local updates",
        X_{(r+1)tau} = W (X_{r tau} - gamma sum_t Y_{r tau+t}),  Y_{(r+1)tau} = W Y_{r tau} + G_{(r+1)tau} - G_{r tau}.
    "last": the per-iteration form, at k = (r+1)tau - 1,
        X_{k+1} = W (X_k - gamma Y_k),  Y_{k+1} = W Y_k + G_{k+1} - G_k.
    Local iterations in both: X_{k+1} = X_k - gamma Y_k,  Y_{k+1} = Y_k + G_{k+1} - G_k;  Y_0 = G_0.
    """
    if snapshot not in ("first", "last"):
        raise ValueError(f"snapshot={snapshot!r}: must be 'first' or 'last'")
    X = {0: np.array(X0, dtype=np.float64)}
    G = {0: grad(X[0], 0)}
    Y = {0: G[0]}
    for r in range(rounds):
        start, last, end = r * tau, r * tau + tau - 1, (r + 1) * tau
        for k in range(start, last):
            X[k + 1] = X[k] - gamma * Y[k]
            G[k + 1] = grad(X[k + 1], k + 1)
            Y[k + 1] = Y[k] + G[k + 1] - G[k]
        if snapshot == "first":
            X[end] = W(r) @ (X[start] - gamma * sum(Y[start + t] for t in range(tau)))
            G[end] = grad(X[end], end)
            Y[end] = W(r) @ Y[start] + G[end] - G[start]
        else:
            X[end] = W(r) @ (X[last] - gamma * Y[last])
            G[end] = grad(X[end], end)
            Y[end] = W(r) @ Y[last] + G[end] - G[last]
    return [X[r * tau] for r in range(rounds + 1)]


def lu_gt(
    X0: Array, grad: Gradient, W: Mixing, *, eta: float, alpha: float, tau: int, rounds: int, atc_y: bool
) -> list[Array]:
    """LU-GT (Nguyen et al., arXiv 2210.04757), one line an iteration with W_k = W when tau divides k+1, else I.

    X_{k+1} = W_k (X_k - eta Y_k),  Y_{k+1} = W_k (Y_k + alpha G_{k+1} - alpha G_k),  Y_0 = alpha G_0.
    `atc_y=False` mixes the tracker only: Y_{k+1} = W_k Y_k + alpha G_{k+1} - alpha G_k.
    """
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = alpha * G
    out = [X]
    for k in range(rounds * tau):
        W_k = W(k // tau) if (k + 1) % tau == 0 else np.eye(len(X))
        X = W_k @ (X - eta * Y)
        G_next = grad(X, k + 1)
        Y = W_k @ (Y + alpha * G_next - alpha * G) if atc_y else W_k @ Y + alpha * G_next - alpha * G
        G = G_next
        if (k + 1) % tau == 0:
            out.append(X)
    return out
