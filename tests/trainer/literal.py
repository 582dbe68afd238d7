"""ST-GT on the quadratic of `scenarios_use`, written down literally: all nodes in this process, one after the other."""

import numpy as np
import torch
from scenarios import topology
from scenarios_use import METHODS, P, base_of, data, wide_data

from stgt.algorithms.calls import Checked

NODES = 8


def simulate(
    base: str = "sgd",
    graph: str = "static",
    taus=(3,) * NODES,
    rounds: int = 8,
    lr: float | np.ndarray = 0.1,
    factor: float = 1.0,
    clip: float = 0.0,
    skipped: tuple[tuple[int, int], ...] = (),
    absent: int = -1,
    last: int = 0,
) -> dict[str, np.ndarray]:
    """x_i and c_i after `rounds` rounds.

    Node i steps with its own torch optimiser on g + c, and z is the mean of g + c. Plain SGD's is written out, with an
    lr that is multiplied by `factor` after every step, and z weighted by it. A (node, round) that is skipped leaves x
    and the optimiser as they were, and its z is 0. The loss of node `absent` has the first four numbers only. The
    last round is broken off after `last` steps, if given.
    """
    xs = [torch.zeros(P, dtype=torch.float64) for _ in range(NODES)]
    cs = [torch.zeros(P, dtype=torch.float64) for _ in range(NODES)]
    optimizers = [base_of(base, [x], 1.0) for x in xs] if base != "sgd" else None
    for optimizer in optimizers or ():
        optimizer.param_groups[0]["lr"] = lr
    rates = [torch.as_tensor(lr, dtype=torch.float64)] * NODES
    for r in range(rounds):
        zs = []
        for i, (x, c) in enumerate(zip(xs, cs, strict=True)):
            if (i, r) in skipped:
                zs.append(torch.zeros(P, dtype=torch.float64))
                continue
            a, b = data(i)
            if i == absent:
                a[4:] = b[4:] = 0.0
            z, weight = torch.zeros(P, dtype=torch.float64), 0.0
            for _ in range(last if last and r == rounds - 1 else taus[i]):
                g = a * x - b
                if clip and g.norm() > clip:
                    g = g * (clip / (g.norm() + 1e-6))  # as torch's clip_grad_norm_ does
                y = g + c
                if optimizers is None:
                    x -= rates[i] * y
                    z, weight = z + rates[i] * y, weight + rates[i]
                    rates[i] = rates[i] * factor
                else:
                    x.grad = y.clone()
                    optimizers[i].step()
                    z, weight = z + y, weight + 1.0
            zs.append(z / weight)
        if last and r == rounds - 1:
            break
        W = torch.tensor(topology(graph, NODES).matrix(r))
        mixed, heard = W @ torch.stack(xs), W @ torch.stack(zs)
        for i in range(NODES):
            xs[i].copy_(mixed[i])
            cs[i] = cs[i] - zs[i] + heard[i]
    return {"x": torch.stack(xs).numpy(), "c": torch.stack(cs).numpy()}


def simulate_led(
    base: str, gain: float, graph: str = "static", tau: int = 3, rounds: int = 8, lr: float = 0.1, beta: float = 0.25
) -> dict[str, np.ndarray]:
    """x_i and c_i of LED, every node with its own torch optimiser on g + c, and c ← c + β(h − W h)/(lr · gain · τ).

    `gain` is by how many times lr a gradient moves the model in all.
    """
    xs = [torch.zeros(P, dtype=torch.float64) for _ in range(NODES)]
    cs = [torch.zeros(P, dtype=torch.float64) for _ in range(NODES)]
    optimizers = [base_of(base, [x], lr) for x in xs]
    for r in range(rounds):
        for i, (x, c) in enumerate(zip(xs, cs, strict=True)):
            a, b = data(i)
            for _ in range(tau):
                x.grad = a * x - b + c
                optimizers[i].step()
        ends = torch.stack(xs)
        mixed = torch.tensor(topology(graph, NODES).matrix(r)) @ ends
        for i in range(NODES):
            cs[i] = cs[i] + beta / (lr * gain * tau) * (ends[i] - mixed[i])
            xs[i].copy_(mixed[i])
    return {"x": torch.stack(xs).numpy(), "c": torch.stack(cs).numpy()}


def simulate_method(name: str, base: str, gain: float, rounds: int, lr: float) -> np.ndarray:
    """x_i of a method of METHODS on the ring in float64, every node with its own torch optimiser on g + correction."""
    method = Checked(METHODS[name])
    A, B = (np.stack(parts) for parts in zip(*map(wide_data, range(NODES)), strict=True))
    x, W = np.zeros_like(A), topology("static", NODES).matrix(0)
    state = method.init(x.copy())
    moved = [torch.from_numpy(row) for row in x]  # the same memory
    optimizers = [base_of(base, [row], lr) for row in moved]
    for r in range(rounds):
        start, total = x.copy(), np.zeros_like(x)
        state["x"] = start
        for _ in range(method.tau):
            y = A * x - B + method.correction(method.readable(state), x)
            total += y
            for row, gradient, optimizer in zip(moved, y, optimizers, strict=True):
                row.grad = torch.from_numpy(gradient)
                optimizer.step()
        local = method.local(
            start=start, end=x.copy(), direction=total / method.tau, gamma=lr * gain,
            round=r, participation=1.0,
        )  # fmt: skip
        mixed = {field: W @ value for field, value in method.message(method.readable(state), local).items()}
        state = method.merge(method.readable(state), local, mixed)
        x[:] = state["x"]
    return x


def assert_same(found: list[dict], expected: dict[str, np.ndarray], tolerance: float = 1e-12) -> None:
    for name, value in expected.items():
        got = np.array([node[name] for node in found])
        np.testing.assert_allclose(got, value, rtol=0, atol=tolerance * max(1.0, np.abs(value).max()), err_msg=name)
