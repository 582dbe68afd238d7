"""The experiments that train networks, as far as they are arithmetic: their runs, verdicts and pictures."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stgt.experiments.cifar10 import CHOSEN, GRID, _claims, _run
from stgt.experiments.mnist import CENTRAL, METHODS
from stgt.experiments.mnist import _claims as mnist_claims
from stgt.experiments.outcome import Outcome, divergences, write_outcome
from stgt.experiments.training import comparison
from stgt.experiments.training.spec import TrainingSpec
from stgt.specs import make_algorithm, make_topology

STGT = Path(sys.executable).with_name("stgt")


def rows(method, losses, accuracies, seed=0, lr=0.1):
    return [
        {
            "method": method,
            "lr": lr,
            "seed": seed,
            "round": 5.0 * k,
            "steps": 125.0 * k,
            "train_loss": loss,
            "test_accuracy": accuracy,
            "bytes_sent": 1e6 * k,
            "consensus_error": 0.0,
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
    assert [claim.holds for claim in _claims(curves)] == [True, True, True]
    swapped = {**curves, "Scaffold": curves["FlexGT"], "FlexGT": curves["Scaffold"]}
    assert [claim.holds for claim in _claims(swapped)] == [True, True, False]


def test_a_run_that_left_the_finite_numbers_wins_nothing(tmp_path):
    given = rows("ST-GT", [2.3, np.nan, np.nan], [0.1, 0.1, 0.1])
    given += rows("Scaffold", [2.3, 2.0, 1.5], [0.1, 0.3, 0.5]) + rows("FlexGT", [2.3, 2.2, 2.1], [0.1, 0.2, 0.2])
    curves = comparison.by_method(given)
    claims = _claims(curves)
    assert [claim.holds for claim in claims] == [False, False, False]
    spec = TrainingSpec(runs=tuple(_run(method, rate, 8, 32, 2, 1) for method, rate in CHOSEN.items()))
    outcome = Outcome(
        spec, comparison.summary(curves), claims, [comparison.figure("c", curves, "t", "round", 25)], given
    )
    write_outcome(outcome, tmp_path)
    assert json.loads((tmp_path / "claims.json").read_text())[0]["figures"]["train_loss"]["ST-GT"] is None
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lost", ["Scaffold", "FlexGT"])
def test_nor_does_another_win_by_its_loss(lost):
    """A network of NaNs says class 0 to everything, so its accuracy is a number: it does not count."""
    given = rows("ST-GT", [2.3, 1.5, 1.0], [0.1, 0.5, 0.6])
    given += rows("Scaffold", [2.3, 2.0, 1.5], [0.1, 0.3, 0.5]) + rows("FlexGT", [2.3, 2.2, 2.1], [0.1, 0.2, 0.2])
    assert [claim.holds for claim in _claims(comparison.by_method(given))] == [True, True, True]
    late = [row | {"train_loss": np.nan} if row["method"] == lost and row["round"] > 0 else row for row in given]
    claims = _claims(comparison.by_method(late))
    assert [claim.holds for claim in claims] == [False, False, False]
    assert claims[1].figures["test_accuracy"][lost] is None
    assert claims[1].figures["test_accuracy"]["ST-GT"] == pytest.approx(0.4)
    spec = TrainingSpec(runs=tuple(_run(method, rate, 8, 32, 2, 1) for method, rate in CHOSEN.items()))
    assert divergences(Outcome(spec, [], claims, [], given)) == []
    (sentence,) = divergences(Outcome(spec, [], claims, [], late))
    assert sentence == f"{lost}, lr 0.1: 1 of 1 run left the finite numbers, from round 5 on."


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
    mean, half = comparison.last(curves["FedAvg"], "test_accuracy")
    assert mean == pytest.approx(0.95)
    assert half == pytest.approx(4.302652730 * 0.001 / 3**0.5)  # Student's t with two degrees of freedom, 95 %
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
    assert all(CHOSEN[method] in GRID[method] for method in CHOSEN)
    run = _run("Scaffold", 0.1, 8, 32, 2, 1)
    assert make_topology(run.topology.model_dump(), 8).sampled == 4
    assert make_algorithm(run.algorithm).tau == 25
    for algorithm, topology in METHODS.values():
        assert make_topology(topology, 8).n == 8
        assert algorithm["name"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cifar10"], "--data-dir was left out"),
        (["mnist", "--scale", "huge"], "--scale='huge': choose from 'small', 'grid'."),
        (["convergence", "--scale", "small"], "--scale means nothing to convergence: leave it out."),
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
