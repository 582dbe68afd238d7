"""Scaffold⁺ against Scaffold and FedAvg: what is compared with what, the verdicts, a small experiment to its end."""

import json

import numpy as np
import pytest

from reproductions import federated as experiment
from reproductions.federated import CALLED, CLIENTS, FEDAVG, GRID, PLUS, SCAFFOLD, SCALES, _judged, _run
from reproductions.images import NORMALISATION
from reproductions.outcome import divergences, write_outcome
from reproductions.training import federate
from stgt.torch.train import LabelledData

LOW, HIGH = 0.05, 0.1  # effective lrs


def rows(method, effective, accuracies, losses=(0.5, 0.5)):
    """Three measurements alike for each seed."""
    shared = {"method": method, "lr": effective / experiment.STRETCH[method], "effective_lr": effective}
    return [
        {
            **shared,
            "seed": seed,
            "round": k,
            "steps": 20 * k,
            "train_loss": loss,
            "test_accuracy": accuracy,
            "bytes_sent": 0.0,
            "consensus": 0.0,
        }
        for seed, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True))
        for k in range(3)
    ]


def claims(given):
    runs = [_run("mlp", PLUS, HIGH, 2, 1, 0)]
    return {(claim.id, claim.reading.split(":")[0]): claim for claim in _judged("mlp", runs, given).claims}


BEST, EQUAL = "each at its best lr", "equal lr·γ_c·n/s = {:g}"
OTHERS = rows(SCAFFOLD, LOW, (0.90, 0.92)) + rows(FEDAVG, HIGH, (0.80, 0.81))


def test_verdicts_need_a_lead_beyond_its_interval():
    """Leads of 0.15 and 0.05, then of 0.10 and 0.10: 0.10 ± 12.706 · 0.05, by Student's t of one degree of freedom,
    and 0.10 ± 0."""
    found = claims(rows(PLUS, LOW, (0.95, 0.86)) + OTHERS)
    assert not found["F1", BEST].holds
    assert found["F1", BEST].figures["lead"] == pytest.approx(0.1)
    half = 12.7062 * 0.05
    assert found["F1", BEST].figures["interval"] == pytest.approx([0.1 - half, 0.1 + half], rel=1e-5)
    found = claims(rows(PLUS, LOW, (0.90, 0.91)) + OTHERS)
    assert found["F1", BEST].holds
    assert found["F1", BEST].figures["interval"] == pytest.approx([0.1, 0.1])


def test_equal_effective_lrs_and_best_lrs_are_judged_apart():
    """Scaffold's best is LOW and Scaffold⁺'s HIGH, by their losses; it leads there, and not where both have LOW."""
    given = rows(SCAFFOLD, HIGH, (0.70, 0.70), (0.9, 0.9)) + OTHERS
    given += rows(PLUS, LOW, (0.88, 0.90), (0.6, 0.6)) + rows(PLUS, HIGH, (0.93, 0.95), (0.4, 0.4))
    found = claims(given)
    assert {key: claim.holds for key, claim in found.items()} == {
        ("F1", BEST): True,
        ("F2", EQUAL.format(LOW)): False,
        ("F2", EQUAL.format(HIGH)): True,
        ("F3", BEST): True,
    }
    assert found["F2", EQUAL.format(LOW)].figures["lead"] == pytest.approx(-0.02)
    assert found["F3", BEST].figures["lead"] == pytest.approx(0.03)
    assert found["F3", BEST].figures["lr"] == pytest.approx({PLUS: HIGH * CALLED / CLIENTS, SCAFFOLD: LOW})
    assert found["F3", BEST].figures["train_loss_lead"] == pytest.approx(-0.1)


def test_an_lr_at_which_one_seed_diverges_is_not_the_best_and_wins_nothing():
    given = rows(PLUS, LOW, (0.90, 0.92), (0.6, 0.6)) + rows(PLUS, HIGH, (0.99, 0.10), (0.1, np.nan))
    found = claims(given + OTHERS + rows(SCAFFOLD, HIGH, (0.5, 0.5), (2.0, 2.0)))
    assert found["F3", BEST].figures["lr"][PLUS] == pytest.approx(LOW * CALLED / CLIENTS)
    lost = found["F2", EQUAL.format(HIGH)]
    assert not lost.holds
    assert (lost.figures["lead"], lost.figures["interval"]) == (None, [None, None])
    assert lost.figures["diverged"] == {PLUS: 1, SCAFFOLD: 0}


