"""Base of the methods that wrap another one."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from stgt._internal.checks import InputError
from stgt.algorithms.base import Algorithm, Cost
from stgt.algorithms.declare import Local, RoundSpec, State, Vector


@dataclass(frozen=True, kw_only=True)
class Wrapper(Algorithm):
    """A wrapper around a method. By default it calls every function of that method. A subclass overrides what it
    changes, and `spec` by `replace(super().spec(), …)` if the declaration changes.

    Args:
        method: such as STGT(tau=20, beta=0.25). You may give its gamma and tau to the wrapper instead.
    """

    method: Algorithm = field(kw_only=False)
    tau: int = 0  # if omitted, the method's

    def __post_init__(self) -> None:
        method: Any = self.method
        if not isinstance(method, Algorithm):
            raise InputError("method", method, "give an instance of the method to wrap, such as STGT(tau=20).")
        for name, given, without in (("gamma", self.gamma, None), ("tau", self.tau, 0)):
            inside, plain = getattr(method, name), 1 if name == "tau" else None
            if given == without:
                self._set(**{name: inside})
            elif inside not in (plain, given):
                raise ValueError(f"{name}={given} and {name}={inside} of the method inside: give it once.")
        self._set(method=replace(method, gamma=None, tau=1))
        super().__post_init__()
        replace(method, gamma=self.gamma, tau=self.tau)  # the method checks both

    @property
    def inner(self) -> Algorithm:
        """The wrapped method with this wrapper's stepsize and tau."""
        made = copy(self.method)
        made._set(gamma=self.gamma, tau=self.tau)
        return made

    def spec(self) -> RoundSpec:
        return self.inner.spec()

    def init(self, x: Vector, gradient: Vector | None = None, mean: Vector | None = None) -> dict[str, Vector]:
        return self.inner.init(x, gradient, mean)

    def correction(self, state: State, x: Vector) -> Vector | float:
        return self.inner.correction(state, x)

    def message(self, state: State, local: Local) -> dict[str, Vector]:
        return self.inner.message(state, local)

    def merge(self, state: State, local: Local, mixed: State) -> dict[str, Vector]:
        return self.inner.merge(state, local, mixed)

    def serve(self, state: State, mixed: State) -> dict[str, Vector]:
        return self.inner.serve(state, mixed)

    def second_message(self, state: State, gradient: Vector) -> dict[str, Vector]:
        return self.inner.second_message(state, gradient)

    def second_merge(self, state: State, gradient: Vector, mixed: State) -> dict[str, Vector]:
        return self.inner.second_merge(state, gradient, mixed)

    def tracker(self, state: State) -> Vector | float:
        return self.inner.tracker(state)

    def conserved(self, state: State, participation: Any) -> Vector:
        return self.inner.conserved(state, participation)

    def check(self, participation: float) -> None:
        self.inner.check(participation)

    def cost(self, samples: int | None = None) -> Cost:
        return self.inner.cost(samples)
