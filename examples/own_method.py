"""Your own methods, graph schedule and problem, which spec files, training and Flower can use by name.

stgt check --import examples/own_method.py examples/own_method.toml
"""

from dataclasses import dataclass

import numpy as np

import stgt


@stgt.register
@dataclass(frozen=True, kw_only=True)
class OneVector(stgt.Algorithm):
    """The library's LED, written as your own method.

    tau times x ← x − γ(g + c), which gives h; then x ← W h, c ← c + β(h − W h)/(γτ).
    """

    beta: float = 0.5

    def spec(self):
        # It reads the model after the local steps and the stepsize. In addition to the model it keeps c, which is 0
        # at the start.
        return stgt.RoundSpec(reads={"end", "gamma"}, state=[stgt.StateVar("c", zero_sum=True)])

    def correction(self, state, x):
        return state["c"]

    def merge(self, state, local, mixed):
        step = self.beta / (local.gamma * self.tau)
        return {"x": mixed["x"], "c": state["c"] + step * (local.end - mixed["x"])}


@stgt.register
@dataclass(frozen=True, kw_only=True)
class FedCM(stgt.Algorithm):
    """FedCM (Xu et al., arXiv:2106.10874): the server keeps a momentum, and the workers add it to their steps.

    tau times x_i ← x_i − γ(g + d), which gives h; then x ← mean of h, d ← β times the mean of all g + d of the round.
    The paper's α is 1 − β, and its local stepsize is γ/α.
    """

    beta: float = 0.5

    def spec(self):
        return stgt.RoundSpec(
            reads={"end", "direction"},  # direction is the mean of g + correction over the round
            state=[stgt.StateVar("x", at_server=True), stgt.StateVar("d", at_server=True)],
            messages=[stgt.MessageVar("x", replaces=True), stgt.MessageVar("d", replaces=True)],
        )

    def correction(self, state, x):
        return state["d"]

    def message(self, state, local):
        return {"x": local.end, "d": self.beta * local.direction}

    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "d": mixed["d"]}


@stgt.register
def breathing(n: int) -> stgt.Topology:
    """A ring whose nodes have the self-weight ½ in even rounds and ¾ in odd rounds."""
    ring = (np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)) / 2

    def W(r):
        share = 0.25 if r % 2 else 0.5
        return (1 - share) * np.eye(n) + share * ring

    return stgt.topology.schedule(n, W, period=2)


@stgt.register
def own_least_squares(n: int, p: int = 3, noise: float = 0.1, seed: int = 0) -> stgt.Problem:
    """f_i(x) = ½‖B_i x − d_i‖²/(2p) + 0.1‖x‖², with B_i and d_i standard normal."""
    rng = np.random.default_rng(seed)
    B, d = rng.normal(size=(n, 2 * p, p)), rng.normal(size=(n, 2 * p))
    A = np.einsum("nki,nkj->nij", B, B) / (2 * p) + 0.2 * np.eye(p)
    return stgt.problems.Quadratic(A, np.einsum("nki,nk->ni", B, d) / (2 * p), noise)


if __name__ == "__main__":
    problem, graph = own_least_squares(8), breathing(8)
    for method in (OneVector(gamma=0.05, tau=10), stgt.STGT(gamma=0.05, tau=10)):
        steady = stgt.theory.steady_state(method, problem, graph)
        trace = stgt.simulate(method, problem, graph, rounds=400, seeds=20)
        print(f"{method.label}: predicted {steady.residual:.2e}, simulated {trace.tail('residual').mean():.2e}")
    print(stgt.testing.check_algorithm(OneVector(gamma=0.05, tau=3)))
