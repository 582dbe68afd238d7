"""Every method of the catalogue has its exact map, or is refused by name."""

import numpy as np
import pytest

import stgt
from catalogue import instances, quadratic
from stgt import theory

NAMES = [name for name, algorithm in instances().items() if not (algorithm.oracle or algorithm.coin)]
CHANGING, NONLINEAR = "NEXT", "GTAdam"  # its stepsize falls from round to round; it divides by the root of a square


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (CHANGING, NONLINEAR)])
def test_without_noise_the_map_is_the_run(name):
    """On one fixed graph: ‖x̄ − x*‖² of the affine map is that of the reference's iterates."""
    problem, ring, x0 = quadratic(4, 2), stgt.topology.ring(4), np.array([1.0, -2.0])
    trace = stgt.simulate(instances()[name], problem, ring, 8, engine="numpy", x0=x0)
    curve = theory.expected_curve(instances()[name], problem, ring, 8, x0=x0)
    np.testing.assert_allclose(curve, trace.residual[0], rtol=1e-8, atol=1e-12)


def test_gtadam_has_none():
    with pytest.raises(ValueError, match=r"^GTAdam does more with vectors than .* so its round has no exact map"):
        theory.spectral_radius(instances()[NONLINEAR], quadratic(4, 2), stgt.topology.ring(4))


def test_next_with_a_falling_stepsize_has_none():
    with pytest.raises(ValueError, match="changes from round to round: give it constant stepsizes"):
        theory.spectral_radius(instances()[CHANGING], quadratic(4, 2), stgt.topology.ring(4))
