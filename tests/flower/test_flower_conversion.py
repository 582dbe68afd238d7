"""docs/federated.md takes a plain FedAvg app to Scaffold: its diffs, applied to such an app, counted and run."""

import random
import re
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

import pages
from stgt.flower import Strategy
from stgt.flower.in_process import InProcessGrid

GUIDE = pages.ROOT / "docs" / "federated.md"
PLAIN = Path(__file__).with_name("fedavg_app")
CLIENTS, ROUNDS = 4, 12
DIFFS = {block.title: block.text for block in pages.blocks(GUIDE) if block.language == "diff"}


def lines(diff, *marks):
    return [line[1:] for line in diff.splitlines() if line[:1] in marks or (not line and " " in marks)]


def test_the_guide_changes_both_files_of_the_app():
    assert set(DIFFS) == {"server_app.py", "client_app.py"}
    for name, diff in DIFFS.items():
        assert lines(diff, " ", "-") == (PLAIN / name).read_text().splitlines()


def test_the_guide_counts_its_lines():
    """Blank lines do not count."""
    counted = [sum(bool(line.strip()) for diff in DIFFS.values() for line in lines(diff, mark)) for mark in "+-"]
    (written,) = re.findall(r"(\d+) lines are new and (\d+) are removed", GUIDE.read_text())
    assert [int(number) for number in written] == counted


def forget():
    """Other apps have modules of these names."""
    for name in ("task", "client_app", "server_app"):
        sys.modules.pop(name, None)


def run(folder, tmp_path, monkeypatch, rounds, fraction):
    """The app of a folder, run in this process: the weights that it saves, and Flower's result."""
    random.seed(0)  # by which Flower samples
    results = []

    def recorded(start):
        def wrapper(*args, **options):
            results.append(start(*args, **options))
            return results[-1]

        return wrapper

    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for strategy in (FlowerFedAvg, Strategy):
            patch.setattr(strategy, "start", recorded(strategy.start))
        forget()
        import client_app
        import server_app

        config = {
            "num-server-rounds": rounds,
            "fraction-train": fraction,
            "learning-rate": 0.01,
            "local-epochs": 1,
            "batch-size": 16,
            "out": str(tmp_path / "weights.pt"),
        }
        grid = InProcessGrid(client_app.app, CLIENTS, config)
        server_app.app(grid, Context(0, 0, {}, RecordDict(), config))
        forget()
    return torch.load(config["out"], weights_only=True), results[-1]


def converted(tmp_path, method="Scaffold"):
    """The app with the guide's diffs applied; with FedAvg in the place of Scaffold, if asked for."""
    folder = tmp_path / method
    folder.mkdir()
    (folder / "task.py").write_text((PLAIN / "task.py").read_text())
    for name, diff in DIFFS.items():
        text = "\n".join(lines(diff, " ", "+")) + "\n"
        (folder / name).write_text(text.replace("stgt.Scaffold(", f"stgt.{method}("))
    return folder


def test_fed_avg_before_is_fed_avg_after(tmp_path, monkeypatch):
    """Weights and metrics, to rounding in single precision: all clients have as many examples, and all are called."""
    before, flower = run(PLAIN, tmp_path, monkeypatch, rounds=4, fraction=1.0)
    after, ours = run(converted(tmp_path, "FedAvg"), tmp_path, monkeypatch, rounds=4, fraction=1.0)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)
    assert list(ours.evaluate_metrics_clientapp) == list(flower.evaluate_metrics_clientapp) == [1, 2, 3, 4]
    for r, expected in flower.evaluate_metrics_clientapp.items():
        assert dict(ours.evaluate_metrics_clientapp[r]) == pytest.approx(dict(expected), abs=1e-4)
        assert set(expected) == {"eval_loss", "eval_acc"}
        loss = flower.train_metrics_clientapp[r]["train_loss"]
        assert ours.train_metrics_clientapp[r]["loss"] == pytest.approx(loss, abs=1e-4)
    assert not any(one.absent or one.unevaluated for one in ours.history)


def test_the_app_is_better_after(tmp_path, monkeypatch):
    """Each of four clients holds two or three digits, and two are called a round; all evaluate, before and after."""
    _, flower = run(PLAIN, tmp_path, monkeypatch, rounds=ROUNDS, fraction=0.5)
    _, ours = run(converted(tmp_path), tmp_path, monkeypatch, rounds=ROUNDS, fraction=0.5)
    found = [result.evaluate_metrics_clientapp[ROUNDS]["eval_acc"] for result in (ours, flower)]
    assert found[0] > found[1] > 0.1
