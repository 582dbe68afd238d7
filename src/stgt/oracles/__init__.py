"""Where a gradient comes from: exact, noisy, minibatch, SAGA, SVRG."""

from stgt.oracles.stochastic import Exact, Minibatch, Noisy, Oracle, default_oracle
from stgt.oracles.variance_reduced import SAGA, SVRG

__all__ = ["SAGA", "SVRG", "Exact", "Minibatch", "Noisy", "Oracle", "default_oracle"]
