"""Exact statements about a run, before it is run."""

from stgt.theory.stability import (
    RoundMap,
    SteadyState,
    expected_curve,
    largest_stable_stepsize,
    round_map,
    spectral_radius,
    steady_state,
)

__all__ = [
    "RoundMap",
    "SteadyState",
    "expected_curve",
    "largest_stable_stepsize",
    "round_map",
    "spectral_radius",
    "steady_state",
]
