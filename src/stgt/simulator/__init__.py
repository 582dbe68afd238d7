"""Where it runs: the NumPy reference and the JAX simulator."""

from stgt._internal.registry import METRICS
from stgt.simulator.choice import Rule, best
from stgt.simulator.metrics import Metric, Snapshot, list_metrics, of_state
from stgt.simulator.run import simulate, sweep
from stgt.simulator.trace import Trace

__all__ = ["METRICS", "Metric", "Rule", "Snapshot", "Trace", "best", "list_metrics", "of_state", "simulate", "sweep"]
