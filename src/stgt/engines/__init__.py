"""Where it runs: the NumPy reference and the JAX simulator."""

from stgt.engines.run import simulate, sweep
from stgt.engines.trace import Trace

__all__ = ["Trace", "simulate", "sweep"]
