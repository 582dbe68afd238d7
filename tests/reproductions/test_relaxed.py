"""`relaxed`: exact points against closed forms, the judgements on numbers that are known, and a small run of it all."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import stgt
from reproductions import relaxed_a9a as data
from reproductions import relaxed_exact as exact
from reproductions.catalogue import EXPERIMENTS, prepared
from reproductions.relaxed import exact_figures, relaxed
from reproductions.relaxed_a9a import METHODS, Grid
from reproductions.relaxed_exact import GRAPHS, Graph, Point
from stgt.cli import app

ROWS = 320
CURVATURE, TAU = 0.7, 5


@pytest.fixture
def folder(small_a9a):
    return small_a9a(ROWS)


# -- closed forms ------------------------------------------------------------------------------------------------------


def mode(method: str, beta: float, gamma: float, eigenvalue: float) -> np.ndarray:
    """A round of equal quadratics with curvature a along an eigenvector of W with eigenvalue λ, on (x, c).

    τ steps give h = q x − ((1 − q)/a) c with q = (1 − γa)^τ; then x ← λh, and c gains β(1 − λ)h/(γτ) with LED, or
    −β(1 − λ)z with ST-GT, z = (x − h)/(γτ).
    """
    a, q, lost = CURVATURE, (1 - gamma * CURVATURE) ** TAU, 1 - eigenvalue
    h = np.array([q, -(1 - q) / a])
    gain = h if method == "LED" else h - np.array([1.0, 0.0])
    return np.stack([eigenvalue * h, np.array([0.0, 1.0]) + beta * lost * gain / (gamma * TAU)])


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("method", ["STGT", "LED"])
def test_the_radius_of_equal_quadratics_is_that_of_two_by_two_maps(method, beta):
    n, gamma = 6, 0.3
    problem = stgt.problems.Quadratic(np.full((n, 1, 1), CURVATURE), np.arange(n)[:, None] * 1.0)
    ring = stgt.topology.ring(n)
    eigenvalues = np.linalg.eigvalsh(ring.matrix(0))[:-1]
    radii = [np.abs(np.linalg.eigvals(mode(method, beta, gamma, value))).max() for value in eigenvalues]
    expected = max(*radii, abs(1 - gamma * CURVATURE) ** TAU)
    algorithm = getattr(stgt, method)(gamma=gamma, tau=TAU, beta=beta)
    assert stgt.theory.spectral_radius(algorithm, problem, ring) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("eigenvalue", [-0.5, -0.2, 0.0, 0.6])
def test_small_stepsizes_allow_led_betas_up_to_a_bound(beta, eigenvalue):
    """As γ → 0 the maps of LED and of ST-GT lose a: LED is stable iff β < 2(1 + λ)/(1 − λ), ST-GT always.

    ST-GT's two limits are λ and 1 − β(1 − λ); where they are one, as for β = 1, a map that is γ off is √γ off in them.
    """
    led, tracked = (np.abs(np.linalg.eigvals(mode(name, beta, 1e-9, eigenvalue))).max() for name in ("LED", "STGT"))
    assert (led < 1) == (beta < 2 * (1 + eigenvalue) / (1 - eigenvalue))
    assert tracked == pytest.approx(max(abs(eigenvalue), abs(1 - beta * (1 - eigenvalue))), abs=1e-4)


def test_points_at_small_stepsizes_have_the_rate_of_gradient_descent():
    """Where W = J within a round's reach, all methods contract as one step of length γτ on the mean does: 1 − γτ·a."""
    points, runs = exact.exact_points(
        graphs=["ring", "symmetric exponential"], methods=["ST-GT", "LED, β = ½"], grid=(0.01,), n=4, p=1
    )
    problem = stgt.problems.ridge(n=4, p=1, mu=exact.MU, scale="sqrt_p", noise=0.1, seed=0)
    mean = float(np.mean([problem.gradients(np.ones(1)) - problem.gradients(np.zeros(1))]))  # the mean's curvature
    assert len(points) == len(runs) == 4
    for point in points:
        assert point.rounds == pytest.approx(problem.L / (0.01 * mean), rel=0.02)
        assert point.gamma == pytest.approx(0.01 / (exact.TAU * problem.L))
        # Errors to first order in γ: γσ²/(2na) with σ² = 0.1 the variance of a coordinate's noise, and few percent on.
        assert point.error == pytest.approx(point.gamma * problem.noise / (2 * 4 * mean), rel=0.05)


