"""The playground's engine gives the numbers of the library's NumPy engine: for the same settings, to rounding."""

import numpy as np
import pytest

from playground.engine import draws
from playground.engine.methods import KINDS
from playground.engine.result import simulate
from playground.engine.settings import stories
from playground_reference import check_equal, settings
from stgt._internal.randomness import STREAM_LINKS, STREAM_LOCAL, STREAM_SAMPLING, choose, words

EDGES = [[0, 1], [1, 2], [2, 3], [3, 4], [0, 2], [1, 4]]
GRAPHS = {
    "ring": {"kind": "ring"},
    "lossy ring": {"kind": "ring", "lost": 0.4},
    "directed": {"kind": "directed"},
    "exponential": {"kind": "exponential"},
    "one peer": {"kind": "one_peer"},
    "edges": {"kind": "edges", "edges": EDGES},
    "lossy edges": {"kind": "edges", "edges": EDGES, "lost": 0.3},
    "server": {"kind": "server"},
    "sampled": {"kind": "server", "sampled": 2},
}
OUTER = [{"name": "STGT", "momentum": 0.5, "beta": 0.5}, {"name": "Scaffold", "momentum": 0.3, "beta": 0.7}]


def groups(entries, size=3):
    return [entries[i : i + size] for i in range(0, len(entries), size)]


@pytest.mark.sampled(3, each="graph methods")
@pytest.mark.parametrize("methods", groups([*KINDS, *OUTER]), ids=str)
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_method_on_every_graph(graph, methods):
    """Fifty rounds with noise, lost links and sampled workers, by the library's draws."""
    entries = [{"name": "DiLoCo", "momentum": 0.9} if one == "DiLoCo" else one for one in methods]
    given = settings(GRAPHS[graph], entries)
    check_equal(given, simulate(given))


@pytest.mark.parametrize("story", stories(), ids=lambda story: story["title"])
def test_every_story(story):
    result = simulate(story["settings"])
    check_equal(story["settings"], result)


@pytest.mark.parametrize("graph", ["ring", "lossy ring", "directed", "exponential", "one peer", "edges", "server"])
def test_nodes_that_fail_and_a_late_repair(graph):
    """The survivors' graph, their draws, the sum that is left, and the projection."""
    events = [
        {"round": 12, "kind": "kill", "node": 3},
        {"round": 30, "kind": "repair"},
        {"round": 30, "kind": "kill", "node": 0},
        {"round": 44, "kind": "repair"},
    ]
    given = settings(GRAPHS[graph], ["STGT", "LED", "DiLoCo"], events=events)
    result = simulate(given)
    check_equal(given, result)
    run = result["runs"][0]
    assert run["sum_c"][11] < 1e-12 < 1e-2 < run["sum_c"][12]
    assert max(run["sum_c"][44:]) < 1e-12


def test_a_run_that_diverges_is_cut():
    """Where the library says so, and nothing that is shown is infinite."""
    given = settings("directed", [{"name": "STGT", "gamma": 2.0, "tau": 20}], rounds=200)
    result = simulate(given)
    run = result["runs"][0]
    assert len(run["error"]) == run["diverged_at"] < 200
    assert len(run["frames"]) == len(run["weights"]) == len(run["bytes"]) - 1 == run["diverged_at"] - 1
    assert all(np.isfinite(run[name]).all() for name in ("error", "sum_c", "frames", "gradients", "corrections"))
    check_equal(given, result, tolerance=1e-9)  # of numbers up to 1e300, in which rounding has grown


def test_the_parts_of_a_step():
    """x of each step is x − γ(g + c) of the step before, and a correction is c of the round's start."""
    given = settings("ring", ["STGT"], rounds=10)
    run = simulate(given)["runs"][0]
    for frames, gradients, c in zip(run["frames"], run["gradients"], run["corrections"], strict=False):
        x, g = np.array(frames), np.array(gradients)
        np.testing.assert_allclose(x[1:], x[:-1] - 0.05 * (g + np.array(c)), atol=1e-14)
    assert len(run["frames"]) == len(run["corrections"]) == 11
    assert len(run["gradients"]) == 10


def test_minimisers_that_were_moved():
    centres = [[1.0, 2.0], [-3.0, 0.5], [2.0, -1.0], [0.0, 0.0], [4.0, 4.0]]
    given = settings("ring", ["STGT"], centres=centres)
    result = simulate(given)
    assert [list(one) for one in result["problem"]["centres"]] == centres
    check_equal(given, result)


def test_the_draws_are_the_library_s():
    """The same words, at the ends of their ranges too; normals by another formula of the inverse distribution."""
    from scipy.special import ndtri

    for seed, step, a, b in [(0, 0, 0, 0), (5, 7, 3, 1), (2**32 - 1, 12345, 7, 2**28 - 1)]:
        for ours, theirs in (
            (draws.LOCAL, STREAM_LOCAL),
            (draws.SAMPLING, STREAM_SAMPLING),
            (draws.LINKS, STREAM_LINKS),
            (draws.PROBLEM, draws.PROBLEM),
        ):
            found = [int(word[0]) for word in words(np, seed, step, a, b, theirs)]
            assert list(draws.words(seed, step, a, b, ours)) == found
    for r in range(20):
        assert draws.sampled(9, r, 8, 3) == choose(np, 9, r, 8, 3, STREAM_SAMPLING).tolist()
        units = [draws.unit(word) for word in draws.words(4, r, 2, 0, draws.LOCAL)]
        np.testing.assert_allclose(draws.normals(4, r, 2), ndtri(units), rtol=1e-13)
