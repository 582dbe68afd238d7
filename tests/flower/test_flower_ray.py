"""Flower's own simulation, with Ray: the reference's iterates, and the same bits in whatever way clients are run."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import federation
import numpy as np
import pytest
import ray_simulation
from ray_simulation import AGAIN, METHOD, ROUNDS, TOPOLOGY

from stgt.flower import Strategy, run_in_process


@pytest.mark.thorough
def test_ray_makes_the_reference_s_iterates_and_twice_the_same_bits(tmp_path):
    script = Path(ray_simulation.__file__)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "found.npz"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "found.npz")
    for rounds in (1, ROUNDS):
        expected = federation.reference(replace(METHOD, gamma=federation.LR), TOPOLOGY, rounds)["x"].mean(axis=0)
        np.testing.assert_allclose(found["first"][rounds], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found["again"], found["first"][: AGAIN + 1])

    def here(*args, **options):
        return run_in_process(Strategy(METHOD, TOPOLOGY), federation.app, *args, **options)

    np.testing.assert_array_equal(ray_simulation.models(here, ROUNDS), found["first"])
