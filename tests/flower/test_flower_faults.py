"""All faults at once, at random, in this process: the run ends, absences are named, what is conserved is, and the model
is where it would be. test_flower_under_fire.py has the same of a deployment."""

import numpy as np
import pytest
from firing import DEAD, FATES, FireGrid, fired

import stgt
from stgt.flower.in_process import InProcessGrid
from stgt.flower.result import REASONS

TAU, ROUNDS, CLAIMED = fired.TAU, 60, 2
METHODS = [
    fired.METHOD,
    stgt.Scaffold(tau=TAU),
    stgt.STGT(tau=TAU),
    stgt.FedDyn(tau=TAU, alpha=0.5),
    stgt.Outer(stgt.ScaffoldPlus(tau=TAU, gamma_c=0.8, beta=0.5), lr=0.7, momentum=0.3),
]


def distance(result) -> float:
    return float(np.linalg.norm(fired.vector(result.arrays) - fired.OPTIMUM))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
@pytest.mark.sampled(2)
def test_a_run_in_which_everything_goes_wrong(method):
    grid = FireGrid(fired.client, fired.CLIENTS, seed=5, claimant=CLAIMED)
    strategy = fired.strategy(0, method, ROUNDS, evaluate=2)
    result = strategy.start(grid, fired.Point(), num_rounds=ROUNDS)

    # It ends.
    assert [outcome.round for outcome in result.history] == list(range(1, ROUNDS + 1))

    # Whoever was called was taken in, or is absent for the reason that was drawn.
    for outcome in result.history:
        reasons = {absence.client: absence.reason for absence in outcome.absent}
        assert sorted([*outcome.taken, *reasons]) == outcome.called
        assert all(absence.detail for absence in outcome.absent)
        for client in outcome.called:
            fate = grid.fates[outcome.round, client]
            expected = DEAD if fate == "dead" else FATES[fate][1]
            if client in outcome.taken:
                assert not expected or fate == "old"  # which the first reply of a node cannot be
            else:
                assert reasons[client] in (*expected, "lost")
    assert {absence.reason for outcome in result.history for absence in outcome.absent} == set(REASONS)

    # What is conserved is.
    assert fired.conserved(strategy) < 1e-12

    # The model is where the noise of the gradients leaves it. In 20 runs of each method, with other seeds, it was at
    # most … times as far from the optimum as the farther of two without faults, which take 20 rounds to come there.
    calm = [InProcessGrid(fired.client, fired.CLIENTS) for _ in range(2)]
    ends = [
        fired.strategy(seed, method).start(one, fired.Point(), num_rounds=20) for seed, one in enumerate(calm, start=1)
    ]
    assert distance(result) < 4 * max(map(distance, ends))