def test_graphs_that_are_drawn_once_repeat_and_others_use_each_matrix_twice():
    graph = GRAPHS["8 lossy rings in turn"]
    first, again, other = graph.make(0), graph.make(0), graph.make(1)
    assert (first.period, first.random, first.symmetric) == (8, False, True)
    assert all(np.array_equal(first.matrix(r), again.matrix(r + 8)) for r in range(8))
    assert any(not np.array_equal(first.matrix(r), other.matrix(r)) for r in range(8))
    twice, once = GRAPHS["one-peer, each twice"].make(), GRAPHS["one-peer"].make()
    assert twice.period == 2 * once.period
    assert all(np.array_equal(twice.matrix(r), once.matrix(r // 2)) for r in range(twice.period))
    assert Graph({"name": "ring"}).make(n=4).n == 4


# -- judgements --------------------------------------------------------------------------------------------------------


def led_is_better():
    """Points in which all that the claims say holds: ST-GT with radius ½ and LED with a ninth power of it."""
    points = []
    for graph in GRAPHS:
        made = GRAPHS[graph].make()
        for method in exact.METHODS:
            for reach in (0.1, 1.0, 30.0):
                radius = 0.5**10 if "LED" in method else 0.5
                if graph in exact.SPARSE:
                    radius = 1.1 if "LED" in method and reach < 1 else radius
                if graph in exact.SHAKY and method == "ST-GT":
                    radius = 1.1 if reach > 1 else radius
                kind = {"undirected": made.symmetric, "random": made.random}
                points.append(Point(graph, method, reach, radius, 1.0, 1.0, **kind))
    return points


def holds(points):
    return {claim.id: claim.holds for claim in exact.exact_claims(points)}


def changed(points, graph, method, **values):
    return [replace(one, **values) if (one.graph, one.method) == (graph, method) else one for one in points]


def test_exact_judgements():
    good = led_is_better()
    assert holds(good) == {f"X{k}": True for k in range(1, 11)}
    times = {claim.id: claim.figures for claim in exact.exact_claims(good)}["X4"]["LED's rate/ST-GT's by γτL"]
    assert list(times) == ["0.1", "1", "30"]
    assert list(times.values()) == pytest.approx([10.0] * 3)

    for graph, method, values, fails in (
        ("ring", "LED, β = ¼", {"radius": 1.0}, {"X1"}),
        ("ring", "LED, β = ½", {"radius": 1.0}, {"X2", "X4"}),
        ("ring", "LED, β = ½", {"radius": 0.5**8}, {"X4"}),
        ("one-peer", "LED, β = ¼", {"radius": 1.1}, {"X3"}),
        ("one-peer", "ST-GT", {"radius": 0.9}, {"X3"}),
        ("ring", "LED, β = ¼", {"error": 1.04}, {"X5", "X6"}),
        ("ring", "LED, β = ¼", {"error": 0.5}, {"X5"}),
        ("ring", "LED, β = ½", {"consensus": 1.1}, {"X7"}),
        ("directed ring", "LED, β = ½", {"radius": 0.9}, {"X8"}),
        ("hops {1, 2, 4}", "ST-GT adjoint", {"radius": 1.1}, {"X8"}),
        ("one-peer", "ST-GT, β = ¼", {"radius": 1.1}, {"X9"}),
        ("matchings, i.i.d.", "ST-GT", {"radius": 1.1}, {"X10"}),
    ):
        found = holds(changed(good, graph, method, **values))
        assert {id for id, value in found.items() if not value} == fails, (graph, method, values)
    assert not any(holds([]).values()), "nothing to judge by shows nothing"
    json.dumps([claim.figures for claim in exact.exact_claims(good)], allow_nan=False)


def grids(**by_method):
    """Grids of one penalty: on one-peer, and on the other graphs, the errors of each method at γ = ½."""
    found = {}
    for place, graph in enumerate(data.GRAPHS):
        for method in METHODS:
            error = np.array(by_method[method][min(place, 1)])
            ends = {0.25: 2 * error, 0.5: error, 1.0: np.full(len(error), np.inf)}
            early = {gamma: values if "LED" in method else 2 * values for gamma, values in ends.items()}
            found.setdefault(graph, {})[method] = Grid(ends, early, {})
    return found


def test_judgements_on_data():
    spread = np.array([1.0, 1.01, 0.99])
    same = dict.fromkeys(METHODS, (spread, spread))
    good = {**same, "ST-GT": (10 * spread, spread), "no tracking": (5 * spread, 5 * spread)}
    claims = {claim.id: claim for claim in data.a9a_claims("l2", grids(**good))}
    assert {id: claim.holds for id, claim in claims.items()} == {f"X{k}": True for k in range(11, 18)}
    assert claims["X11"].figures["ST-GT's/LED's"] == pytest.approx(dict.fromkeys(data.LEDS, 10.0))
    assert claims["X15"].figures["ring"]["ST-GT/LED, β = ¼"] == pytest.approx(2.0)
    assert claims["X14"].figures["ring"]["ST-GT"]["gamma"] == 0.5
    json.dumps([claim.figures for claim in claims.values()], allow_nan=False)

    for method, errors, fails in (
        ("ST-GT", (4 * spread, spread), {"X11"}),
        ("LED, β = ½", (spread, 1.1 * spread), {"X12"}),
        ("ST-GT, β = ¼", (20 * spread, spread), {"X13"}),
        ("LED, β = ¼", (spread, 1.04 * spread), {"X14"}),
        ("LED, β = ¼", (spread, 2 * spread), {"X12", "X14", "X15"}),
        ("no tracking", (5 * spread, spread), {"X16"}),
        ("outer ST-GT, β = ¼", (spread, 2 * spread), {"X17"}),
    ):
        found = data.a9a_claims("l2", grids(**{**good, method: errors}))
        assert {claim.id for claim in found if not claim.holds} == fails, method


def test_equal_bytes_are_half_the_rounds_of_two_vectors():
    problem = stgt.problems.ridge(n=4, p=2)
    one, two = (
        stgt.simulate(method, problem, stgt.topology.ring(4), 40, engine="numpy", metrics=["squared_gradient_norm"])
        for method in (stgt.LED(gamma=0.1), stgt.STGT(gamma=0.1))
    )
    budget = float(one["floats"][0, -1])
    assert budget == 40 * 4 * 2 * 2, "rounds, nodes, neighbours, coordinates"
    values = two["squared_gradient_norm"][0]
    grid = data._grid({0.1: two}, budget)
    assert grid.early[0.1][0] == pytest.approx(values[16:21].mean()), "the last quarter of 20 rounds"
    assert grid.ends[0.1][0] == pytest.approx(values[31:].mean())
    assert data._grid({0.1: one}, budget).early[0.1][0] == pytest.approx(one["squared_gradient_norm"][0, 31:].mean())


# -- the whole ---------------------------------------------------------------------------------------------------------


SMALL = {"graphs": ["ring", "8 matchings in turn", "directed ring"], "grid": (0.3, 10.0), "n": 8, "p": 1, "draws": 2}


@pytest.mark.release
def test_the_command(folder, tmp_path, monkeypatch):
    runs = {"graphs": ["one-peer"], "penalties": ["l2"], "gammas": (0.25, 0.5), "rows": 160, "rounds": 16, "seeds": 2}
    pictures = set()

    def short(data_dir=None, progress=None):
        outcome = relaxed(data_dir, progress, exact=SMALL, a9a=runs)
        pictures.update(f"{figure.name}.png" for figure in outcome.figures)
        return replace(outcome, figures=outcome.figures[-1:])  # drawing them all is slow

    monkeypatch.setitem(EXPERIMENTS, "relaxed", short)
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["reproduce", "relaxed", "--data-dir", str(folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    claims = json.loads((out / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == [f"X{k}" for k in range(1, 18)]
    assert {claim["picture"] for claim in claims} <= pictures
    written = {path.name for path in out.iterdir()}
    assert {"relaxed-a9a-stepsizes.png", "results.csv", "curves.csv", "spec.toml"} <= written


def test_the_exact_half():
    seen = []
    points, runs = exact.exact_points(lambda done, total: seen.append(done / total), **SMALL)
    assert len(points) == 2 * (6 + 2 * 6 + 7), "the adjoint form on the directed ring only"
    assert max(seen) == 1
    assert len(runs) == 2 * (6 + 7), "matrices that were drawn are in no spec"
    rows = exact.exact_rows(points)
    assert {row["part"] for row in rows} == {"exact"}
    unstable = [row for row in rows if row["radius"] >= 1]
    assert unstable
    assert all(row["rounds_per_e"] is None and row["exact"] is None for row in unstable)
    assert [figure.name for figure in exact_figures(points)] == ["relaxed-rate", "relaxed-error", "relaxed-consensus"]
    assert all(len(figure.panels) == 3 for figure in exact_figures(points))


def test_without_its_data_it_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="data_dir was left out"):
        prepared("relaxed")
    with pytest.raises(ValueError, match=r"holds no a9a or a9a\.bz2"):
        prepared("relaxed", data_dir=tmp_path)
