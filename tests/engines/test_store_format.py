"""Files of format 1 that were written once and are kept: they load for ever, with the numbers of a closed form.

On f_i = x²/2 from x = 1 at every node, any of the methods here is gradient descent, x_r = (1 − γ)^r, and for γ = 1/2 or
1/4 all numbers are exact in floating point.
"""

from pathlib import Path

import numpy as np
import pytest

import stgt
from bits import assert_same_bits
from stgt.engines import store

FOLDER = Path(__file__).parent / "fixtures"
TRACE, SWEEP = FOLDER / "trace-format-1.stgt", FOLDER / "sweep-format-1.stgt"
N, ROUNDS, MORE = 2, 6, 4
OWN = {"twice": lambda x: 2 * x[0], "sum": stgt.of_state(lambda state: state["x"].sum())}
GAMMAS = (0.5, 0.25)


def half_square(x, sample):
    return 0.5 * (x**2).sum() + sample


def trace(rounds: int = ROUNDS, **options) -> stgt.Trace:
    """Compiled, in single precision, with all that a run can keep: a table of SAGA, a gradient ahead, own metrics."""
    problem = stgt.problems.from_loss(half_square, np.zeros((N, 1)), np.ones(1))
    options = {"oracle": stgt.oracles.SAGA(), "metrics": OWN, **options}
    return stgt.simulate(stgt.AugDGM(gamma=0.5), problem, stgt.topology.complete(N), rounds, **options)


def sweep(rounds: int = ROUNDS, **options) -> list[stgt.Trace]:
    """The reference, in double precision, two stepsizes and two seeds."""
    problem = stgt.problems.Quadratic(np.ones((N, 1, 1)), np.zeros((N, 1)))
    options = {"engine": "numpy", "seeds": 2, "x0": np.ones(1), "grid": {"gamma": GAMMAS}, **options}
    return stgt.sweep(stgt.DPSGD(gamma=0.5), problem, stgt.topology.complete(N), rounds, **options)


def write() -> None:
    """How the files were made: `python -c "import test_store_format; test_store_format.write()"`, at format 1."""
    trace(seeds=[3, 8]).save(TRACE)
    sweep(checkpoint=SWEEP)


def assert_descends(found: stgt.Trace, gamma: float, rounds: int) -> None:
    x = (1 - gamma) ** np.arange(rounds + 1)
    expected = {"loss": x**2 / 2, "gradient_norm": x**2, "consensus": 0 * x, "twice": 2 * x, "sum": N * x}
    expected["residual"] = x**2
    assert found.rounds == rounds
    assert {"loss", "gradient_norm", "consensus"} <= set(found)
    for name in set(found) & set(expected):
        assert (found[name] == expected[name]).all(), name
    assert found.x.tolist() == [[[x[-1]]] * N] * 2
    np.testing.assert_array_equal(found.x.mean(axis=1), [[x[-1]]] * 2)
    assert not found.diverged.any()
    assert not found.interrupted


def test_the_numbers_of_a_trace():
    """The gradient at x, which is x itself, is in the table and ahead; c is 0, as all nodes have the same f_i."""
    found = stgt.Trace.load(TRACE)
    assert_descends(found, 0.5, ROUNDS)
    assert (found.seeds, found.engine, found.dtype) == ((3, 8), "jax", "float32")
    assert found.algorithm == stgt.AugDGM(gamma=0.5)
    assert found.oracle == stgt.oracles.SAGA()
    assert (found.topology.name, found.topology.n, found.rho) == ("complete(2)", 2, 0.0)
    assert (found.problem.n, found.problem.p) == (2, 1)
    assert found.standing.ahead.tolist() == found.x.tolist()
    assert found.standing.memory["table"].ravel().tolist() == [2.0**-ROUNDS] * 4
    assert not found.state["c"].any()
    # Two nodes: the table at first and a gradient; then one each a round. Two messages on each of the two links.
    assert found["gradients"][0].tolist() == [4 + 2 * r for r in range(ROUNDS + 1)]
    assert found["messages"][0].tolist() == found["floats"][0].tolist() == [4 * r for r in range(ROUNDS + 1)]


def test_a_trace_goes_on():
    found = trace(MORE, resume=stgt.Trace.load(TRACE))
    assert_descends(found, 0.5, ROUNDS + MORE)
    assert_same_bits(found, trace(ROUNDS + MORE, seeds=[3, 8]))


def test_a_sweep_goes_on(tmp_path):
    """The kept file is a finished checkpoint of the same call."""
    for found, gamma in zip(store.load(SWEEP), GAMMAS, strict=True):
        assert_descends(found, gamma, ROUNDS)
        assert (found.seeds, found.engine, found.dtype) == ((0, 1), "numpy", "float64")
        assert found["gradients"][0].tolist() == [2 * r for r in range(ROUNDS + 1)]
    copy = tmp_path / "run.stgt"
    copy.write_bytes(SWEEP.read_bytes())
    for found, gamma in zip(sweep(ROUNDS + MORE, checkpoint=copy), GAMMAS, strict=True):
        assert_descends(found, gamma, ROUNDS + MORE)
    for found, whole in zip(store.load(copy), sweep(ROUNDS + MORE), strict=True):
        assert_same_bits(found, whole)
    with pytest.raises(ValueError, match="holds the 2 runs of a sweep"):
        stgt.Trace.load(SWEEP)


def test_the_files_are_of_format_1():
    """A library of a newer format must keep these, and add files of its own."""
    for path in (TRACE, SWEEP):
        with np.load(path) as archive:
            assert b'"format": 1,' in archive[store.TEXT].tobytes()
        assert path.stat().st_size < 20_000
