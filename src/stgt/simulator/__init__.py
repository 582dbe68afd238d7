"""The two engines that simulate a run: the NumPy reference and the JAX simulator."""

from stgt._internal.registry import METRICS
from stgt.simulator.changes import Change, Crash, Join, Leave, Pause, Repair, random_churn
from stgt.simulator.choice import Rule, best
from stgt.simulator.churn import ChurnTrace, simulate_churn
from stgt.simulator.metrics import Metric, Snapshot, list_metrics, of_state
from stgt.simulator.run import simulate, sweep
from stgt.simulator.trace import Trace

__all__ = [
    "METRICS",
    "Change",
    "ChurnTrace",
    "Crash",
    "Join",
    "Leave",
    "Metric",
    "Pause",
    "Repair",
    "Rule",
    "Snapshot",
    "Trace",
    "best",
    "list_metrics",
    "of_state",
    "random_churn",
    "simulate",
    "simulate_churn",
    "sweep",
]