@pytest.mark.parametrize("model", GRID)
def test_runs_hold_lr_times_gamma_c_times_n_over_s_fixed(model):
    assert model in {name for name, _ in SCALES.values()}
    assert len(set(GRID[model][PLUS]) & set(GRID[model][SCAFFOLD])) >= 2
    share = CALLED / CLIENTS
    for method in (PLUS, SCAFFOLD):
        for effective in GRID[model][method]:
            run = _run(model, method, effective, 2, 1, 5)
            rate, algorithm = run.optimizer.arguments["lr"], run.build_algorithm()
            assert rate * algorithm.control_rate(share) / share == pytest.approx(effective, rel=1e-12)
            assert run.data.seed == run.seed == 5


@pytest.fixture
def small(monkeypatch):
    """Twenty clients with two digits each; a digit is a bright row. Two lrs, of which the second diverges."""
    rng, labels = np.random.default_rng(0), np.arange(300) % 10
    pixels = rng.integers(0, 60, (300, 1, 10, 10), dtype=np.uint8)
    pixels[np.arange(300), 0, labels] = 255
    data = LabelledData(pixels[:200], labels[:200], pixels[200:], labels[200:], 10, *NORMALISATION["mnist"])
    monkeypatch.setattr(experiment, "load_images", lambda *arguments: data)
    rates = (0.1, 1e9)
    monkeypatch.setattr(experiment, "GRID", {"mlp": {PLUS: rates, SCAFFOLD: rates, FEDAVG: (0.1,)}})
    monkeypatch.setattr(experiment, "SCALES", {"small": ("mlp", 2)})
    monkeypatch.setattr(experiment, "TAU", 2)


@pytest.mark.thorough
def test_diverged_runs_are_results_and_a_broken_off_experiment_goes_on(small, tmp_path, monkeypatch):
    ticks, runs = [], tmp_path / "runs"
    outcome = experiment.federated(rounds=5, folder=runs, progress=lambda done, total: ticks.append((done, total)))
    assert ticks[-1] == (50, 50)
    assert divergences(outcome) == [
        f"{method}, lr {rate}: 2 of 2 runs diverged, from round 4 on."
        for method, rate in ((PLUS, "2e+08"), (SCAFFOLD, "1e+09"))
    ]
    found = {(row["method"], row["effective_lr"]): row for row in outcome.rows}
    assert {key: (row["diverged"], row["best"]) for key, row in found.items()} == {
        (PLUS, 0.1): (0, True),
        (PLUS, 1e9): (2, False),
        (SCAFFOLD, 0.1): (0, True),
        (SCAFFOLD, 1e9): (2, False),
        (FEDAVG, 0.1): (0, True),
    }
    assert [claim.id for claim in outcome.claims] == ["F1", "F2", "F2", "F3"]
    (picture,) = outcome.figures
    assert [panel.xlabel for panel in picture.panels] == ["effective lr, lr·γ_c·n/s"] * 2 + ["round of 2 steps"] * 2
    assert [list(line.x) for line in picture.panels[0].lines] == [[-0.06], [0.0], [0.06]]  # beside each other at 0.1
    assert picture.panels[0].ticks == ("0.1", "1e+09")
    assert len(picture.notes) == 2
    files = write_outcome(outcome, tmp_path / "out")
    assert json.loads(files[-1].read_text())[2]["figures"]["lead"] is None

    (runs / "3.csv").unlink()  # Scaffold at 1e9, seed 0
    made, train = [], federate.federate
    monkeypatch.setattr(federate, "federate", lambda run, *rest: made.append(run.label) or train(run, *rest))
    again = experiment.federated(rounds=5, folder=runs)
    assert made == ["Scaffold · lr 1e+09 · seed 0"]
    assert json.dumps(again.curves) == json.dumps(outcome.curves)
    with pytest.raises(ValueError, match="has the runs of another spec"):
        experiment.federated(rounds=4, folder=runs)
