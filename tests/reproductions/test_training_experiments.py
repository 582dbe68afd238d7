"""The experiments that train networks, as far as they are arithmetic: their runs, verdicts and pictures."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reproductions.cifar10 import CHOSEN, GRID, READINGS, SHARED, _claims, _judged, _rates, _run
from reproductions.mnist import CENTRAL, METHODS
from reproductions.mnist import _claims as mnist_claims
from reproductions.outcome import Outcome, divergences, write_outcome
from reproductions.training import comparison
from stgt.study.spec import build_topology
from stgt.torch.train import TrainingSpec

STGT = Path(sys.executable).with_name("stgt")


BEST = "best stepsizes"


def rows(method, losses, accuracies, seed=0, lr=0.1, bytes_a_row=1e6):
    return [
        {
            "method": method,
            "lr": lr,
            "seed": seed,
            "round": 5.0 * k,
            "steps": 125.0 * k,
            "train_loss": loss,
            "test_accuracy": accuracy,
            "bytes_sent": bytes_a_row * k,
            "consensus": 0.0,
        }
        for k, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]


def test_claims_follow_the_last_three_measurements():
    steady = {"Scaffold": (1.5, 0.5), "FlexGT": (2.0, 0.3)}
    given = rows("ST-GT", [2.3, 1.2, 1.1, 1.0], [0.1, 0.5, 0.6, 0.7])
    for method, (loss, accuracy) in steady.items():
        given += rows(method, [loss] * 4, [accuracy] * 4)
    curves = comparison.by_method(given)
    assert comparison.last(curves["ST-GT"], "train_loss")[0] == pytest.approx(1.1)
    assert [claim.holds for claim in _claims(curves, BEST)] == [True, True, True]
    swapped = {**curves, "Scaffold": curves["FlexGT"], "FlexGT": curves["Scaffold"]}
    assert [claim.holds for claim in _claims(swapped, BEST)] == [True, True, False]


def test_a_run_that_left_the_finite_numbers_wins_nothing(tmp_path):
    given = rows("ST-GT", [2.3, np.nan, np.nan], [0.1, 0.1, 0.1], bytes_a_row=np.nan)
    given += rows("Scaffold", [2.3, 2.0, 1.5], [0.1, 0.3, 0.5]) + rows("FlexGT", [2.3, 2.2, 2.1], [0.1, 0.2, 0.2])
    curves = comparison.by_method(given)
    claims = _claims(curves, BEST)
    assert [claim.holds for claim in claims] == [False, False, False]
    spec = TrainingSpec(runs=tuple(_run(method, rate, 8, 32, 2, 1, 0) for method, rate in CHOSEN.items()))
    outcome = Outcome(
        spec, comparison.summary(curves), claims, [comparison.figure("c", curves, "t", "round", 25)], given
    )
    write_outcome(outcome, tmp_path)
    numbers = json.loads((tmp_path / "claims.json").read_text())[0]["figures"]
    assert numbers["train_loss"]["ST-GT"] == [None]
    assert numbers["megabytes"] is None
    assert numbers["train_loss_at_these"] == {method: [None] for method in CHOSEN}
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lost", ["Scaffold", "FlexGT"])
def test_nor_does_another_win_by_its_loss(lost):
    """A network of NaNs says class 0 to everything, so its accuracy is a number: it does not count."""
    given = rows("ST-GT", [2.3, 1.5, 1.0], [0.1, 0.5, 0.6])
    given += rows("Scaffold", [2.3, 2.0, 1.5], [0.1, 0.3, 0.5]) + rows("FlexGT", [2.3, 2.2, 2.1], [0.1, 0.2, 0.2])
    assert [claim.holds for claim in _claims(comparison.by_method(given), BEST)] == [True, True, True]
    late = [row | {"train_loss": np.nan} if row["method"] == lost and row["round"] > 0 else row for row in given]
    claims = _claims(comparison.by_method(late), BEST)
    assert [claim.holds for claim in claims] == [False, False, False]
    assert claims[1].figures["test_accuracy"][lost] == [None]
    assert claims[1].figures["test_accuracy"]["ST-GT"] == pytest.approx([0.4])
    spec = TrainingSpec(runs=tuple(_run(method, rate, 8, 32, 2, 1, 0) for method, rate in CHOSEN.items()))
    assert divergences(Outcome(spec, [], claims, [], given)) == []
    (sentence,) = divergences(Outcome(spec, [], claims, [], late))
    assert sentence == f"{lost}, lr 0.1: 1 of 1 run diverged, from round 5 on."


def test_a_claim_on_cifar10_holds_in_every_seed_or_not_at_all():
    given = []
    for method, loss in {"ST-GT": 1.0, "Scaffold": 1.5, "FlexGT": 2.0}.items():
        for seed in range(2):
            given += rows(method, [loss] * 3, [1 - loss / 4] * 3, seed)
    assert [claim.holds for claim in _claims(comparison.by_method(given), BEST)] == [True, True, True]
    worse = [
        row | {"train_loss": 1.6} if (row["method"], row["seed"]) == ("ST-GT", 1) else row for row in given
    ]  # the mean, 1.3, is still the lowest
    claims = _claims(comparison.by_method(worse), BEST)
    assert [claim.holds for claim in claims] == [False, True, False]
    assert claims[0].figures["train_loss"]["ST-GT"] == pytest.approx([1.0, 1.6])


def test_methods_are_compared_where_each_has_sent_the_same():
    """Scaffold has sent 2 MB at its end; ST-GT then is halfway between 0 and 4 MB, FlexGT a quarter of the way to 8."""
    given = rows("ST-GT", [2.4, 1.4, 1.0], [0.1, 0.3, 0.5], bytes_a_row=4e6)
    given += rows("Scaffold", [2.4, 2.0, 1.5], [0.1, 0.2, 0.4], bytes_a_row=1e6)
    given += rows("FlexGT", [2.4, 2.0, 2.2], [0.1, 0.3, 0.2], bytes_a_row=8e6)
    curves = comparison.by_method(given)
    loss, accuracy, _ = (claim.figures for claim in _claims(curves, BEST))
    assert loss["megabytes"] == accuracy["megabytes"] == pytest.approx(2)
    at_these = {"ST-GT": [1.9], "Scaffold": [1.5], "FlexGT": [2.3]}
    assert loss["train_loss_at_these"] == {method: pytest.approx(value) for method, value in at_these.items()}
    at_these = {"ST-GT": [0.2], "Scaffold": [0.4], "FlexGT": [0.15]}
    assert accuracy["test_accuracy_at_these"] == {method: pytest.approx(value) for method, value in at_these.items()}


def test_seeds_that_send_unlike_amounts_are_drawn_over_their_mean():
    """A server calls itself in some rounds, and sends less in them: 1 and 3 MB a measurement are 2 in the mean."""
    given = rows("Scaffold", [2.4, 2.0, 1.5], [0.1, 0.2, 0.4], 0, bytes_a_row=1e6)
    given += rows("Scaffold", [2.4, 1.8, 1.3], [0.1, 0.3, 0.5], 1, bytes_a_row=3e6)
    curves = comparison.by_method(given)
    rounds, _, sent, _ = comparison.figure("name", curves, "title", "round", 25).panels
    assert [rounds.lines[0].x, sent.lines[0].x] == [pytest.approx([0, 5, 10]), pytest.approx([0, 2, 4])]
    assert sent.lines[0].y == pytest.approx([2.4, 1.9, 1.4])
    assert comparison.equal_bytes(curves) == 2e6
    assert comparison.at_bytes(curves["Scaffold"], "train_loss", 2e6) == pytest.approx([1.5, 2.0])


def test_each_reading_is_judged_by_its_own_stepsizes():
    """At their best stepsizes the methods come in the paper's order; at the shared one Scaffold leads."""
    given, runs = [], [_run(*pair, 8, 32, 10, 5, seed) for seed in range(2) for pair in _rates("small")]
    losses = {("ST-GT", CHOSEN["ST-GT"]): 1.0, ("Scaffold", CHOSEN["Scaffold"]): 1.5, ("FlexGT", SHARED): 2.1}
    losses |= {("ST-GT", SHARED): 1.9, ("Scaffold", SHARED): 1.8}
    for run in runs:
        named = comparison.names_of(run)
        loss = losses[named["method"], named["lr"]]
        given += rows(named["method"], [2.4, 2.4, loss], [0.1, 0.1, 1 - loss / 4], named["seed"], named["lr"])
    outcome = _judged(runs, given, "title", grid=False)
    assert [claim.id for claim in outcome.claims] == ["K1", "K2", "K3"] * 2
    assert [claim.holds for claim in outcome.claims] == [True, True, True, False, False, False]
    found = [(row["reading"], row["method"], row["lr"], row["seeds"]) for row in outcome.rows]
    assert found == [(reading, *pair, 2) for reading, rates in READINGS.items() for pair in rates.items()]
    (picture,) = outcome.figures
    assert picture.columns == 2
    assert [panel.title for panel in picture.panels] == [*READINGS, *[""] * 6]
    assert [panel.xlabel for panel in picture.panels] == ["round of 25 steps"] * 4 + ["MB sent by a node"] * 4
    assert [panel.ylabel for panel in picture.panels] == (["training loss"] * 2 + ["test accuracy"] * 2) * 2
    ends = [[line.y[-1] for line in panel.lines] for panel in picture.panels[:2]]
    assert ends == [pytest.approx([1.0, 1.5, 2.1]), pytest.approx([1.9, 1.8, 2.1])]
    assert picture.panels[0].lines[0].x == pytest.approx([0, 5, 10])
    assert picture.panels[4].lines[0].x == pytest.approx([0, 1, 2])


