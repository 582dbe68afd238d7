"""`table1`: what is counted is what the methods' definitions say."""

import math

import pytest

from reproductions.outcome import write_outcome
from reproductions.table1 import CONSTANTS, EPSILON, PERIOD, ROWS, SAMPLES, TAU, count, table1
from stgt.study import load_spec
from stgt.study.spec.runs import RunSpec, build_run


@pytest.fixture(scope="module")
def outcome():
    return table1()


def test_rows(outcome):
    rows = {(row["method"], row["objective"]): row for row in outcome.rows}
    assert set(rows) == {(row.label, objective) for row in ROWS for objective in row.objectives}
    for row in outcome.rows:
        assert row["gradients"] == pytest.approx(row["gradients_traced"]), "the model's count is the trace's"
        assert row["vectors_traced"] == (3 if row["method"] == "Scaffold" else 2)
    assert rows["GT-SVRG", "SC"]["gradients"] == 2 + SAMPLES / PERIOD
    assert rows["GT-SAGA", "SC"]["gradients_once"] == SAMPLES
    for row in ROWS:  # the names of the buffers are as many as `cost` says
        count = sum(SAMPLES if name.startswith("m ×") else 1 for name in row.buffers)
        assert rows[row.label, row.objectives[0]]["buffers"] == count
    k = CONSTANTS
    h = 1 - k.rho
    by_hand = (
        k.L / (h**2 * k.mu)
        + k.sigma2 / (k.mu**2 * k.n * k.tau * EPSILON)
        + math.sqrt(k.L * k.sigma2 / (k.mu**3 * h**3 * k.tau * EPSILON))
    )
    assert rows["ST-GT", "SC"]["rounds"] == pytest.approx(by_hand)


def test_claims(outcome):
    holds = {claim.id: claim.holds for claim in outcome.claims}
    assert [id for id, held in holds.items() if held] == ["B4", "B6", "B7"]
    assert len(holds) == 11
    figures = {claim.id: claim.figures for claim in outcome.claims}
    assert figures["B9"]["exponents of τ"]["ST-GT"]["noise, topology"] == -0.5
    assert figures["B11"]["largest difference of their runs, η_s = 1"] < 1e-14


def test_it_can_be_written_and_read_back(outcome, tmp_path):
    names = {path.name for path in write_outcome(outcome, tmp_path)}
    assert {"table1.png", "table1.pdf", "results.csv", "claims.json"} <= names
    spec = load_spec(tmp_path / "spec.toml")
    assert spec == outcome.spec
    assert build_run(spec.runs[0]).problem.counts.tolist() == [SAMPLES] * 4


def test_counting_follows_option_i():
    """Scaffold's option I computes one more gradient a round."""
    given = next(run for run in table1().spec.runs if run.label == "Scaffold").model_dump()
    given["algorithm"]["option"] = "I"
    assert count(build_run(RunSpec.model_validate(given)), PERIOD).gradients == pytest.approx((TAU + 1) / TAU)
