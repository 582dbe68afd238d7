"""The paper's two theorems, corrected and with all constants: stepsizes, guarantees and numbers of rounds.

The statements and their proofs are in docs/theorems.md. Throughout σ² is the variance of a whole gradient,
E‖g − ∇f_i‖² = problem.sigma2, and ρ is the largest ‖E[W_rᵀW_r] − J‖₂ of any round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stgt._internal.checks import InputError, check_choice, check_count, check_number
from stgt.simulator.metrics import lyapunov_coefficients
from stgt.theory.assumptions import Constants, Start


@dataclass(frozen=True)
class Stepsize:
    """The largest stepsize that a theorem allows.

    Attributes:
        limit: the largest γ.
        conditions: the largest γ of each part of the proof, by name.
        binding: the name of the strictest part.
        words: the same as a sentence.
    """

    limit: float
    conditions: dict[str, float]
    binding: str
    words: str


def stepsize(constants: Constants, theorem: int = 1) -> Stepsize:
    """The largest γ of Theorem 1 (strongly convex) or 2 (nonconvex), with all constants."""
    rho, scale = constants.connected(), constants.tau * constants.L
    rooted = (1 - rho) / math.sqrt(rho) if rho > 0 else math.inf
    if _theorem(theorem) == 1:
        allowed = {
            "drift in a round (Lemma 1)": 1 / 8,
            "consensus (Lemma 2)": rooted / 11,
            "tracking (Lemma 3)": (1 - rho) / 18,
            "descent (Lemma 4)": 1 / 11,
            "Lyapunov function": (1 - rho) ** 2 / 439,
        }
    else:
        allowed = {"descent": (1 - rho) / 178, "consensus and tracking": (1 - rho) * rooted / 625}
    conditions = {name: value / scale for name, value in allowed.items()}
    binding = min(conditions, key=conditions.__getitem__)
    words = (
        f"Theorem {theorem} holds for gamma up to {conditions[binding]:.3g}, gamma·tau·L up to {allowed[binding]:.3g}: "
        f"the strictest condition is {binding}, with 1 − ρ = {1 - rho:.3g}."
    )
    return Stepsize(conditions[binding], conditions, binding, words)


@dataclass(frozen=True)
class Guarantee:
    """Theorem 1: E V⁺ ≤ factor · E V + noise, with V = ‖x̄ − x*‖² + c_x‖X − 1x̄‖² + c_y‖Υ‖².

    Attributes:
        gamma: the stepsize.
        decrease: min{μγτ/2, (1 − ρ)/8}; the first is smaller for every stepsize that the theorem allows.
        factor: 1 − decrease.
        noise: what a round adds.
        floor: noise/decrease, the limit of the bound on V.
        c_x, c_y: the coefficients of V.
    """

    gamma: float
    decrease: float
    noise: float
    c_x: float
    c_y: float

    @property
    def factor(self) -> float:
        return 1 - self.decrease

    @property
    def floor(self) -> float:
        return self.noise / self.decrease

    def lyapunov(self, start: Start) -> float:
        """V at the start."""
        if start.residual is None:
            raise InputError("start", hint=" has no residual: Theorem 1 needs a problem whose optimum is known.")
        return start.residual + self.c_x * start.consensus + self.c_y * start.tracking

    def after(self, rounds: int, start: Start) -> float:
        """The bound on E V, and so on E‖x̄ − x*‖², after this many rounds."""
        left = math.exp(check_count(rounds, "rounds", 0) * math.log1p(-self.decrease))
        return left * self.lyapunov(start) + (1 - left) * self.floor


def theorem1(constants: Constants, gamma: float) -> Guarantee:
    """Theorem 1 for ST-GT, corrected: every f_i is μ-strongly convex. A ValueError if γ is above `stepsize`'s limit.

    E V⁺ ≤ (1 − min{μγτ/2, (1 − ρ)/8}) E V + 2γ²τσ²/n + γ³τ²Lσ²(5 + 240ρ/(1 − ρ) + 24892/(1 − ρ)³).
    """
    gamma, rho, mu = _allowed(constants, gamma, 1), constants.rho, constants.convex()
    centralised, topology = _noise(constants)
    noise = centralised * gamma**2 + topology * gamma**3
    decrease = min(mu * gamma * constants.tau / 2, (1 - rho) / 8)
    c_x, c_y = lyapunov_coefficients(gamma, constants.tau, constants.L, constants.n, rho)
    return Guarantee(gamma, decrease, noise, c_x, c_y)


@dataclass(frozen=True)
class Stationarity:
    """Theorem 2: the mean of E‖∇f(x̄)‖² over the rounds is at most `value`, the sum of `terms`."""

    gamma: float
    rounds: int
    terms: dict[str, float]
    value: float


def theorem2(constants: Constants, gamma: float, rounds: int, start: Start) -> Stationarity:
    """Theorem 2 for ST-GT, corrected: no convexity. A ValueError if γ is above `stepsize(constants, 2)`'s limit.

    (1/R) Σ_r E‖∇f(x̄_r)‖² ≤ 2.1 (f(x̄_0) − f*)/(γτR) + ‖Υ_0‖²/(800nR) + 13L²‖X_0 − 1x̄_0‖²/((1 − ρ)nR)
        + 2.1 γLσ²/n + γ²τL²σ²(2 + 38ρ/(1 − ρ) + 130/(1 − ρ) + 1770ρ/(1 − ρ)³).
    """
    gamma, rounds = _allowed(constants, gamma, 2), check_count(rounds, "rounds")
    if start.gap is None:
        raise InputError("start", hint=" has no gap: give start(problem, lowest=…), f* or a bound below it.")
    L, n, tau, sigma2, rho = constants.L, constants.n, constants.tau, constants.sigma2, constants.rho
    h = 1 - rho
    terms = {
        "initial gap": 2.1 * start.gap / (gamma * tau * rounds),
        "initial tracking": start.tracking / (800 * n * rounds),
        "initial consensus": 13 * L**2 * start.consensus / (h * n * rounds),
        "noise, centralised": 2.1 * gamma * L * sigma2 / n,
        "noise, topology": gamma**2 * tau * L**2 * sigma2 * (2 + 38 * rho / h + 130 / h + 1770 * rho / h**3),
    }
    return Stationarity(gamma, rounds, terms, sum(terms.values()))


@dataclass(frozen=True)
class Promise:
    """The rounds after which Theorem 1 guarantees E‖x̄ − x*‖² ≤ epsilon, with the stepsize to use."""

    epsilon: float
    rounds: int
    guarantee: Guarantee

    @property
    def gamma(self) -> float:
        return self.guarantee.gamma


def promised_rounds(epsilon: float, constants: Constants, start: Start) -> Promise:
    """The number of rounds after which Theorem 1, with all its constants, guarantees E‖x̄ − x*‖² ≤ epsilon.

    γ is the largest allowed stepsize whose floor is at most epsilon/2. Then V has to shrink to epsilon/2.
    """
    epsilon, mu = check_number(epsilon, "epsilon", above=0), constants.convex()
    gamma = stepsize(constants).limit
    # The floor is (a γ² + b γ³)/(μγτ/2) ≤ ε/2, a quadratic in γ.
    (a, b), c = _noise(constants), mu * constants.tau * epsilon / 4
    if a + b > 0:
        gamma = min(gamma, 2 * c / (a + math.sqrt(a * a + 4 * b * c)))
    guarantee = theorem1(constants, gamma)
    shrink = math.log(max(1.0, 2 * guarantee.lyapunov(start) / epsilon))
    return Promise(epsilon, math.ceil(shrink / -math.log1p(-guarantee.decrease)), guarantee)


def _noise(constants: Constants) -> tuple[float, float]:
    """The coefficients of γ² and γ³ in the noise of Theorem 1."""
    rho, tau, sigma2 = constants.connected(), constants.tau, constants.sigma2
    network = 5 + 240 * rho / (1 - rho) + 24892 / (1 - rho) ** 3
    return 2 * tau * sigma2 / constants.n, tau**2 * constants.L * sigma2 * network


def _theorem(number: int) -> int:
    return int(check_choice(str(number), "theorem", ("1", "2")))


def _allowed(constants: Constants, gamma: float, theorem: int) -> float:
    gamma, limit = check_number(gamma, "gamma", above=0), stepsize(constants, theorem).limit
    if gamma > limit * (1 + 1e-12):
        raise InputError(
            "gamma",
            gamma,
            f"Theorem {theorem} holds up to {limit:.6g} here; give a smaller gamma, or use spectral_radius and "
            "steady_state, which are exact on quadratics.",
        )
    return gamma
