"""`heterogeneity` on small files in LIBSVM's format, and its judgements on numbers that are known."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import stgt
from reproductions import heterogeneity as package
from reproductions.cell import Cell
from reproductions.heterogeneity import APART, METHODS, PARTITIONS, heterogeneity
from reproductions.outcome import write_outcome
from stgt.study import load_spec

ROWS = 1000


@pytest.fixture
def folder(small_a9a):
    return small_a9a(ROWS)


@pytest.fixture
def one_width(monkeypatch):
    """All partitions of one width, so that a method compiles once."""
    shared = package._shared

    def widest(*arguments):
        found = shared(*arguments)
        return {**found, "widths": dict.fromkeys(PARTITIONS, max(found["widths"].values()))}

    monkeypatch.setattr(package, "_shared", widest)


@pytest.mark.usefixtures("one_width")
@pytest.mark.release
def test_the_experiment(folder, tmp_path):
    seen = []
    outcome = heterogeneity(
        folder, lambda done, total: seen.append(done / total), data=["a9a"], rows=ROWS, rounds=200, draws=2, seeds=3
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1
    holds = {claim.id: claim.holds for claim in outcome.claims}
    assert list(holds) == ["H1", "H2", "H3", "H4", "H5", "H6"]
    assert holds["H1"], "a bias of FedAvg and D-PSGD, rounding of the trackers"
    assert holds["H3"]
    assert holds["H4"]

    runs = outcome.spec.runs
    assert len(runs) == 4 * (5 * 2 + 5 + 2)
    assert len({run.algorithm.arguments["gamma"] for run in runs}) == 1, "one stepsize for all"
    assert len({run.algorithm.arguments["tau"] for run in runs}) == 1
    assert len(outcome.rows) == 4 * (5 * 2 + 5 + 2 * 3)
    exact = [row for row in outcome.rows if row["setting"] == "exact"]
    spread = {name: max(row["spread"] for row in exact if row["partition"] == name) for name in ("iid", APART)}
    assert spread[APART] > 2 * spread["iid"]
    assert all(row["loss"] is None for row in outcome.rows if row["setting"] == "nonconvex"), "f* is not known"
    assert all(row["loss"] > 0 for row in exact if row["method"] in ("FedAvg", "D-PSGD"))

    folder = tmp_path / "out"
    folder.mkdir()
    pictures = {f"{figure.name}.png" for figure in outcome.figures}
    assert pictures == {claim.picture for claim in outcome.claims}
    names = {path.name for path in write_outcome(replace(outcome, figures=outcome.figures[:1]), folder)}  # one is slow
    assert {"heterogeneity-exact.png", "results.csv", "claims.json"} <= names
    assert load_spec(folder / "spec.toml") == outcome.spec
    curves = list(csv.DictReader((folder / "curves.csv").read_text().splitlines()))
    assert len(curves) == 4 * (5 + 5 + 2) * 21, "every tenth round of 200"


def test_fedavg_stalls_where_its_fixed_point_is():
    """With exact gradients FedAvg's end is the fixed point of its own round, not x*: ∇f there is not 0."""
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(4, 3, 2)), rng.normal(size=(4, 2))
    problem = stgt.problems.Quadratic(np.einsum("nij,nik->njk", A, A) + np.eye(2), b)
    gamma, tau = 0.5 / problem.L, 5
    trace = stgt.simulate(stgt.FedAvg(gamma=gamma, tau=tau), problem, stgt.topology.server(4), 500, dtype="float64")
    x = trace.x[0, 0]
    local = np.tile(x, (4, 1))
    for _ in range(tau):
        local = local - gamma * problem.gradients(local)
    np.testing.assert_allclose(local.mean(axis=0), x, atol=1e-12)
    cell = Cell([], [trace])
    assert cell.gradients[0] == pytest.approx(float((problem.gradient(x) ** 2).sum()), rel=1e-12)
    assert cell.gradients[0] > 1e-6
    assert cell.losses[0] == pytest.approx(problem.value(x) - problem.minimum, abs=1e-15)


class Ends:
    """A cell that ended with these errors."""

    def __init__(self, *values):
        self.losses = self.gradients = np.array(values)

    def summary(self):
        return {}


def cells(**by_method):
    """A cell for each method and partition, from the errors on each of the five partitions."""
    return {
        (partition, method): Ends(*np.atleast_1d(error))
        for method in METHODS
        for partition, error in zip(PARTITIONS, by_method[method.replace("-", "")], strict=True)
    }


def test_judgements():
    flat, rising = [1e-15] * 5, [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    good = cells(FedAvg=rising, DPSGD=rising, STGT=flat, Scaffold=flat)
    holds, figures = package._far(good)
    assert holds
    assert figures["factor"] == pytest.approx(1e13)
    assert package._grows(good)[0]
    assert package._level(good)[0]
    assert package._above(good)[0]
    assert package._floor(good)[0]

    dip = cells(FedAvg=[*rising[:3], 2e-2, 1e-2], DPSGD=rising, STGT=[*flat[:4], 1e-3], Scaffold=flat)
    holds, figures = package._grows(dip)
    assert not holds
    assert figures["steps down"] == ["FedAvg: α = 0.1 to one class"]
    assert not package._far(dip)[0], "10 times"
    assert not package._level(dip)[0]
    assert not package._floor(dip)[0]

    # The same dip, but not in every draw of the partition.
    wide = [[value, 2 * value, 3 * value] for value in rising[:3]] + [[1e-2, 5e-2, 3e-3], [1.1e-2, 1.2e-2, 1e-2]]
    assert package._grows(cells(FedAvg=wide, DPSGD=rising, STGT=flat, Scaffold=flat))[0]

    # A method that diverged is above everything, and a tracker that did is far from nothing.
    lost = cells(FedAvg=[*rising[:4], np.inf], DPSGD=rising, STGT=flat, Scaffold=[*flat[:4], np.inf])
    assert package._grows(lost)[0]
    assert not package._far(lost)[0]
    assert not package._level(lost)[0]
    assert not package._floor(lost)[0]
    # A tracker that diverged on all partitions is not as good on one as on the other.
    assert not package._floor(cells(FedAvg=rising, DPSGD=rising, STGT=[np.inf] * 5, Scaffold=flat))[0]
    # NaN decides against a claim, wherever it stands.
    for method in ("STGT", "Scaffold"):
        unknown = {"STGT": flat, "Scaffold": flat, method: [*flat[:4], np.nan]}
        assert not package._far(cells(FedAvg=rising, DPSGD=rising, **unknown))[0]
        assert not package._level(cells(FedAvg=rising, DPSGD=rising, **unknown))[0]
