"""Every method of the catalogue has its exact map, or is refused by name."""

import numpy as np
import pytest

import stgt
from catalogue import instances, quadratic
from stgt import theory

SPECS = {name: algorithm.spec() for name, algorithm in instances().items()}
NAMES = [name for name, spec in SPECS.items() if not (spec.oracle or spec.communication_probability)]
CHANGING = "NEXT"  # its stepsize falls from round to round
NONLINEAR = ("GTAdam", "FedAdam", "FedYogi", "Adaptive-STGT", "Adaptive-LED", "Adaptive-ScaffoldPlus")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (CHANGING, *NONLINEAR)])
def test_without_noise_the_map_is_the_run(name):
    """On one fixed graph: ‖x̄ − x*‖² of the affine map is that of the reference's iterates."""
    problem, ring, x0 = quadratic(4, 2), stgt.topology.ring(4), np.array([1.0, -2.0])
    trace = stgt.simulate(instances()[name], problem, ring, 8, engine="numpy", x0=x0)
    curve = theory.expected_curve(instances()[name], problem, ring, 8, x0=x0)
    np.testing.assert_allclose(curve, trace.residual[0], rtol=1e-8, atol=1e-12)


def test_those_that_divide_by_the_root_of_a_square_say_so():
    assert tuple(name for name in NAMES if not SPECS[name].linear) == NONLINEAR


ASKED = {
    "round_map": theory.round_map,
    "spectral_radius": theory.spectral_radius,
    "steady_state": theory.steady_state,
    "expected_curve": lambda *parts: theory.expected_curve(*parts, 5),
    "largest_stable_stepsize": theory.largest_stable_stepsize,
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", NONLINEAR)
@pytest.mark.parametrize("graph", [stgt.topology.ring(4), stgt.topology.random_matching(4)], ids=str)
def test_a_step_that_is_not_linear_is_refused_in_one_sentence(name, asked, graph):
    algorithm = instances()[name]
    with pytest.raises(
        ValueError, match="not linear in the models and gradients, which the exact theory does not support"
    ) as caught:
        ASKED[asked](algorithm, quadratic(4, 2), graph)
    said = str(caught.value)
    assert said.startswith(f"{algorithm.label} makes a step")
    assert said.count(".") == 1
    assert said.endswith(".")


def test_next_with_a_falling_stepsize_has_none():
    with pytest.raises(ValueError, match="changes from round to round: give it constant stepsizes"):
        theory.spectral_radius(instances()[CHANGING], quadratic(4, 2), stgt.topology.ring(4))
