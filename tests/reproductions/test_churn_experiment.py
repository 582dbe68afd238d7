"""`churn`: who comes and goes is the same for all methods, and claims follow from the numbers."""

import csv
from dataclasses import dataclass

import numpy as np
import pytest

from reproductions import churn as experiment
from reproductions.churn import LOST, METHODS, OTHERS, REPAIRED, TRACKERS, Churned, churn
from reproductions.outcome import write_outcome
from stgt.study import load_spec

SMALL = {"rates": [0.4], "rounds": 20, "quiet": 10, "seeds": 2, "n": 5, "p": 2, "engine": "numpy"}


def test_a_small_one(tmp_path):
    ticks = []
    outcome = churn(progress=lambda done, total: ticks.append((done, total)), **SMALL)
    names = {path.name for path in write_outcome(outcome, tmp_path)}
    assert names == {"churn.png", "churn.pdf", "results.csv", "spec.toml", "claims.json"}
    assert load_spec(tmp_path / "spec.toml") == outcome.spec
    assert ticks[-1][0] == pytest.approx(ticks[-1][1])
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert len(rows) == 6 * 2 * 2, "a row for each method, repair, rate and seed"
    changed = {}
    for row in rows:
        changed.setdefault((row["rate"], row["seed"]), set()).add((row["changes"], row["members"]))
        assert float(row["error after"]) > 0
    assert [len(found) for found in changed.values()] == [1] * 4, "all methods have the same changes"
    assert [found.pop() for (rate, _), found in changed.items() if rate == "0.0"] == [("0", "5")] * 2
    assert [claim.id for claim in outcome.claims] == ["N1", "N2", "N3", "N4", "N5"]
    biased = {row["method"] for row in rows} - set(TRACKERS)
    assert biased == set(OTHERS)
    assert set(METHODS) == {*TRACKERS, *OTHERS}


@dataclass(frozen=True)
class Told(Churned):
    """A method with the errors it is told."""

    values: tuple[float, ...] = ()

    def errors(self, when):
        return np.array(self.values)


def told(repaired, lost, others):
    """By rate 0 and 0.5, one error for each of two seeds."""
    found = {(method, REPAIRED): repaired for method in TRACKERS} | {(method, LOST): lost for method in TRACKERS}
    found |= {(method, REPAIRED): others for method in OTHERS}
    return {
        key: {rate: Told([], 0, values) for rate, values in zip((0.0, 0.5), by, strict=True)}
        for key, by in found.items()
    }


@pytest.mark.parametrize(
    ("repaired", "lost", "others", "holds"),
    [
        # As large as without churn; three times as large; the others in between.
        ([(1.0, 1.1), (1.0, 1.1)], [(1.0, 1.1), (3.0, 3.1)], [(2.0, 2.1), (2.0, 2.1)], [1, 1, 1, 1, 0]),
        ([(1.0, 1.1), (2.3, 2.1)], [(1.0, 1.1), (2.0, 2.1)], [(9.0, 9.1), (9.0, 9.1)], [0, 0, 1, 1, 1]),
        # Below on average, but not in every seed: no lead beyond the interval.
        ([(1.0, 1.1), (1.0, 2.5)], [(1.0, 1.1), (3.0, 3.1)], [(2.0, 2.1), (2.0, 2.1)], [1, 1, 0, 0, 0]),
        # A run that diverged is not below any other.
        ([(1.0, 1.1), (1.0, np.inf)], [(1.0, 1.1), (3.0, 3.1)], [(2.0, 2.1), (2.0, 2.1)], [0, 1, 0, 0, 0]),
    ],
)
def test_claims_follow_from_the_numbers(repaired, lost, others, holds):
    claims = experiment._claims(told(repaired, lost, others))
    assert [claim.holds for claim in claims] == [bool(one) for one in holds]
    assert claims[0].figures["ST-GT, repaired"]["0"] == pytest.approx(1.05)


def test_over_which_rounds_errors_are_taken():
    """40 rounds, of which 20 with changes, measured at every fifth: the second halves are 10, 15 and 30, 35, 40."""
    problem = experiment.build_run(experiment._run("ST-GT", 40, 1, 5, 2)).problem
    method = experiment.build_run(experiment._run("ST-GT", 40, 1, 5, 2)).algorithm
    trace = experiment.simulate_churn(method, problem, experiment.GRAPHS["complete"], 40, every=5, engine="numpy")
    values = np.arange(9.0)[None] ** 2  # measured at 0, 5, …, 40
    trace.values["residual"] = values
    one = Churned([trace], 20)
    assert one.errors("during") == pytest.approx([(2**2 + 3**2) / 2])
    assert one.errors("after") == pytest.approx([(6**2 + 7**2 + 8**2) / 3])
