"""Where a gradient comes from: exact, noisy, minibatch, SAGA, SVRG."""

from stgt.oracles.stochastic import Exact, Minibatch, Noisy, Oracle, ProblemNoise, default_oracle
from stgt.oracles.variance_reduced import SAGA, SVRG

ORACLES: dict[str, type[Oracle]] = {"saga": SAGA, "svrg": SVRG}  # those that an algorithm may ask for by name

__all__ = ["ORACLES", "SAGA", "SVRG", "Exact", "Minibatch", "Noisy", "Oracle", "ProblemNoise", "default_oracle"]
