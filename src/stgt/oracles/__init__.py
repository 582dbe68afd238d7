"""Where a gradient comes from: exact, noisy, minibatch, SAGA, SVRG."""

from stgt._internal.registry import ORACLES
from stgt.oracles.stochastic import Exact, Minibatch, Noisy, Oracle, ProblemNoise, Shuffled, default_oracle
from stgt.oracles.variance_reduced import SAGA, SVRG


def list_oracles() -> list[str]:
    """The names of all oracles, sorted."""
    return sorted(ORACLES.names())


__all__ = [
    "SAGA",
    "SVRG",
    "Exact",
    "Minibatch",
    "Noisy",
    "Oracle",
    "ProblemNoise",
    "Shuffled",
    "default_oracle",
    "list_oracles",
]