def test_st_gt_is_not_near_a_centralised_training_that_diverged():
    given = [row for method in METHODS for row in rows(method, [0.1] * 3, [0.9] * 3)]
    assert mnist_claims(comparison.by_method(given), 240)[0].holds
    lost = [row | {"train_loss": np.nan, "test_accuracy": 0.1} if row["method"] == CENTRAL else row for row in given]
    assert not mnist_claims(comparison.by_method(lost), 240)[0].holds


def test_verdicts_on_mnist_use_intervals_over_seeds():
    given = []
    accuracies = {"ST-GT": 0.970, "FedAvg": 0.95, "D-PSGD": 0.9, "centralised": 0.979}
    for method, accuracy in accuracies.items():
        for seed, shift in enumerate((-0.001, 0.0, 0.001)):
            given += rows(method, [0.1] * 3, [accuracy + shift] * 3, seed)
    curves = comparison.by_method(given)
    mean, low, high = comparison.last(curves["FedAvg"], "test_accuracy")
    assert mean == pytest.approx(0.95)
    half = 4.302652730 * 0.001 / 3**0.5  # Student's t with two degrees of freedom, 95 %
    assert (low, high) == pytest.approx((mean - half, mean + half))
    assert [claim.holds for claim in mnist_claims(curves, 240)] == [True, True]
    near = comparison.by_method(
        [row | ({"test_accuracy": 0.968} if row["method"] == "FedAvg" else {}) for row in given]
    )
    assert [claim.holds for claim in mnist_claims(near, 240)] == [True, False]


