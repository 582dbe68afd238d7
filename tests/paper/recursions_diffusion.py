"""Methods that find their corrections from the models, and trackers with a momentum, from the papers' equations.

Notation in `recursions_tracking.py`; where tau is missing, there is one iteration a round, as in
`recursions_onestep.py`.
"""

import numpy as np
from recursions_server import Sampling, _server_model, _tile
from recursions_tracking import Array, Gradient, Mixing


def led(
    X0: Array, grad: Gradient, W: Mixing, *, alpha: float, beta: float, tau: int, rounds: int
) -> tuple[list[Array], list[Array]]:
    """LED (Alghunaim, arXiv 2302.00620), primal and dual: the models, and the dual variables y.

    Phi <- Phi - alpha G(Phi) - beta y, tau times from Phi = x;  x <- W Phi;  y <- y + (I - W) Phi;  y_0 = 0.
    This beta is a tau-th part of the library's, and y is gamma tau/(its beta) times its c.
    """
    x = np.array(X0, dtype=np.float64)
    y = np.zeros_like(x)
    out, dual = [x], [y]
    for r in range(rounds):
        phi = x
        for k in range(r * tau, (r + 1) * tau):
            phi = phi - alpha * grad(phi, k) - beta * y
        x = W(r) @ phi
        y = y + (np.eye(len(x)) - W(r)) @ phi
        out.append(x)
        dual.append(y)
    return out, dual


def exact_diffusion(X0: Array, grad: Gradient, W: Mixing, *, mu: float, rounds: int) -> list[Array]:
    """Exact diffusion (Yuan et al., arXiv 1702.05122): adapt, correct, combine with (I + W)/2; psi_0 = x_0."""
    x = np.array(X0, dtype=np.float64)
    psi = x
    out = [x]
    for k in range(rounds):
        psi_next = x - mu * grad(x, k)
        phi = psi_next + x - psi
        x = (np.eye(len(x)) + W(k)) / 2 @ phi
        psi = psi_next
        out.append(x)
    return out


def d_squared(X0: Array, grad: Gradient, W: Mixing, *, gamma: float, rounds: int) -> list[Array]:
    """D2 (Tang et al., arXiv 1803.07068): X_{k+1} = W (2 X_k - X_{k-1} - gamma G_k + gamma G_{k-1}).

    X_1 = W (X_0 - gamma G_0).
    """
    X = [np.array(X0, dtype=np.float64)]
    G = []
    for k in range(rounds):
        G.append(grad(X[k], k))
        if k == 0:
            X.append(W(0) @ (X[0] - gamma * G[0]))
        else:
            X.append(W(k) @ (2 * X[k] - X[k - 1] - gamma * G[k] + gamma * G[k - 1]))
    return X


def extra(X0: Array, grad: Gradient, W: Array, *, alpha: float, rounds: int) -> list[Array]:
    """EXTRA (Shi et al., arXiv 1404.6264), fixed W: x^1 = W x^0 - alpha g^0 and
    x^{k+2} = (I + W) x^{k+1} - W~ x^k - alpha (g^{k+1} - g^k), W~ = (I + W)/2."""
    eye = np.eye(len(X0))
    x = [np.array(X0, dtype=np.float64)]
    g = [grad(x[0], 0)]
    x.append(W @ x[0] - alpha * g[0])
    for k in range(rounds - 1):
        g.append(grad(x[k + 1], k + 1))
        x.append((eye + W) @ x[k + 1] - (eye + W) / 2 @ x[k] - alpha * (g[k + 1] - g[k]))
    return x


def momentum_tracking(X0: Array, grad: Gradient, W: Mixing, *, eta: float, beta: float, rounds: int) -> list[Array]:
    """Momentum Tracking (Takezawa et al., arXiv 2209.15505), node by node, with the paper's sign of c.

    u_i <- beta u_i + g_i;  x_i <- sum_j w_ij (x_j - eta (u_j - c_j));  c_i <- sum_j w_ij (c_j - u_j) + u_i.
    """
    x = np.array(X0, dtype=np.float64)
    nodes = range(len(x))
    u, c = np.zeros_like(x), np.zeros_like(x)
    out = [x]
    for k in range(rounds):
        u = beta * u + grad(x, k)
        w = W(k)
        x, c = (
            np.stack([sum(w[i, j] * (x[j] - eta * (u[j] - c[j])) for j in nodes) for i in nodes]),
            np.stack([sum(w[i, j] * (c[j] - u[j]) for j in nodes) + u[i] for i in nodes]),
        )
        out.append(x)
    return out


def gt_adam(
    X0: Array, grad: Gradient, W: Mixing, *, alpha: float, beta1: float, beta2: float, eps: float, G: float, rounds: int
) -> list[Array]:
    """GTAdam (Carnevale et al., arXiv 2009.01745): the tracker s, and Adam's m and v on it; s_0 = g_0, m_0 = v_0 = 0.

    m <- beta1 m + (1 - beta1) s;  v <- min(beta2 v + (1 - beta2) s*s, G);  d = m/sqrt(v + eps);
    x <- W x - alpha d;  s <- W s + g+ - g.
    """
    x = np.array(X0, dtype=np.float64)
    g = grad(x, 0)
    s, m, v = g, np.zeros_like(x), np.zeros_like(x)
    out = [x]
    for k in range(rounds):
        m = beta1 * m + (1 - beta1) * s
        v = np.minimum(beta2 * v + (1 - beta2) * s**2, G)
        d = m / np.sqrt(v + eps)
        x = W(k) @ x - alpha * d
        g_next = grad(x, k + 1)
        s = W(k) @ s + g_next - g
        g = g_next
        out.append(x)
    return out


def feddyn(
    X0: Array, grad: Gradient, sampled: Sampling, *, gamma: float, alpha: float, tau: int, rounds: int
) -> list[Array]:
    """FedDyn (Acar et al., arXiv 2111.04263, Algorithm 1), client by client; tau gradient steps solve its problem

        min_theta L_k(theta) - <g_k, theta> + (alpha/2) ||theta - theta_server||^2
    from the server's model. Then g_k <- g_k - alpha (theta_k - theta_server);
    h <- h - (alpha/m) sum_{k in P} (theta_k - theta_server);  theta_server <- mean_{k in P} theta_k - h/alpha.
    """
    m = len(X0)
    server = _server_model(X0)
    g_k, h = np.zeros((m, len(server))), np.zeros_like(server)
    out = [_tile(server, m)]
    for t in range(rounds):
        P = np.asarray(sampled(t))
        theta = _tile(server, m)
        for k in range(t * tau, (t + 1) * tau):
            g = grad(theta, k)
            for i in P:
                theta[i] = theta[i] - gamma * (g[i] - g_k[i] + alpha * (theta[i] - server))
        for i in P:
            g_k[i] = g_k[i] - alpha * (theta[i] - server)
        h = h - alpha / m * sum(theta[i] - server for i in P)
        server = sum(theta[i] for i in P) / len(P) - h / alpha
        out.append(_tile(server, m))
    return out
