"""Where a gradient comes from: exact, noisy, minibatch, SAGA, SVRG."""

from stgt._internal.checks import spelt
from stgt.oracles.stochastic import Exact, Minibatch, Noisy, Oracle, ProblemNoise, default_oracle
from stgt.oracles.variance_reduced import SAGA, SVRG

ORACLES: dict[str, type[Oracle]] = {"saga": SAGA, "svrg": SVRG}  # those that an algorithm may ask for by name
NAMED_ORACLES: dict[str, type[Oracle]] = {
    kind.__name__: kind for kind in (Exact, Noisy, ProblemNoise, Minibatch, SAGA, SVRG)
}  # those that a spec may name
for _kind in NAMED_ORACLES.values():
    _kind.__init__ = spelt(_kind.__init__, _kind.__name__)


def list_oracles() -> list[str]:
    """The names of all oracles, sorted."""
    return sorted(NAMED_ORACLES)


__all__ = [
    "NAMED_ORACLES",
    "ORACLES",
    "SAGA",
    "SVRG",
    "Exact",
    "Minibatch",
    "Noisy",
    "Oracle",
    "ProblemNoise",
    "default_oracle",
    "list_oracles",
]
