"""Methods that communicate in every iteration (tau = 1, so k = r), transcribed from the papers' equations.

Notation in `recursions_tracking.py`. Returns [X_0, X_1, ..., X_rounds]; the y-forms ask for the gradient of
iteration k = rounds too.
"""

from collections.abc import Callable

import numpy as np
from recursions_tracking import Array, Gradient, Mixing

Indices = np.ndarray
Component = Callable[[Array, Indices], Array]


def dsgt(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, rounds: int) -> list[Array]:
    """DSGT (Pu and Nedic, arXiv 1805.11454): X+ = W (X - gamma Y); Y+ = W Y + G+ - G; Y_0 = G_0."""
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = G
    out = [X]
    for k in range(rounds):
        X = W(k) @ (X - gamma * Y)
        G_next = grad(X, k + 1)
        Y = W(k) @ Y + G_next - G
        G = G_next
        out.append(X)
    return out


def push_pull(X0: Array, grad: Gradient, R: Mixing, C: Mixing, *, gamma: float, rounds: int) -> list[Array]:
    """Push-Pull (Pu et al., arXiv 1810.06653): X+ = R (X - gamma Y); Y+ = C Y + G+ - G; Y_0 = G_0.

    R is row-stochastic, C column-stochastic; the paper's are the same in every iteration.
    """
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = G
    out = [X]
    for k in range(rounds):
        X = R(k) @ (X - gamma * Y)
        G_next = grad(X, k + 1)
        Y = C(k) @ Y + G_next - G
        G = G_next
        out.append(X)
    return out


def diging(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, rounds: int) -> list[Array]:
    """DIGing (Nedic et al., arXiv 1607.03218): X+ = W_k X - gamma Y; Y+ = W_k Y + G+ - G; Y_0 = G_0."""
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = G
    out = [X]
    for k in range(rounds):
        X = W(k) @ X - gamma * Y
        G_next = grad(X, k + 1)
        Y = W(k) @ Y + G_next - G
        G = G_next
        out.append(X)
    return out


def aug_dgm(X0: Array, grad: Gradient, W: Mixing, *, D: Array, rounds: int) -> list[Array]:
    """Aug-DGM (Xu et al., CDC 2015): X+ = W (X - D Y); Y+ = W (Y + G+ - G); Y_0 = G_0; D = (n,) stepsizes."""
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = G
    out = [X]
    for k in range(rounds):
        X = W(k) @ (X - np.diag(D) @ Y)
        G_next = grad(X, k + 1)
        Y = W(k) @ (Y + G_next - G)
        G = G_next
        out.append(X)
    return out


def next_linear(
    X0: Array, grad: Gradient, W: Mixing, *, t: float, alpha: Callable[[int], float], rounds: int
) -> list[Array]:
    """NEXT (Di Lorenzo and Scutari, arXiv 1602.00591), sum objective, linear surrogate with prox 1/t, no regulariser.

    x~_i = argmin_x g_i^T (x - x_i) + ||x - x_i||^2 / (2t) + pi_i^T (x - x_i) = x_i - t (g_i + pi_i);
    V = X + alpha_k (X~ - X);  X+ = W V;  Y+ = W Y + G+ - G;  Pi+ = n Y+ - G+;  Y_0 = G_0,  Pi_0 = n Y_0 - G_0.
    """
    n = len(X0)
    X = np.array(X0, dtype=np.float64)
    G = grad(X, 0)
    Y = G
    Pi = n * Y - G
    out = [X]
    for k in range(rounds):
        X_tilde = X - t * (G + Pi)
        V = X + alpha(k) * (X_tilde - X)
        X = W(k) @ V
        G_next = grad(X, k + 1)
        Y = W(k) @ Y + G_next - G
        G = G_next
        Pi = n * Y - G
        out.append(X)
    return out


def gt_saga(
    X0: Array,
    W: Mixing,
    *,
    component: Component,
    full: Callable[[Array], Array],
    draw: Callable[[int], Indices],
    m: int,
    gamma: float,
    rounds: int,
) -> list[Array]:
    """GT-SAGA (Xin et al., arXiv 1912.04230), with the table T of all m component gradients a node.

    X+ = W X - gamma Y;  V+_i = grad f_ij(x+_i) - T_ij + mean_l T_il;  T_ij <- grad f_ij(x+_i);
    Y+ = W Y + V+ - V;  Y_0 = V_0 = grad f_i(x_0), T_0 = component gradients at x_0.
    component(X, J) -> (n, p), row i the gradient of component J[i] of node i at X[i]; full(X) -> (n, p) their mean.
    draw(k) -> (n,), the components j that form V_k, k = 1, 2, ...: V_0 draws nothing.
    """
    n = len(X0)
    rows = np.arange(n)
    X = np.array(X0, dtype=np.float64)
    T = np.stack([component(X, np.full(n, j)) for j in range(m)], axis=1)
    V = full(X)
    Y = V
    out = [X]
    for k in range(rounds):
        X = W(k) @ X - gamma * Y
        J = draw(k + 1)
        fresh = component(X, J)
        V_next = fresh - T[rows, J] + np.mean(T, axis=1)
        T[rows, J] = fresh
        Y = W(k) @ Y + V_next - V
        V = V_next
        out.append(X)
    return out


def gt_svrg(
    X0: Array,
    W: Mixing,
    *,
    component: Component,
    full: Callable[[Array], Array],
    draw: Callable[[int], Indices],
    T: int,
    gamma: float,
    rounds: int,
) -> list[Array]:
    """GT-SVRG (Xin et al., arXiv 1912.04230); arguments as in `gt_saga`, T is the snapshot period in iterations.

    X+ = W X - gamma Y;  X~ <- X_{k+1} when T divides k+1;
    V+_i = grad f_ij(x+_i) - grad f_ij(x~_i) + grad f_i(x~_i);  Y+ = W Y + V+ - V;  Y_0 = V_0 = grad f_i(x_0).
    """
    X = np.array(X0, dtype=np.float64)
    X_tilde = X
    V = full(X)
    Y = V
    out = [X]
    for k in range(rounds):
        X = W(k) @ X - gamma * Y
        if (k + 1) % T == 0:
            X_tilde = X
        J = draw(k + 1)
        V_next = component(X, J) - component(X_tilde, J) + full(X_tilde)
        Y = W(k) @ Y + V_next - V
        V = V_next
        out.append(X)
    return out


def d_psgd(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, rounds: int, atc: bool = False) -> list[Array]:
    """D-PSGD (Lian et al., arXiv 1705.09056): X+ = W X - gamma G(X); `atc=True`: X+ = W (X - gamma G(X))."""
    X = np.array(X0, dtype=np.float64)
    out = [X]
    for k in range(rounds):
        G = grad(X, k)
        X = W(k) @ (X - gamma * G) if atc else W(k) @ X - gamma * G
        out.append(X)
    return out
