"""Methods with a server: FedAvg, FedProx, FedDyn, Scaffold and Scaffold⁺.

They are defined for any W_r. On `server(n, sampled=s)` the server holds the `at_server` fields, the sampled workers
start from them, and each worker keeps `own`. On any other graph every node is its own server: Scaffold⁺ with
γ_g = γ_c = 1 is then ST-GT on W_r, with c − own instead of ST-GT's c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stgt._internal.checks import InputError, check_choice, check_number
from stgt._internal.hyper import hyper
from stgt._internal.registry import register
from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Local, MessageVar, RoundSpec, State, StateVar, Vector


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg: x_i ← x, tau times x_i ← x_i − γ g_i, x ← mean of the sampled x_i. With all sampled it is LocalSGD.

    Biased if nodes hold different data. The weights are 1/s, and do not depend on the workers' numbers of samples.
    Reference: McMahan et al., arXiv:1602.05629.
    """

    def spec(self) -> RoundSpec:
        return RoundSpec(state=(StateVar("x", at_server=True),), row_stochastic="any")

    def same_as(self, has_server: bool) -> str:
        return "" if has_server else "D-PSGD (ATC)"


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx: FedAvg with x_i ← x_i − γ(g_i + mu_prox (x_i − x)) in the local steps.

    Reference: Li et al., arXiv:1812.06127. The default of mu_prox is that of their public code.
    """

    mu_prox: float = hyper(0.01, check_number, least=0)

    def spec(self) -> RoundSpec:
        return replace(super().spec(), reads={"start", "end"})

    def correction(self, state: State, x: Vector) -> Vector:
        return self.mu_prox * (x - state["x"])

    def same_as(self, has_server: bool) -> str:
        return "" if self.mu_prox else "FedAvg"


@register
@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """FedDyn: x_i ← x_i − γ(g_i − own + α(x_i − x)) in the local steps, own ← own − α(h − x), and at the server
    H ← H − α(s/n) mean_S(h − x), x ← mean_S h − H/α.

    H is the mean of the workers' own, and both are 0 at first. In the paper the workers solve their local problems
    exactly; here they take `tau` steps.
    Reference: Acar et al., arXiv:2111.04263.
    """

    alpha: float = hyper(0.1, check_number, above=0)

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"start", "end", "participation"},
            state=(StateVar("x", at_server=True), StateVar("H", at_server=True), StateVar("own")),
            messages=(MessageVar("x"), MessageVar("H", replaces=True)),
            row_stochastic="server",
            invariant="H must be the mean of own",
        )

    def correction(self, state: State, x: Vector) -> Vector:
        return self.alpha * (x - state["x"]) - state["own"]

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return {
            "x": local.end,
            "H": state["H"] - self.alpha * local.participation * (local.end - local.start),
        }

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {**self.serve(state, mixed), "own": state["own"] - self.alpha * (local.end - local.start)}

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        return {"x": mixed["x"] - mixed["H"] / self.alpha, "H": mixed["H"]}

    def conserved(self, state: State, participation: Any) -> Vector:
        return state["H"] - state["own"]

    def cost(self, samples: int | None = None) -> Cost:
        # The server can compute the change of H from a worker's model.
        return Cost(gradients=self.tau, vectors=2, buffers=5, up=1, down=2)


@dataclass(frozen=True, kw_only=True)
class ControlVariates(Algorithm):
    """Base of Scaffold and Scaffold⁺: correction = c − own, and the server's x and c follow the workers' means.

    `beta` < 1 relaxes the control variates: own changes only by this part of its full change, and so does c.
    """

    gamma_g: float = hyper(1.0, check_number, above=0)
    warm_start: bool = False
    beta: float = hyper(1.0, check_number, above=0, most=1)

    def spec(self) -> RoundSpec:
        return RoundSpec(
            reads={"start", "end", "direction", "participation"},
            state=(StateVar("x", at_server=True), StateVar("c", at_server=True), StateVar("own")),
            messages=(MessageVar("x", replaces=True), MessageVar("c", replaces=True)),
            needs_initial_gradient=self.warm_start,
            row_stochastic="server",
            invariant="c must be (gamma_c n/s) times the mean of own",
        )

    def control_rate(self, participation: Any) -> Any:
        """γ_c, the rate at which the server's c follows the workers' control variates."""
        raise NotImplementedError

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return super().init(x) if gradient is None or mean is None else {"x": x, "c": mean, "own": gradient}

    def correction(self, state: State, x: Vector) -> Vector:
        return state["c"] - state["own"]

    def change_of_own(self, state: State, local: Local) -> Vector:
        """β(c_i⁺ − c_i) by option II: c_i⁺ = c_i − c + (x − x_i)/(τγ), the mean gradient of the round."""
        return self.beta * (local.direction - state["c"])

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        rate = self.control_rate(local.participation)
        return {
            "x": local.start + self.gamma_g * (local.end - local.start),
            "c": state["c"] + rate * self.change_of_own(state, local),
        }

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return {"x": mixed["x"], "c": mixed["c"], "own": state["own"] + self.change_of_own(state, local)}

    def conserved(self, state: State, participation: Any) -> Vector:
        """Σ_i [c − (γ_c n/s) own_i] = 0. If a start violates it, the method converges to a wrong point."""
        return state["c"] - self.control_rate(participation) / participation * state["own"]

    def cost(self, samples: int | None = None) -> Cost:
        # The server can compute Δc_i = −c − Δx_i/(τγ), so one vector goes up.
        return Cost(gradients=self.tau, vectors=2, buffers=4, up=1, down=2, initial=int(self.warm_start))


@register
@dataclass(frozen=True, kw_only=True)
class Scaffold(ControlVariates):
    """Scaffold: c ← c + (s/n) mean_S(c_i⁺ − c_i), x ← x + γ_g mean_S(x_i − x).

    `option="II"`: c_i⁺ = c_i − c + (x − x_i)/(τγ). `option="I"`: c_i⁺ = g_i(x), an additional gradient at the server's
    model. You may also write 1 and 2.
    `warm_start=True` starts from c_i = g_i(x_0), c = mean c_i; otherwise both start from 0.
    Reference: Karimireddy et al., arXiv:1910.06378.
    """

    option: str = hyper("II", check_choice, ("I", "II"))

    def __post_init__(self) -> None:
        self._set(option={"1": "I", "2": "II"}.get(str(self.option), self.option))
        super().__post_init__()

    def spec(self) -> RoundSpec:
        gradient = "start_gradient" if self.option == "I" else "direction"
        return replace(super().spec(), reads={"start", "end", "participation", gradient})

    def control_rate(self, participation: Any) -> Any:
        return participation

    def same_as(self, has_server: bool) -> str:
        other = self.option == "I" or self.warm_start or (self.gamma_g, self.beta) != (1.0, 1.0)
        return "" if has_server or other else "ST-GT"

    def change_of_own(self, state: State, local: Local) -> Vector:
        if self.option == "II":
            return super().change_of_own(state, local)
        return self.beta * (local.start_gradient - state["own"])

    def cost(self, samples: int | None = None) -> Cost:
        if self.option == "II":
            return super().cost(samples)
        return Cost(gradients=self.tau + 1, vectors=2, buffers=5, up=2, down=2, initial=int(self.warm_start))

    @property
    def label(self) -> str:
        return "Scaffold" if self.option == "II" else "Scaffold (option I)"


@register
@dataclass(frozen=True, kw_only=True)
class ScaffoldPlus(ControlVariates):
    """Scaffold⁺ (Algorithm 2): Scaffold, option II, with c ← c + γ_c mean_S(c_i⁺ − c_i).

    γ_c = s/n is Scaffold. γ_c = γ_g = 1 with all workers sampled is ST-GT with W = J. γ_c = 0 keeps c at its start;
    the workers' corrections then cancel the gradient that they should follow, and the method stalls. The steps are
    γ_c n/s times as long as Scaffold's: to change from one method to the other, keep γ γ_c n/s fixed.
    `warm_start=True` (c_i = g_i(x_0), c = mean c_i) is correct only if γ_c = s/n. Otherwise it would converge to a
    wrong point, and is refused.
    Reference: Huang, Xu, Chen, Johansson, arXiv:2512.01732.
    """

    title = "Scaffold⁺"

    gamma_c: float = hyper(1.0, check_number, least=0)

    def control_rate(self, participation: Any) -> Any:
        return self.gamma_c

    def check(self, participation: float) -> None:
        if self.warm_start and abs(self.gamma_c - participation) > 1e-12:
            raise InputError(
                "warm_start",
                True,
                f" with gamma_c={self.gamma_c:g} and s/n={participation:g} converges to a wrong point, because c must "
                "stay (gamma_c n/s) times the mean of own: use gamma_c=s/n, or warm_start=False.",
            )

    def same_as(self, has_server: bool) -> str:
        rates = (self.gamma_g, self.gamma_c, self.beta)
        return "" if has_server or self.warm_start or rates != (1.0, 1.0, 1.0) else "ST-GT"
