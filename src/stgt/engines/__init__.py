"""Where it runs: the NumPy reference and the JAX simulator."""

from stgt.engines.choice import Rule, best
from stgt.engines.metrics import of_state
from stgt.engines.run import simulate, sweep
from stgt.engines.trace import Trace

__all__ = ["Rule", "Trace", "best", "of_state", "simulate", "sweep"]
