"""Relaxed tracking on networks, as far as it is arithmetic: equal budgets, runs that fit, verdicts."""

import numpy as np
import pytest

from reproductions.relaxed_training import CIFAR10, METHODS, MNIST, NODES, TRIAL_SEED, _claims
from stgt.simulator.instance import check_fit
from stgt.study.spec import build_topology

STUDIES = pytest.mark.parametrize("study", [MNIST, CIFAR10], ids=lambda study: study.name)


@STUDIES
def test_every_family_has_as_many_trials(study):
    assert len({len(trials) for trials in study.trials.values()}) == 1
    assert all(len(set(trials)) == len(trials) for trials in study.trials.values())
    for family, trials in study.trials.items():
        assert study.chosen[family] in trials


@STUDIES
def test_trials_are_made_with_data_of_their_own(study):
    trials, reported = study.runs("grid", None), study.runs("small", None)
    assert {run.seed for run in trials} == {run.data.seed for run in trials} == {TRIAL_SEED}
    assert TRIAL_SEED not in {run.seed for run in reported}
    assert all(run.seed == run.data.seed for run in reported)
    assert len(reported) == len(study.chosen) * study.scales["small"][2]
    assert {run.rounds for run in study.runs("small", 3)} == {3}


@pytest.mark.parametrize("name", METHODS)
def test_methods_fit_their_graphs(name):
    topology = METHODS[name][1]
    run = MNIST._run(name, 0.1, 2, 1, 0)
    made = run.build_algorithm()
    check_fit(made, build_topology(topology, NODES))
    assert made.tau == MNIST.tau
    assert run.label == f"{name} · lr 0.1 · seed 0"


def curves(accuracy, sent, seeds=2, rounds=4):
    """A run whose accuracy is the same at all measurements but the first."""
    values = np.array([[0.1] + [accuracy] * (rounds - 1)] * seeds)
    steps = np.array([np.arange(rounds) * 10.0] * seeds)
    return {
        "lr": np.full_like(values, 0.1),
        "steps": steps,
        "train_loss": 1 - values,
        "test_accuracy": values,
        "bytes_sent": steps * sent,
        "consensus": 0 * values,
    }


def verdicts(study, accuracies, sent):
    found = {
        method: curves(accuracies.get(family, 0.5), sent.get(family, 2.0))
        for family, (method, _) in study.chosen.items()
    }
    return found, {claim.id: claim.holds for claim in _claims(study, found)}


def test_claims_follow_the_numbers():
    good = {"relaxed ST-GT": 0.8, "LED": 0.795, "relaxed ST-GT, outer": 0.9, "LED, outer": 0.95, "DiLoCo": 0.7}
    sent = {"LED": 1.0, "LED, outer": 1.0}
    holds = verdicts(MNIST, good, sent)[1]
    assert holds == {**dict.fromkeys(["D1", "D2", "D3", "D4", "D5"], True), "D6": False}
    assert verdicts(MNIST, {**good, "LED, outer, one-peer": 0.895}, sent)[1]["D6"] is True
    assert verdicts(MNIST, {**good, "FedAvg": 0.797}, sent)[1]["D1"] is False
    assert verdicts(MNIST, {**good, "LED": 0.78}, sent)[1]["D2"] is False
    assert verdicts(MNIST, good, {**sent, "LED": 2.0})[1]["D2"] is False
    assert verdicts(MNIST, {**good, "LED, outer": 0.79}, sent)[1]["D3"] is False
    assert verdicts(MNIST, {**good, "DiLoCo": 0.92}, sent)[1]["D4"] is False
    assert verdicts(MNIST, {**good, "FedAvg": 0.96}, sent)[1]["D5"] is False


def test_a_run_that_diverges_counts_as_one_that_guesses():
    good = {"relaxed ST-GT": 0.8, "LED": 0.795, "relaxed ST-GT, outer": 0.9, "LED, outer": 0.95, "DiLoCo": 0.7}
    found, _ = verdicts(MNIST, good, {"LED": 1.0, "LED, outer": 1.0})
    lost = found["ST-GT"]
    for name in ("train_loss", "test_accuracy", "bytes_sent"):
        lost[name] = lost[name].copy()
        lost[name][0, 1:] = np.nan
    claims = {claim.id: claim for claim in _claims(MNIST, found)}
    assert claims["D1"].holds
    assert claims["D1"].figures["test_accuracy"]["ST-GT"] == pytest.approx([0.1, 0.5])
    lost = found[MNIST.chosen["LED"][0]]
    lost["test_accuracy"][1, 1:] = np.nan
    assert not {claim.id: claim for claim in _claims(MNIST, found)}["D1"].holds