def test_the_grid_names_the_lowest_loss_first():
    given = rows("A", [2.0, 1.0], [0.1, 0.5], lr=0.1) + rows("A", [2.0, np.nan], [0.1, 0.1], lr=0.2)
    given += rows("A", [2.0, 0.5], [0.1, 0.4], lr=0.05)
    assert [row["lr"] for row in comparison.by_stepsize(given)] == [0.05, 0.1, 0.2]


def test_what_the_experiments_run_exists():
    assert set(GRID) == set(CHOSEN)
    assert all({CHOSEN[method], SHARED} <= set(GRID[method]) for method in CHOSEN)
    assert len(_rates("small")) == 5  # FlexGT's best stepsize is the shared one, and trained once
    assert len(_rates("grid")) == sum(map(len, GRID.values()))
    run = _run("Scaffold", 0.1, 8, 32, 2, 1, 0)
    assert run.build_topology(8).sampled == 4
    assert run.build_algorithm().tau == 25
    for algorithm, topology in METHODS.values():
        assert build_topology(topology, 8).n == 8
        assert algorithm["name"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cifar10"], "--data-dir was left out"),
        (["mnist", "--scale", "huge"], "--scale='huge': choose from 'small', 'grid'."),
        (["convergence", "--scale", "small"], "--scale is not an option of convergence: leave it out."),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path, arguments, words):
    result = subprocess.run(
        [STGT, "reproduce", *arguments, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
