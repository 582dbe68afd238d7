"""Predictions for a run: exact ones on quadratics, and the bounds of the paper's theorems."""

from stgt.theory.advice import Advice, check
from stgt.theory.assumptions import Constants, Start, constants, spectral_gap, start
from stgt.theory.exponents import Exponent, Scaling, fit_exponents, fit_power_law
from stgt.theory.maps import RoundMap
from stgt.theory.network import STABLE_BELOW, ExactMap, SteadyState
from stgt.theory.rates import (
    Guarantee,
    Promise,
    Stationarity,
    Stepsize,
    promised_rounds,
    stepsize,
    theorem1,
    theorem2,
)
from stgt.theory.relaxation import beta_for_noise, largest_beta, small_step_radius, tracker_noise
from stgt.theory.stability import exact_map, expected_curve, round_map, spectral_radius, steady_state
from stgt.theory.stepsizes import StableStepsize, largest_stable_stepsize
from stgt.theory.table1 import Complexity, rounds, table1_rounds
from stgt.topology import Rho, period_contraction
from stgt.topology import contraction as rho

__all__ = [
    "Advice",
    "Complexity",
    "Constants",
    "ExactMap",
    "Exponent",
    "Guarantee",
    "Promise",
    "Rho",
    "RoundMap",
    "STABLE_BELOW",
    "Scaling",
    "StableStepsize",
    "Start",
    "Stationarity",
    "SteadyState",
    "Stepsize",
    "beta_for_noise",
    "check",
    "constants",
    "exact_map",
    "expected_curve",
    "fit_exponents",
    "fit_power_law",
    "largest_beta",
    "largest_stable_stepsize",
    "period_contraction",
    "promised_rounds",
    "rho",
    "round_map",
    "rounds",
    "small_step_radius",
    "spectral_gap",
    "spectral_radius",
    "start",
    "steady_state",
    "stepsize",
    "table1_rounds",
    "theorem1",
    "theorem2",
    "tracker_noise",
]
