"""Where it runs: the NumPy reference and the JAX simulator."""

from stgt.simulator.choice import Rule, best
from stgt.simulator.metrics import of_state
from stgt.simulator.run import simulate, sweep
from stgt.simulator.trace import METRICS, Trace

__all__ = ["METRICS", "Rule", "Trace", "best", "of_state", "simulate", "sweep"]
